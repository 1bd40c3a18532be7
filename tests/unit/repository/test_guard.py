"""Every module and every action plugin is run through the guard: none ends in an unhandled exception."""

from __future__ import annotations

import ast
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import CHANGING

PLUGINS = pathlib.Path(__file__).resolve().parents[3] / "plugins"
FILES = sorted([*(PLUGINS / "modules").glob("*.py"), *(PLUGINS / "action").glob("*.py")])


def unguarded(tree) -> list[str]:
    """Functions that Ansible enters by, main() and ActionModule.run(), without the decorator."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ActionModule"]
    entries = [(tree, "main"), *((one, "run") for one in classes)]
    return [
        node.name
        for place, name in entries
        for node in place.body
        if isinstance(node, ast.FunctionDef)
        and node.name == name
        and "guarded" not in map(ast.unparse, node.decorator_list)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_it_is_entered_through_the_guard(path):
    text = path.read_text()
    assert unguarded(ast.parse(text)) == []
    # A module without code of its own is the documentation of an action plugin.
    assert "@guarded" in text or (PLUGINS / "action" / path.name).exists()


def test_the_gate_sees_an_entry_without_it():
    assert unguarded(ast.parse("class ActionModule:\n    def run(self):\n        pass\n")) == ["run"]
    assert unguarded(ast.parse("@other\ndef main():\n    pass\n")) == ["main"]


def may_report_changes(tree) -> bool:
    """Whether a result is `changed` by anything but a plain False."""
    values = [word.value for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords
              if word.arg == "changed"]  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            values += [value for key, value in zip(node.keys, node.values) if ast.unparse(key or node) == "'changed'"]
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return bool(calls & {"finish", "result"}) or any(ast.unparse(value) != "False" for value in values)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_guard_knows_that_it_may_have_changed_something(path):
    """By its documentation, which tells users too."""
    if may_report_changes(ast.parse(path.read_text())):
        assert CHANGING in (PLUGINS / "modules" / path.name).read_text()


def test_the_gate_sees_a_result_with_changes():
    assert may_report_changes(ast.parse("module.exit_json(changed=made, tokens=[])"))
    assert may_report_changes(ast.parse("return {'changed': bool(changes)}"))
    assert not may_report_changes(ast.parse("module.exit_json(changed=False)"))
