"""Outliers: exactly the planted one is named, with its likely reason; an untouched matrix names none."""

from __future__ import annotations

import json
import pathlib
import random
import statistics

import jsonschema
import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import judge
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import plan as matrix_plan
from ansible_collections.gpufabric.rdma.tests.tools import tree

ROOT = pathlib.Path(__file__).resolve().parents[5]
SCHEMA = json.loads((ROOT / "docs/schemas/results-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator({**SCHEMA["$defs"]["matrix"], "$defs": SCHEMA["$defs"]})
AT = "2026-11-22T07:10:00Z"
HOSTS = ["node1", "node2", "node3", "node4"]
PLAN = {"peers": None, "seconds": 5, "round_seconds": 30, "cuda": False}
JUDGE = {"minimum_percent": 80, "peer_percent": 50, "hosts": HOSTS, "failures": {}, "check_mode": False}


@pytest.fixture(scope="module")
def hardware(tmp_path_factory):
    """Facts of an 8-rail H100 node."""
    root = tmp_path_factory.mktemp("h100")
    tree.lay_out(tree.load("h100-8x-cx7-ib"), root)
    reader = Tree(str(root))
    return json.dumps(gather(reader, Seams.of(reader)))


@pytest.fixture
def facts(hardware):
    """{host: facts of its own, to be changed}."""
    return {host: json.loads(hardware) for host in HOSTS}


def node(host, facts):
    return {
        "host": host,
        "facts": facts,
        "address": f"{host}.mgmt",
        "tools": ["ib_write_bw"],
        "base_port": 18800,
        "runs": True,
        "in_use": {},
        "load_allowed": None,
        "cuda": None,
        "expected_gbit_per_s": None,
    }


def planned(facts, **options):
    return matrix_plan.plan([node(host, facts[host]) for host in facts], {**PLAN, **options})


def good(plan, gbps=390.0, **changes):
    """Results as a healthy fabric gives them; changes: {test id: what differs on the client's side}."""
    found = {}
    for name in plan["tests"]:
        client = {"ok": True, "error": None, "gbps": gbps, "counters": {}, "counters_read": True}
        found[name] = {
            "client": {**client, **changes.get(name, {})},
            "server": {"ok": True, "error": None, "counters": {}, "counters_read": True},
        }
    return found


def judged(plan, results, nodes=None, **options):
    known = {host: {"governors": {"performance": 8}} for host in HOSTS}
    made = judge.document([plan], results, {**known, **(nodes or {})}, {**JUDGE, **options}, AT)
    VALIDATOR.validate(made)
    assert all(row["reason"] for row in made["tests"] if row["verdict"] != "ok")
    return made


def rows(document, verdict):
    return {row["id"]: row for row in document["tests"] if row["verdict"] == verdict}


def test_an_untouched_matrix_names_none(facts):
    plan = planned(facts)
    document = judged(plan, good(plan))
    assert len(rows(document, "ok")) == len(document["tests"]) == 8 * 12
    assert {row["expected_gbit_per_s"] for row in document["tests"]} == {395.0}
    assert "96 ok, 0 outliers, 0 not verified" in judge.table(document)


def test_exactly_the_slow_rail_is_named(facts):
    plan = planned(facts)
    document = judged(plan, good(plan, **{"host-rail3-node2-node4": {"gbps": 90.0}}))
    assert list(rows(document, "outlier")) == ["host-rail3-node2-node4"]
    assert rows(document, "outlier")["host-rail3-node2-node4"]["reason"] == (
        "90 of 395 Gb/s, 80 % wanted (link of 400 Gb/s without packet headers); no fact about the two nodes explains it"
    )


def trained(facts, **link):
    hca = next(hca for hca in facts["hcas"] if hca["name"] == facts["rails"][2]["hca"])
    hca["pci"]["link"].update(link)


@pytest.mark.parametrize(
    ("link", "gbps", "reason"),
    [
        ({"width": 8}, 205.0, "PCIe x8 instead of x16, which carries 212.0 Gb/s"),
        ({"speed_gts": 16.0}, 205.0, "PCIe link trained down to 16 of 32 GT/s, which carries 212.0 Gb/s"),
    ],
)
def test_a_slot_that_trained_down_is_the_reason(facts, link, gbps, reason):
    trained(facts["node2"], **link)
    plan = planned(facts)
    touched = {name: {"gbps": gbps} for name, t in plan["tests"].items() if t["rail"] == 2 and "node2" in name}
    document = judged(plan, good(plan, **touched))
    assert set(rows(document, "outlier")) == set(touched)
    assert len(touched) == 6
    for row in rows(document, "outlier").values():
        assert f"node2 {facts['node2']['rails'][2]['hca']}: {reason}" in row["reason"]


def test_a_port_slower_than_its_peers_is_the_reason(facts):
    hca = next(hca for hca in facts["node1"]["hcas"] if hca["name"] == facts["node1"]["rails"][0]["hca"])
    hca["ports"][0].update(rate_gbps=100.0, rate_text="100 Gb/sec (1X NDR)")
    plan = planned(facts)
    touched = {name: {"gbps": 97.0} for name, t in plan["tests"].items() if t["rail"] == 0 and "node1" in name}
    document = judged(plan, good(plan, **touched))
    assert set(rows(document, "outlier")) == set(touched)
    reason = next(iter(rows(document, "outlier").values()))["reason"]
    assert "the port runs at 100 Gb/s where ports of its kind run at 400 Gb/s" in reason


@pytest.mark.parametrize(
    ("counters", "verdict", "said"),
    [
        ({"symbol_error": 3}, "outlier", "error counters rose: from:symbol_error +3"),
        ({"link_downed": 1}, "outlier", "error counters rose: from:link_downed +1"),
        ({"netdev_rx_crc_errors": 1}, "outlier", "error counters rose: from:netdev_rx_crc_errors +1"),
        # What a lossy or a loaded fabric does all day is shown, and judged only together with a slow test.
        ({"out_of_sequence": 12}, "ok", ""),
        ({"np_cnp_sent": 900}, "ok", ""),
        ({"port_xmit_wait": 5}, "ok", ""),
    ],
)
def test_counters_of_a_fast_test(facts, counters, verdict, said):
    plan = planned(facts)
    document = judged(plan, good(plan, **{"host-rail1-node1-node2": {"counters": counters}}))
    row = next(row for row in document["tests"] if row["id"] == "host-rail1-node1-node2")
    assert (row["verdict"], row["reason"]) == (verdict, said)
    assert row["counters"] == {f"from:{name}": count for name, count in counters.items()}
    assert len(rows(document, "outlier")) == (verdict == "outlier")
    name, count = next(iter(counters.items()))
    assert f"from:{name} +{count}" in judge.table(document), "shown either way"


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        ({"packet_seq_err": 4}, "packets were lost or retransmitted: from:packet_seq_err +4"),
        ({"np_cnp_sent": 900}, "the fabric is congested: from:np_cnp_sent +900"),
        ({"symbol_error": 3}, "error counters rose: from:symbol_error +3"),
    ],
)
def test_counters_explain_a_slow_test(facts, counters, said):
    plan = planned(facts)
    document = judged(plan, good(plan, **{"host-rail1-node1-node2": {"gbps": 40.0, "counters": counters}}))
    reason = rows(document, "outlier")["host-rail1-node1-node2"]["reason"]
    assert said in reason
    assert reason.count("error counters rose") <= 1


