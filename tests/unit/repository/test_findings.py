"""One shape of a finding, made in one place; no refusal is a sentence in YAML."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
HOME = "plugins/module_utils/_core/change.py"
SENTENCE = re.compile(r"Next step\b|\bwanted\b.*\bseen\b", re.DOTALL)


def shapes(tree: ast.AST) -> list[int]:
    """Lines with a class or a mapping that holds what a finding does."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
        elif isinstance(node, ast.Dict):
            names = {key.value for key in node.keys if isinstance(key, ast.Constant)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
            names = {keyword.arg for keyword in node.keywords}
        else:
            continue
        if {"object", "next_step"} <= names and names & {"wanted", "seen"}:
            found.append(node.lineno)
    return found


def sentences(text: str) -> list[str]:
    """Messages of assert and fail, and values of any key, that say what a finding says."""
    return [
        match
        for match in re.findall(r"(?:fail_msg|msg):(.*?)(?=\n\s*\w+:|\Z)", text, re.DOTALL)
        if SENTENCE.search(match)
    ]


def test_a_finding_has_one_shape():
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / "plugins").rglob("*.py")
        for line in shapes(ast.parse(path.read_text()))
    }
    assert {place.partition(":")[0] for place in found} == {HOME}, found
    assert len(found) == 1, found


def test_no_role_makes_sentences_of_findings():
    for folder in ("roles", "playbooks"):
        for path in (ROOT / folder).rglob("*.yml"):
            if "meta" not in path.parts:
                assert sentences(path.read_text()) == [], path


@pytest.mark.parametrize(
    "source",
    [
        "class Problem(NamedTuple):\n    object: str\n    wanted: str\n    seen: str\n    next_step: str\n",
        "found = {'id': 'x', 'object': a, 'wanted': b, 'seen': c, 'next_step': d}\n",
        "found = dict(object=a, wanted=b, seen=c, next_step=d)\n",
    ],
)
def test_a_second_shape_is_found(source):
    assert shapes(ast.parse(source)) == [1]


@pytest.mark.parametrize(
    "task",
    [
        "    fail_msg: >-\n      variable x: wanted 1,\n      seen {{ x }}. Next step: correct it\n    quiet: true\n",
        '  msg: "{{ name }}: wanted {{ wanted }}, seen {{ seen }}"\n',
    ],
)
def test_a_sentence_is_found(task):
    assert sentences(f"- name: Validate variables\n  ansible.builtin.assert:\n{task}")
