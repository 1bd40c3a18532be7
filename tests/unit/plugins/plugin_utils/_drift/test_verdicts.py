"""From task results to verdicts, and from the drift document to its four forms."""

from __future__ import annotations

import json
import pathlib
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import formats, verdicts

ROOT = pathlib.Path(__file__).resolve().parents[5]
SCHEMA = json.loads((ROOT / "docs/drift.schema.json").read_text())
AT = "2026-11-22T07:10:00Z"
NETNS = verdicts.Task("Set the mode", "gpufabric.rdma.rdma_netns", "rdma_netns")
OBJECTS = verdicts.Task("Apply objects", "gpufabric.rdma.cluster_objects", "multus", "a")
GATE = verdicts.Task("Ask", "gpufabric.rdma.driver_gate", "driver")
PROBLEM = {"object": "HCA", "wanted": "8", "seen": "7", "next_step": "look for the card", "id": ""}
SENTENCE = "HCA: wanted 8, seen 7. Next step: look for the card"


def change(**values):
    return {"object": "/etc/x", "action": "write", "before": "old", "after": "new", **values}


def found(*events, hosts=("a", "b")):
    """{host: entry of the document} after (method, host, task, result) events; all hosts come to an end."""
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


def planned(findings, **decided):
    """The plan of a, which differs in one place."""
    return ok(CHECK, findings=findings, hosts={"a": {"findings": findings, "plan": ONE, **decided}})


# {row: (verdict, differences, reasons, what was told)}
CASES = {
    "nothing differs": ("converged", 0, [], ok(changed=False, changes=[])),
    "a difference": ("drift", 1, [], ok(changed=True, changes=ONE)),
    "a look ahead that reports no change": ("drift", 1, [], ok(changed=False, changes=ONE)),
    "the same difference twice": ("drift", 1, [], *[ok(changes=ONE)] * 2),
    "a reason to reboot": ("reboot_pending", 0, ["reboot pending: x"], ok(changes=[], reboot_reasons=["x"])),
    "worse than a difference": ("reboot_pending", 1, ["reboot pending: x"], ok(changes=ONE, reboot_reasons=["x"])),
    "a problem, with the plan": ("unsafe", 1, [SENTENCE], planned([{**PROBLEM, "host": "a", "role": ""}])),
    "a plan without one is no second account": ("converged", 0, [], planned([])),
    "a role's problem in the plan": (
        *("unsafe", 0, [f"role k3s: {SENTENCE}"]),
        planned([{**PROBLEM, "host": "a", "role": "k3s"}]),
    ),
    "a plan with a reboot": ("reboot_pending", 0, ["reboot pending: x"], planned([], reboot_reasons=["x"])),
    "a role refuses": (
        *("unsafe", 0, ["role rdma_netns: Set the mode: variable x: wanted 1, seen 2"]),
        refused(msg="variable x: wanted 1,\nseen 2", changes=[]),
    ),
    "a role refuses with problems": (
        "unsafe",
        0,
        [f"role rdma_netns: {SENTENCE}"],
        refused(msg="1", findings=[PROBLEM]),
    ),
    "no answer": ("unreachable", 0, ["unreachable: no route to host"], lost("no route\nto host")),
    "unreachable is said once": ("unreachable", 0, ["unreachable: x"], lost("x"), ok(findings=[AWAY])),
    "left as it is and not verified are told and are no verdict": (
        *("converged", 0, ["not verified: q", "left as it is: p"]),
        ok(changes=[], not_applied=["p"], not_verified=["q"]),
    ),
    "a file module in a loop": ("drift", 1, [], ok(COPY, changed=True, results=FILES)),
    "a hidden change": ("drift", 1, [], ok(HIDDEN, changed=True, censored="hidden")),
    "the gate refuses": (
        *("unsafe", 0, NO_WAY),
        ok(GATE, verdict="refuse", summary="No way is open.", findings=[PROBLEM]),
    ),
    "it wants a reboot": ("reboot_pending", 0, ["reboot pending: A."], ok(GATE, verdict="reboot", summary="A.")),
    "the gate wants a reload": ("drift", 1, [], ok(GATE, verdict="reload", summary="Older in memory.")),
    "a silent API server": (
        *("unsafe", 0, [f"not read: {SILENT}"]),
        ok(OBJECTS, "b", changed=True, changes=ONE * 3, down="refused"),
    ),
    "a silent API server where k3s differs is what that comes to": (
        *("drift", 1, [f"not verified: {SILENT}"]),
        *(ok(verdicts.Task("Run", "x", "k3s"), changes=ONE), ok(OBJECTS, "b", changes=ONE, down="refused")),
    ),
    "an object of the cluster stands at the server": ("drift", 1, [], ok(OBJECTS, "b", changes=ONE, down=None)),
}


@pytest.mark.parametrize("row", CASES)
def test_a_host_ends_as(row):
    verdict, differences, reasons, *events = CASES[row]
    entries = found(*events)
    seen = entries["a"]
    assert (seen["verdict"], len(seen["differences"]), seen["reasons"]) == (verdict, differences, reasons)
    for difference in entries["a"]["differences"]:
        assert set(difference) == {"role", "object", "wanted", "seen"}
    assert entries["b"] == {"host": "b", "verdict": "converged", "differences": [], "reasons": []}


