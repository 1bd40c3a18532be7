"""What keeps a node from serving over DRA: the cluster, its kubelet, a runtime without CDI, entries that overlap."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import dra as kube_dra
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import dra, roles, variables
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

GATES = ["DRAConsumableCapacity", "DRADeviceTaints", "DRAExtendedResource"]
DEFAULTS = {"source": "/etc/containerd/config.toml", "cdi": None}
OLD, NEW = 'plugins."io.containerd.grpc.v1.cri"', "plugins.'io.containerd.cri.v1.runtime'"


def cluster(version="v1.35.8+k3s1", kubelet="v1.35.8+k3s1", runtime="containerd://2.1.4-k3s1", served=True):
    gates = dict.fromkeys(GATES, False)
    nodes = {"node1": {"kubelet": kubelet, "runtime": runtime}}
    return {"version": version, "served": served, "gates": gates if served else {}, "nodes": nodes}


@pytest.mark.parametrize(
    ("runtime", "seen", "words"),
    [
        (DEFAULTS, cluster(), None),
        (DEFAULTS, None, None),
        (DEFAULTS, cluster(version="v1.34.0", kubelet="v1.34.0", runtime="cri-o://1.34.1"), None),
        (DEFAULTS, cluster(version="v1.33.9"), "v1.33.9"),
        (DEFAULTS, cluster(served=False), "v1.35.8+k3s1 without it"),
        (DEFAULTS, cluster(kubelet="v1.33.1"), "v1.33.1"),
        (DEFAULTS, cluster(runtime="containerd://1.7.27"), "containerd 1.7.27, which has it off"),
        ({**DEFAULTS, "cdi": True}, cluster(runtime="containerd://1.7.27"), None),
        ({**DEFAULTS, "cdi": True}, cluster(runtime="containerd://1.6.33"), "containerd://1.6.33"),
        (DEFAULTS, cluster(runtime="cri-o://1.27.0"), "cri-o://1.27.0"),
        # What the files of the node say counts before there is a cluster, too.
        ({**DEFAULTS, "cdi": False}, None, "enable_cdi = false"),
        ({"source": None, "cdi": None}, cluster(runtime="containerd://1.7.2"), "containerd 1.7.2"),
    ],
)
def test_what_cannot_serve_is_refused(runtime, seen, words):
    found = dra.findings("node1", runtime, seen)
    assert [one.seen for one in found if words and words in one.seen] == [one.seen for one in found]
    assert len(found) == (1 if words else 0)
    assert all(one.next_step and "device_plugin_api: device-plugin" in one.next_step for one in found)


@pytest.mark.parametrize(
    ("texts", "cdi"),
    [
        ([], None),
        ([f"version = 2\n[{OLD}]\n  sandbox_image = 'pause'\n"], None),
        ([f"version = 2\n[{OLD}]\n  enable_cdi = true\n"], True),
        ([f"version = 3\n[{NEW}]\n  enable_cdi = false\n"], False),
        # A later file wins.
        ([f"[{NEW}]\n  enable_cdi = false\n", f"[{NEW}]\n  enable_cdi = true\n"], True),
    ],
)
def test_cdi_in_the_files_of_containerd(texts, cdi):
    assert containerd.cdi(texts) is cdi


@pytest.mark.parametrize("on", [[], GATES[:1], GATES])
def test_the_gates_are_what_the_api_server_keeps(tmp_path, on):
    double = kubectl_cluster.make(tmp_path / "cluster.json")
    double.state(gates=on)
    found = kube_dra.capabilities(double.client())
    assert [gate for gate, kept in found["gates"].items() if kept] == on
    assert found["served"]
    assert found["version"] == "v1.35.8+k3s1"
    assert not [item for item in double.objects.values() if item["kind"] in ("DeviceClass", "ResourceSlice")]
    told = " ".join(dra.notes(found, extended_resources=True))
    assert ("DRAConsumableCapacity is on" in told) == ("DRAConsumableCapacity" in on)
    assert ("stay Pending" in told) == ("DRAExtendedResource" not in on)


def test_a_cluster_without_the_types_is_named_and_one_that_refuses_is_an_error(tmp_path):
    double = kubectl_cluster.make(tmp_path / "cluster.json")
    double.state(without=["DeviceClass", "ResourceSlice"], version="v1.33.1")
    assert kube_dra.capabilities(double.client())["served"] is False


FACTS = {
    "hcas": [
        {"name": f"mlx5_{number}", "pci": {"vendor": "15b3"}, "netdevs": [{"name": f"eth{number}", "type": "ether"}]}
        for number in (0, 1)
    ],
    "rails": [
        {"index": number, "hca": f"mlx5_{number}", "netdev": f"eth{number}", "pci": f"0000:0{number}:00.0"}
        for number in (0, 1)
    ],
}
LISTED = [
    {"resourceName": "a", "selectors": {"ifNames": ["eth0"]}},
    {"resourceName": "b", "api": "dra", "selectors": {"ifNames": ["eth1"]}},
]


def findings(**given):
    options = variables.options()
    values = {name: option.get("default") for name, option in options.items()}
    groups = {"all": ["node1"], "k3s_servers": ["node1"]}
    return [f"{one.object}: {one.seen}" for one in roles.findings("device_plugin", {**values, **given}, FACTS, groups)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, None),
        ({"device_plugin_api": "dra"}, None),
        ({"device_plugin_api": "both", "device_plugin_dra_rails": [1]}, None),
        ({"device_plugin_api": "both", "device_plugin_resources": LISTED}, None),
        ({"device_plugin_api": "both"}, "no entry for dra"),
        ({"device_plugin_api": "both", "device_plugin_dra_rails": [0, 1]}, "no entry for device-plugin"),
        ({"device_plugin_api": "both", "device_plugin_dra_rails": [7]}, "7; the node has 0, 1"),
        ({"device_plugin_api": "dra", "device_plugin_dra_rails": [1]}, "device_plugin_dra_rails: 1"),
        ({"device_plugin_resources": LISTED}, "rdma/b with api: dra"),
        (
            {
                "device_plugin_api": "both",
                "device_plugin_resources": [{"resourceName": "a", "selectors": {"vendors": ["15b3"]}}, LISTED[1]],
            },
            "mlx5_1 in rdma/a and, with api: dra, in rdma/b",
        ),
        ({"device_plugin_api": "dra", "device_plugin_api_server": "10.0.0.1"}, "device_plugin_api_server: 10.0.0.1"),
        ({"device_plugin_api": "dra", "device_plugin_server": "elsewhere"}, "device_plugin_server: elsewhere"),
    ],
)
def test_entries_for_two_apis(given, words):
    found = findings(**given)
    assert found == [one for one in found if words and words in one]
    assert bool(found) == bool(words)
