"""The linter of NetworkAttachmentDefinitions: one planted fault a row, and what it must not complain about."""

from __future__ import annotations

import copy
import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni.nad_lint import from_objects, lint

NETDEVS = {
    "lo": {"mtu": 65536, "type": "772", "addresses": ["127.0.0.1/8"], "default_route": False},
    "eth0": {"mtu": 1500, "type": "ether", "addresses": ["10.0.0.11/24"], "default_route": True, "pci": "0000:03:00.0"},
    "eth2": {"mtu": 9000, "type": "ether", "addresses": ["198.18.2.1/24"], "default_route": False},
    "ib0": {"mtu": 2044, "type": "infiniband", "addresses": [], "default_route": False},
}
ROUTES = [{"destination": "10.0.0.0/24", "netdev": "eth0"}, {"destination": "198.18.2.0/24", "netdev": "eth2"}]
CLUSTER = {
    "pod_cidrs": ["10.42.0.0/16"],
    "service_cidrs": ["10.43.0.0/16"],
    "shared_resources": ["rdma/rail0"],
    "device_resources": ["nvidia.com/vfs"],
    "pods_per_node": 16,
}
MACVLAN = {
    "cniVersion": "0.3.1",
    "name": "data",
    "type": "macvlan",
    "master": "eth2",
    "mode": "bridge",
    "ipam": {"type": "host-local", "subnet": "198.18.2.0/24", "rangeStart": "198.18.2.100", "rangeEnd": "198.18.2.199"},
}
VFS = "nvidia.com/vfs"
WHEREABOUTS = {"type": "whereabouts", "range": "198.18.2.0/24", "range_start": "198.18.2.100"}


def nodes(count=1):
    return [
        {"host": f"node{number + 1}", "netdevs": copy.deepcopy(NETDEVS), "routes": copy.deepcopy(ROUTES)}
        for number in range(count)
    ]


def nad(config, name="data", resource=None, namespace="default"):
    annotations = {"k8s.v1.cni.cncf.io/resourceName": resource} if resource else {}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {} if config is None else {"config": config if isinstance(config, str) else json.dumps(config)},
    }


def ids(objects, count=1, files=None, **cluster):
    findings = lint(from_objects(objects, files), nodes(count), {**CLUSTER, **cluster})
    for item in findings:
        assert set(item._fields) == {"id", "object", "wanted", "seen", "next_step"}
        assert all(item), item
    return [item.id for item in findings]


@pytest.mark.parametrize(
    ("config", "resource"),
    [
        (MACVLAN, "rdma/rail0"),
        ({**MACVLAN, "mtu": 9000}, None),
        ({**MACVLAN, "ipam": {}}, None),
        ({**MACVLAN, "cniVersion": "1.0.0"}, None),
        ({**MACVLAN, "type": "ipoib", "master": "ib0", "ipam": {}}, "rdma/rail0"),
        ({"cniVersion": "0.3.1", "name": "data", "type": "sriov", "ipam": {}}, "nvidia.com/vfs"),
        ({"cniVersion": "0.3.1", "name": "data", "type": "host-device", "device": "eth2", "ipam": {}}, None),
        ({"cniVersion": "0.3.1", "name": "data", "type": "host-device", "ipam": {}}, "nvidia.com/vfs"),
        ({"cniVersion": "0.3.1", "name": "data", "plugins": [{**MACVLAN}, {"type": "tuning"}]}, None),
        (
            {
                **MACVLAN,
                "ipam": {
                    "type": "whereabouts",
                    "ipRanges": [{"range": "198.18.2.0/24", "exclude": ["198.18.2.0/30"]}],
                },
            },
            None,
        ),
    ],
)
def test_a_sound_network_has_no_findings(config, resource):
    assert ids([nad(config, resource=resource)]) == []


def without(*keys, **changes):
    return nad({key: value for key, value in {**MACVLAN, **changes}.items() if key not in keys})


def macvlan(resource=None, **changes):
    return nad({**MACVLAN, **changes}, resource=resource)


def addressed(ipam, **changes):
    """macvlan with other addresses, or with changes of those."""
    return nad({**MACVLAN, "ipam": {**ipam, **changes}})


