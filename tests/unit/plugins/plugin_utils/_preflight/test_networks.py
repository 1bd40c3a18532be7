"""Attachments, address blocks and objects, as the role networks renders them."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config as device_plugin_config
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import networks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.networks import node_ranges, plan, rail_subnets

CLUSTER = {
    "pod_cidrs": ["10.42.0.0/16"],
    "service_cidrs": ["10.43.0.0/16"],
    "shared_resources": ["rdma/rail0", "rdma/rail1"],
    "device_resources": [],
    "pods_per_node": 16,
}


@pytest.fixture(autouse=True)
def resource_names(monkeypatch):
    """Short names, whatever the device plugin calls its resources."""
    monkeypatch.setattr(device_plugin_config, "NAME", "rail{index}")


def node(number=0, netdevs=("eth2", "eth3"), kind="ether", **changes):
    layer = "InfiniBand" if kind == "infiniband" else "Ethernet"
    return {
        "host": f"node{number + 1}",
        "number": number,
        "rails": [
            {"index": index, "netdev": name, "link_layer": layer, "pci": f"0000:{index + 1}8:00.0"}
            for index, name in enumerate(netdevs)
        ],
        "netdevs": {
            name: {"mtu": 9000, "type": kind, "addresses": [f"198.18.{index}.{number + 1}/24"], "default_route": False}
            for index, name in enumerate(netdevs)
        },
        "routes": [{"destination": f"198.18.{index}.0/24", "netdev": name} for index, name in enumerate(netdevs)],
        **changes,
    }


@pytest.fixture
def wanted(variables):
    """wanted(**changes): the networks_* variables with changes."""

    def change(**changes):
        unknown = set(changes) - set(variables)
        assert not unknown
        return {**variables, **changes}

    return change


def configs(made, name):
    """{host or "": configuration} of one network."""
    network = next(item for item in made["networks"] if item["name"] == name)
    return {host: json.loads(text) for host, text in network["configs"].items()}


def addresses(config):
    """Every address that a host-local configuration hands out."""
    return {number for _network, first, last in nad_lint.ranges_of(config) for number in range(first, last + 1)}


def test_one_attachment_a_rail_with_subnets_of_its_own(wanted):
    made = plan(wanted(networks_rails=True), [node()])
    assert made["findings"] == []
    nads = [item for item in made["objects"] if item["kind"] == "NetworkAttachmentDefinition"]
    assert [item["metadata"]["name"] for item in nads] == ["rail0", "rail1"]
    assert [item["metadata"]["annotations"] for item in nads] == [
        {networks.RESOURCE_ANNOTATION: f"rdma/rail{index}"} for index in (0, 1)
    ]
    first = json.loads(nads[0]["spec"]["config"])
    assert (first["cniVersion"], first["name"], first["type"], first["master"]) == ("0.3.1", "rail0", "macvlan", "eth2")
    assert first["ipam"]["ranges"][0][0]["subnet"] == "10.56.0.0/24"
    assert json.loads(nads[1]["spec"]["config"])["ipam"]["ranges"][0][0]["subnet"] == "10.56.1.0/24"
    assert nad_lint.lint(made["networks"], [node()], CLUSTER) == []


@pytest.mark.parametrize("count", [2, 14])
def test_no_two_nodes_hand_out_the_same_address(wanted, count):
    nodes = [node(number) for number in range(count)]
    made = plan(wanted(networks_rails=True), nodes)
    assert made["findings"] == []
    assert {item["metadata"]["name"]: item["spec"] for item in made["objects"]} == {"rail0": {}, "rail1": {}}
    blocks = [addresses(config) for config in configs(made, "rail0").values()]
    assert len(blocks) == count
    assert all(len(block) == 16 for block in blocks)
    assert len(set().union(*blocks)) == 16 * count
    assert {host: sorted(files) for host, files in made["files"].items()} == {
        f"node{number + 1}": ["rail0", "rail1"] for number in range(count)
    }
    assert nad_lint.lint(made["networks"], nodes, CLUSTER) == []


def test_a_limited_run_and_a_node_more_leave_the_blocks_where_they_are(wanted):
    nodes = [node(number) for number in range(3)]
    variables = wanted(networks_rails=True)
    everywhere = configs(plan(variables, nodes), "rail0")
    hosts = [item["host"] for item in nodes]
    part = plan(variables, nodes[1:2], hosts)
    limited = configs(part, "rail0")
    assert part["complete"] is False
    assert plan(variables, nodes, hosts)["complete"] is True
    assert limited == {"node2": everywhere["node2"]}
    assert configs(plan(variables, nodes[:2]), "rail0")["node2"] == everywhere["node2"]
    alone = configs(plan(variables, nodes[:1]), "rail0")[""]
    assert addresses(alone) == addresses(everywhere["node1"])


def test_a_subnet_too_small_for_the_blocks_is_refused_with_the_numbers(wanted):
    made = plan(wanted(networks_rails=True, networks_pods_per_node=100), [node(number) for number in range(3)])
    assert [(item.id, item.object) for item in made["findings"]] == [
        ("networks:blocks", "attachment rail0"),
        ("networks:blocks", "attachment rail1"),
    ]


@pytest.mark.parametrize(
    ("ipam", "given", "found"),
    [
        ("nv-ipam", {"exclude": ["198.51.100.0/25", "198.51.100.128/26"]}, ["networks:blocks"]),
        ("nv-ipam", {"per_node_block_size": 200}, ["networks:blocks"]),
        ("nv-ipam", {"exclude": ["198.51.100.128/25"]}, []),
        ("nv-ipam", {"exclude": ["198.51.101.0/30"]}, ["networks:outside"]),
        ("host-local", {"exclude": ["198.51.100.0/25", "198.51.100.128/26"]}, ["networks:blocks"]),
        ("whereabouts", {"exclude": ["198.51.100.0/25", "198.51.100.128/25"]}, ["networks:blocks"]),
        ("whereabouts", {"gateway": "198.51.101.1"}, ["networks:outside"]),
        ("whereabouts", {"exclude": ["198.51.100.0/25", "198.51.100.128/26"]}, []),
    ],
)
def test_what_an_ipam_cannot_hand_out_is_refused(wanted, ipam, given, found):
    item = {"name": "a", "type": "macvlan", "master": "eth2", "ipam": ipam, "subnet": "198.51.100.0/24", **given}
    variables = wanted(networks_components=["nv-ipam", "whereabouts"], networks_attachments=[item])
    assert [one.id for one in plan(variables, [node(0), node(1)])["findings"]] == found


@pytest.mark.parametrize(
    ("place", "resources", "told"),
    [
        ({"rail": 0}, "rails", "rdma/rail0"),
        ({"pci": "0000:28:00.0"}, "rails", "rdma/rail1"),
        ({"master": "eth2"}, [{"resourceName": "a", "selectors": {"ifNames": ["eth2"]}}], "rdma/a"),
        ({"master": "eth2"}, [{"resourceName": "a", "extraSelectors": {"pciAddresses": ["0000:18:00.0"]}}], None),
    ],
)
def test_host_device_takes_away_what_a_resource_selects_by(wanted, place, resources, told):
    item = {"name": "a", "type": "host-device", "ipam": "none", **place}
    made = plan(wanted(networks_attachments=[item]), [node(0)], resources=resources)
    assert made["findings"] == []
    assert [told in note for note in made["notes"]] == ([True] if told else [])


@pytest.mark.parametrize(
    ("item", "size", "index", "ranges"),
    [
        ({"subnet": "192.0.2.0/24"}, 10, 0, [("192.0.2.1", "192.0.2.10")]),
        ({"subnet": "192.0.2.0/24", "ipam": "host-local"}, 10, 0, [("192.0.2.2", "192.0.2.11")]),
        (
            {"subnet": "192.0.2.0/24", "ipam": "host-local", "gateway": "192.0.2.254"},
            10,
            0,
            [("192.0.2.1", "192.0.2.10")],
        ),
        (
            {"subnet": "192.0.2.0/24", "exclude": ["192.0.2.4/31", "192.0.2.9"]},
            10,
            0,
            [("192.0.2.1", "192.0.2.3"), ("192.0.2.6", "192.0.2.8"), ("192.0.2.10", "192.0.2.10")],
        ),
        ({"subnet": "192.0.2.0/24", "range_start": "192.0.2.100"}, 10, 1, [("192.0.2.110", "192.0.2.119")]),
        ({"subnet": "192.0.2.0/28", "range_end": "192.0.2.9"}, 8, 1, [("192.0.2.9", "192.0.2.9")]),
        ({"subnet": "192.0.2.0/24", "exclude": ["192.0.2.0/28"]}, 10, 0, []),
        ({"subnet": "fd00:5::/64"}, 4, 1, [("fd00:5::4", "fd00:5::7")]),
    ],
)
def test_blocks_leave_out_what_must_not_be_handed_out(item, size, index, ranges):
    assert node_ranges(item, size, index) == ranges


def test_different_names_of_a_rail_become_files_of_the_nodes(wanted):
    nodes = [node(0), node(1, ("ens1f0", "ens1f1"))]
    made = plan(wanted(networks_rails=True, networks_components=["nv-ipam"]), nodes)
    assert made["findings"] == []
    assert {host: config["master"] for host, config in configs(made, "rail0").items()} == {
        "node1": "eth2",
        "node2": "ens1f0",
    }
    pool = next(item for item in made["objects"] if item["kind"] == "IPPool")
    assert pool["metadata"] == {"name": "rail0", "namespace": "kube-system"}
    assert pool["spec"] == {"subnet": "10.56.0.0/24", "perNodeBlockSize": 16}


@pytest.mark.parametrize(
    ("item", "components", "config"),
    [
        (
            {"type": "macvlan", "master": "eth2", "mode": "private", "mtu": 4200, "ipam": "none"},
            [],
            {"type": "macvlan", "master": "eth2", "mode": "private", "mtu": 4200, "ipam": {}},
        ),
        (
            {"type": "host-device", "pci": "0000:18:00.0", "ipam": "static", "addresses": ["10.9.0.1/24"]},
            [],
            {
                "type": "host-device",
                "pciBusID": "0000:18:00.0",
                "ipam": {"type": "static", "addresses": [{"address": "10.9.0.1/24"}]},
            },
        ),
        (
            {"type": "host-device", "master": "eth2", "ipam": "static"},
            [],
            {"type": "host-device", "device": "eth2", "capabilities": {"ips": True}, "ipam": {"type": "static"}},
        ),
        (
            {"type": "ipoib", "master": "ib0", "ipam": "nv-ipam", "pool": "ipoib-pool-a"},
            ["ipoib-cni", "nv-ipam"],
            {
                "type": "ipoib",
                "master": "ib0",
                "ipam": {"type": "nv-ipam", "poolName": "ipoib-pool-a", "poolType": "ippool"},
            },
        ),
        (
            {
                "type": "sriov",
                "vlan": 100,
                "ipam": "whereabouts",
                "subnet": "192.168.100.0/24",
                "exclude": ["192.168.100.0/32", "192.168.100.255"],
                "resource_name": "openshift.io/mellanoxnics",
            },
            ["sriov-cni", "whereabouts"],
            {
                "type": "sriov",
                "vlan": 100,
                "ipam": {
                    "type": "whereabouts",
                    "range": "192.168.100.0/24",
                    "exclude": ["192.168.100.0/32", "192.168.100.255/32"],
                },
            },
        ),
        (
            {"type": "ib-sriov", "link_state": "auto", "ipam": "none", "resource_name": "openshift.io/ib"},
            ["ib-sriov-cni"],
            {"type": "ib-sriov", "link_state": "auto", "ipam": {}},
        ),
    ],
)
def test_each_type_and_ipam_renders_what_its_plugin_reads(wanted, item, components, config):
    variables = wanted(networks_attachments=[{"name": "data", **item}], networks_components=components)
    made = plan(variables, [node()])
    assert made["findings"] == []
    assert configs(made, "data") == {"": {"cniVersion": "0.3.1", "name": "data", **config}}


def test_a_pool_carries_block_gateway_and_exclusions(wanted):
    item = {
        "name": "data",
        "type": "macvlan",
        "master": "eth2",
        "ipam": "nv-ipam",
        "subnet": "198.18.0.0/24",
        "gateway": "198.18.0.254",
        "exclude": ["198.18.0.64/26"],
        "per_node_block_size": 50,
    }
    made = plan(wanted(networks_attachments=[item], networks_components=["nv-ipam"]), [node(0)])
    spec = next(one for one in made["objects"] if one["kind"] == "IPPool")["spec"]
    assert spec == {
        "subnet": "198.18.0.0/24",
        "perNodeBlockSize": 50,
        "gateway": "198.18.0.254",
        "exclusions": [
            {"startIP": "198.18.0.1", "endIP": "198.18.0.1"},
            {"startIP": "198.18.0.64", "endIP": "198.18.0.127"},
        ],
    }


def test_infiniband_rails_get_ipoib_or_nothing_with_the_reason(wanted):
    nodes = [node(0, ("ib0",), "infiniband")]
    without = plan(wanted(networks_rails=True), nodes)
    assert (without["objects"], without["findings"]) == ([], [])
    made = plan(wanted(networks_rails=True, networks_components=["ipoib-cni"]), nodes)
    assert configs(made, "rail0")[""]["type"] == "ipoib"


@pytest.mark.parametrize(
    ("item", "identity"),
    [
        ({"type": "macvlan", "master": "eth2", "vlan": 7}, "networks:option:vlan"),
        ({"type": "ipoib", "master": "ib0", "mtu": 4092}, "networks:option:mtu"),
        ({"type": "host-device", "master": "eth2", "mode": "bridge"}, "networks:option:mode"),
        ({"type": "macvlan"}, "networks:master"),
        ({"type": "macvlan", "master": "eth2", "rail": 0}, "networks:master"),
        ({"type": "host-device"}, "networks:master"),
        ({"type": "sriov"}, "networks:resource"),
        ({"type": "macvlan", "master": "eth2", "ipam": "host-local"}, "networks:subnet"),
        ({"type": "macvlan", "master": "eth2", "ipam": "nv-ipam"}, "networks:subnet"),
        ({"type": "macvlan", "master": "eth2", "ipam": "host-local", "subnet": "10.0.0"}, "networks:address"),
        ({"type": "macvlan", "master": "eth2", "ipam": "static", "subnet": "10.9.0.0/24"}, "networks:option:subnet"),
        ({"type": "macvlan", "master": "eth2", "name": "Data_1"}, "networks:name"),
        ({"type": "macvlan", "master": "eth2", "ipam": "whereabouts"}, "networks:component:whereabouts"),
        ({"type": "ipoib", "master": "ib0"}, "networks:component:ipoib-cni"),
    ],
)
def test_what_cannot_work_is_refused_by_name(wanted, item, identity):
    made = plan(wanted(networks_attachments=[{"name": "data", "ipam": "none", **item}]), [node()])
    assert identity in [one.id for one in made["findings"]]
    assert made["objects"] == []


def test_two_attachments_of_one_name_are_refused_and_one_is_in_each_namespace(wanted):
    item = {"name": "data", "type": "macvlan", "master": "eth2", "ipam": "none"}
    made = plan(wanted(networks_attachments=[item, {**item, "namespaces": ["train"]}]), [node()])
    assert [one.id for one in made["findings"]] == ["networks:name"]
    made = plan(wanted(networks_attachments=[{**item, "namespaces": ["default", "train"]}]), [node()])
    assert [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in made["objects"]] == [
        ("Namespace", None, "train"),
        ("NetworkAttachmentDefinition", "default", "data"),
        ("NetworkAttachmentDefinition", "train", "data"),
    ]


@pytest.mark.parametrize(
    ("supernet", "prefix", "indices", "found", "findings"),
    [
        ("10.56.0.0/16", 24, [0, 7], {0: "10.56.0.0/24", 7: "10.56.7.0/24"}, 0),
        ("10.56.0.0/16", 20, [2], {2: "10.56.32.0/20"}, 0),
        ("fd00:56::/48", 64, [1], {1: "fd00:56:0:1::/64"}, 0),
        ("10.56.0.0/30", 31, [0, 1, 2], {0: "10.56.0.0/31", 1: "10.56.0.2/31"}, 1),
        ("10.56.0.0/24", 16, [0], {}, 1),
        ("ten", 24, [0], {}, 1),
    ],
)
def test_subnets_of_rails(supernet, prefix, indices, found, findings):
    planned, refused = rail_subnets(supernet, prefix, indices)
    assert planned == found
    assert len(refused) == findings


def test_sriov_resources_name_functions_of_their_rails():
    resources = [
        {"name": "vfs", "prefix": "nvidia.com", "functions": "vfs", "rails": [0]},
        {"name": "whole", "prefix": "nvidia.com", "functions": "pfs", "rails": [1]},
    ]
    config, findings = networks.sriov_config(resources, [node(0), node(1)])
    assert findings == []
    assert config == {
        "resourceList": [
            {
                "resourcePrefix": "nvidia.com",
                "resourceName": "vfs",
                "selectors": {"rootDevices": ["0000:18:00.0"], "isRdma": True},
            },
            {
                "resourcePrefix": "nvidia.com",
                "resourceName": "whole",
                "selectors": {"pciAddresses": ["0000:28:00.0"], "isRdma": True},
            },
        ],
    }
    _config, refused = networks.sriov_config([{"name": "x", "prefix": "a.b", "rails": [9]}], [node(0)])
    assert refused[0].id == "networks:sriov"


@pytest.mark.parametrize(
    ("given", "resources", "of_rail_0"),
    [
        ("rails", ["rdma/rail0", "rdma/rail1"], "rdma/rail0"),
        (
            [
                {"resourceName": "a", "selectors": {"ifNames": ["eth2"]}},
                {"RESOURCENAME": "b", "resourcePrefix": "x.y", "selectors": {"ifNames": ["eth3"]}},
            ],
            ["rdma/a", "x.y/b"],
            "rdma/a",
        ),
        (
            [{"resourceName": "rdma_shared_device", "selectors": {"vendors": ["15b3"]}}],
            ["rdma/rdma_shared_device"],
            None,
        ),
        ([{"resourceName": "a"}, {"resourceName": "b"}], ["rdma/a", "rdma/b"], ""),
    ],
)
def test_resources_are_those_of_the_device_plugin(wanted, given, resources, of_rail_0):
    assert networks.shared_resources(given, [node()]) == resources
    made = plan(wanted(networks_rails=True), [node()], resources=given)
    annotations = made["objects"][0]["metadata"].get("annotations")
    expected = resources[0] if of_rail_0 is None else of_rail_0
    assert annotations == ({networks.RESOURCE_ANNOTATION: expected} if expected else None)
    assert nad_lint.lint(made["networks"], [node()], {**CLUSTER, "shared_resources": resources}) == []


def test_files_come_and_go_and_those_of_others_stay():
    there = {"10-theirs.conf": '{"name": "theirs"}', "gpufabric-rdma-gone.conf": "{}", "broken.conf": "{"}
    made, findings = networks.node_files({"rail0": "{}\n"}, there, "/d")
    assert made == {
        "files": [{"path": "/d/gpufabric-rdma-rail0.conf", "content": "{}\n"}],
        "absent": ["/d/gpufabric-rdma-gone.conf"],
    }
    assert findings == []
    (clash,) = networks.node_files({"theirs": "{}\n"}, there, "/d")[1]
    assert (clash.object, "/d/10-theirs.conf" in clash.seen) == ("network theirs", True)
