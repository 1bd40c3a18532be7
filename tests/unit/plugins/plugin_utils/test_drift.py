"""From task results to verdicts, and from the drift document to its four forms."""

import json
import pathlib
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import verdicts

ROOT = pathlib.Path(__file__).resolve().parents[4]
DEFINED = json.loads((ROOT / "docs/schemas/results-1.json").read_text())["$defs"]
SCHEMA = {"$ref": "#/$defs/drift", "$defs": DEFINED}
AT = "2026-11-22T07:10:00Z"
NETNS = verdicts.Task("Set the mode", "gpufabric.rdma.rdma_netns", "rdma_netns")
OBJECTS = verdicts.Task("Apply objects", "gpufabric.rdma.cluster_objects", "multus", "a")
GATE = verdicts.Task("Ask", "gpufabric.rdma.driver_reload", "driver")
PROBLEM = {"object": "HCA", "wanted": "8", "seen": "7", "next_step": "look for the card", "id": ""}
SENTENCE = "HCA: wanted 8, seen 7. Next step: look for the card"


def change(**values):
    return {"object": "/etc/x", "action": "write", "before": "old", "after": "new", **values}


def found(*events, hosts=("a", "b")):
    """{host: entry of the document} after (method, host, task, result) events; all hosts finish."""
    record = verdicts.Record(list(hosts))
    for method, *arguments in events:
        getattr(record, method)(*arguments)
    for host in hosts:
        record.end(host)
    document = record.document(AT)
    jsonschema.validate(document, SCHEMA, cls=jsonschema.Draft202012Validator)
    return {entry["host"]: entry for entry in document["hosts"]}


def ok(task=NETNS, host="a", **result):
    return ("ok", host, task, result)


def lost(why):
    return ("unreachable", "a", NETNS, {"msg": why})


def refused(**result):
    return ("failed", "a", NETNS, result)


CHECK = verdicts.Task("Plan", verdicts.PLAN, "discovery")
COPY = verdicts.Task("Put it there", "ansible.builtin.copy", "k3s")
HIDDEN = verdicts.Task("Copy the token", "x", "node_ready")
ONE, AWAY = [change()], {**PROBLEM, "object": "connection", "seen": "unreachable: x"}
FILES = [{"changed": True, "dest": "/bin/k3s"}, {"changed": False, "dest": "/x"}]
SILENT = "role multus: the cluster's objects, no API server answers (refused)"
NO_WAY = ["role driver: No way is open.", f"role driver: {SENTENCE}"]


DRIVERS = {
    "agree": False,
    "on_disk": {"modules": {"mlx5_core": {"version": "2", "srcversion": "B", "path": "/lib/x.ko"}}},
    "loaded": {"modules": {"mlx5_core": {"version": "1", "srcversion": "A"}}},
}


def planned(findings, **decided):
    """The plan of a, which differs in one place."""
    return ok(
        CHECK,
        findings=findings,
        hosts={"a": {"findings": findings, "plan": [{**change(), "role": "limits"}], **decided}},
    )


IN_MEMORY = "mlx5_core in memory is 1 (srcversion A), /lib/x.ko is 2 (srcversion B)."
STALE = f"reboot pending: The loaded RDMA driver is not the one on disk: {IN_MEMORY}"
REFUSAL = "role rdma_netns: Set the mode: variable x: wanted 1, seen 2"
REBOOT = ["reboot pending: x"]
LEFT = ok(changes=[], not_applied=["p"], not_verified=["q"])
GATE_REFUSES = ok(GATE, verdict="refuse", summary="No way is open.", findings=[PROBLEM])
K3S = ok(verdicts.Task("Run", "x", "k3s"), changes=ONE)


# verdict, differences, reasons, output
@pytest.mark.parametrize(("verdict", "differences", "reasons", "events"), [
    ("converged", 0, [], [ok(changed=False, changes=[])]),
    ("drift", 1, [], [ok(changed=True, changes=ONE)]),
    ("drift", 1, [], [ok(changed=False, changes=ONE)]),  # a look ahead that reports no change
    ("reboot_pending", 0, REBOOT, [ok(changes=[], reboot_reasons=["x"])]),
    ("unsafe", 1, [SENTENCE], [planned([{**PROBLEM, "host": "a", "role": ""}])]),
    ("unsafe", 1, [f"role k3s: {SENTENCE}"], [planned([{**PROBLEM, "host": "a", "role": "k3s"}])]),
    ("reboot_pending", 1, REBOOT, [planned([], reboot_reasons=["x"])]),
    ("unsafe", 0, [REFUSAL], [refused(msg="variable x: wanted 1,\nseen 2", changes=[])]),
    ("unsafe", 0, [f"role rdma_netns: {SENTENCE}"], [refused(msg="1", findings=[PROBLEM])]),
    ("unreachable", 0, ["unreachable: no route to host"], [lost("no route\nto host")]),
    ("unreachable", 0, ["unreachable: x"], [lost("x"), ok(findings=[AWAY])]),
    ("unreachable", 0, ["unreachable: x"], [ok(CHECK, lost="x")]),
    ("converged", 0, ["not verified: q", "left as it is: p"], [LEFT]),
    ("drift", 1, [], [ok(COPY, changed=True, results=FILES)]),
    ("drift", 1, [], [ok(HIDDEN, changed=True, censored="hidden")]),
    ("unsafe", 0, NO_WAY, [GATE_REFUSES]),
    ("drift", 1, [], [ok(GATE, verdict="reload", summary="Older in memory.")]),
    ("reboot_pending", 0, [STALE], [ok(ansible_facts={"rdma": {"driver": DRIVERS}})]),
    # No API server answers: not read, or the verdict of a k3s that will change.
    ("unsafe", 0, [f"not read: {SILENT}"], [ok(OBJECTS, "b", changed=True, changes=ONE * 3, down="refused")]),
    ("drift", 1, [f"not verified: {SILENT}"], [K3S, ok(OBJECTS, "b", changes=ONE, down="refused")]),
    # An object of the cluster is listed for the server.
    ("drift", 1, [], [ok(OBJECTS, "b", changes=ONE, down=None)]),
])  # fmt: skip
def test_a_host_ends_as(verdict, differences, reasons, events):
    entries = found(*events)
    seen = entries["a"]
    assert (seen["verdict"], len(seen["differences"]), seen["reasons"]) == (verdict, differences, reasons)
    assert all(set(difference) == {"role", "object", "wanted", "seen"} for difference in seen["differences"])
    assert entries["b"] == {"host": "b", "verdict": "converged", "differences": [], "reasons": [], "paths": []}