def test_a_problem_of_a_play_belongs_to_whom_it_names_and_one_of_the_controller_to_all():
    named = {"msg": "2 problems", "findings": [{"host": "b", **PROBLEM}, {"host": "the controller", **PROBLEM}]}
    task = verdicts.Task("Decide", verdicts.PLAN, "k3s")
    entries = found(("failed", "a", task, named), hosts=("a", "b", "c"))
    assert {host: entry["verdict"] for host, entry in entries.items()} == dict.fromkeys("abc", "unsafe")
    only_b = found(("failed", "a", task, {"findings": named["findings"][:1]}))
    assert {host: entry["verdict"] for host, entry in only_b.items()} == {"a": "converged", "b": "unsafe"}
    told = found(("failed", "a", task._replace(once=True), {"findings": named["findings"][:1]}))["a"]["reasons"]
    assert told == ["not verified: role k3s, because 'Decide' failed for the whole run"]


def test_a_driver_in_memory_that_is_not_the_one_on_disk_is_a_pending_reboot():
    drivers = {
        "agree": False,
        "on_disk": {"modules": {"mlx5_core": {"version": "2", "srcversion": "B", "path": "/lib/x.ko"}}},
        "loaded": {"modules": {"mlx5_core": {"version": "1", "srcversion": "A"}}},
    }
    (entry, _other) = found(("ok", "a", NETNS, {"ansible_facts": {"rdma": {"driver": drivers}}})).values()
    assert entry["verdict"] == "reboot_pending"


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


@pytest.mark.parametrize("verdict", verdicts.VERDICTS)
def test_the_worst_host_gives_verdict_and_exit_code(verdict):
    spoil = {
        "converged": [],
        "drift": [("ok", "a", NETNS, {"changes": [change()]})],
        "reboot_pending": [("ok", "a", NETNS, {"reboot_reasons": ["r"]})],
        "unsafe": [("failed", "a", NETNS, {"msg": "no"})],
        "unreachable": [("unreachable", "a", NETNS, {"msg": "no"})],
    }
    record = verdicts.Record(["a", "b"])
    for method, *arguments in [
        event for name in verdicts.VERDICTS[: verdicts.VERDICTS.index(verdict) + 1] for event in spoil[name]
    ]:
        getattr(record, method)(*arguments)
    record.end("a")
    record.end("b")
    document = record.document(AT)
    assert (document["verdict"], document["exit_code"]) == (verdict, verdicts.EXIT_CODES[verdict])
    short = verdicts.verdict_of(document, "r1")
    assert short["hosts"] == {"a": verdict, "b": "converged"}
    assert (short["run"], short["exit_code"]) == ("r1", document["exit_code"])


# --- forms ---


def document():
    """One host of each verdict, with texts that every format has to escape."""
    record = verdicts.Record(["fine", "drifted", "pending", "refusing", 'odd"\\name'])
    nasty = change(object="/etc/<a>&|`x`", before="a\n```\nold <b>\x1b[0m\n", after="a\n```\nnew & more\n")
    record.ok("drifted", NETNS, {"changes": [change(), nasty]})
    record.ok("pending", NETNS, {"reboot_reasons": ["older <driver>"]})
    record.failed("refusing", NETNS, {"msg": "no & never"})
    record.unreachable('odd"\\name', NETNS, {"msg": "away"})
    for name in record.hosts:
        record.end(name)
    return record.document(AT)


def test_junit_has_a_suite_a_host_whose_counts_are_its_cases():
    root = ET.fromstring(formats.junit(document()))
    suites = {suite.get("name"): suite for suite in root}
    assert list(suites) == ["fine", "drifted", "pending", "refusing", 'odd"\\name']
    for node in [root, *root]:
        assert int(node.get("tests")) == len(node.findall(".//testcase"))
        assert int(node.get("failures")) == len(node.findall(".//failure"))
        assert int(node.get("errors")) == len(node.findall(".//error"))
    counts = {name: (suite.get("failures"), suite.get("errors")) for name, suite in suites.items()}
    assert counts == {
        "fine": ("0", "0"),
        "drifted": ("2", "0"),
        "pending": ("1", "0"),
        "refusing": ("0", "1"),
        'odd"\\name': ("0", "1"),
    }
    plain, nasty = suites["drifted"].findall(".//failure")
    assert plain.get("message") == "/etc/x: wanted new, seen old"
    assert "-old <b>\ufffd[0m" in nasty.text
    assert "+new & more" in nasty.text


@pytest.mark.parametrize("verdict", verdicts.VERDICTS)
def test_the_short_answer_fits_its_published_schema(verdict):
    document = {"at": "2026-11-24T11:14:42Z", "verdict": verdict, "exit_code": verdicts.EXIT_CODES[verdict]}
    answer = verdicts.verdict_of({**document, "hosts": [{"host": "node1", "verdict": verdict}]}, "run-1")
    schema = json.loads((ROOT / "docs/schemas/drift-verdict-1.json").read_text())
    assert schema["$defs"]["verdict"]["enum"] == list(verdicts.VERDICTS)
    jsonschema.validate(answer, schema)
