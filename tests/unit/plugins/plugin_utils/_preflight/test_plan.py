"""The one plan: which findings come together, who fails by them, and what a later plan of the same run keeps."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import plan, variables
from ansible_collections.gpufabric.rdma.tests.unit.plugins.plugin_utils._preflight import test_k3s as machines

TYPED = {name: option.get("default") for name, option in variables.options().items()}
ADDRESSES = {"a": "198.18.0.1", "b": "198.18.0.2"}
WRONG = {"object": "variable x", "wanted": "1", "seen": "2", "next_step": "correct it", "id": ""}
CLUSTER = ("cni_plugins", "multus", "node_ready", "device_plugin")


@pytest.fixture
def read(facts_of):
    """read(host, **changes): a node as it was read; given: variables that are set."""

    def of(host, fixture="h100-8x-cx7-ib", given=(), **changes):
        networks = {"netdevs": {}, "routes": [], "files": {}, "vfs_unit": False}
        node = {
            "host": host,
            "address": ADDRESSES[host],
            "hostname": host,
            "variables": {**TYPED, "k3s_node_ip": ADDRESSES[host], **dict(given)},
            "problems": [],
            "ansible_facts": {"rdma": facts_of(fixture)},
            "k3s": machines.node()["state"],
            "networks": networks,
            "runtime": {"source": None, "cdi": None},
        }
        return {**node, **changes}

    return of


def run(*roles, **changes):
    groups = {"all": ["a", "b"], "gpu_nodes": ["a", "b"]}
    servers = {"a": (None, ADDRESSES["a"])}
    lock = {"images": [], "wheels": []}
    given = {"hosts": ["a", "b"], "groups": groups, "nodes": ["a", "b"], "servers": servers, "bundle": None}
    return plan.Run(**{"roles": roles, "lock": lock, "daemonset": {}, "now": 0, **given, **changes})


def where(planned):
    return {(item["role"], item["host"], item["object"]) for item in planned["findings"]}


def test_problems_of_variables_nodes_and_roles_come_together_each_at_its_hosts(read):
    bad = {"cni_plugins_names": ["loopback"], "multus_global_namespaces": ["x"], "k3s_bundle_dir": "/nowhere"}
    nodes = [read("a", given=bad.items(), problems=[WRONG]), read("b", hostname="a")]
    planned = plan.plan(nodes, run("discovery", *CLUSTER))
    assert where(planned) >= {
        ("", "a", "variable x"),
        ("cni_plugins", "a", "variable cni_plugins_names"),
        ("cni_plugins", "b", "variable k3s_bundle_dir"),
        ("multus", "a", "variable multus_global_namespaces"),
        ("node_ready", "b", "node name a"),
    }
    objects = {name: [item["object"] for item in decided["findings"]] for name, decided in planned["hosts"].items()}
    assert ("variable x" in objects["a"], "variable x" in objects["b"]) == (True, False)


@pytest.mark.parametrize("change", [{"lost": "no route"}, {"failure": "no Python"}])
def test_a_node_that_was_not_read_stops_the_cluster_or_is_left_out(read, change):
    nodes = [read("a", given={"multus_global_namespaces": ["x"]}.items()), {**read("b"), "ansible_facts": {}, **change}]
    stopped = plan.plan(nodes, run("discovery", "multus"))
    assert [role for role, _host, _object in where(stopped)] == [""]
    partial = plan.plan(nodes, run("discovery", "multus", partial=True))
    assert {(role, host) for role, host, _object in where(partial)} == {("", "b"), ("multus", "a")}
    assert partial["hosts"]["b"].get("settled", False) is False
    assert partial["settled"] is False


@pytest.mark.parametrize(
    ("host", "fails"), [("a", ["a"]), ("a, b", ["a", "b"]), ("the controller", ["a", "b"]), ("c", ["a", "b"])]
)
def test_who_fails_by_a_finding(host, fails):
    made = plan.with_findings({"hosts": {"a": {}, "b": {}}}, [{**WRONG, "host": host, "role": "x"}] * 2)
    assert len(made["findings"]) == 1
    assert [name for name, decided in made["hosts"].items() if decided["findings"]] == fails


def test_a_later_plan_keeps_what_other_roles_decided_and_their_findings_only_from_one_reading():
    def made(role, **decided):
        item = {**WRONG, "object": role, "host": "a", "role": role}
        return plan.with_findings({"roles": [role], "hosts": {"a": decided}}, [item])

    for same, objects in ((False, ["node_firewall"]), (True, ["k3s", "node_firewall"])):
        both = plan.merged(made("k3s", k3s=1, firewall=1), made("node_firewall", firewall=2), same)
        assert both["roles"] == ["k3s", "node_firewall"]
        assert (both["hosts"]["a"]["k3s"], both["hosts"]["a"]["firewall"]) == (1, 2)
        assert [item["object"] for item in both["findings"]] == objects


def test_networks_wait_for_rails_only_while_the_host_layer_is_to_come(read):
    bare = read("b")
    bare["ansible_facts"]["rdma"]["rails"] = []
    for roles, waits in ((("discovery", "networks"), True), (("networks",), False)):
        planned = plan.plan([read("a"), bare], run(*roles))
        assert (planned["networks"] is None) is waits
    assert plan.plan([read("a"), read("b")], run("discovery", "networks"))["networks"]["complete"] is True


def test_a_git_folder_is_made_from_all_nodes_or_not_at_all(read):
    nodes = [read("a", given={"cluster_objects_folder": ""}.items())]
    found = plan.plan(nodes, run("cluster_objects", partial=True))
    assert where(found) == {
        ("cluster_objects", "the controller", "variable cluster_objects_folder"),
        ("cluster_objects", "the controller", "nodes of this run"),
    }