def test_the_governor_and_a_missing_numa_node_are_reasons_of_last_resort(facts):
    hca = next(hca for hca in facts["node2"]["hcas"] if hca["name"] == facts["node2"]["rails"][5]["hca"])
    hca["pci"]["numa_node"] = -1
    plan = planned(facts)
    document = judged(
        plan,
        good(plan, **{"host-rail5-node1-node2": {"gbps": 300.0}}),
        {"node1": {"governors": {"powersave": 112}}},
    )
    reason = rows(document, "outlier")["host-rail5-node1-node2"]["reason"]
    assert "node1: CPU governor powersave on 112 CPUs, not performance" in reason
    assert "the firmware reports no NUMA node" in reason


def test_a_test_that_failed_is_an_outlier_with_what_both_ends_said(facts):
    plan = planned(facts)
    results = good(plan, **{"host-rail0-node1-node2": {"ok": False, "gbps": None, "error": "Couldn't connect"}})
    results["host-rail0-node1-node2"]["server"].update(ok=False, error="error: no end after 30 s")
    reason = rows(judged(plan, results), "outlier")["host-rail0-node1-node2"]["reason"]
    assert reason == "no bandwidth: node1: Couldn't connect; node2: error: no end after 30 s"


def test_a_node_that_gave_no_answer_is_reported_with_its_reason(facts):
    plan = planned(facts)
    results = good(plan)
    for name, ends in results.items():
        for role in list(ends):
            if plan["tests"][name][role]["host"] == "node4":
                del ends[role]
    for name, ends in results.items():
        if "node4" in name and "client" in ends:
            ends["client"].update(ok=False, error="Couldn't connect")
    document = judged(plan, results, failures={"node4": "unreachable: no route to host"})
    touched = {row["from"] + row["to"] for row in rows(document, "outlier").values()}
    assert all("node4" in pair for pair in touched)
    assert all("unreachable: no route to host" in row["reason"] for row in rows(document, "outlier").values())


