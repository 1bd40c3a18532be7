"""docs/pitfalls.md from tests/tools/pitfalls.yml and the tests that it names."""

from __future__ import annotations

import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE = pathlib.Path(__file__).with_name("pitfalls.yml")
TARGET = ROOT / "docs/pitfalls.md"
ID = re.compile(r"\b[KMNDPR][1-9][0-9]?\b")
HEAD = """# Pitfalls by id

Generated from `tests/tools/pitfalls.yml` by `tests/tools/render_docs.py`.

What operators of such clusters run into, why, and what the collection does about it. Code, tests and docs refer to
these ids. A test that covers many pitfalls takes the id as a parameter: `pytest -k K3`. How far each claim has been
verified: [evidence.md](evidence.md). Failures that `verify` reports are on
[another page](failures.md).
"""


def load() -> dict:
    """{id: {symptom, cause, action, tests}}; tests of a chapter are those of its pitfalls."""
    return {
        name: {"tests": chapter.get("tests", []), **pitfall}
        for chapter in yaml.safe_load(SOURCE.read_text()).values()
        for name, pitfall in chapter["pitfalls"].items()
    }


def tests_by_name() -> dict:
    """{test function: path below the repository}."""
    return {
        name: path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }


def matching(beginning: str, known: dict) -> list:
    found = [f"`{path}::{name}`" for name, path in known.items() if name.startswith(beginning)]
    if not found:
        raise ValueError(
            f"{SOURCE.name}: wanted a test that begins with {beginning}, there is none; fix its name there"
        )
    return found


def entry(name: str, pitfall: dict, known: dict) -> str:
    tests = ", ".join(test for beginning in pitfall["tests"] for test in matching(beginning, known))
    facts = {"what you see": pitfall["symptom"], "cause": pitfall["cause"], "the collection": pitfall["action"]}
    lines = [f"### {name}", "", *(f"- **{title}**: {text}" for title, text in facts.items()), f"- **tests**: {tests}"]
    return "\n".join(lines) + "\n"


def render() -> str:
    known, pitfalls = tests_by_name(), load()
    parts = [HEAD]
    for letter, chapter in yaml.safe_load(SOURCE.read_text()).items():
        parts.append(f"## {letter}: {chapter['title']}\n")
        parts += [entry(name, pitfalls[name], known) for name in chapter["pitfalls"]]
    return "\n".join(parts)
