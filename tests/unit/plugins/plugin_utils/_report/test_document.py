"""The results document: its schema is the published one, and every deviation is named, all at once."""

from __future__ import annotations

import json
import pathlib

import jsonschema
import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document
from ansible_collections.gpufabric.rdma.tests.tools import report_documents as made

PUBLISHED = pathlib.Path(__file__).resolve().parents[5] / "docs/schemas/results-1.json"
DELETE = object()


@pytest.fixture(scope="module")
def good():
    hosts = ["a", "b"]
    drift = made.drift({"a": ("converged", [], []), "b": ("drift", [made._MEMLOCK], [])})
    matrix = made.matrix(hosts, 2, 100.0, {(0, "a"): (0.5, {"counters": {"symbol_error": 3}})})
    return made.results([made.node("a", "two-cards-cx6dx"), made.node("b", None)], drift, matrix)


def test_the_published_schema_is_the_one_that_is_kept_to():
    published = json.loads(PUBLISHED.read_text())
    jsonschema.Draft202012Validator.check_schema(published)
    assert published == document.SCHEMA, "write document.SCHEMA to docs/schemas/results-1.json"


@pytest.mark.parametrize("kind", ["lab", "rails"])
def test_the_documents_of_the_tests_keep_to_the_schema(kind):
    results = json.loads(json.dumps(made.KINDS[kind]()))
    jsonschema.validate(results, document.SCHEMA)
    assert document.findings(results) == []


FAULTS = [
    (("schema",), "gpufabric.rdma/results/2"),
    (("schema",), DELETE),
    (("at",), None),
    (("nodes",), {}),
    (("nodes", 0, "host"), 7),
    (("nodes", 0, "facts"), []),
    (("nodes", 0, "facts", "hcas"), "none"),
    (("nodes", 0, "facts", "hcas", 0, "name"), DELETE),
    (("nodes", 0, "facts", "hcas", 0, "ports", 0, "number"), True),
    (("nodes", 0, "facts", "hcas", 0, "ports", 0, "rate_gbps"), "400"),
    (("nodes", 0, "facts", "rails", 0, "index"), None),
    (("nodes", 0, "checks", 0, "status"), "fine"),
    (("nodes", 0, "checks", 0, "next_step"), DELETE),
    (("nodes", 0, "checks", 0, "root"), "yes"),
    (("drift", "verdict"), "good"),
    (("drift", "hosts", 0, "differences"), DELETE),
    (("matrix", "schema"), "gpufabric.rdma/drift/1"),
    (("matrix", "tests", 0, "gbit_per_s"), "fast"),
    (("matrix", "tests", 0, "counters", "symbol_error"), "many"),
]


def planted(good, faults):
    results = json.loads(json.dumps(good))
    for path, value in faults:
        place = results
        for step in path[:-1]:
            place = place[step]
        if value is DELETE:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    return results


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: ".".join(map(str, fault[0])))
def test_our_reader_and_jsonschema_refuse_the_same(good, fault):
    results = planted(good, [fault])
    refused = [
        list(error.absolute_path) for error in jsonschema.Draft202012Validator(document.SCHEMA).iter_errors(results)
    ]
    assert len(refused) == 1
    (finding,) = document.findings(results)
    assert finding.object.count(".") + finding.object.count("[") >= len(fault[0]), finding


def test_all_problems_come_at_once(good):
    results = planted(good, [FAULTS[4], FAULTS[11], FAULTS[14]])
    assert [finding.object for finding in document.findings(results)] == [
        "$.nodes[0].host",
        "$.nodes[0].checks[0].status",
        "$.drift.verdict",
    ]
    assert document.findings(results)[1] == Finding(
        "$.nodes[0].checks[0].status",
        "one of passed, failed, not_verified, unused",
        "'fine'",
        document.ANEW,
    )


def test_a_figure_that_is_not_a_number_and_a_duplicate_host_are_refused(good):
    assert document.findings(planted(good, [(("matrix", "tests", 0, "gbit_per_s"), float("nan"))]))
    twice = planted(good, [(("nodes", 1, "host"), "a")])
    assert document.findings(twice) == [Finding("$.nodes", "each host once", "a 2 times", document.ANEW)]


def test_a_document_of_another_kind_is_refused():
    for kind in ("drift", "matrix"):
        assert document.of_kind({"schema": document.NAME}, kind)
        assert document.of_kind(None, kind)
    for wrong in (None, [], "text", 3):
        assert document.findings(wrong)


def test_what_verify_judged_becomes_a_document_without_what_is_private():
    facts = made.facts("two-cards-cx6dx")
    assert "cmdline" in facts["node"]
    checks = made.ports(facts)
    judged = [
        {"host": "a", "facts": {"hcas": [], "rails": []}, "checks": checks, "reboot_reasons": ["a reason"]},
        {"host": "b", "facts": None, "checks": []},
    ]
    nodes = [{"host": "a", "read": {"ansible_facts": {"rdma": facts}}}, {"host": "b", "read": {"msg": "timed out"}}]
    collected = document.collect(judged, nodes, made.AT)
    assert document.findings(collected) == []
    first, second = collected["nodes"]
    assert first["facts"]["hcas"] == facts["hcas"]
    assert "cmdline" not in first["facts"]["node"]
    assert "owned_files" not in first["facts"]
    assert first["reboot_reasons"] == ["a reason"]
    assert second == {"host": "b", "facts": None, "checks": [], "reboot_reasons": []}
