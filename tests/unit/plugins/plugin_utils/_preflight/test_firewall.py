"""Which ports a node needs by its role, from the options that have them, and what is said of those that are dropped."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall

VARIABLES = {
    "k3s_node_ip": None,
    "k3s_api_address": None,
    "k3s_cluster_cidr": "10.42.0.0/16",
    "k3s_service_cidr": "10.43.0.0/16",
    "flannel_backend": "vxlan",
    "flannel_interface": "",
    "verification_fabric": True,
    "verification_port": 18600,
    "verification_pods": None,
    "verification_pod_port": 18700,
    "matrix_host": True,
    "matrix_pods": None,
    "matrix_port": 18800,
    "matrix_pod_port": 18800,
    "matrix_cuda": False,
    "node_firewall_api_clients": [],
}


def rail(index, *addresses, kind="pci", gid="RoCE v2"):
    netdev = {"name": f"eth{index + 1}", "addresses": list(addresses)}
    return {
        "hca": {
            "name": f"mlx5_{index}",
            "kind": kind,
            "netdevs": [netdev],
            "ports": [{"number": 1, "gids": [{"type": gid}] if gid else []}],
        },
        "rail": {"index": index, "hca": f"mlx5_{index}", "netdev": netdev["name"]},
    }


def node(number, *rails, server=False, member=True, **variables):
    return {
        "host": f"node{number}",
        "address": f"node{number}.example",
        "member": member,
        "server": server,
        "firewall": {
            "address": f"10.0.0.{number}",
            "filters": True,
            "tool": "ufw",
            "recorded": [],
            "addresses": {"eth0": [f"10.0.0.{number}/24"], "bond1": [f"10.1.0.{number}/24"]},
        },
        "facts": {"hcas": [one["hca"] for one in rails], "rails": [one["rail"] for one in rails]},
        "variables": {**VARIABLES, **variables},
    }


def needed(nodes, host="node1"):
    """{id: (addresses of the peers, at which address)} without what pods need."""
    return {
        need["id"]: ([peer["address"] for peer in need["peers"]], need["to"])
        for need in firewall.plan(nodes)[host]
        if not need["id"].startswith("pods:")
    }


def test_a_server_an_agent_and_a_single_node():
    nodes = [node(1, server=True), node(2), node(3)]
    assert needed(nodes) == {
        "6443/tcp": (["10.0.0.2", "10.0.0.3"], "10.0.0.1"),
        "10250/tcp": (["10.0.0.2", "10.0.0.3"], "10.0.0.1"),
        "8472/udp": (["10.0.0.2", "10.0.0.3"], "10.0.0.1"),
    }
    assert set(needed(nodes, "node2")) == {"10250/tcp", "8472/udp"}
    assert needed([node(1, server=True)]) == {}


def test_etcd_between_servers_alone():
    nodes = [node(1, server=True), node(2, server=True), node(3, server=True), node(4)]
    assert needed(nodes)["2379-2380/tcp"] == (["10.0.0.2", "10.0.0.3"], "10.0.0.1")
    assert "2379-2380/tcp" not in needed(nodes, "node4")


def test_servers_that_share_an_address_need_vrrp_from_each_other():
    nodes = [node(number, server=number < 4, k3s_api_address="10.0.0.100") for number in range(1, 5)]
    assert needed(nodes)["vrrp"] == (["10.0.0.2", "10.0.0.3"], "10.0.0.1")
    assert "vrrp" not in needed(nodes, "node4")
    (need,) = [need for need in firewall.plan(nodes)["node2"] if need["id"] == "vrrp"]
    assert need["rules"][0] == {"kind": "protocol", "source": "10.0.0.1", "protocol": "vrrp"}
    assert "vrrp" not in needed([node(number, server=True) for number in (1, 2, 3)])


@pytest.mark.parametrize(("backend", "port"), [("vxlan", "8472/udp"), ("wireguard", "51820/udp"), ("host-gw", None)])
def test_the_port_of_flannels_backend(backend, port):
    found = needed([node(1, flannel_backend=backend), node(2, flannel_backend=backend)])
    assert {name for name in found if name.endswith("/udp")} == ({port} if port else set())


def test_flannels_interface_and_the_nodes_own_address():
    nodes = [node(1, flannel_interface="bond1"), node(2, flannel_interface="bond1", k3s_node_ip="10.9.0.2")]
    assert needed(nodes) == {"10250/tcp": (["10.9.0.2"], "10.0.0.1"), "8472/udp": (["10.1.0.2"], "10.1.0.1")}


def test_clients_of_the_api_server_outside_of_the_nodes():
    nodes = [node(1, server=True, node_firewall_api_clients=["192.0.2.0/24"]), node(2)]
    assert needed(nodes)["6443/tcp"] == (["10.0.0.2", "192.0.2.0/24"], "10.0.0.1")


def test_sources_are_the_peers_joined_and_not_one_address_more():
    nodes = [node(1, server=True), *(node(number) for number in (8, 9, 10, 11, 13))]
    (need,) = [need for need in firewall.plan(nodes)["node1"] if need["id"] == "6443/tcp"]
    assert [rule["source"] for rule in need["rules"]] == ["10.0.0.8/30", "10.0.0.13"]


def test_the_tests_ports_on_the_rails_by_their_number():
    nodes = [
        node(number, rail(0, f"10.10.0.{number}/24"), rail(1, f"10.10.1.{number}/24"), member=False)
        for number in (1, 2, 3)
    ]

    def peers(net):
        return [f"10.10.{net}.2", f"10.10.{net}.3"], f"10.10.{net}.1"

    assert needed(nodes) == {
        "18600-18603/tcp:10.10.0.1": peers(0),
        "18600-18603/tcp:10.10.1.1": peers(1),
        "18800-18803/tcp:10.10.0.1": peers(0),
        "18800-18803/tcp:10.10.1.1": peers(1),
    }
    for one in nodes:
        one["variables"].update(matrix_cuda=True, verification_port=20000)
    assert set(needed(nodes)) >= {"18800-18807/tcp:10.10.0.1", "20000-20003/tcp:10.10.0.1"}
    for one in nodes:
        one["variables"].update(matrix_host=False, verification_fabric=False)
    assert needed(nodes) == {}


def test_soft_roce_goes_through_the_firewall_and_hardware_does_not():
    soft = [node(number, rail(0, f"10.10.0.{number}/24", kind="software"), member=False) for number in (1, 2)]
    assert needed(soft)["4791/udp:10.10.0.1"] == (["10.10.0.2"], "10.10.0.1")
    hard = [node(number, rail(0, f"10.10.0.{number}/24"), member=False) for number in (1, 2)]
    iwarp = [
        node(number, rail(0, f"10.10.0.{number}/24", kind="software", gid=None), member=False) for number in (1, 2)
    ]
    assert not [name for nodes in (hard, iwarp) for name in needed(nodes) if name.startswith("4791")]


def test_soft_roce_is_tested_in_the_nodes_network_by_the_pods_of_members():
    def made(**variables):
        rails = [[rail(n, f"10.10.{n}.{number}/24", kind="software") for n in range(2)] for number in (1, 2, 3)]
        return [node(number, *rails[number - 1], member=number < 3, **variables) for number in (1, 2, 3)]

    whom = (["10.10.0.2"], "10.10.0.1")
    assert needed(made())["18700-18703/tcp:10.10.0.1"] == whom
    assert needed(made(matrix_pod_port=19000))["19000-19001/tcp:10.10.0.1"] == whom
    # The same ports as on the host are one need, which has the peers of both.
    assert needed(made(matrix_pod_port=18800))["18800-18803/tcp:10.10.0.1"] == (["10.10.0.2", "10.10.0.3"], whom[1])
    off = needed(made(verification_pods=False, matrix_pods=False, matrix_pod_port=19000))
    assert not [name for name in off if name.startswith(("187", "190"))]
    hard = [node(number, rail(0, f"10.10.0.{number}/24")) for number in (1, 2)]
    assert not [name for name in needed(hard) if name.startswith("187")]


@pytest.mark.parametrize("kinds", [("software",), ("software", "software"), ("pci", "software", "pci"), ("pci", "pci")])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_port_at_which_a_test_pod_listens_in_the_nodes_network_is_needed(kinds, count):
    """The traffic that _kube.pods plans, by the needs of the node that serves it."""
    nodes, planned, answers = [], [], {}
    for number in range(1, count + 1):
        rails = [rail(n, f"10.10.{n}.{number}/24", kind=kind) for n, kind in enumerate(kinds)]
        nodes.append(node(number, *rails))
        served = [
            {**one["rail"], "port": 1, "kind": kind, "link_layer": "Ethernet", "networks": [f"10.10.{n}.0/24"]}
            for n, (one, kind) in enumerate(zip(rails, kinds))
        ]
        attached = [{"rail": one, "interface": f"net{one['index']}"} for one in served]
        for kind in ("rails", "host"):
            name = f"{kind}-node{number}"
            planned.append(
                {"name": name, "kind": kind, "host": f"node{number}", "node": f"node{number}", "rails": served}
                | {"attachments": attached if kind == "rails" else []}
            )
            addresses = {one["netdev"]: [f"10.10.{one['index']}.{number}/24"] for one in served}
            addresses |= {f"net{one['index']}": [f"10.56.{one['index']}.{number}/24"] for one in served}
            answers[name] = {"missing": {}, "addresses": addresses, "gids": []}
    if "software" not in kinds:
        planned = [pod for pod in planned if pod["kind"] == "rails"]  # as _kube.pods.plan has it
    here = [test for test in pods.traffic(planned, answers, 18700)["tests"] if test["place"] == "the node's network"]
    assert bool(here) == ("software" in kinds)
    for test in here:
        server, client = test["server"]["host"], test["client"]["host"]
        open_to = [
            peer["host"]
            for need in firewall.plan(nodes)[server]
            if need["to"] == test["address"] and need["ports"][0] <= test["tcp_port"] <= need["ports"][1]
            for peer in need["peers"]
            if need["what"] == "tests of verify between pods"
        ]
        assert client in open_to, test


def test_without_ipv4_on_the_rail_the_handshake_is_over_the_nodes_own_address():
    nodes = [
        node(number, rail(0, f"fd00::{number}/64", "fe80::1/64"), member=False, matrix_host=False) for number in (1, 2)
    ]
    assert needed(nodes) == {"18600-18601/tcp:10.0.0.1": (["10.0.0.2"], "10.0.0.1")}


def test_pods_are_trusted_by_the_networks_of_pods_and_services():
    found = {need["id"]: need for need in firewall.plan([node(1, server=True)])["node1"]}
    assert set(found) == {
        "pods:10250/tcp", "pods:6443/tcp",
        "pods:1-65535/tcp:flannel.1", "pods:1-65535/tcp:cni0", "pods:1-65535/udp:flannel.1", "pods:1-65535/udp:cni0",
    }  # fmt: skip
    assert [rule["source"] for rule in found["pods:6443/tcp"]["rules"]] == ["10.42.0.0/16", "10.43.0.0/16"]
    across = found["pods:1-65535/tcp:flannel.1"]
    assert (across["hook"], across["iif"], across["oif"], across["later"]) == ("forward", "cni0", "flannel.1", True)


def test_a_node_that_was_not_read_is_no_peer():
    nodes = [node(1, server=True), {**node(2), "firewall": None}]
    assert list(firewall.plan(nodes)) == ["node1"]


# --- findings ---------------------------------------------------------------------------------------------------------

NODE2 = {"host": "node2", "address": "10.0.0.2"}
RULE = {"kind": "port", "source": "10.0.0.2", "protocol": "tcp", "ports": "6443", "tool": "ufw"}
HAVE = {"community.general": True, "ansible.posix": True}


def answer(**more):
    return {
        "id": "6443/tcp", "what": "API server of k3s", "hook": "input", "protocol": "tcp", "ports": "6443",
        "every": True, "peers": [NODE2], "state": "blocked", "by": "the policy of chain INPUT", "tool": "ufw",
        "remove": "", **more,
    }  # fmt: skip


def read(*answers, tool="ufw", add=(RULE,)):
    return {"tool": tool, "answers": list(answers), "add": list(add), "remove": []}


def test_verify_names_port_peer_rule_and_what_opens_it():
    (found,) = firewall.findings(read(answer()), "verify", {})
    assert found[:4] == (
        "firewall: 6443/tcp",
        "API server of k3s: open for node2 (10.0.0.2)",
        "ufw drops it: the policy of chain INPUT",
        "set node_firewall: open, or on the node: ufw allow proto tcp from 10.0.0.2 to any port 6443",
    )


def test_open_leaves_to_the_tool_what_the_tool_drops_and_refuses_what_others_drop():
    assert firewall.findings(read(answer()), "open", HAVE) == []
    remove = "iptables -t filter -D INPUT -p tcp -j DROP"
    (found,) = firewall.findings(read(answer(tool="", by="rule -A INPUT -p tcp -j DROP", remove=remove)), "open", HAVE)
    assert found.seen == "dropped: rule -A INPUT -p tcp -j DROP"
    assert found.next_step == f"{remove}; remove it where it is loaded from, too"
    (found,) = firewall.findings(read(answer(tool="", by="the policy of chain input")), "verify", {})
    assert found.next_step.startswith("accept it in the chain named here")


def test_open_refuses_what_it_cannot_know_and_verify_goes_on():
    unknown = answer(state="unknown", by="no nft is there", tool="")
    assert firewall.findings(read(unknown), "verify", {}) == []
    (found,) = firewall.findings(read(unknown), "open", HAVE)
    assert found.seen == "unknown: no nft is there"


@pytest.mark.parametrize(("tool", "collection"), [("ufw", "community.general"), ("firewalld", "ansible.posix")])
def test_open_without_the_collection_is_refused_with_the_command_that_installs_it(tool, collection):
    lacking = {**HAVE, collection: False}
    (found,) = firewall.findings(read(answer(tool=tool), tool=tool), "open", lacking)
    assert f"ansible-galaxy collection install {collection}" in found.next_step
    assert firewall.findings(read(answer(tool=tool), tool=tool), "verify", lacking) != [found]
    assert firewall.findings(read(tool=tool, add=()), "open", lacking) == [], "nothing to open: nothing is lacking"


def test_some_ports_of_pods_are_the_administrators_and_all_of_them_are_in_the_way():
    partly = answer(id="pods:1-65535/tcp:cni0", hook="forward", ports="25", every=False, tool="")
    assert firewall.findings(read(partly), "verify", {}) == []
    assert len(firewall.findings(read({**partly, "ports": "1-65535", "every": True}), "verify", {})) == 1


VRRP = {"id": "vrrp", "protocol": "vrrp", "ports": "0", "what": "k3s_api_address 10.0.0.100"}


def test_vrrp_is_named_without_a_port_and_opened_by_its_name():
    rule = {"kind": "protocol", "source": "10.0.0.2", "protocol": "vrrp", "tool": "ufw"}
    (found,) = firewall.findings(read(answer(**VRRP), add=[RULE, rule]), "verify", {})
    assert found.object == "firewall: VRRP (IP protocol 112)"
    assert found.next_step.endswith("on the node: ufw allow proto vrrp from 10.0.0.2")


def test_a_ufw_that_has_no_name_for_vrrp_is_told_apart():
    (found,) = firewall.findings(read(answer(**VRRP, tool="")), "open", HAVE)
    assert "before.rules: -A ufw-before-input -p vrrp -s 10.0.0.2 -j ACCEPT; then ufw reload" in found.next_step


RICH = '--add-rich-rule=\'rule family="ipv4" source address="10.0.0.2" port port="6443" protocol="tcp" accept\''
RICH_VRRP = '--add-rich-rule=\'rule family="ipv4" source address="10.0.0.2" protocol value="vrrp" accept\''
COMMANDS = [
    ({**RULE, "ports": "2379-2380"}, "ufw allow proto tcp from 10.0.0.2 to any port 2379:2380"),
    (
        {"kind": "protocol", "source": "10.0.0.2", "protocol": "vrrp", "tool": "ufw"},
        "ufw allow proto vrrp from 10.0.0.2",
    ),
    (
        {"kind": "protocol", "source": "10.0.0.2", "protocol": "vrrp", "tool": "firewalld", "zone": "public"},
        f"firewall-cmd --zone=public {RICH_VRRP} && firewall-cmd --permanent --zone=public {RICH_VRRP}",
    ),
    ({"kind": "trust", "source": "10.42.0.0/16", "tool": "ufw"}, "ufw allow from 10.42.0.0/16"),
    ({"kind": "route", "source": "10.42.0.0/16", "tool": "ufw"}, "ufw route allow from 10.42.0.0/16"),
    (
        {**RULE, "tool": "firewalld", "zone": "public"},
        f"firewall-cmd --zone=public {RICH} && firewall-cmd --permanent --zone=public {RICH}",
    ),
    (
        {"kind": "trust", "source": "10.42.0.0/16", "tool": "firewalld", "zone": "trusted"},
        "firewall-cmd --zone=trusted --add-source=10.42.0.0/16 && "
        "firewall-cmd --permanent --zone=trusted --add-source=10.42.0.0/16",
    ),
]


@pytest.mark.parametrize(("rule", "wanted"), COMMANDS)
def test_a_rule_as_a_person_types_it(rule, wanted):
    assert firewall.command(rule) == wanted


def test_rules_are_only_for_a_node_on_which_a_tool_has_rules():
    """As on each node of a cluster, where kube-proxy filters: nothing would be opened there."""
    nodes = [node(1, server=True), node(2), node(3)]
    with_tool = firewall.plan(nodes)["node1"]
    nodes[0]["firewall"]["tool"] = None
    without = firewall.plan(nodes)["node1"]
    (api,) = [need for need in with_tool if need["id"] == "6443/tcp"]
    assert [rule["source"] for rule in api["rules"]] == ["10.0.0.2/31"]
    assert [{**need, "rules": []} for need in with_tool] == [{**need, "rules": []} for need in without]
    assert {rule["kind"] for need in without for rule in need["rules"]} == {"trust"}