def bare(resource=None, **config):
    """A network of another kind."""
    return nad({"cniVersion": "0.3.1", "name": "data", **config}, resource=resource)


LOCAL, HOST_LOCAL, EVERYWHERE = MACVLAN["ipam"], {"type": "host-local"}, [{"dst": "0.0.0.0/0"}]
# {row: (planted, the only finding)}
ROWS = {
    "no JSON": (nad("{"), "json"),
    "a list": (nad("[]"), "json"),
    "no name": (without("name"), "name"),
    "no version": (without("cniVersion"), "cniVersion"),
    "a version of the future": (macvlan(cniVersion="2.0.0"), "cniVersion"),
    "no type": (bare(), "type"),
    "an empty spec and no file": (nad(None), "file"),
    "nobody serves the resource": (macvlan("rdma/rail7"), "resource-unknown"),
    "a shared resource with host-device": (bare("rdma/rail0", type="host-device", ipam={}), "resource-host-device"),
    "a shared resource with sriov": (bare("rdma/rail0", type="sriov", ipam={}), "resource-host-device"),
    "sriov without a resource": (bare(type="sriov", ipam={}), "resource-missing"),
    "no master": (without("master", ipam={}), "master-missing"),
    "a master that is not there": (macvlan(master="eth9", ipam={}), "master-absent"),
    "macvlan on InfiniBand": (macvlan(master="ib0", ipam={}), "macvlan-infiniband"),
    "ipoib on Ethernet": (macvlan(type="ipoib", ipam={}), "ipoib-ethernet"),
    "the NIC of the default route": (macvlan(master="eth0", ipam={}), "default-route"),
    "host-device takes the default route": (bare(type="host-device", device="eth0", ipam={}), "default-route"),
    "and by its address": (bare(type="host-device", pciBusID="0000:03:00.0", ipam={}), "default-route"),
    "an MTU above the master's": (macvlan(mtu=9216), "mtu"),
    "the pod network": (addressed(HOST_LOCAL, subnet="10.42.7.0/24"), "overlap-pod"),
    "the service network": (addressed({"type": "whereabouts", "range": "10.43.0.0/20"}), "overlap-service"),
    "a route of the host": (addressed(HOST_LOCAL, subnet="10.0.0.128/25"), "overlap-route"),
    "an address of the host": (addressed(HOST_LOCAL, subnet="198.18.2.0/24"), "host-address"),
    "a later plugin of a chain without a type": (bare(plugins=[MACVLAN, {"mtu": 9000}]), "type"),
    "a later plugin that raises the MTU": (bare(plugins=[MACVLAN, {"type": "tuning", "mtu": 9216}]), "mtu"),
    "the interface is made by a later plugin": (
        bare(plugins=[{"type": "tuning"}, {**MACVLAN, "master": "eth0", "ipam": {}}]),
        "default-route",
    ),
    "rdma behind sriov while the nodes run shared": (
        bare(VFS, plugins=[{"type": "sriov"}, {"type": "rdma"}]),
        "netns-mode",
    ),
    "rdmaIsolation while the nodes run shared": (bare(VFS, type="ib-sriov", rdmaIsolation=True), "netns-mode"),
    "a second default route": (addressed(WHEREABOUTS, routes=EVERYWHERE), "default-route-pod"),
    "half of the address space": (addressed(LOCAL, routes=[{"dst": "128.0.0.0/1"}]), "default-route-pod"),
    "a gateway elsewhere": (addressed(WHEREABOUTS, gateway="198.18.3.1"), "outside"),
    "a gateway of host-local elsewhere": (addressed(LOCAL, gateway="198.18.3.1"), "outside"),
    "an exclusion elsewhere": (addressed(WHEREABOUTS, exclude=["198.18.3.0/30", "198.18.2.101"]), "outside"),
    "all of it excluded": (addressed(WHEREABOUTS, exclude=["198.18.2.64/26", "198.18.2.128/25"]), "blocks"),
    "fewer addresses than pods": (addressed(LOCAL, rangeEnd="198.18.2.107"), "block-size"),
}


