"""Who is measured with whom and when: rounds without a shared HCA or link, for 2 to 64 nodes and uneven rails."""

from __future__ import annotations

import itertools
import random

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import plan as matrix_plan
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import schedule
from ansible_collections.gpufabric.rdma.tests.tools import tree

OPTIONS = {"peers": None, "seconds": 5, "round_seconds": 30, "rounds_per_call": None, "cuda": False}


def check(groups, resources, rounds):
    """What must hold of any schedule: every pair once, nothing used twice in a round."""
    wanted = sorted(tuple(sorted(pair)) for group in groups for pair in itertools.combinations(group, 2))
    assert sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs) == wanted
    for pairs in rounds:
        assert pairs, "no round is empty"
        used = [name for pair in pairs for name in resources[pair[0]] | resources[pair[1]]]
        assert len(used) == len(set(used)), pairs


def own(groups, share=lambda end: end):
    return {end: frozenset([share(end)]) for group in groups for end in group}


@pytest.mark.parametrize("nodes", range(2, 65))
def test_one_rail_needs_as_few_rounds_as_there_can_be(nodes):
    groups = [[(f"node{number}", 0) for number in range(nodes)]]
    rounds = schedule.rounds(groups, own(groups))
    check(groups, own(groups), rounds)
    assert len(rounds) == (nodes - 1 if nodes % 2 == 0 else nodes)


@pytest.mark.parametrize("nodes", [2, 3, 8, 15, 32])
def test_rails_run_beside_each_other(nodes):
    groups = [[(f"node{number}", rail) for number in range(nodes)] for rail in range(8)]
    rounds = schedule.rounds(groups, own(groups))
    check(groups, own(groups), rounds)
    assert len(rounds) == (nodes - 1 if nodes % 2 == 0 else nodes)


@pytest.mark.parametrize("nodes", [2, 4, 7, 16])
def test_rails_on_one_link_take_turns(nodes):
    """Rails 0 and 1 share a link, as do 2 and 3: twice the rounds, and no more."""
    groups = [[(f"node{number}", rail) for number in range(nodes)] for rail in range(4)]
    resources = own(groups, share=lambda end: (end[0], end[1] // 2))
    rounds = schedule.rounds(groups, resources)
    check(groups, resources, rounds)
    assert len(rounds) <= 2 * (nodes if nodes % 2 else nodes - 1)


@pytest.mark.parametrize("seed", range(60))
def test_uneven_rails_and_links_stay_within_the_bound(seed):
    chance = random.Random(seed)
    nodes = chance.randint(2, 24)
    groups = [
        [(f"node{number}", rail) for number in range(nodes) if chance.random() < 0.8]
        for rail in range(chance.randint(1, 8))
    ]
    links = {f"node{number}": chance.randint(1, 8) for number in range(nodes)}
    resources = own(groups, share=lambda end: (end[0], end[1] % links[end[0]]))
    rounds = schedule.rounds(groups, resources)
    check(groups, resources, rounds)
    degree: dict = {}
    for pair in (pair for pairs in rounds for pair in pairs):
        for name in resources[pair[0]] | resources[pair[1]]:
            degree[name] = degree.get(name, 0) + 1
    most = max(degree.values(), default=0)
    assert most <= len(rounds) <= max(0, 2 * most - 1)


@pytest.mark.parametrize("peers", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("seed", range(12))
def test_with_peers_each_end_meets_so_many_others_and_hardly_more(seed, peers):
    chance = random.Random(seed)
    groups = [[(f"node{number}", rail) for number in range(chance.randint(0, 40))] for rail in range(4)]
    share = chance.choice([1, 2])
    resources = own(groups, share=lambda end: (end[0], end[1] // share))
    rounds = schedule.rounds(groups, resources, peers)
    pairs = [pair for made in rounds for pair in made]
    assert len({frozenset(pair) for pair in pairs}) == len(pairs) == sum(schedule.count(len(g), peers) for g in groups)
    for group in groups:
        for end in group:
            met = sum(end in pair for pair in pairs)
            wanted = min(peers, len(group) - 1)
            assert wanted <= met <= wanted + len(group) % 2
    for made in rounds:
        used = [name for one, other in made for name in resources[one] | resources[other]]
        assert made
        assert len(used) == len(set(used))


def test_a_thousand_nodes_have_as_many_rounds_as_peers():
    groups = [[(number, rail) for number in range(1000)] for rail in range(8)]
    rounds = schedule.rounds(groups, own(groups), 4)
    assert [len(made) for made in rounds] == [8 * 500] * 4


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


def test_what_one_call_runs_keeps_the_order_on_each_host(node):
    plan = matrix_plan.plan([node("h100-8x-cx7-ib", number) for number in range(1, 6)], OPTIONS)
    tranches = matrix_plan.tranches(plan, OPTIONS)
    assert [number for numbers in tranches for number in numbers] == list(range(len(plan["rounds"])))
    assert len(tranches) == 2, "10 rounds of 8 s, about a minute a call"
    for host, mine in matrix_plan.steps(plan, tranches[0]).items():
        assert [one["round"] for one in mine] == sorted({one["round"] for one in mine})
        for one in mine:
            assert one["order"] == tranches[0].index(one["round"])
            assert all(step["test"][step["role"]]["host"] == host for step in one["steps"])
    assert [len(numbers) for numbers in matrix_plan.tranches(plan, {**OPTIONS, "rounds_per_call": 4})] == [4, 4, 2]


def test_more_tests_than_a_run_can_handle_are_refused_with_what_fits(node, monkeypatch):
    nodes = [node("h100-8x-cx7-ib", number) for number in range(1, 11)]
    monkeypatch.setattr(matrix_plan, "MOST_TESTS", 700)
    with pytest.raises(Refused) as refused:
        matrix_plan.plan(nodes, OPTIONS)
    finding = refused.value.findings[0]
    assert (finding.object, finding.wanted) == ("matrix_peers", "at most 700 tests in a run")
    assert finding.seen == "720 tests between 10 nodes; nothing has been sent"
    assert finding.next_step.startswith("set matrix_peers: 8, which makes 640 tests; or measure some of the nodes")
    assert len(matrix_plan.plan(nodes, {**OPTIONS, "peers": 8})["tests"]) == 640
    monkeypatch.setattr(matrix_plan, "MOST_TESTS", 79)
    with pytest.raises(Refused) as refused:
        matrix_plan.plan(nodes, {**OPTIONS, "peers": 1})
    assert refused.value.findings[0].next_step == "measure some of the nodes at a time: --limit"


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
