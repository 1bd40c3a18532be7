"""The pod network against captured nodes."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import pod_network

LAB, GH200, H100 = "lab-rxe-debian12", "gh200-cx7-roce", "h100-8x-cx7-ib"
FINE = {
    "cidr": "10.42.0.0/16", "backend": "vxlan", "mtu": 0, "interface": "", "fabric_allowed": None, "api_server": "",
    "node_address": "", "cluster_cidr": "10.42.0.0/16", "service_cidr": "10.43.0.0/16",
}  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), [
    (LAB, {}),
    (GH200, {}),
    (GH200, {"interface": "enp1s0f0np0"}),
    (LAB, {"interface": "eth2", "fabric_allowed": True}),
    (LAB, {"backend": "host-gw"}),
    (LAB, {"api_server": "198.18.0.1:6443"}),
    (LAB, {"mtu": 1300, "interface": "eth2", "fabric_allowed": True}),
])  # fmt: skip
def test_a_sound_pod_network_passes(facts_of, name, changes):
    assert pod_network.findings(facts_of(name, software_hcas=True), {**FINE, **changes}) == []


@pytest.mark.parametrize(
    ("name", "changes", "obj", "seen"),
    [
        (LAB, {"interface": "eth2"}, "NIC eth2", "it is rail 0"),
        (LAB, {"node_address": "198.18.2.2"}, "NIC eth2", "pod traffic would share it with RDMA"),
        (GH200, {"interface": "enp1s0f1np1"}, "NIC enp1s0f1np1", "does not carry the default route"),
        (LAB, {"cidr": "10.244.0.0/16"}, "variable flannel_cidr", "10.244.0.0/16"),
        (LAB, {"cidr": "10.42.0.0/33"}, "variable flannel_cidr", "10.42.0.0/33"),
        (LAB, {"cidr": "10.42.0.1/16"}, "variable flannel_cidr", "10.42.0.1/16"),
        (LAB, {"cidr": "fd00::/56", "cluster_cidr": ""}, "variable flannel_cidr", "fd00::/56"),
        (LAB, {"cidr": "10.42.0.0/26", "cluster_cidr": ""}, "variable flannel_cidr", "10.42.0.0/26"),
        (LAB, {"service_cidr": "10.43.0.1/16"}, "variable k3s_service_cidr", "10.43.0.1/16"),
        (LAB, {"service_cidr": "10.42.128.0/20"}, "variable flannel_cidr", "overlaps k3s_service_cidr"),
        (LAB, {"cidr": "198.18.0.0/15", "cluster_cidr": ""}, "variable flannel_cidr", "overlaps 198.18.2.2/24 of eth2"),
        (LAB, {"backend": "host-gw", "mtu": 1400}, "variable flannel_mtu", "1400"),
        (GH200, {"mtu": 1480}, "variable flannel_mtu", "1480, with MTU"),
        (LAB, {"api_server": "198.18.0.1"}, "variable flannel_api_server", "198.18.0.1"),
    ],
)
def test_a_pod_network_that_cannot_work_is_refused_with_the_four_facts(facts_of, name, changes, obj, seen):
    found = pod_network.findings(facts_of(name, software_hcas=True), {**FINE, **changes})
    named = [item for item in found if item.object == obj and seen in item.seen]
    assert named, found
