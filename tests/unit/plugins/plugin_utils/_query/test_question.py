"""Questions to the facts of many nodes."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._query import question

FACTS = {
    "a": {"hcas": [{"name": "mlx5_0", "firmware": "28.9.1"}, {"name": "mlx5_1", "firmware": "28.40.1000"}]},
    "b": {"hcas": [{"name": "rocep1", "firmware": "unknown: needs verbs"}]},
    "c": {"hcas": []},
}
OLD = "hcas[?firmware < '28.40'].[name, firmware]"


def test_versions_are_compared_by_their_numbers():
    outcome = question.ask(OLD, FACTS)
    assert outcome["answers"] == {"a": [["mlx5_0", "28.9.1"]], "b": [], "c": []}
    assert outcome["uncompared"] == {"b": ["unknown: needs verbs < 28.40"]}


def test_the_table_names_what_it_cannot_show():
    lines = question.text(OLD, question.ask(OLD, FACTS), {"d": "timed out"}).splitlines()
    assert lines == [
        f"QUERY  {OLD}",
        "node  name    firmware",
        "----  ------  --------",
        "a     mlx5_0  28.9.1",
        "",
        "1 of 4 nodes have an answer, 1 in all.",
        "d: not read: timed out",
        "b: not compared: unknown: needs verbs < 28.40",
    ]


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("hcas[].name", ["node", "name"]),
        ("hcas[].{hca: name, version: firmware}", ["node", "hca", "version"]),
        ("length(hcas)", ["node", "value"]),
        ("hcas[].[name, length(name)]", ["node", "name", "value"]),
    ],
)
def test_columns_are_named_by_the_expression(query, columns):
    assert question.text(query, question.ask(query, FACTS), {}).splitlines()[1].split() == columns


@pytest.mark.parametrize(
    ("query", "wanted", "seen"),
    [
        ("hcas[", "a JMESPath expression", "Incomplete"),
        ("hcas[? name = 'x']", "a JMESPath expression", "Unknown token"),
        ("count(hcas)", "functions of JMESPath", "count()"),
        ("length(hcas, node)", "length() with 1 arguments", "2"),
    ],
)
def test_a_wrong_expression_is_refused_before_any_node_is_asked(query, wanted, seen):
    (finding,) = question.findings(query)
    assert (finding.object, finding.wanted) == (f"query {query}", wanted)
    assert seen in finding.seen


def test_a_name_that_no_node_has_is_refused():
    (finding,) = question.unknown_facts("hca[?firmware < '28.40'].name", FACTS)
    assert (finding.wanted, finding.seen) == ("facts of a node: hcas", "hca")
    assert question.unknown_facts(OLD, FACTS) == []


def test_facts_that_the_expression_does_not_fit_are_named():
    assert "length()" in question.ask("length(hcas[0].name)", FACTS)["unanswered"]["c"]


def test_a_controller_without_jmespath_is_told_the_command(monkeypatch):
    monkeypatch.setattr(question, "jmespath", None)
    (finding,) = question.findings(OLD)
    assert finding.next_step.endswith("-m pip install jmespath")
