"""Attachments, address blocks and objects, as the role networks renders them."""

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import networks
from ansible_collections.gpufabric.rdma.tests.tools import pitfall_world
from ansible_collections.gpufabric.rdma.tests.unit.playbooks.test_trust import act

CLUSTER = {
    "pod_cidrs": ["10.42.0.0/16"],
    "service_cidrs": ["10.43.0.0/16"],
    "shared_resources": ["rdma/rail0", "rdma/rail1"],
    "device_resources": [],
    "pods_per_node": 16,
}


def node(number=0, netdevs=("eth2", "eth3"), kind="ether"):
    layer = "InfiniBand" if kind == "infiniband" else "Ethernet"
    rails = list(enumerate(netdevs))
    return {
        "host": f"node{number + 1}",
        "number": number,
        "rails": [{"index": n, "netdev": name, "link_layer": layer, "pci": f"0000:{n + 1}8:00.0"} for n, name in rails],
        "netdevs": {
            name: {"mtu": 9000, "type": kind, "addresses": [f"198.18.{n}.{number + 1}/24"], "default_route": False}
            for n, name in rails
        },
        "routes": [{"destination": f"198.18.{n}.0/24", "netdev": name} for n, name in rails],
    }


@pytest.mark.parametrize(("changes", "wrong"), [
    ({}, False),
    ({"ipam": {"type": "host-local", "subnet": "10.56.0.0/24"}}, True),
])  # fmt: skip
def test_networks_of_a_git_folder_are_linted_against_the_nodes(changes, wrong):
    nodes = [{"host": f"node{number}", "networks": node(number)} for number in (1, 2)]
    objects = {"objects": [pitfall_world.network(**{"master": "eth2", **changes})], "nodes": nodes}
    said = act("nad_lint", {**objects, "refuse": True}, {})
    assert (said.get("failed", False), bool(said["findings"])) == (wrong, wrong), said
    assert not act("nad_lint", objects, {}).get("failed")


@pytest.mark.parametrize(("ipam", "ids"), [("whereabouts", []), ("dhcp", ["", ""])])
def test_networks_are_planned_for_nodes_of_any_source(ipam, ids):
    network = {"name": "fabric", "type": "macvlan", "master": "eth2", "ipam": ipam, "subnet": "198.51.100.0/24"}
    given = {"networks_components": [ipam], "networks_attachments": [{**network, "exclude": ["198.51.100.16/28"]}]}
    said = act("nad_lint", {"variables": given, "nodes": [node(0), node(1)]}, {})
    assert [finding["id"] for finding in said["findings"]] == ids, said
    assert ("objects" in said) == (ipam != "dhcp")


@pytest.fixture
def plan(variables, short_names):
    """plan(nodes, *the planner's other arguments, **networks_* variables)."""

    def run(nodes, *arguments, resources="rails", **changes):
        given = {f"networks_{name}": value for name, value in changes.items()}
        assert set(given) <= set(variables)
        return networks.plan({**variables, **given}, nodes, *arguments, resources=resources)

    return run


def sound(made, nodes, **changes):
    assert made["findings"] == []
    assert nad_lint.lint(made["networks"], nodes, {**CLUSTER, **changes}) == []
    return made


def configs(made, name):
    """{host or "": configuration} of one network."""
    network = next(item for item in made["networks"] if item["name"] == name)
    return {host: json.loads(text) for host, text in network["configs"].items()}


def pool_of(made):
    return next(item for item in made["objects"] if item["kind"] == "IPPool")


def addresses(config):
    """Every address that a host-local configuration hands out."""
    return {number for _network, first, last in nad_lint.ranges_of(config) for number in range(first, last + 1)}


@pytest.mark.parametrize("count", [2, 14])
def test_no_two_nodes_hand_out_the_same_address(plan, count):
    nodes = [node(number) for number in range(count)]
    made = sound(plan(nodes, rails=True), nodes)
    assert {item["metadata"]["name"]: item["spec"] for item in made["objects"]} == {
        "rail0": {"config": ""},
        "rail1": {"config": ""},
    }
    blocks = [addresses(config) for config in configs(made, "rail0").values()]
    assert [len(block) for block in blocks] == [16] * count
    assert len(set().union(*blocks)) == 16 * count
    files = {host: sorted(files) for host, files in made["files"].items()}
    assert files == {item["host"]: ["rail0", "rail1"] for item in nodes}


