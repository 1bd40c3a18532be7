"""A documented variable is read through the lookup that knows its type and default; nobody repeats a default."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import option_references


def test_no_documented_variable_is_read_past_the_lookup():
    assert [str(found) for found in option_references.references(option_references.ROOT)] == []


TASK = "- ansible.builtin.debug:\n    msg: '{{ %s }}'\n"
PLANTED = [
    ("roles/flannel/tasks/main.yml", TASK % 'k3s_node_ip | default("", true)', 2, True),
    ("roles/flannel/tasks/main.yml", TASK % "[k3s_node_ip\n         | d(none)]", 2, True),
    ("roles/flannel/tasks/main.yml", "- debug:\n  when:\n    - k3s_node_ip | default('') == ''\n", 3, True),
    ("roles/flannel/tasks/main.yml", TASK % "k3s_node_ip", 2, False),
    ("roles/flannel/tasks/main.yml", TASK % 'hostvars["a"]["k3s_node_ip"] | default("")', 2, True),
    ("roles/flannel/tasks/main.yml", TASK % 'hostvars["a"].k3s_node_ip | default("")', 2, True),
    ("roles/flannel/tasks/main.yml", TASK % 'nodes | map(attribute="k3s_node_ip", default="")', 2, True),
    ("roles/flannel/vars/main.yml", "text: |-\n  one\n  {{ k3s_node_ip | default('') }}\n", 3, True),
    ("roles/flannel/templates/a.j2", "one\n{% if k3s_node_ip | default('') %}{% endif %}\n", 2, True),
    ("roles/k3s/tasks/main.yml", TASK % "k3s_node_ip or none", 2, False),
    ("roles/k3s/tasks/main.yml", TASK % 'k3s_node_ip | default("", true)', 2, True),
    ("roles/k3s/vars/main.yml", "a:\n  b: '{{ k3s_node_ip }}'\n", 2, False),
    ("roles/k3s/tasks/main.yml", TASK % 'hostvars["a"]["k3s_node_ip"]', 2, False),
    ("roles/k3s/tasks/main.yml", TASK % 'hostvars["a"].k3s_node_ip', 2, False),
    ("playbooks/site.yml", "- hosts: all\n  serial: '{{ k3s_node_ip | default(1) }}'\n", 2, True),
    ("plugins/filter/a.py", "def a(given):\n    return given.get('k3s_node_ip', '')\n", 2, True),
]


@pytest.fixture
def root(tmp_path):
    specs = "roles/k3s/meta/argument_specs.yml"
    (tmp_path / specs).parent.mkdir(parents=True)
    shutil.copy(option_references.ROOT / specs, tmp_path / specs)
    return tmp_path


@pytest.mark.parametrize(("path", "text", "line", "default"), PLANTED, ids=[text for _path, text, *_rest in PLANTED])
def test_a_planted_reference_is_seen(root, path, text, line, default):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    [found] = option_references.references(root)
    assert found == (path, line, "k3s_node_ip", default)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("roles/flannel/tasks/main.yml", TASK % 'lookup("gpufabric.rdma.variable", "k3s_node_ip")'),
        ("roles/flannel/tasks/main.yml", TASK % 'read["variables"]["k3s_node_ip"]'),
        ("roles/flannel/tasks/main.yml", "- fail:\n    msg: set k3s_node_ip | default\n"),
    ],
)
def test_typed_variables_and_words_are_left_alone(root, path, text):
    (root / path).parent.mkdir(parents=True)
    (root / path).write_text(text)
    assert option_references.references(root) == []
