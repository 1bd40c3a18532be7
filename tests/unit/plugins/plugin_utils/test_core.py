"""Shared by the controller's packages: netaddr, variables of a fleet, JUnit of any text."""

import importlib.util
import sys
from xml.etree import ElementTree

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import addresses, fleet, junit
from hypothesis import given, settings
from hypothesis import strategies as st


def test_a_missing_library_is_named_at_its_first_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "netaddr", None)
    spec = importlib.util.spec_from_file_location(addresses.__name__, addresses.__file__)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    missing = loaded.netaddr
    with pytest.raises(AnsibleError, match=f"netaddr, seen none in {sys.executable}. Next step: install it"):
        missing.IPNetwork("192.0.2.0/24")


# --- a fleet ----------------------------------------------------------------------------------------------------------


def variables_of(**known):
    return {"hostvars": known}


def test_all_hosts_that_lack_a_variable_or_facts_are_named():
    with pytest.raises(AnsibleError, match=r"^b, c: wanted the variable x, seen undefined. Next step: see above"):
        fleet.each(variables_of(a={"x": {}}, b={}, c={"y": 1}), ["a", "b", "c"], "x")
    node = {"text": "{{ not a template here }}"}
    assert fleet.each(variables_of(a={"x": node}), ["a"], "x")[0] is node
    known = {"a": {}, "b": {"ansible_facts": {"rdma": {"hcas": []}}}, "c": {"ansible_facts": {}}}
    assert fleet.facts(variables_of(**known), ["b"]) == [{"hcas": []}]
    with pytest.raises(AnsibleError, match=r"^a, c: wanted ansible_facts\['rdma'\], seen undefined"):
        fleet.facts(variables_of(**known), list(known))


# --- JUnit ------------------------------------------------------------------------------------------------------------

LINES = st.text(max_size=30) | st.sampled_from(["]]></failure><testcase>", "\x1b[2J\x00\ufffe\u202e", "\ud800"])
CASES = st.builds(junit.Case, LINES, LINES, st.sampled_from([*junit.OUTCOMES]), LINES, LINES, LINES)
SUITES = st.lists(st.builds(junit.Suite, LINES, st.lists(CASES, max_size=4)), max_size=3)
AT = "2026-11-24T09:10:11Z"


@given(SUITES)
@settings(max_examples=100, deadline=None)
def test_any_text_makes_a_valid_file_whose_counts_are_those_of_its_cases(suites):
    text = junit.document("name", AT, suites)
    root = ElementTree.fromstring(text)
    for element in [root, *root]:
        for count, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error")):
            assert int(element.get(count)) == len(element.findall(f".//{tag}"))
    assert [int(suite.get("skipped")) for suite in root] == [len(suite.findall(".//skipped")) for suite in root]