@pytest.mark.parametrize("ipam", ["host-local", "nv-ipam"])
def test_networks_that_claims_bring_have_a_file_on_each_node(plan, ipam):
    for nodes in ([node(0)], [node(0), node(1)]):
        made = plan(nodes, in_claims=True, ipam=ipam, components=["nv-ipam"])
        assert made["findings"] == []
        assert {host: [*files] for host, files in made["files"].items()} == {
            item["host"]: ["rail0", "rail1"] for item in nodes
        }
    assert [one.id for one in plan([node(0)], in_claims=True, rails=False)["findings"]] == ["networks:claims"]


def test_a_limited_run_and_a_node_more_leave_the_blocks_where_they_are(plan):
    nodes = [node(number) for number in range(3)]
    hosts = [item["host"] for item in nodes]
    everywhere = configs(plan(nodes, rails=True), "rail0")
    part = plan(nodes[1:2], hosts, rails=True)
    assert (part["complete"], plan(nodes, hosts, rails=True)["complete"]) == (False, True)
    assert configs(part, "rail0") == {"node2": everywhere["node2"]}
    assert configs(plan(nodes[:2], rails=True), "rail0")["node2"] == everywhere["node2"]
    assert addresses(configs(plan(nodes[:1], rails=True), "rail0")[""]) == addresses(everywhere["node1"])


@pytest.mark.parametrize(("ipam", "given", "ids"), [
    ("nv-ipam", {"exclude": ["198.51.100.0/25", "198.51.100.128/26"]}, ["networks:blocks"]),
    ("nv-ipam", {"exclude": ["198.51.100.128/25"]}, []),
    ("whereabouts", {"exclude": ["198.51.100.0/25", "198.51.100.128/25"]}, ["networks:blocks"]),
    ("whereabouts", {"exclude": ["198.51.100.0/25", "198.51.100.128/26"]}, []),
])  # fmt: skip
def test_what_an_ipam_cannot_hand_out_is_refused(plan, ipam, given, ids):
    item = {"name": "a", "type": "macvlan", "master": "eth2", "ipam": ipam, "subnet": "198.51.100.0/24", **given}
    made = plan([node(0), node(1)], components=["nv-ipam", "whereabouts"], attachments=[item])
    assert [one.id for one in made["findings"]] == ids


@pytest.mark.parametrize(("place", "resources", "told"), [
    ({"rail": 0}, "rails", "rdma/rail0"),
    ({"pci": "0000:28:00.0"}, "rails", "rdma/rail1"),
    ({"master": "eth2"}, [{"resourceName": "a", "selectors": {"ifNames": ["eth2"]}}], "rdma/a"),
    ({"master": "eth2"}, [{"resourceName": "a", "extraSelectors": {"pciAddresses": ["0000:18:00.0"]}}], None),
])  # fmt: skip
def test_host_device_takes_away_what_a_resource_selects_by(plan, place, resources, told):
    item = {"name": "a", "type": "host-device", "ipam": "none", **place}
    made = plan([node(0)], resources=resources, attachments=[item])
    assert made["findings"] == []
    assert [told in note for note in made["notes"]] == ([True] if told else [])


@pytest.mark.parametrize(("place", "named"), [({"rail": 0}, ["0000:18:00.0", "eth2"]), ({"master": "eth2"}, ["eth2"])])
def test_an_interface_that_is_in_a_pod_keeps_its_network(plan, place, named):
    nodes = [node(0), node(1)]
    nodes[0]["rails"][0]["netdev"] = nodes[0]["netdevs"].pop("eth2") and None
    made = sound(plan(nodes, attachments=[{"name": "a", "type": "host-device", "ipam": "none", **place}]), nodes)
    assert [config.get("pciBusID") or config["device"] for config in configs(made, "a").values()] == named


NET = {"subnet": "192.0.2.0/24"}
LOCAL = {**NET, "ipam": "host-local"}


