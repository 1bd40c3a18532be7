"""k3s_api_address: what the servers and agents get from it, and everything that keeps it from working."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import address, config, reset
from ansible_collections.gpufabric.rdma.tests.unit.pitfalls.test_k3s import decide, node

SERVERS = ("node1", "node2", "node3")
SHARED = "192.0.2.5"


def nodes(change=None, seen=None, facts=None, **variables):
    """Three servers and an agent; change: variables of node1 alone. seen, facts: of node1."""
    found = [node(number + 10, SERVERS, api_address=SHARED, **variables) for number in range(1, 5)]
    for number, made in enumerate(found, 1):
        made["host"] = f"node{number}"
    found[0]["variables"].update(change or {})
    found[0]["state"].update(seen or {})
    found[0]["facts"] = facts or {}
    return found


def test_nodes_join_at_the_address_and_the_certificate_has_it():
    decided = decide(*nodes(tls_san=["api.example.org"]))
    assert decided["findings"] == []
    made = decided["nodes"]
    for host in SERVERS:
        assert made[host]["options"][config.CLUSTER]["tls-san"] == ["api.example.org", SHARED]
        own = made[host]["node_ip"]
        assert made[host]["shared"] == {
            "address": SHARED,
            "interface": "eth0",
            "node_ip": own,
            "peers": sorted({"192.0.2.11", "192.0.2.12", "192.0.2.13"} - {own}),
            "name": made[host]["name"],
        }
    assert "server" not in made["node1"]["options"][config.CONFIG], "the first server makes the cluster"
    for host in ("node2", "node3", "node4"):
        assert made[host]["options"][config.CONFIG]["server"] == f"https://{SHARED}:6443"
    assert made["node4"]["shared"] is None


def test_without_it_nothing_is_shared():
    made = decide(node(), node(2))["nodes"]
    assert [found["shared"] for found in made.values()] == [None, None]


HELD = {"shared_address": SHARED, "shared": {"answers": "52:54:00:00:00:01", "installed": True, "offered": None}}
REFUSED = {
    "not an address": ({"api_address": "api"}, {}, {}, "an address of IPv4"),
    "of IPv6": ({"api_address": "2001:db8::5"}, {}, {}, "an address of IPv4"),
    "a server's own": ({"api_address": "192.0.2.12"}, {}, {}, "no node has of its own"),
    "an agent's own": ({"api_address": "192.0.2.14"}, {}, {}, "no node has of its own"),
    "in another network": ({"api_address": "198.51.100.5"}, {}, {}, "a host's address in 192.0.2.0/24"),
    "the network itself": ({"api_address": "192.0.2.0"}, {}, {}, "a host's address in 192.0.2.0/24"),
    "the broadcast address": ({"api_address": "192.0.2.255"}, {}, {}, "a host's address in 192.0.2.0/24"),
    "of the pods": ({"api_address": SHARED, "cluster_cidr": "192.0.0.0/16"}, {}, {}, "outside the cluster's networks"),
    "of the services": ({"api_address": SHARED, "service_cidr": "192.0.0.0/16"}, {}, {}, "outside the cluster's"),
    "beside another URL": ({"server_url": "https://192.0.2.99:6443"}, {}, {}, f"https://{SHARED}:6443, or not set"),
    "no such interface": ({"api_interface": "eth7"}, {}, {}, "an interface with an address"),
}
ALONE = {
    "on a rail": ({}, {"rails": [{"netdev": "eth0"}]}, "an interface of the management network"),
    "taken": ({"shared": {**HELD["shared"]}}, {}, "a free address"),
    "no keepalived": ({"shared": {"answers": "", "installed": False, "offered": False}}, {}, "installed, or to be had"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_address_that_cannot_be_is_refused(name):
    variables, seen, facts, wanted = REFUSED[name]
    found = nodes(seen=seen, facts=facts)
    for made in found:
        made["variables"].update(variables)
    said = [item["wanted"] for item in decide(*found)["findings"]]
    assert any(wanted in text for text in said), said


@pytest.mark.parametrize("name", ALONE)
def test_a_server_that_cannot_have_it_is_refused(name):
    seen, facts, wanted = ALONE[name]
    found = [(item["host"], item["wanted"]) for item in decide(*nodes(seen=seen, facts=facts))["findings"]]
    assert [(host, wanted in text) for host, text in found] == [("node1", True)]


def test_nodes_that_disagree_are_refused():
    (found,) = decide(*nodes(change={"api_address": None}))["findings"]
    assert "node1: none" in found["seen"]


def test_an_address_that_a_server_of_ours_has_is_not_taken():
    made = nodes(seen=HELD)
    made[1]["state"]["shared"] = {"answers": "52:54:00:00:00:01", "installed": True, "offered": None}
    assert decide(*made)["findings"] == []


def test_a_package_manager_that_cannot_tell_refuses_nothing():
    assert decide(*nodes(seen={"shared": {"answers": "", "installed": False, "offered": None}}))["findings"] == []


WANTED = {"address": SHARED, "interface": "eth0", "node_ip": "192.0.2.11", "peers": ["192.0.2.12"], "name": "node1"}


def test_our_configuration_is_known_by_its_address_and_no_other_is():
    text = address.conf(WANTED)
    assert address.configured(text) == SHARED
    assert address.configured(text.split("\n", 1)[1]) == "", "without our header it is the site's"
    assert address.configured(None) == ""
    assert "unicast_peer" not in address.conf({**WANTED, "peers": []})


def test_files_of_others_are_left_and_a_service_older_than_its_files_restarts():
    none = {"program": True, "files": {}, "enabled": False, "active": False, "stale": False}
    made = address.plan(none, WANTED, "/usr/bin/python3")
    assert [change.action for change in made.changes] == ["write", "write", "write", "enable", "start"]
    files = {
        path: {"content": text, "mode": mode}
        for path, (text, mode) in address.texts(WANTED, "/usr/bin/python3").items()
    }
    there = {"program": True, "files": files, "enabled": True, "active": True, "stale": False}
    assert address.plan(there, WANTED, "/usr/bin/python3").changes == []
    (change,) = address.plan({**there, "stale": True}, WANTED, "/usr/bin/python3").changes
    assert change.action == "restart"
    theirs = {**there, "files": {**files, address.CONFIG: {"content": "vrrp_instance site {}", "mode": "0644"}}}
    (finding,) = address.plan(theirs, WANTED, "/usr/bin/python3").findings
    assert finding.object == address.CONFIG
    gone = address.plan(theirs, None, "/usr/bin/python3").changes
    assert address.CONFIG not in [change.object for change in gone]
    (finding,) = address.plan({**none, "program": False}, WANTED, "/usr/bin/python3").findings
    assert "keepalived" in finding.next_step


def test_a_reset_takes_what_an_address_leaves():
    assert {address.CONFIG, address.CHECK} <= set(reset.FILES)
    assert reset.ours(address.UNIT, address.unit())
