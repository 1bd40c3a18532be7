"""k3s_api_address: what the servers and agents get from it, and everything that keeps it from working."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import address, config, reset
from ansible_collections.gpufabric.rdma.tests.unit.plugins.plugin_utils._preflight.test_k3s import decide, node

SERVERS = ("node1", "node2", "node3")
SHARED = "192.0.2.5"
ROLE = pathlib.Path(__file__).resolve().parents[5] / "roles/k3s"


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
            "unknown": [],
        }
    assert "server" not in made["node1"]["options"][config.CONFIG], "the first server makes the cluster"
    for host in ("node2", "node3", "node4"):
        assert made[host]["options"][config.CONFIG]["server"] == f"https://{SHARED}:6443"
    assert made["node4"]["shared"] is None
    assert [found["shared"] for found in decide(node(), node(2))["nodes"].values()] == [None, None]


HELD = {"shared_address": SHARED, "shared": {"answers": "52:54:00:00:00:01", "installed": True, "offered": None}}
REFUSED = {
    "not an address": ({"api_address": "api"}, {}, {}, "an address of IPv4"),
    "a server's own": ({"api_address": "192.0.2.12"}, {}, {}, "no node has of its own"),
    "an agent's own": ({"api_address": "192.0.2.14"}, {}, {}, "no node has of its own"),
    "in another network": ({"api_address": "198.51.100.5"}, {}, {}, "a host's address in 192.0.2.0/24"),
    "the network itself": ({"api_address": "192.0.2.0"}, {}, {}, "a host's address in 192.0.2.0/24"),
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


LEFT_OUT = {
    "by k3s_node_ip": (("192.0.2.13", "server3.example.org"), ["192.0.2.12", "192.0.2.13"], []),
    "by where Ansible reaches it": (("", "192.0.2.13"), ["192.0.2.12", "192.0.2.13"], []),
    "by a name": (("", "server3.example.org"), ["192.0.2.12"], [f"k3s_api_address {SHARED}"]),
    "in another network": (("", "198.51.100.13"), ["192.0.2.12"], [f"k3s_api_address {SHARED}"]),
}


@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("unreachable", [False, True])
def test_a_server_outside_the_run_stays_a_peer_or_is_missed(name, unreachable):
    given, peers, objects = LEFT_OUT[name]
    here = nodes()[:2]
    here[0]["state"]["cluster"] = True
    for made in here:
        made["server_addresses"] = {"node1": ("", ""), "node2": ("", ""), "node3": given}
    away = {**nodes()[2], "state": None}
    decided = decide(*here, *([away] if unreachable else []))
    assert decided["nodes"]["node1"]["shared"]["peers"] == peers
    found = [item["object"] for item in decided["findings"] if item["host"] == "node1"]
    assert found == objects


VARIABLES = yaml.safe_load((ROLE / "vars/main.yml").read_text())


def test_the_role_writes_what_the_node_is_read_and_reset_by():
    paths = (VARIABLES["__k3s_address_config"], VARIABLES["__k3s_address_check"])
    assert (*paths, VARIABLES["__k3s_address_files"][2]["path"]) == address.FILES
    assert set(paths) <= set(reset.FILES)
    template = (ROLE / "templates/address.conf.j2").read_text()
    text = template.replace("{{ __k3s_header }}", VARIABLES["__k3s_header"])
    assert address.configured(text.replace("{{ shared['address'] }}", SHARED)) == SHARED
    assert address.configured(template) == "", "without our header it is the site's"
    assert address.configured(None) == ""
    unit = (ROLE / "templates/address.service.j2").read_text()
    assert reset.ours(address.UNIT, unit.replace("{{ __k3s_header }}", VARIABLES["__k3s_header"]))
