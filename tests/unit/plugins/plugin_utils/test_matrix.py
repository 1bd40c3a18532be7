"""The bandwidth matrix: the expected figure of an end, pairs and rounds, and outliers."""

import json
import pathlib
import random

import jsonschema
import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import expect, judge
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import plan as matrix_plan
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import fabric_plan
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pairs

ROOT = pathlib.Path(__file__).resolve().parents[4]
SCHEMA = json.loads((ROOT / "docs/schemas/results-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator({**SCHEMA["$defs"]["matrix"], "$defs": SCHEMA["$defs"]})
AT = "2026-11-22T07:10:00Z"
H100 = "h100-8x-cx7-ib"
HOSTS = ["node1", "node2", "node3", "node4"]
OPTIONS = {"peers": None, "seconds": 5, "round_seconds": 30, "cuda": False}

# --- the expected figure of an end ------------------------------------------------------------------------------------


def carries(rate=400.0, speed=32.0, width=16, best=None, **changes):
    best_speed, best_width = best or (speed, width)
    link = {"speed_gts": speed, "width": width, "max_speed_gts": best_speed, "max_width": best_width}
    port = {"link_layer": "InfiniBand", "rate_gbps": rate, "rate_text": "", "mtu": 4096}
    return {"kind": "pci", "device": "15b3:1021", "link": link, "override": None, **port, **changes}


@pytest.mark.parametrize(("rate", "text", "layer", "mtu", "gbps"), [
    (400.0, "400 Gb/sec (4X NDR)", "InfiniBand", 4096, 397.5),
    (56.0, "56 Gb/sec (4X FDR)", "InfiniBand", 4096, 54.0),
    (40.0, "40 Gb/sec (4X FDR10)", "InfiniBand", 4096, 39.7),
    (40.0, "40 Gb/sec (4X QDR)", "InfiniBand", 2048, 31.6),
    # On Ethernet the same word means another rate: 40GbE carries 40 Gb/s of data.
    (40.0, "40 Gb/sec (4X QDR)", "Ethernet", 4096, 39.2),
    (100.0, "100 Gb/sec (4X EDR)", "Ethernet", 1024, 92.6),
])  # fmt: skip
def test_what_a_link_carries(rate, text, layer, mtu, gbps):
    assert expect.wire_gbps(rate, layer, mtu, text) == pytest.approx(gbps, abs=0.1)


NO_BEST = {"speed_gts": 16.0, "width": 16, "max_speed_gts": None, "max_width": None}
DOWN_SPEED, DOWN_WIDTH = "PCIe link trained down to 16 of 32 GT/s", "PCIe x8 instead of x16"


@pytest.mark.parametrize(("end", "gbps", "why", "reason"), [
    (carries(), 397.5, "link of 400 Gb/s without packet headers", None),
    (carries(400.0, 16.0, 16, (32.0, 16)), 397.5, None, DOWN_SPEED),
    (carries(400.0, 32.0, 8, (32.0, 16)), 397.5, None, DOWN_WIDTH),
    (carries(400.0, 8.0, 8, (32.0, 16)), 397.5, None, f"{DOWN_WIDTH} and PCIe link trained down to 8"),
    (carries(200.0, 32.0, 8, (32.0, 16)), 198.7, None, None),
    (carries(200.0, 8.0, 16, (16.0, 16)), 198.7, None, "PCIe link trained down to 8 of 16 GT/s"),
    (carries(100.0, 8.0, 8, (8.0, 16)), 99.4, None, f"{DOWN_WIDTH}, which carries 53.0 Gb/s"),
    # A card of 8 lanes.
    (carries(100.0, 8.0, 8), 53.0, "PCIe Gen3 x8 with 256 bytes of payload per packet", None),
    (carries(kind="software"), None, None, None),
    (carries(rate_gbps=None), None, None, None),
    (carries(override=90), 90.0, "matrix_expected_gbit_per_s", None),
    (carries(link=NO_BEST), 212.0, None, None),
    (carries(link={}), 397.5, None, None),
])  # fmt: skip
def test_what_an_end_should_reach_and_what_holds_it_back(end, gbps, why, reason):
    made = expect.end(end, {})
    assert made["gbit_per_s"] == (gbps and pytest.approx(gbps, abs=0.1))
    assert why in (None, made["why"])
    assert [reason in limit for limit in made["limits"]] == ([True] if reason else [])


@pytest.mark.parametrize("own", [100.0, 400.0])
def test_a_port_slower_than_its_kind_is_measured_against_the_kind_and_a_faster_one_against_itself(own):
    carried = {f"node{number}": carries(500.0 - own if number else own) for number in range(4)}
    usual = expect.usual_rates(carried)
    assert usual == {("15b3:1021", "InfiniBand"): 500.0 - own}
    made = expect.end(carried["node0"], usual)
    assert made["gbit_per_s"] == pytest.approx(397.5, abs=0.1)
    slower = ["the port runs at 100 Gb/s where ports of its kind run at 400 Gb/s"]
    assert made["limits"] == (slower if own == 100.0 else [])
    assert expect.end(carried["node1"], usual)["limits"] == []


# --- pairs and rounds -------------------------------------------------------------------------------------------------


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
    rounds = matrix_plan.schedule(groups, resources, peers)
    pairs = [pair for made in rounds for pair in made]
    assert (
        len({frozenset(pair) for pair in pairs})
        == len(pairs)
        == sum(matrix_plan.meetings(len(g), peers) for g in groups)
    )
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


@pytest.fixture
def node(facts_of):
    """node(number, fixture, **differences): a node as the action plugin passes it to the planner."""

    def make(number, fixture=H100, **changes):
        facts = facts_of(fixture, software_hcas=True)
        for netdev in (netdev for hca in facts["hcas"] for netdev in hca["netdevs"]):
            own = [address for address in netdev["addresses"] if "." in address]
            netdev["addresses"] = [f"{address.rpartition('.')[0]}.{number}/24" for address in own]
        known = {"address": f"node{number}.mgmt", "tools": ["ib_write_bw"], "base_port": 18800, "runs": True}
        known |= {"in_use": {}, "load_allowed": None, "cuda": {"send": True, "dmabuf": True}}
        return {"host": f"node{number}", "facts": facts, "expected_gbit_per_s": None, **known, **changes}

    return make


def planned(nodes, **options):
    return matrix_plan.plan(nodes, {**OPTIONS, **options})


def test_eight_rails_of_four_nodes_take_three_rounds_each_way(node):
    plan = planned([node(number) for number in (1, 2, 3, 4)])
    assert (len(plan["rounds"]), len(plan["tests"]), plan["alone"]) == (6, 8 * 4 * 3, [])
    for identities in plan["rounds"]:
        sides = [plan["tests"][name][role] for name in identities for role in ("client", "server")]
        assert len({(side["host"], side["hca"]) for side in sides}) == len(sides) == 32, "every HCA has one test"
    ports = [(test["server"]["host"], test["tcp_port"]) for test in plan["tests"].values()]
    assert len(ports) == len(set(ports)), "a late client finds no other test's server"


def test_two_ports_of_a_card_take_turns(facts_of):
    hcas = facts_of("two-cards-cx6dx")["hcas"]
    links = pairs.shared_links(hcas)
    slots: dict = {}
    for hca in hcas:
        slots.setdefault(hca["pci"]["address"].rpartition(".")[0], set()).add(links[hca["name"]])
    assert all(len(leaders) == 1 for leaders in slots.values()), slots
    assert len(set().union(*slots.values())) == len(slots)


def test_each_host_has_both_its_ends_of_every_test_in_the_order_of_the_rounds(node):
    plan = planned([node(number) for number in range(1, 6)])
    parts = pairs.parts(plan["rounds"], plan["tests"])
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
    nodes = [node(number) for number in range(1, 11)]
    monkeypatch.setattr(matrix_plan, "MOST_TESTS", most)
    if fits is None:
        assert len(planned(nodes, peers=peers)["tests"]) == most
        return
    with pytest.raises(Refused) as refused:
        planned(nodes, peers=peers)
    (finding,) = refused.value.findings
    assert finding.object == "matrix_peers"
    assert (f"matrix_peers: {fits}," in finding.next_step) == bool(fits)
    assert "--limit" in finding.next_step
    if fits:
        assert len(planned(nodes, peers=fits)["tests"]) <= most


def test_consent_is_asked_for_loaded_hcas_only(node):
    busy = node(1, in_use={"mlx5_0": ["python3 (process 7)"], "mlx5_99": ["other (process 8)"]})
    plan = planned([busy, node(2)])
    findings = matrix_plan.consent_findings(plan, [busy, node(2)])
    assert [(finding["host"], finding["object"]) for finding in findings] == [("node1", "HCA mlx5_0")]
    assert matrix_plan.consent_findings(plan, [{**busy, "load_allowed": True}, node(2)]) == []
    left = planned([{**busy, "load_allowed": False}, node(2), node(3, tools=[])])
    rail = next(rail["index"] for rail in busy["facts"]["rails"] if rail["hca"] == "mlx5_0")
    assert {test["rail"] for test in left["tests"].values()} == set(range(8)) - {rail}
    reasons = {end["reason"] for end in left["alone"] if end["host"] != "node2"}
    assert reasons == {
        "mlx5_0 is in use by python3 (process 7), and matrix_load_allowed is false",
        "ib_write_bw is not installed (package perftest)",
    }


# How GPU memory is registered; the tool's features; whether --use_cuda_dmabuf is set, or why it is not measured.
@pytest.mark.parametrize(("mode", "cuda", "dmabuf", "reason"), [
    ("peermem", {"send": True, "dmabuf": True}, False, None),
    ("dmabuf", {"send": True, "dmabuf": True}, True, None),
    ("peermem", {"send": True, "dmabuf": False}, False, None),
    ("peermem", {"send": False, "dmabuf": False}, None, "built without CUDA"),
    ("dmabuf", {"send": True, "dmabuf": False}, None, "no --use_cuda_dmabuf"),
])  # fmt: skip
def test_gpu_memory_is_measured_after_host_memory_as_the_facts_and_the_tool_allow(node, mode, cuda, dmabuf, reason):
    pair = [node(1), node(2)]
    for one in pair:
        one["cuda"], one["facts"]["gpudirect"]["mode"] = cuda, mode
    plan = planned(pair, cuda=True)
    kinds = [plan["tests"][names[0]]["memory"] for names in plan["rounds"]]
    assert kinds == ["host", "host"] + ([] if reason else ["cuda", "cuda"])
    said = {one["reason"] for one in plan["alone"] if one["memory"] == "cuda"}
    assert bool(said) is (reason is not None)
    assert all(reason in text for text in said)
    if not reason:
        test = plan["tests"]["host-rail3-node1-node2-cuda"]
        assert [(test[role]["dmabuf"], test[role]["gpu"]) for role in ("client", "server")] == [(dmabuf, 3)] * 2
        assert plan["tests"]["host-rail3-node1-node2"]["client"]["gpu"] is None


# --- outliers: exactly the planted one is reported, with its likely reason --------------------------------------------

JUDGE = {"minimum_percent": 80, "peer_percent": 50, "hosts": HOSTS, "failures": {}, "check_mode": False, "plans": {}}


@pytest.fixture
def four(node):
    """{host: node}, for changes; their tool has no CUDA."""
    return {host: node(number, cuda=None) for number, host in enumerate(HOSTS, 1)}


def hca_of(node, rail):
    name = node["facts"]["rails"][rail]["hca"]
    return next(hca for hca in node["facts"]["hcas"] if hca["name"] == name)


def results_of(plan, gbps=390.0, changes=None):
    """Results of a healthy fabric; changes: {test id: differences on the client's side}."""
    end = {"ok": True, "error": None, "counters": {}, "counters_read": True}
    return {
        name: {"client": {**end, "gbps": gbps, **(changes or {}).get(name, {})}, "server": dict(end)}
        for name in plan["tests"]
    }


def judged(plan, results, nodes=None, **options):
    known = {host: {"governors": {"performance": 8}} for host in HOSTS}
    made = judge.document([plan], results, {**known, **(nodes or {})}, {**JUDGE, **options}, AT)
    VALIDATOR.validate(made)
    assert all(row["reason"] for row in made["tests"] if row["verdict"] != "ok")
    return made


def changed(nodes, changes, known=None, **options):
    """The document in which these tests differ from a healthy fabric's."""
    plan = planned(nodes.values())
    return judged(plan, results_of(plan, changes=changes), known, **options)


def rows(document, verdict="outlier"):
    return {row["id"]: row for row in document["tests"] if row["verdict"] == verdict}


def test_exactly_the_slow_rail_is_named_and_the_table_has_senders_down_and_receivers_across(four):
    document = changed(four, {"host-rail3-node2-node4": {"gbps": 90.0}})
    assert list(rows(document)) == ["host-rail3-node2-node4"]
    reason = rows(document)["host-rail3-node2-node4"]["reason"]
    assert reason.startswith("90 of 395 Gb/s, 80 % wanted (link of 400 Gb/s without packet headers); no fact")
    block = judge.table(document).partition("Host to host, rail 3, Gb/s")[2].splitlines()
    assert block[0].startswith("; expected 395: link of 400 Gb/s")
    assert [block[1].split(), block[3].split()] == [["from", "\\", "to", *HOSTS], ["node2", "390", "390", "90", "!"]]
    assert "Outliers\n  host rail 3 node2" in judge.table(document)


@pytest.mark.parametrize(("link", "port", "reason"), [
    ({"width": 8}, {}, "PCIe x8 instead of x16, which carries 212.0 Gb/s"),
    ({"speed_gts": 16.0}, {}, "PCIe link trained down to 16 of 32 GT/s, which carries 212.0 Gb/s"),
    ({}, {"rate_gbps": 100.0, "rate_text": "100 Gb/sec (1X NDR)"}, "the port runs at 100 Gb/s where ports of its kind"),
])  # fmt: skip
def test_a_slot_or_port_that_trained_down_is_the_reason(four, link, port, reason):
    hca = hca_of(four["node2"], 2)
    hca["pci"]["link"].update(link)
    hca["ports"][0].update(port)
    tests = planned(four.values())["tests"]
    touched = {name: {"gbps": 97.0} for name, t in tests.items() if t["rail"] == 2 and "node2" in name}
    outliers = rows(changed(four, touched))
    assert (set(outliers), len(touched)) == (set(touched), 6)
    assert all(f"node2 {hca['name']}: {reason}" in row["reason"] for row in outliers.values())


# Normal counters of a lossy or loaded fabric are shown, and judged only together with a slow test.
@pytest.mark.parametrize(("counter", "gbps", "reason"), [
    ("symbol_error", 390.0, "error counters rose: from:symbol_error +3"),
    ("netdev_rx_crc_errors", 390.0, "error counters rose: from:netdev_rx_crc_errors +3"),
    ("out_of_sequence", 390.0, ""),
    ("port_xmit_wait", 390.0, ""),
    ("packet_seq_err", 40.0, "packets were lost or retransmitted: from:packet_seq_err +3"),
    ("np_cnp_sent", 40.0, "the fabric is congested: from:np_cnp_sent +3"),
])  # fmt: skip
def test_counters_of_a_fast_and_a_slow_test(four, counter, gbps, reason):
    document = changed(four, {"host-rail1-node1-node2": {"gbps": gbps, "counters": {counter: 3}}})
    row = next(row for row in document["tests"] if row["id"] == "host-rail1-node1-node2")
    assert (row["verdict"], len(rows(document))) == (("outlier", 1) if reason else ("ok", 0))
    assert row["reason"] == reason if gbps == 390.0 else row["reason"].count(reason) == 1
    assert row["counters"] == {f"from:{counter}": 3}
    assert f"from:{counter} +3" in judge.table(document), "shown either way"


def test_a_fast_test_in_the_wrong_class_is_an_outlier(four):
    name = "host-rail3-node2-node4"
    plan, known = planned(four.values()), {"seconds": 1, "by_priority": None}
    for test in plan["tests"].values():
        test["client"]["traffic_class"] = 106
    results = results_of(plan, changes=dict.fromkeys(plan["tests"], known))
    results[name]["client"]["by_priority"] = {"tx_prio0_bytes": 10**11}
    plans = dict.fromkeys(four, fabric_plan.of("doroce"))
    document = judged(plan, results, plans=plans)
    assert list(rows(document)) == [name]
    assert all(row["class_not_verified"] for row in document["tests"])
    assert "Traffic class not verified\n" in judge.table(document)


def test_the_governor_and_a_missing_numa_node_are_reasons_of_last_resort(four):
    hca_of(four["node2"], 5)["pci"]["numa_node"] = -1
    slow = {"host-rail5-node1-node2": {"gbps": 300.0}}
    document = changed(four, slow, {"node1": {"governors": {"powersave": 112}}})
    reason = rows(document)["host-rail5-node1-node2"]["reason"]
    assert "node1: CPU governor powersave on 112 CPUs, not performance" in reason
    assert "the firmware reports no NUMA node" in reason


def test_a_test_that_failed_is_an_outlier_with_what_both_ends_said(four):
    plan, name = planned(four.values()), "host-rail0-node1-node2"
    results = results_of(plan, changes={name: {"ok": False, "gbps": None, "error": "Couldn't connect"}})
    results[name]["server"].update(ok=False, error="error: no end after 30 s")
    reason = rows(judged(plan, results))[name]["reason"]
    assert reason == "no bandwidth: node1: Couldn't connect; node2: error: no end after 30 s"


@pytest.mark.parametrize("check_mode", [False, True])
def test_what_did_not_run_is_not_verified(four, check_mode):
    plan = planned(four.values())
    assert len(rows(judged(plan, {}, check_mode=check_mode), "not_verified")) == len(plan["tests"])


def test_gpu_memory_has_tables_of_its_own_and_without_a_tool_is_not_verified(four, node):
    plan = planned(four.values(), cuda=True)
    document = judged(plan, results_of(plan))
    assert (len(plan["tests"]), len(rows(document, "not_verified"))) == (8 * 12, 8 * 4)
    assert "ib_write_bw of node1 was built without CUDA" in " ".join(judge.table(document).split())
    plan = planned([node(number) for number in (1, 2, 3, 4)], cuda=True)
    document = judged(plan, results_of(plan, changes={"host-rail0-node1-node2-cuda": {"gbps": 10.0}}))
    assert list(rows(document)) == ["host-rail0-node1-node2-cuda"]
    assert "Host to host from GPU memory (evidence level E5: hardware), rail 0" in judge.table(document)


def software(nodes, rails):
    """The first two, with software HCAs."""
    two = [nodes[host] for host in HOSTS[:2]]
    for one in two:
        one["facts"]["rails"] = one["facts"]["rails"][:rails]
        for hca in one["facts"]["hcas"]:
            hca.update(kind="software", pci=None)
    return planned(two)


BOTH_WAYS = ("host-rail1-node1-node2", "host-rail1-node2-node1")


@pytest.mark.parametrize("slow", [(), BOTH_WAYS[:1], BOTH_WAYS])
def test_software_hcas_are_compared_with_their_peers(four, slow):
    plan = software(four, 2)
    figures = dict(zip(plan["tests"], (0.051, 0.043, 0.058, 0.047)))
    touched = {name: {"gbps": 0.004 if name in slow else figures[name]} for name in plan["tests"]}
    document = judged(plan, results_of(plan, changes=touched), hosts=HOSTS[:2])
    assert set(rows(document)) == set(slow)
    assert {row["expected_from"] for row in document["tests"]} == {"the median of its peers"}


def test_two_software_ends_alone_say_nothing(four):
    plan = software(four, 1)
    document = judged(plan, results_of(plan, gbps=0.05), hosts=HOSTS[:2])
    assert {row["verdict"] for row in document["tests"]} == {"not_verified"}
    assert "only 1 other test ran" in document["tests"][0]["reason"]


def test_counters_that_were_not_read_are_reported(four):
    unread = {"counters_read": False, "counters_stopped": ["symbol_error"]}
    tests = changed(four, {"host-rail0-node1-node2": unread})["tests"]
    row = next(row for row in tests if row["id"] == "host-rail0-node1-node2")
    assert (row["counters_not_read"], row["counters_stopped"]) == (["from"], ["from:symbol_error"])


def test_more_nodes_than_a_terminal_is_wide_get_a_line_for_each_rail(node):
    nodes = [node(number, cuda=None) for number in range(1, judge.WIDEST + 2)]
    plan = planned(nodes, peers=2)
    slow = next(test for test in plan["tests"].values() if test["rail"] == 3)
    results = results_of(plan, changes={slow["id"]: {"gbps": 90.0}})
    del results[next(name for name, test in plan["tests"].items() if test["rail"] == 5)]
    text = judge.table(judged(plan, results, hosts=[one["host"] for one in nodes]))
    assert "rail 3, Gb/s; expected 395: link of 400 Gb/s without packet headers\n" in text
    assert "  96 tests from 33 nodes; slowest 90, median 390, fastest 390\n" in text
    assert "  96 tests from 33 nodes, 1 without a result; slowest 390, median 390, fastest 390\n" in text
    ends = [f"{slow[role]['host']} {slow[role]['hca']}" for role in ("client", "server")]
    assert f"host rail 3 {' -> '.join(ends)}: 90 of 395 Gb/s" in text
    assert "from \\ to" not in text


@pytest.mark.parametrize(("started", "collected", "why"), [
    ({}, {"results": [], "error": None}, "the run stopped before this test"),
    ({}, {"results": [], "error": "no end within 9 s"}, "no end within 9 s"),
    ({}, {"unreachable": True, "msg": "no route to host"}, "no route to host"),
    ({"failed": True, "msg": "no space"}, None, "no space"),
])  # fmt: skip
def test_a_node_that_dropped_out_of_a_run_says_why(four, started, collected, why):
    settings = {
        f"matrix_{name}": OPTIONS.get(name, 1) for name in ("host", "minimum_percent", "peer_percent", *OPTIONS)
    }
    known = [{"node": {"host": host, "variables": {**settings, "fabric_plan": None}, "read": {}}} for host in HOSTS]
    known[0].update(started=started, **({} if collected is None else {"collected": collected}))
    made = judge.of_run(HOSTS, known, {"planned": {"plan": planned(four.values())}}, False, AT)
    assert {row["reason"] for row in made["tests"] if row["from"] == HOSTS[0] and row["to"]} == {why}