NV_IPAM = {**MACVLAN, "ipam": {"type": "nv-ipam", "poolName": "pool"}}
SUBNET = {"subnet": "198.51.100.0/24", "perNodeBlockSize": 16}


def pool(spec, kind="IPPool"):
    return {"kind": kind, "apiVersion": "nv-ipam.nvidia.com/v1alpha1", "metadata": {"name": "pool"}, "spec": spec}


def excluding(first, last, **spec):
    return {**SUBNET, **spec, "exclusions": [{"startIP": f"198.51.100.{first}", "endIP": f"198.51.100.{last}"}]}


@pytest.mark.parametrize(
    ("spec", "count", "found"),
    [
        (SUBNET, 15, []),
        (SUBNET, 16, ["nad:blocks"]),
        ({**SUBNET, "nodeSelector": {"nodeSelectorTerms": []}}, 16, []),
        ({**SUBNET, "gateway": "198.51.101.1"}, 1, ["nad:outside"]),
        ({**SUBNET, "gateway": "198.51.100.1", "defaultGateway": True}, 1, ["nad:default-route-pod"]),
        ({**SUBNET, "perNodeBlockSize": 4}, 1, ["nad:block-size"]),
        (excluding(1, 2), 1, []),
        (excluding(1, 16), 1, ["nad:blocks"]),
        (excluding(1, 13), 2, ["nad:blocks"]),
        (excluding(17, 32), 1, []),
        (excluding(17, 32), 2, ["nad:blocks"]),
    ],
)
def test_a_pool_must_suffice_for_each_node(spec, count, found):
    assert ids([nad(NV_IPAM), pool(spec)], count) == found


@pytest.mark.parametrize(("count", "found"), [(4, []), (5, ["nad:blocks"])])
def test_prefixes_of_nodes_must_suffice(count, found):
    config = {**MACVLAN, "ipam": {"type": "nv-ipam", "poolName": "pool", "poolType": "cidrpool"}}
    spec = {"cidr": "198.51.100.0/24", "perNodeNetworkPrefix": 26}
    assert ids([nad(config), pool(spec, "CIDRPool")], count) == found
    sliced = {"type": "whereabouts", "range": "198.51.100.0/24", "node_slice_size": "/26"}
    assert ids([nad({**MACVLAN, "ipam": sliced})], count) == found


@pytest.mark.parametrize("names", ["other", "pool,other"])
def test_a_pool_that_is_not_there_is_named(names):
    config = {**MACVLAN, "ipam": {"type": "nv-ipam", "poolName": names}}
    assert ids([nad(config), pool(SUBNET)]) == ["nad:pool-missing"]


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ({"range": "198.51.100.0/24"}, ["nad:same-name"]),
        ({"range": "198.51.100.0/24", "network_name": "y"}, []),
        ({}, []),
    ],
)
def test_networks_that_share_a_record_of_addresses_must_share_the_range(second, found):
    first = {"type": "whereabouts", "range": "198.51.101.0/24", "network_name": "x"}
    one = nad({**MACVLAN, "name": "a", "ipam": first}, "a")
    assert ids([one, nad({**MACVLAN, "name": "b", "ipam": {**first, **second}}, "b")]) == found


def test_sbr_keeps_a_default_route_apart():
    chain = [{**MACVLAN, "ipam": {**MACVLAN["ipam"], "routes": [{"dst": "0.0.0.0/0"}]}}, {"type": "sbr"}]
    assert ids([nad({"cniVersion": "0.3.1", "name": "data", "plugins": chain})]) == []


ODD = [None, 0, "x", [], ["x"], {}, {"x": None}, [["x"]], [{"x": []}], 1.5, True]
PLACES = ("ipam", "plugins", "master", "device", "pciBusID", "mtu", "type", "name", "rdmaIsolation")
IN_IPAM = (
    "range",
    "ranges",
    "ipRanges",
    "exclude",
    "gateway",
    "routes",
    "subnet",
    "addresses",
    "poolName",
    "node_slice_size",
)