@pytest.mark.parametrize(("item", "size", "index", "ranges"), [
    (NET, 10, 0, ["192.0.2.1-10"]),
    (LOCAL, 10, 0, ["192.0.2.2-11"]),
    ({**NET, "exclude": ["192.0.2.4/31", "192.0.2.9"]}, 10, 0, ["192.0.2.1-3", "192.0.2.6-8", "192.0.2.10-10"]),
    ({**NET, "range_start": "192.0.2.100"}, 10, 1, ["192.0.2.110-119"]),
    ({"subnet": "192.0.2.0/28", "range_end": "192.0.2.9"}, 8, 1, ["192.0.2.9-9"]),
    ({"subnet": "fd00:5::/64"}, 4, 1, ["fd00:5::4-fd00:5::7"]),
])  # fmt: skip
def test_blocks_leave_out_what_must_not_be_handed_out(item, size, index, ranges):
    made = networks.node_ranges(item, size, index)
    assert [f"{first}-{last.removeprefix('192.0.2.')}" for first, last in made] == ranges


def test_different_names_of_a_rail_become_files_of_the_nodes(plan):
    made = plan([node(0), node(1, ("ens1f0", "ens1f1"))], rails=True, components=["nv-ipam"])
    assert made["findings"] == []
    masters = {host: config["master"] for host, config in configs(made, "rail0").items()}
    assert masters == {"node1": "eth2", "node2": "ens1f0"}
    assert pool_of(made)["metadata"] == {"name": "rail0", "namespace": "kube-system"}
    assert pool_of(made)["spec"] == {"subnet": "10.56.0.0/24", "perNodeBlockSize": 16}


STATIC = {"ipam": "static", "addresses": ["10.9.0.1/24"]}
RENDERED_STATIC = {"type": "static", "addresses": [{"address": "10.9.0.1/24"}]}
WHERE = {"subnet": "192.168.100.0/24", "exclude": ["192.168.100.0/32", "192.168.100.255"], "gateway": "192.168.100.1"}
RENDERED_WHERE = {"range": "192.168.100.0/24", "gateway": "192.168.100.1"}
RENDERED_WHERE["exclude"] = ["192.168.100.0/32", "192.168.100.255/32", "192.168.100.1/32"]


@pytest.mark.parametrize(("kind", "item", "components", "config"), [
    ("macvlan", {"master": "eth2", "mode": "private", "mtu": 4200, "ipam": "none"}, [],
     {"master": "eth2", "mode": "private", "mtu": 4200, "ipam": {}}),
    ("host-device", {"pci": "0000:18:00.0", **STATIC}, [], {"pciBusID": "0000:18:00.0", "ipam": RENDERED_STATIC}),
    ("host-device", {"master": "eth2", "ipam": "static"}, [],
     {"device": "eth2", "capabilities": {"ips": True}, "ipam": {"type": "static"}}),
    ("ipoib", {"master": "ib0", "ipam": "nv-ipam", "pool": "pool-a"}, ["ipoib-cni", "nv-ipam"],
     {"master": "ib0", "ipam": {"type": "nv-ipam", "poolName": "pool-a", "poolType": "ippool"}}),
    ("sriov", {"vlan": 100, "ipam": "whereabouts", "resource_name": "a.b/c", **WHERE}, ["sriov-cni", "whereabouts"],
     {"vlan": 100, "ipam": {"type": "whereabouts", **RENDERED_WHERE}}),
    ("ib-sriov", {"link_state": "auto", "ipam": "none", "resource_name": "a.b/c"}, ["ib-sriov-cni"],
     {"link_state": "auto", "ipam": {}}),
])  # fmt: skip
def test_each_type_and_ipam_renders_what_its_plugin_reads(plan, kind, item, components, config):
    made = plan([node()], attachments=[{"name": "data", "type": kind, **item}], components=components)
    assert made["findings"] == []
    assert configs(made, "data") == {"": {"cniVersion": "0.3.1", "name": "data", "type": kind, **config}}


def test_a_pool_carries_block_gateway_and_exclusions(plan):
    item = {"name": "data", "type": "macvlan", "master": "eth2", "ipam": "nv-ipam", "subnet": "198.18.0.0/24"}
    item |= {"gateway": "198.18.0.254", "exclude": ["198.18.0.64/26"], "per_node_block_size": 50}
    spec = pool_of(plan([node(0)], attachments=[item], components=["nv-ipam"]))["spec"]
    assert (spec["perNodeBlockSize"], spec["gateway"]) == (50, "198.18.0.254")
    assert [entry["endIP"] for entry in spec["exclusions"]] == ["198.18.0.1", "198.18.0.127"]


