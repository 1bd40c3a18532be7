"""What the judge of all checks takes of a run in which something failed."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import judge
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_world import World

FAILED = {"failed": True, "msg": "no room"}
GONE = {"unreachable": True, "msg": "no route to host"}
LINTED = {"findings": [], "not_verified": [], "configurations": ["10-flannel.conflist"]}


@pytest.fixture
def known(captured):
    """Of each of two nodes what a sound run knows, with networks."""
    world = World(captured["gh200-cx7-roce"], captured["variables"])
    networks = {"routes": [], "files": {}, "tools": {"image": "pause", "mounts": {}}}
    nodes = world.seen().nodes
    for node in nodes:
        node["read"]["networks"] = {**networks, "netdevs": world.netdevs[node["host"]]}
    return [{"node": node, "served": {"servers": {}}, "connected": {"results": []}, "cni": LINTED} for node in nodes]


def gathered(known, **shared):
    hosts = [of_host["node"]["host"] for of_host in known if "node" in of_host]
    return judge.gather([*hosts, "away"], [*known, {}], {"node": known[0]["node"], **shared})


@pytest.mark.parametrize(
    ("registered", "failures"),
    [
        ({}, ["", ""]),
        ({"served": FAILED}, ["no room", ""]),
        ({"served": {"servers": {}}, "connected": FAILED}, ["no room", ""]),
        ({"served": GONE}, ["", ""]),
    ],
)
def test_why_a_node_ran_no_tests(known, registered, failures):
    known[0].update(registered)
    assert gathered(known).failures == failures


@pytest.mark.parametrize(
    ("shared", "unplanned"), [({}, ""), ({"paired": FAILED}, "no room"), ({"paired": {"skipped": True}}, "")]
)
def test_a_plan_that_failed_is_a_failed_check(known, shared, unplanned):
    seen = gathered(known, **shared)
    checks = judge.judge(seen, check_mode=False)["checks"]
    assert (seen.unplanned, seen.cluster) == (unplanned, None)
    assert ("fabric:plan" in {item["id"] for item in checks["node1"]}) == bool(unplanned)
    assert checks["away"][0]["status"] == "failed"


@pytest.mark.parametrize(
    ("cni", "shared", "placed", "failure"),
    [
        (LINTED, {}, ["node1", "node2"], ""),
        (FAILED, {}, ["node2"], ""),
        (GONE, {}, ["node1", "node2"], ""),
        (LINTED, {"pods": FAILED}, ["node1", "node2"], "no room"),
        (LINTED, {"pods": {"plan": {}}, "ran": FAILED}, ["node1", "node2"], "no room"),
        (LINTED, {"offered": FAILED}, ["node1", "node2"], "no room"),
    ],
)
def test_what_stopped_the_pods_and_which_nodes_were_read(known, cni, shared, placed, failure):
    known[0]["cni"] = cni
    cluster = gathered(known, **{"offered": {"cluster": None, "api_error": "down"}, **shared}).cluster
    assert ([host["host"] for host in cluster.hosts], cluster.failure) == (placed, failure)
