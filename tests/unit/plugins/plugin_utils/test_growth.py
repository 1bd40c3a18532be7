"""What judges all nodes at once does four times the work for four times the nodes, counted in calls, not in seconds."""

from __future__ import annotations

import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import judge, pods
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_world import World
from ansible_collections.gpufabric.rdma.tests.unit.plugins.plugin_utils.test_firewall import node

FEW, MANY = 20, 80
# Beyond what is linear: a judge has a part for the cluster as a whole, and sorts.
GENEROUS = 1.3


def work(action) -> int:
    """Calls of Python and C functions."""
    count = 0

    def see(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def growth(prepare) -> float:
    """How much more work there is for MANY nodes than FEW, as a multiple of how many more nodes there are."""
    prepare(FEW)()  # what is read and compiled once
    few, many = (work(prepare(count)) for count in (FEW, MANY))
    return many / few / (MANY / FEW)


@pytest.fixture
def world(captured):
    return lambda count: World(captured["gh200-cx7-roce"], captured["variables"], count)


@pytest.mark.parametrize("alike", [False, True])
def test_the_judge_of_all_checks(world, alike):
    def prepare(count):
        made = world(count)
        if alike:  # the same port down on each node, which is also its own failure in the catalogue
            for facts, probe in zip(made.facts.values(), made.probes.values()):
                facts["hcas"][0]["ports"][0].update(state="DOWN", phys_state="Polling")
                probe["char_devices"]["uverbs0"]["mode"] = "0600"
        seen = made.seen()
        return lambda: judge.judge(seen, check_mode=False)

    assert growth(prepare) < GENEROUS


def test_the_plan_of_the_test_pods(world):
    def prepare(count):
        cluster = world(count).seen().cluster
        return lambda: pods.plan(cluster)

    assert growth(prepare) < GENEROUS


def test_the_networks_of_each_node(world):
    def prepare(count):
        seen = world(count).seen()
        for seen_node in seen.nodes:
            seen_node["read"]["networks"] = {"netdevs": {}, "files": {}}
        return lambda: pods.networks(seen.nodes, seen.cluster.read["cluster"])

    assert growth(prepare) < GENEROUS


def test_the_plan_of_test_pods_of_nodes_that_are_in_no_cluster_is_no_list_of_all_for_each(world):
    made = []
    for count in (FEW, MANY):
        cluster = world(count).seen().cluster
        for member in cluster.read["cluster"]["nodes"]:
            member.update(name=f"other-{member['name']}", addresses=[])
        left_out = pods.plan(cluster)["left_out"]
        made.append(max(map(len, left_out.values())))
    assert made[1] < made[0] * GENEROUS


def test_who_asks_whom():
    def prepare(count):
        nodes = [node(number, tool=None) for number in range(count)]
        return lambda: (firewall._network.cache_clear(), firewall.plan(nodes))

    assert growth(prepare) < GENEROUS


def test_where_all_open_their_firewalls_no_address_is_parsed_for_a_pair_of_nodes(monkeypatch):
    parse, parsed = firewall.netaddr.IPNetwork, []

    def counted(text):
        parsed.append(text)
        return parse(text)

    def times(count):
        firewall._network.cache_clear()
        firewall._sources.cache_clear()
        firewall._cidr.cache_clear()
        parsed.clear()
        firewall.plan([node(number) for number in range(count)])
        return len(parsed)

    monkeypatch.setattr(firewall.netaddr, "IPNetwork", counted)
    assert times(MANY) / times(FEW) / (MANY / FEW) < GENEROUS