def test_infiniband_rails_get_ipoib_or_nothing(plan):
    nodes = [node(0, ("ib0",), "infiniband")]
    without = plan(nodes, rails=True)
    assert (without["objects"], without["findings"]) == ([], [])
    assert configs(plan(nodes, rails=True, components=["ipoib-cni"]), "rail0")[""]["type"] == "ipoib"


@pytest.mark.parametrize(("kind", "given", "names"), [
    ("ether", {}, ["rail0", "rail1"]),
    ("ether", {"rails": False}, []),
    ("ether", {"attachments": [{"name": "own", "type": "macvlan", "rail": 0, "subnet": "10.60.0.0/22"}]}, ["own"]),
    ("infiniband", {}, []),
])  # fmt: skip
def test_rails_of_roce_get_their_networks_unless_others_are_named(plan, kind, given, names):
    made = plan([node(kind=kind)], **given)
    assert ([item["name"] for item in made["attachments"]], made["notes"]) == (names, [])


@pytest.mark.parametrize(("kind", "item", "identity"), [
    ("macvlan", {"master": "eth2", "vlan": 7}, "option:vlan"),
    ("ipoib", {"master": "ib0", "mtu": 4092}, "option:mtu"),
    ("macvlan", {}, "master"),
    ("macvlan", {"master": "eth2", "rail": 0}, "master"),
    ("sriov", {}, "resource"),
    ("macvlan", {"master": "eth2", "ipam": "host-local"}, "subnet"),
    ("macvlan", {"master": "eth2", "ipam": "nv-ipam"}, "subnet"),
    ("macvlan", {"master": "eth2", "ipam": "host-local", "subnet": "10.0.0"}, "address"),
    ("macvlan", {"master": "eth2", "ipam": "static", "subnet": "10.9.0.0/24"}, "option:subnet"),
    ("macvlan", {"master": "eth2", "name": "Data_1"}, "name"),
    ("macvlan", {"master": "eth2", "namespaces": ["a,b"]}, "name"),
    ("macvlan", {"master": "eth2", "ipam": "static", "addresses": ["10.9.0.1"]}, "address"),
    ("macvlan", {"master": "eth2", "ipam": "whereabouts", "subnet": "9.0.0.0/24", "gateway": "9.0.0.1/24"}, "address"),
    ("macvlan", {"master": "eth2", "ipam": "whereabouts"}, "component:whereabouts"),
])  # fmt: skip
def test_what_cannot_work_is_refused_by_name(plan, kind, item, identity):
    made = plan([node()], attachments=[{"name": "data", "ipam": "none", "type": kind, **item}])
    assert f"networks:{identity}" in [one.id for one in made["findings"]]
    assert made["objects"] == []


def test_two_attachments_of_one_name_are_refused_and_one_is_in_each_namespace(plan):
    item = {"name": "data", "type": "macvlan", "master": "eth2", "ipam": "none"}
    made = plan([node()], attachments=[item, {**item, "namespaces": ["train"]}])
    assert [one.id for one in made["findings"]] == ["networks:name"]
    pools = [{**item, "name": name, "ipam": "nv-ipam", "pool": "p", "subnet": f"9.{name}.0.0/24"} for name in "12"]
    made = plan([node()], attachments=pools, components=["nv-ipam"])
    assert [one.id for one in made["findings"]] == ["networks:pool"]
    made = plan([node()], attachments=[{**item, "namespaces": ["default", "train"]}])
    assert [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in made["objects"]] == [
        ("Namespace", None, "train"),
        ("NetworkAttachmentDefinition", "default", "data"),
        ("NetworkAttachmentDefinition", "train", "data"),
    ]


@pytest.mark.parametrize(("supernet", "prefix", "indices", "subnets", "findings"), [
    ("10.56.0.0/16", 24, [0, 7], {0: "10.56.0.0/24", 7: "10.56.7.0/24"}, 0),
    ("fd00:56::/48", 64, [1], {1: "fd00:56:0:1::/64"}, 0),
    ("10.56.0.0/30", 31, [0, 1, 2], {0: "10.56.0.0/31", 1: "10.56.0.2/31"}, 1),
    ("10.56.0.0/24", 16, [0], {}, 1),
    ("10.56.0.0/16", 64, [0, 1], {}, 1),
    ("ten", 24, [0], {}, 1),
])  # fmt: skip
def test_subnets_of_rails(supernet, prefix, indices, subnets, findings):
    planned, refused = networks.rail_subnets(supernet, prefix, indices)
    assert (planned, len(refused)) == (subnets, findings)