@pytest.mark.parametrize("kind", ["host-local", "whereabouts", "nv-ipam", "static"])
def test_no_value_however_odd_breaks_the_linter(kind):
    for value in ODD:
        configs = [{**MACVLAN, key: value} for key in PLACES] + [
            {**MACVLAN, "ipam": {"type": kind, "subnet": "198.18.2.0/24", key: value}} for key in IN_IPAM
        ]
        for config in configs:
            lint(from_objects([nad(config), nad(config, "other")]), nodes(2), CLUSTER)


@pytest.mark.parametrize("row", ROWS)
def test_a_planted_fault_is_the_only_finding(row):
    planted, identity = ROWS[row]
    assert ids([planted]) == [f"nad:{identity}"]


@pytest.mark.parametrize(
    ("ipam", "pods", "enough"),
    [
        # What host-local of the CNI plugins v1.9.1 was seen to hand out of these, before it said that none is left.
        ({"subnet": "10.9.0.0/28"}, 13, True),
        ({"subnet": "10.9.0.0/28"}, 14, False),
        ({"subnet": "10.9.0.0/28", "gateway": "10.9.0.14", "rangeEnd": "10.9.0.8"}, 8, True),
        ({"subnet": "10.9.0.0/28", "rangeStart": "10.9.0.1", "rangeEnd": "10.9.0.8"}, 8, False),
        ({"subnet": "10.9.0.0/28", "rangeStart": "10.9.0.2", "rangeEnd": "10.9.0.9"}, 8, True),
    ],
)
def test_addresses_are_counted_as_host_local_hands_them_out(ipam, pods, enough):
    found = ids([nad({**MACVLAN, "ipam": {"type": "host-local", **ipam}})], pods_per_node=pods)
    assert found == ([] if enough else ["nad:block-size"])


def test_host_local_is_for_one_node():
    assert ids([nad(MACVLAN)], count=1) == []
    assert ids([nad(MACVLAN)], count=2) == ["nad:host-local-nodes"]
    assert ids([nad({**MACVLAN, "ipam": WHEREABOUTS})], count=2) == []


def test_files_of_the_nodes_are_read_for_an_empty_spec():
    blocks = {
        f"node{number}": {
            "data": json.dumps(
                {
                    **MACVLAN,
                    "ipam": {
                        "type": "host-local",
                        "subnet": "198.18.2.0/24",
                        "rangeStart": f"198.18.2.{number * 50}",
                        "rangeEnd": f"198.18.2.{number * 50 + 49}",
                    },
                }
            )
        }
        for number in (1, 2)
    }
    assert ids([nad(None)], count=2, files=blocks) == []
    assert ids([nad(None)], count=2, files={"node1": blocks["node1"], "node2": blocks["node1"]}) == ["nad:block-clash"]


def test_two_networks_must_not_share_a_subnet_unless_they_share_the_book():
    other = {**MACVLAN, "name": "other"}
    assert ids([nad(MACVLAN), nad(other, name="other")]) == ["nad:overlap-nad"]
    shared = [nad({**MACVLAN, "ipam": WHEREABOUTS}), nad({**other, "ipam": WHEREABOUTS}, name="other")]
    assert ids(shared) == []
    assert ids([nad(MACVLAN), nad(MACVLAN, namespace="train")]) == []


def test_the_pool_of_nv_ipam_counts_as_the_subnet():
    def pool(subnet, size):
        spec = {"subnet": subnet, "perNodeBlockSize": size}
        return {"apiVersion": "v1", "kind": "IPPool", "metadata": {"name": "data-pool"}, "spec": spec}

    network = nad({**MACVLAN, "ipam": {"type": "nv-ipam", "poolName": "data-pool"}})
    assert ids([network, pool("198.18.2.0/24", 50)], count=2) == []
    assert ids([network, pool("10.42.0.0/24", 50)], count=2) == ["nad:overlap-pod"]
    assert ids([network, pool("198.18.2.0/24", 8)], count=2) == ["nad:block-size"]


def test_what_is_unknown_is_not_a_finding():
    assert ids([nad(MACVLAN, resource="rdma/rail7")], shared_resources=None) == []
    assert ids([nad({**MACVLAN, "master": "eth0", "ipam": {}})], forbidden_masters_allowed=["eth0"]) == []
    assert lint(from_objects([nad(MACVLAN)]), [], {}) == []
