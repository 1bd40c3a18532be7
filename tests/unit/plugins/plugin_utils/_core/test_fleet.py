from __future__ import annotations

from collections import Counter

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet


class HostVars:
    """In place of Ansible's, which puts a host's variables together anew at each look."""

    def __init__(self, known):
        self.known, self.looks = known, Counter()

    def raw_get(self, host):
        self.looks[host] += 1
        return self.known[host]


def variables_of(**known):
    return {"hostvars": HostVars(known)}


def test_a_host_is_looked_at_once_however_many_variables_are_asked_for():
    task_vars = variables_of(a={"x": 1, "y": 2, "z": 3}, b={"y": None}, c={})

    asked = {"first": "x", "second": "y"}
    assert fleet.variables(task_vars, ["c", "a", "b"], asked) == [{}, {"first": 1, "second": 2}, {"second": None}]
    assert task_vars["hostvars"].looks == {"a": 1, "b": 1, "c": 1}


def test_each_names_all_hosts_that_lack_the_variable():
    with pytest.raises(AnsibleError) as error:
        fleet.each(variables_of(a={"x": {}}, b={}, c={"y": 1}), ["a", "b", "c"], "x")
    assert str(error.value).startswith("b, c: wanted the variable x, seen undefined. Next step: see above")


def test_values_are_those_that_ansible_holds():
    node = {"text": "{{ not a template here }}"}
    assert fleet.each(variables_of(a={"x": node}), ["a"], "x")[0] is node


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ((), ""),
        ((None, {}, {"skipped": True}, {"changed": False}), ""),
        (({"unreachable": True, "msg": "no route"},), ""),
        (({"skipped": True}, {"failed": True, "msg": "no room"}, {"failed": True, "msg": "later"}), "no room"),
        (({"failed": True},), "the module gave no reason"),
    ],
)
def test_the_first_of_the_registered_results_that_failed_says_why(results, why):
    assert fleet.failure(*results) == why


def test_all_hosts_without_facts_are_named():
    known = {"a": {}, "b": {"ansible_facts": {"rdma": {"hcas": []}}}, "c": {"ansible_facts": {}}}
    assert fleet.facts(variables_of(**known), ["b"]) == [{"hcas": []}]
    with pytest.raises(AnsibleError) as error:
        fleet.facts(variables_of(**known), list(known))
    assert str(error.value).startswith("a, c: wanted ansible_facts['rdma'], seen undefined")