def test_sriov_resources_name_functions_of_their_rails():
    resources = [
        {"name": "vfs", "prefix": "nvidia.com", "functions": "vfs", "rails": [0]},
        {"name": "whole", "prefix": "nvidia.com", "functions": "pfs", "rails": [1]},
    ]
    config, findings = networks.sriov_config(resources, [node(0), node(1)])
    assert findings == []
    assert [(one["resourcePrefix"], one["resourceName"], one["selectors"]) for one in config["resourceList"]] == [
        ("nvidia.com", "vfs", {"rootDevices": ["0000:18:00.0"], "isRdma": True}),
        ("nvidia.com", "whole", {"pciAddresses": ["0000:28:00.0"], "isRdma": True}),
    ]
    _config, refused = networks.sriov_config([{"name": "x", "prefix": "a.b", "rails": [9]}], [node(0)])
    assert refused[0].id == "networks:sriov"


OF_ETH2 = {"resourceName": "a", "selectors": {"ifNames": ["eth2"]}}
OF_ETH3 = {"RESOURCENAME": "b", "resourcePrefix": "x.y", "selectors": {"ifNames": ["eth3"]}}


@pytest.mark.parametrize(("given", "resources", "of_rail_0"), [
    ("rails", ["rdma/rail0", "rdma/rail1"], "rdma/rail0"),
    ([OF_ETH2, OF_ETH3], ["rdma/a", "x.y/b"], "rdma/a"),
    ([{"resourceName": "shared", "selectors": {"vendors": ["15b3"]}}], ["rdma/shared"], "rdma/shared"),
    ([{"resourceName": "a"}, {"resourceName": "b"}], ["rdma/a", "rdma/b"], None),
])  # fmt: skip
def test_resources_are_those_of_the_device_plugin(plan, given, resources, of_rail_0):
    assert networks.shared_resources(given, [node()]) == resources
    made = sound(plan([node()], resources=given, rails=True), [node()], shared_resources=resources)
    annotations = made["objects"][0]["metadata"].get("annotations")
    assert annotations == (of_rail_0 and {networks.RESOURCE_ANNOTATION: of_rail_0})


def test_attachments_in_one_subnet_are_told_and_send_from_their_own_interface_on_request(plan):
    items = [
        {"name": f"n{rail}", "type": "macvlan", "rail": rail, "ipam": "whereabouts", "subnet": subnet}
        for rail, subnet in enumerate(("10.9.0.0/16", "10.9.0.0/16"))
    ]
    options = {"components": ["whereabouts"], "rails": False}
    notes = len(plan([node()], attachments=items, **options)["notes"])
    routed = [{**item, "source_route": True} for item in items]
    made = sound(plan([node()], attachments=routed, **options), [node()])
    assert len(made["notes"]) == notes - 1
    first = configs(made, "n0")[""]
    assert (first["name"], [plugin["type"] for plugin in first["plugins"]]) == ("n0", ["macvlan", "sbr"])
    files, _findings = networks.node_files({"n0": json.dumps(first)}, {}, "/d")
    assert [item["path"] for item in files["files"]] == ["/d/gpufabric-rdma-n0.conflist"]


def test_files_come_and_go_and_those_of_others_stay():
    there = {"10-theirs.conf": '{"name": "theirs"}', "gpufabric-rdma-gone.conf": "{}", "broken.conf": "{"}
    there |= {"odd.conf": '{"name": [1]}', "deep.conf": "[" * 100_000}
    made, findings = networks.node_files({"rail0": "{}\n"}, there, "/d")
    assert made == {
        "files": [{"path": "/d/gpufabric-rdma-rail0.conf", "content": "{}\n"}],
        "absent": ["/d/gpufabric-rdma-gone.conf"],
    }
    assert findings == []
    (clash,) = networks.node_files({"theirs": "{}\n"}, there, "/d")[1]
    assert (clash.object, "/d/10-theirs.conf" in clash.seen) == ("network theirs", True)
