"""Pitfalls N1 to N14 (docs/pitfalls.md), networks of pods: each one planted, and the finding that names it."""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pod_probe, pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import networks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pod_checks

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROCE = (ROOT / "tests/fixtures/pods/roce.txt").read_text()
RESOURCE = pods.own_resource(0)
RAIL = {
    "index": 0,
    "hca": "mlx5_0",
    "port": 1,
    "netdev": "eth2",
    "pci": "0000:18:00.0",
    "kind": "pci",
    "link_layer": "Ethernet",
    "active_mtu": 4096,
    "char_devices": ["uverbs0", "umad0"],
}
MACVLAN = {
    "cniVersion": "0.3.1",
    "name": "rail0",
    "type": "macvlan",
    "master": "eth2",
    "ipam": {"type": "whereabouts", "range": "10.56.0.0/24"},
}
CLUSTER = {"shared_resources": [RESOURCE], "device_resources": [], "pods_per_node": 16}


def host(number=1):
    return {
        "host": f"node{number}",
        "rails": [RAIL],
        "netdevs": {
            "eth0": {"index": 2, "mtu": 1500, "type": "ether", "addresses": [], "default_route": True},
            "eth2": {"index": 5, "mtu": 1500, "type": "ether", "addresses": [], "default_route": False},
            "ib0": {"index": 7, "mtu": 2044, "type": "infiniband", "addresses": [], "default_route": False},
        },
        "routes": [],
        "files": {},
    }


def node(capacity=100, allocatable=100):
    return {
        "name": "node1",
        "ready": True,
        "why": "",
        "addresses": [],
        "pod_cidrs": ["10.42.0.0/24"],
        "taints": [],
        "capacity": {RESOURCE: capacity} if capacity else {},
        "allocatable": {RESOURCE: allocatable} if capacity else {},
    }


def nad(resource=RESOURCE, **changes):
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "rail0", "namespace": "default", "annotations": {pods.RESOURCE: resource}},
        "spec": {"config": json.dumps({**MACVLAN, **changes})},
    }


def linted(planted, hosts=1):
    found = nad_lint.lint(nad_lint.from_objects([planted]), [host(n + 1) for n in range(hosts)], CLUSTER)
    return [(item.id, item.next_step) for item in found]


def seen_in_pod(answer):
    offered = {"nodes": [node()], "nads": [nad()], "dns": True, "networks": nad_lint.from_objects([nad()])}
    pod = pods.plan([host()], offered, {"namespace": "tests", "image": "x"})["pods"][0]
    state = {
        "ready": True,
        "phase": "Running",
        "reasons": [],
        "ip": "10.42.0.9",
        "node": "node1",
        "status": json.dumps(
            [
                {"interface": "eth0", "ips": ["10.42.0.9"], "default": True},
                {"name": "tests/rail0", "interface": "net1", "ips": ["10.56.0.2"]},
            ]
        ),
    }
    made = pod_checks.pod_checks(pod, state, pod_probe.parse(answer), host(), offered)
    return [(item["id"], item["next_step"]) for item in made if item["status"] == "failed"]


def planted(before, after):
    assert before in ROCE
    return ROCE.replace(before, after)


def node_findings(**changes):
    made = pod_checks.node_checks(host(), node(**changes))
    return [(item["id"], item["next_step"]) for item in made if item["status"] == "failed"]


def user_pod(answer):
    item = {
        "namespace": "default",
        "name": "mine",
        "annotations": {pods.NETWORKS: "rail0"},
        "host_network": False,
        "security": {},
        "containers": [{"name": "app", "limits": {RESOURCE: "1"}, "security": {}}],
    }
    state = {"ready": True, "phase": "Running", "reasons": [], "node": "node1"}
    found = {"item": item, "pods": {"mine": state}, "answers": {"mine": answer}, "cluster": {"nodes": [node()]}}
    made = pod_checks.diagnose(found, [host()], nad_lint.from_objects([nad()]), "default/mine")
    return [(one["id"], one["next_step"]) for one in made if one["status"] == "failed"]


def test_the_unmodified_cluster_has_no_finding():
    assert linted(nad()) == linted(nad(), hosts=2) == seen_in_pod(ROCE) == node_findings() == user_pod(ROCE) == []