def test_a_problem_of_a_play_belongs_to_whom_it_names_and_one_of_the_controller_to_all():
    named = {"msg": "2 problems", "findings": [{"host": "b", **PROBLEM}, {"host": "the controller", **PROBLEM}]}
    task = verdicts.Task("Decide", verdicts.PLAN, "k3s")
    entries = found(("failed", "a", task, named), hosts=("a", "b", "c"))
    assert {host: entry["verdict"] for host, entry in entries.items()} == dict.fromkeys("abc", "unsafe")
    only_b = found(("failed", "a", task, {"findings": named["findings"][:1]}))
    assert {host: entry["verdict"] for host, entry in only_b.items()} == {"a": "converged", "b": "unsafe"}
    told = found(("failed", "a", task._replace(once=True), {"findings": named["findings"][:1]}))["a"]["reasons"]
    assert told == ["not verified: role k3s, because 'Decide' failed for the whole run"]


def test_a_server_that_goes_away_under_a_read_for_another_host_is_the_one_that_is_unreachable():
    entries = found(("unreachable", "b", OBJECTS, {"msg": "gone"}))
    assert entries["a"]["verdict"] == "unreachable"
    assert entries["b"]["verdict"] == "unsafe"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda record: None,
        lambda record: record.end("a"),
        lambda record: [record.end("a"), record.end("b"), record.failed("a", NETNS, {"msg": "'x' is undefined"})],
        lambda record: [record.end("b"), record.failed("a", verdicts.Task("Read", "x", ""), {"msg": "no"})],
    ],
    ids=["nobody ended", "one did not end", "a template that fails", "a failure outside of roles"],
)
def test_no_document_without_an_end_of_every_host(spoil):
    record = verdicts.Record(["a", "b"])
    spoil(record)
    assert record.document(AT) is None
    assert verdicts.Record([]).document(AT) is None


def test_the_worst_host_gives_verdict_and_exit_code():
    spoils = {
        "converged": ok(),
        "drift": ok(changes=ONE),
        "reboot_pending": ok(reboot_reasons=["r"]),
        "unsafe": refused(msg="no"),
        "unreachable": lost("no"),
    }
    record = verdicts.Record(["a", "b"])
    record.end("a")
    record.end("b")
    for verdict, spoil in spoils.items():
        getattr(record, spoil[0])(*spoil[1:])
        short = verdicts.verdict_of(record.document(AT), "r1")
        assert (short["run"], short["verdict"], short["hosts"]) == ("r1", verdict, {"a": verdict, "b": "converged"})
        assert short["exit_code"] == verdicts.EXIT_CODES[verdict]
        jsonschema.validate(short, {"$ref": "#/$defs/drift_verdict", "$defs": DEFINED})
    assert DEFINED["verdict"]["enum"] == list(spoils)


# --- JUnit ------------------------------------------------------------------------------------------------------------


def test_junit_has_a_suite_a_host_whose_counts_are_its_cases():
    """One host of each verdict, with texts that have to be escaped."""
    hosts = ["fine", "drifted", "pending", "refusing", 'odd"\\name']
    nasty = change(object="/etc/<a>&|`x`", before="a\n```\nold <b>\x1b[0m\n", after="a\n```\nnew & more\n")
    record = verdicts.Record(hosts)
    record.ok("drifted", NETNS, {"changes": [change(), nasty]})
    record.ok("pending", NETNS, {"reboot_reasons": ["older <driver>"]})
    record.failed("refusing", NETNS, {"msg": "no & never"})
    record.unreachable(hosts[-1], NETNS, {"msg": "away"})
    for name in hosts:
        record.end(name)
    suites = {suite.get("name"): suite for suite in ET.fromstring(verdicts.junit(record.document(AT)))}
    counts = [f"{suites[name].get('failures')} {suites[name].get('errors')}" for name in hosts]
    assert counts == ["0 0", "2 0", "1 0", "0 1", "0 1"]
    plain, second = suites["drifted"].findall(".//failure")
    assert plain.get("message") == "/etc/x: wanted new, seen old"
    assert "-old <b>\ufffd[0m" in second.text
    assert "+new & more" in second.text


def test_the_way_of_each_pair_is_in_the_hosts_entry():
    path = {"rail": 0, "hca": "mlx5_0", "gpu": "0000:1b:00.0", "verdict": "direct"}
    read = ok(ansible_facts={"rdma": {"pcie": {"paths": [{**path, "reason": "x"}]}}})
    assert found(read, read)["a"]["paths"] == [path]
