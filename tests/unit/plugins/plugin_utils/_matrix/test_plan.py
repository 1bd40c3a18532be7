"""Who is measured with whom and when: rounds without a shared HCA or link, for 2 to 64 nodes and uneven rails."""

from __future__ import annotations

import random

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import plan as matrix_plan
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import schedule
from ansible_collections.gpufabric.rdma.tests.tools import tree

OPTIONS = {"peers": None, "seconds": 5, "round_seconds": 30, "cuda": False}


def own(groups, share=lambda end: end):
    return {end: frozenset([share(end)]) for group in groups for end in group}


@pytest.mark.parametrize("peers", [None, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_uses_nothing_twice_in_a_round_and_each_end_meets_so_many_others(seed, peers):
    chance = random.Random(seed)
    nodes = chance.randint(2, 32)
    groups = [
        [(f"node{number}", rail) for number in range(nodes) if chance.random() < 0.8]
        for rail in range(chance.randint(1, 8))
    ]
    links = {f"node{number}": chance.randint(1, 8) for number in range(nodes)}
    resources = own(groups, share=lambda end: (end[0], end[1] % links[end[0]]))
    rounds = schedule.rounds(groups, resources, peers)
    pairs = [pair for made in rounds for pair in made]
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == sum(schedule.count(len(g), peers) for g in groups)
    for group in groups:
        wanted = len(group) - 1 if peers is None else min(peers, len(group) - 1)
        for end in group:
            met = [other for pair in pairs if end in pair for other in pair if other != end]
            assert set(met) <= set(group)
            assert wanted <= len(met) <= wanted + len(group) % 2 * (peers is not None)
    for made in rounds:
        used = [name for one, other in made for name in resources[one] | resources[other]]
        assert made
        assert len(used) == len(set(used))
    every = [name for one, other in pairs for name in resources[one] | resources[other]]
    most = max(map(every.count, set(every)), default=0)
    assert most <= len(rounds) <= max(0, 2 * most - 1)


@pytest.mark.parametrize("nodes", range(2, 65))
def test_rails_that_share_nothing_need_as_few_rounds_as_there_can_be(nodes):
    groups = [[(number, rail) for number in range(nodes)] for rail in range(2)]
    assert len(schedule.rounds(groups, own(groups))) == (nodes - 1 if nodes % 2 == 0 else nodes)


def test_a_thousand_nodes_have_as_many_rounds_as_peers():
    groups = [[(number, rail) for number in range(1000)] for rail in range(8)]
    assert [len(made) for made in schedule.rounds(groups, own(groups), 4)] == [8 * 500] * 4


# --- from facts -------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path):
    """node(fixture, number, **what differs): a node as the action plugin gives it to the planner."""

    def make(fixture, number, **changes):
        laid = tree.load(fixture)
        for netdev, addresses in (laid["seams"].get("addresses") or {}).items():
            laid["seams"]["addresses"][netdev] = [
                f"{address.rpartition('.')[0]}.{number}/24" if netdev not in ("lo", "eth0") else address
                for address in addresses
            ]
        root = tmp_path / f"{fixture}-{number}"
        tree.lay_out(laid, root)
        reader = Tree(str(root))
        return {
            "host": f"node{number}",
            "facts": gather(reader, Seams.of(reader), software_hcas=True),
            "address": f"node{number}.mgmt",
            "tools": ["ib_write_bw"],
            "base_port": 18800,
            "runs": True,
            "in_use": {},
            "load_allowed": None,
            "cuda": {"send": True, "dmabuf": True},
            "expected_gbit_per_s": None,
            **changes,
        }

    return make


def test_eight_rails_of_four_nodes_take_three_rounds_each_way(node):
    nodes = [node("h100-8x-cx7-ib", number) for number in (1, 2, 3, 4)]
    plan = matrix_plan.plan(nodes, OPTIONS)
    assert len(plan["rounds"]) == 6
    assert len(plan["tests"]) == 8 * 4 * 3
    assert plan["alone"] == []
    for identities in plan["rounds"]:
        ends = [
            (plan["tests"][name][role]["host"], plan["tests"][name][role]["hca"])
            for name in identities
            for role in ("client", "server")
        ]
        assert len(ends) == len(set(ends)) == 32, "every HCA is busy, and with one test"
    ports = [(test["server"]["host"], test["tcp_port"]) for test in plan["tests"].values()]
    assert len(ports) == len(set(ports)), "a late client finds no other test's server"


def test_rails_of_software_hcas_take_turns_because_they_share_the_processor(node):
    nodes = [node("lab-rxe-debian12", number) for number in (1, 2)]
    for one in nodes:
        one["facts"]["rails"] = one["facts"]["rails"][:2]
    plan = matrix_plan.plan(nodes, OPTIONS)
    assert {len(identities) for identities in plan["rounds"]} == {1}
    assert len(plan["rounds"]) == 4


def test_two_ports_of_a_card_take_turns(node):
    nodes = [node("two-cards-cx6dx", number) for number in (1, 2)]
    links = matrix_plan.shared_links(nodes[0]["facts"]["hcas"])
    slots: dict = {}
    for hca in nodes[0]["facts"]["hcas"]:
        slots.setdefault(hca["pci"]["address"].rpartition(".")[0], set()).add(links[hca["name"]])
    assert all(len(leaders) == 1 for leaders in slots.values()), slots
    assert len({leader for leaders in slots.values() for leader in leaders}) == len(slots)


def test_each_host_has_both_its_ends_of_every_test_in_the_order_of_the_rounds(node):
    plan = matrix_plan.plan([node("h100-8x-cx7-ib", number) for number in range(1, 6)], OPTIONS)
    parts = matrix_plan.steps(plan)
    for host, mine in parts.items():
        orders = [one["order"] for one in mine]
        assert orders == sorted(set(orders))
        for one in mine:
            assert all(step["test"][step["role"]]["host"] == host for step in one["steps"])
            assert {step["id"] for step in one["steps"]} <= set(plan["rounds"][one["order"]])
    assert sum(len(one["steps"]) for mine in parts.values() for one in mine) == 2 * len(plan["tests"])


@pytest.mark.parametrize(
    ("most", "peers", "fits"),
    [(720, None, None), (719, None, 8), (639, None, 7), (639, 8, 7), (80, None, 1), (79, 1, 0)],
)
def test_more_tests_than_fit_in_a_plan_are_refused_with_the_peers_that_fit(node, monkeypatch, most, peers, fits):
    nodes = [node("h100-8x-cx7-ib", number) for number in range(1, 11)]
    monkeypatch.setattr(matrix_plan, "MOST_TESTS", most)
    if fits is None:
        assert len(matrix_plan.plan(nodes, {**OPTIONS, "peers": peers})["tests"]) == most
        return
    with pytest.raises(Refused) as refused:
        matrix_plan.plan(nodes, {**OPTIONS, "peers": peers})
    (finding,) = refused.value.findings
    assert finding.object == "matrix_peers"
    assert (f"matrix_peers: {fits}," in finding.next_step) == bool(fits)
    assert "--limit" in finding.next_step
    if fits:
        assert len(matrix_plan.plan(nodes, {**OPTIONS, "peers": fits})["tests"]) <= most


def test_consent_is_asked_for_loaded_hcas_only(node):
    busy = {"mlx5_0": ["python3 (process 7)"], "mlx5_99": ["other (process 8)"]}
    nodes = [node("h100-8x-cx7-ib", 1, in_use=busy), node("h100-8x-cx7-ib", 2)]
    plan = matrix_plan.plan(nodes, OPTIONS)
    findings = matrix_plan.consent_findings([plan], nodes)
    assert [(finding["host"], finding["object"]) for finding in findings] == [("node1", "HCA mlx5_0")]
    assert matrix_plan.consent_findings([plan], [{**nodes[0], "load_allowed": True}, nodes[1]]) == []
    left = matrix_plan.plan([{**nodes[0], "load_allowed": False}, nodes[1]], OPTIONS)
    rail = next(rail["index"] for rail in nodes[0]["facts"]["rails"] if rail["hca"] == "mlx5_0")
    assert {test["rail"] for test in left["tests"].values()} == set(range(8)) - {rail}


def test_gpu_memory_is_measured_after_host_memory_and_only_on_request(node):
    nodes = [node("h100-8x-cx7-ib", number) for number in (1, 2)]
    plan = matrix_plan.plan(nodes, {**OPTIONS, "cuda": True})
    assert [plan["tests"][names[0]]["memory"] for names in plan["rounds"]] == ["host", "host", "cuda", "cuda"]
    test = plan["tests"]["host-rail3-node1-node2-cuda"]
    assert test["client"]["gpu"] == 3
    assert plan["tests"]["host-rail3-node1-node2"]["client"]["gpu"] is None


@pytest.mark.parametrize(("mode", "dmabuf"), [("peermem", False), ("dmabuf", True)])
def test_gpu_memory_is_registered_as_the_facts_say(node, mode, dmabuf):
    nodes = [node("h100-8x-cx7-ib", number) for number in (1, 2)]
    for one in nodes:
        one["facts"]["gpudirect"]["mode"] = mode
    test = matrix_plan.plan(nodes, {**OPTIONS, "cuda": True})["tests"]["host-rail3-node1-node2-cuda"]
    assert (test["client"]["dmabuf"], test["server"]["dmabuf"]) == (dmabuf, dmabuf)


@pytest.mark.parametrize(
    ("mode", "cuda", "reason"),
    [
        ("peermem", {"send": False, "dmabuf": False}, "built without CUDA"),
        ("dmabuf", {"send": True, "dmabuf": False}, "no --use_cuda_dmabuf"),
        ("peermem", {"send": True, "dmabuf": False}, None),
    ],
)
def test_a_tool_that_cannot_reach_gpu_memory_is_named(node, mode, cuda, reason):
    nodes = [node("h100-8x-cx7-ib", number, cuda=cuda) for number in (1, 2)]
    for one in nodes:
        one["facts"]["gpudirect"]["mode"] = mode
    plan = matrix_plan.plan(nodes, {**OPTIONS, "cuda": True})
    measured = any(test["memory"] == "cuda" for test in plan["tests"].values())
    said = {one["reason"] for one in plan["alone"] if one["memory"] == "cuda"}
    assert measured is (reason is None)
    assert bool(said) is (reason is not None)
    assert all(reason in one for one in said)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.2, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (3725, "1 h 2 min")]
)
def test_times_are_readable(seconds, text):
    assert matrix_plan.clock(seconds) == text