NO_GID_OF_NET1 = ROCE.partition("@@ gids\n")[0] + "@@ gids\n@@= 0\n@@ register" + ROCE.partition("@@ register")[2]

ROWS = {
    "N1 a slot number as a PCI address": (lambda: linted(nad(type="host-device", ipam={})), "nad:resource-host-device"),
    "N2 macvlan on InfiniBand": (lambda: linted(nad(master="ib0", ipam={})), "nad:macvlan-infiniband"),
    "N3 a fixed GID index": (
        lambda: user_pod(planted("@@ environment\n", "@@ environment\nNCCL_IB_GID_INDEX=3\n")),
        "pod:gid-index",
    ),
    "N4 all GIDs zero in the pod": (lambda: user_pod(NO_GID_OF_NET1), "pod:gids"),
    "N4 no GID of net1": (lambda: seen_in_pod(NO_GID_OF_NET1), "pod:workload:gid:mlx5_0"),
    "N5 the same range on every node": (
        lambda: linted(nad(ipam={"type": "host-local", "subnet": "10.56.0.0/24"}), hosts=2),
        "nad:host-local-nodes",
    ),
    "N6 the NIC of the default route": (lambda: linted(nad(master="eth0", ipam={})), "nad:default-route"),
    "N9 an MTU above the master's": (lambda: linted(nad(mtu=9000)), "nad:mtu"),
    "N9 an active_mtu of 1024 on a fabric of 4096": (
        lambda: seen_in_pod(planted("active_mtu:		4096 (5)", "active_mtu:		1024 (3)")),
        "pod:workload:verbs:mlx5_0",
    ),
    "N10 no umad device": (
        lambda: seen_in_pod(planted("crw-rw-rw- 1 root root 231,   0 Nov 21 19:00 umad0\n", "")),
        "pod:workload:devices",
    ),
    "N10 no resource at all": (lambda: node_findings(capacity=0), f"resource:{RESOURCE}"),
    "N11 the HCA of another rail besides": (
        lambda: seen_in_pod(
            planted("19:00 uverbs0\n", "19:00 uverbs0\ncrw-rw-rw- 1 root root 231, 193 Nov 21 19:00 uverbs1\n")
        ),
        "pod:workload:devices",
    ),
    "N13 advertised before the drivers were up": (lambda: node_findings(allocatable=0), f"resource:{RESOURCE}"),
    "N14 lost with a restart of the kubelet": (lambda: node_findings(allocatable=0), f"resource:{RESOURCE}"),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_planted_fault_is_named_with_its_next_step(row):
    make, identity = ROWS[row]
    found = make()
    assert [name for name, _step in found] == [identity]
    assert all(step for _name, step in found)


def test_n7_nv_ipam_is_the_default_and_whereabouts_comes_with_a_warning():
    options = yaml.safe_load((ROOT / "roles/networks/defaults/main.yml").read_text())
    item = {"name": "data", "type": "macvlan", "master": "eth2", "subnet": "10.9.0.0/24"}
    nodes = [{**host(), "number": 0}]

    def planned(*components):
        return networks.plan(
            {**options, "networks_attachments": [item], "networks_components": list(components)}, nodes
        )

    assert planned("whereabouts", "nv-ipam")["attachments"][0]["ipam"] == "nv-ipam"
    alone = planned("whereabouts")
    assert alone["attachments"][0]["ipam"] == "whereabouts"
    assert any("deprecated" in note for note in alone["notes"])


def test_n8_nv_ipam_gets_the_directory_of_plugins_that_is_read():
    text = (ROOT / "roles/networks/templates/nv-ipam.yml.j2").read_text()
    assert "{% set bin_dir = lookup('gpufabric.rdma.variable', 'networks_cni_bin_dir') %}" in text
    assert "{{ ('--cni-bin-dir=' ~ bin_dir) | to_json }}" in text
    assert "/opt/cni/bin" not in text


def test_n12_rails_are_served_without_setting_links_up():
    entries = config.entries("rails", [RAIL])
    assert [entry["linkUp"] for entry in entries] == [False]
