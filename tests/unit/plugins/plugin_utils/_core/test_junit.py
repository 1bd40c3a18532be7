"""JUnit: every form that the collection writes is valid by Jenkins' schema, whatever a node says."""

from __future__ import annotations

import pathlib
from xml.etree import ElementTree

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import junit
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import formats
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import junit as report_junit
from ansible_collections.gpufabric.rdma.tests.tools import junit_schema, report_documents
from hypothesis import given, settings
from hypothesis import strategies as st

PLUGINS = pathlib.Path(__file__).resolve().parents[5] / "plugins"
HOSTILE = "]]></failure><testcase>\"'&\x00\x1b[2J\ud800\ufffe\n\t\u202e"
OUTCOMES = [*junit.OUTCOMES]
LINES = st.text(max_size=30)
CASES = st.builds(junit.Case, LINES, LINES, st.sampled_from(OUTCOMES), LINES, LINES, LINES)
SUITES = st.lists(st.builds(junit.Suite, LINES, st.lists(CASES, max_size=4)), max_size=3)


def written():
    for kind, make in report_documents.KINDS.items():
        yield f"report of {kind}", report_junit.text(make())
        drift = make().get("drift")
        if drift:
            yield f"drift of {kind}", formats.junit(drift)
    yield "report of nothing", report_junit.text(report_documents.results([]))
    hostile = [junit.Suite(HOSTILE, [junit.Case(HOSTILE, HOSTILE, outcome, *[HOSTILE] * 3) for outcome in OUTCOMES])]
    yield "hostile", junit.document(HOSTILE, "2026-11-24T09:10:11Z", hostile)


@pytest.mark.parametrize("text", [pytest.param(text, id=which) for which, text in written()])
def test_jenkins_schema_accepts_it(text):
    assert junit_schema.problems(text) == []


@given(SUITES)
@settings(max_examples=100, deadline=None)
def test_any_text_makes_a_valid_file_whose_counts_are_those_of_its_cases(suites):
    text = junit.document("name", "2026-11-24T09:10:11Z", suites)
    assert junit_schema.problems(text) == []
    root = ElementTree.fromstring(text)
    for element in [root, *root]:
        assert int(element.get("tests")) == len(element.findall(".//testcase"))
        assert int(element.get("failures")) == len(element.findall(".//failure"))
        assert int(element.get("errors")) == len(element.findall(".//error"))
    assert [int(suite.get("skipped")) for suite in root] == [len(suite.findall(".//skipped")) for suite in root]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda text: text.replace('<testsuites name="', '<testsuites skipped="1" name="'), "skipped"),
        (lambda text: text.replace(' name="one"', ""), "testsuite"),
        (lambda text: text.replace("<failure", "<fault").replace("</failure", "</fault"), "fault"),
    ],
)
def test_the_schema_sees_what_is_not_valid(spoil, named):
    case = junit.Case("class", "case", junit.FAILURE, "message", "kind", "text")
    text = junit.document("all", "2026-11-24T09:10:11Z", [junit.Suite("one", [case])])
    assert junit_schema.problems(text) == []
    assert spoil(text) != text
    assert any(named in problem for problem in junit_schema.problems(spoil(text)))


def test_one_file_writes_the_format():
    files = [path for path in PLUGINS.rglob("*.py") if '"testcase"' in path.read_text()]
    assert [path.relative_to(PLUGINS).as_posix() for path in files] == ["plugin_utils/_core/junit.py"]
