"""docs/pitfalls.md: current, every id quoted anywhere is on it, and each test that it names has the pitfall."""

from __future__ import annotations

import pathlib
import re

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import render_pitfalls

ROOT = pathlib.Path(__file__).resolve().parents[3]
QUOTING = (".md", ".py", ".yml", ".yaml", ".j2", ".sh")
FOLDERS = (
    "bin",
    "changelogs",
    "device_plugin",
    "docs",
    "inventory",
    "lab",
    "molecule",
    "playbooks",
    "plugins",
    "roles",
)


def quoting_files():
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in QUOTING]
    skipped = (ROOT / "tests/fixtures", ROOT / "lab/testbed", pathlib.Path(__file__))
    return [path for path in [*found, ROOT / "README.md"] if not any(path.is_relative_to(one) for one in skipped)]


def unexplained(paths):
    known = render_pitfalls.load()
    quoted = {(path.name, name) for path in paths for name in render_pitfalls.ID.findall(path.read_text())}
    return sorted((file, name) for file, name in quoted if name not in known)


def without_id(pitfalls):
    """Tests named for a pitfall whose file quotes ids, but not this one."""
    files = render_pitfalls.tests_by_name()
    quoted = {path: set(render_pitfalls.ID.findall((ROOT / path).read_text())) for path in set(files.values())}
    return [
        (name, test)
        for name, pitfall in pitfalls.items()
        for beginning in pitfall["tests"]
        for test, path in files.items()
        if test.startswith(beginning) and not re.search(rf"_{name.lower()}_", test)
        if quoted[path] and name not in quoted[path]
    ]


def test_the_page_is_current():
    assert render_pitfalls.TARGET.read_text() == render_pitfalls.render(), "run tests/tools/render_docs.py"


def test_every_quoted_id_is_explained(tmp_path):
    paths = quoting_files()
    assert len(paths) > 300
    assert unexplained(paths) == []
    planted = tmp_path / "planted.md"
    planted.write_text("as in K99, not in K3\n")
    assert unexplained([*paths, planted]) == [("planted.md", "K99")]


def test_each_pitfall_has_a_test_that_quotes_it():
    pitfalls = render_pitfalls.load()
    assert all(pitfall["tests"] for pitfall in pitfalls.values())
    assert without_id(pitfalls) == []
    assert without_id({"K99": pitfalls["K3"]}) != []


def test_a_test_that_is_gone_is_seen():
    with pytest.raises(ValueError, match="begins with test_that_is_gone"):
        render_pitfalls.matching("test_that_is_gone", render_pitfalls.tests_by_name())