def test_what_did_not_run_is_not_verified(facts):
    plan = planned(facts)
    for document in (judged(plan, {}), judged(plan, {}, check_mode=True)):
        assert len(rows(document, "not_verified")) == len(plan["tests"])


def test_gpu_memory_that_no_tool_reaches_is_not_verified_and_not_tried(facts):
    plan = planned(facts, cuda=True)
    assert len(plan["tests"]) == 8 * 12
    document = judged(plan, good(plan))
    assert len(rows(document, "not_verified")) == 8 * 4
    assert "ib_write_bw of node1 was built without CUDA" in " ".join(judge.table(document).split())


def test_gpu_memory_has_tables_of_its_own_with_their_level(facts):
    plan = matrix_plan.plan(
        [{**node(host, facts[host]), "cuda": {"send": True, "dmabuf": True}} for host in HOSTS], {**PLAN, "cuda": True}
    )
    document = judged(plan, good(plan, **{"host-rail0-node1-node2-cuda": {"gbps": 10.0}}))
    assert list(rows(document, "outlier")) == ["host-rail0-node1-node2-cuda"]
    assert "Host to host from GPU memory (evidence level E5: hardware), rail 0" in judge.table(document)


def software(facts):
    for one in facts.values():
        one["rails"] = one["rails"][:2]
        for hca in one["hcas"]:
            hca.update(kind="software", pci=None)
    return facts


BOTH_WAYS = ("host-rail1-node1-node2", "host-rail1-node2-node1")


@pytest.mark.parametrize("slow", [None, BOTH_WAYS[:1], BOTH_WAYS])
def test_software_hcas_are_compared_with_their_peers(facts, slow):
    two = software({host: facts[host] for host in HOSTS[:2]})
    plan = planned(two)
    figures = dict(zip(plan["tests"], (0.051, 0.043, 0.058, 0.047)))
    touched = {name: {"gbps": 0.004 if name in (slow or ()) else figures[name]} for name in plan["tests"]}
    document = judged(plan, good(plan, **touched), hosts=HOSTS[:2])
    assert set(rows(document, "outlier")) == set(slow or ())
    assert {row["expected_from"] for row in document["tests"]} == {"the median of its peers"}


def test_two_software_ends_alone_say_nothing(facts):
    two = software({host: facts[host] for host in HOSTS[:2]})
    for one in two.values():
        one["rails"] = one["rails"][:1]
    plan = planned(two)
    document = judged(plan, good(plan, gbps=0.05), hosts=HOSTS[:2])
    assert {row["verdict"] for row in document["tests"]} == {"not_verified"}
    assert "only 1 other test ran" in document["tests"][0]["reason"]


def test_counters_that_were_not_read_are_reported(facts):
    plan = planned(facts)
    results = good(plan, **{"host-rail0-node1-node2": {"counters_read": False, "counters_stopped": ["symbol_error"]}})
    row = next(row for row in judged(plan, results)["tests"] if row["id"] == "host-rail0-node1-node2")
    assert row["counters_not_read"] == ["from"]
    assert row["counters_stopped"] == ["from:symbol_error"]


def test_the_table_has_senders_down_and_receivers_across(facts):
    plan = planned(facts)
    text = judge.table(judged(plan, good(plan, **{"host-rail3-node2-node4": {"gbps": 90.0}})))
    block = text.partition("Host to host, rail 3, Gb/s")[2].splitlines()
    assert block[0].startswith("; expected 395: link of 400 Gb/s")
    assert block[1].split() == ["from", "\\", "to", *HOSTS]
    assert block[3].split() == ["node2", "390", "390", "90", "!"]
    assert "Outliers\n  host rail 3 node2" in text


def test_more_nodes_than_a_terminal_is_wide_get_a_line_for_each_rail(hardware):
    hosts = [f"node{number:02d}" for number in range(judge.WIDEST + 1)]
    plan = planned({host: json.loads(hardware) for host in hosts}, peers=2)
    slow = next(test for test in plan["tests"].values() if test["rail"] == 3)
    results = good(plan, **{slow["id"]: {"gbps": 90.0}})
    del results[next(name for name, test in plan["tests"].items() if test["rail"] == 5)]
    text = judge.table(judged(plan, results, hosts=hosts))
    assert "rail 3, Gb/s; expected 395: link of 400 Gb/s without packet headers\n" in text
    assert "  96 tests from 33 nodes; slowest 90, median 390, fastest 390\n" in text
    assert "  96 tests from 33 nodes, 1 without a result; slowest 390, median 390, fastest 390\n" in text
    ends = [f"{slow[role]['host']} {slow[role]['hca']}" for role in ("client", "server")]
    assert f"host rail 3 {' -> '.join(ends)}: 90 of 395 Gb/s" in text
    assert "from \\ to" not in text


@pytest.mark.parametrize("seed", range(20))
def test_the_median_of_the_others_leaves_one_test_out(seed):
    chance = random.Random(seed)
    figures = [round(chance.choice([1, 2, 3]) + chance.random(), 1) for _number in range(chance.randint(1, 9))]
    for number, figure in enumerate(figures):
        others = figures[:number] + figures[number + 1 :]
        wanted = round(statistics.median(others), 3) if len(others) >= judge.PEERS else None
        assert judge._from_peers(figure, sorted(figures))["gbit_per_s"] == wanted


@pytest.mark.parametrize(
    ("started", "collected", "why"),
    [
        ({}, {"results": [], "error": None}, "the run stopped before this test"),
        ({}, {"results": [], "error": "no end within 9 s"}, "no end within 9 s"),
        ({}, {"unreachable": True, "msg": "no route to host"}, "no route to host"),
        ({"failed": True, "msg": "no space"}, None, "no space"),
    ],
)
def test_a_node_that_dropped_out_of_a_run_says_why(facts, started, collected, why):
    settings = {f"matrix_{name}": PLAN.get(name, 1) for name in ("host", "minimum_percent", "peer_percent", *PLAN)}
    known = [{"node": {"host": host, "variables": settings, "read": {}}} for host in HOSTS]
    known[0].update(started=started, **({} if collected is None else {"collected": collected}))
    made = judge.of_run(HOSTS, known, {"planned": {"plan": planned(facts)}}, False, AT)
    assert {row["reason"] for row in made["tests"] if row["from"] == HOSTS[0] and row["to"]} == {why}
