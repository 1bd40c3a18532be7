"""The gate on the tarball's pages, seen failing; tests/run-build asks it of the real tarball."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import check_tarball

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILES = check_tarball.wanted_files(ROOT)
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PAGES = sorted(name for name in FILES if name.endswith(".md"))


def test_there_are_pages_and_targets():
    assert {"README.md", "docs/report.md", "roles/discovery/README.md"} <= set(PAGES)
    assert {"lab", "test", "site", "check"} <= TARGETS


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_tarball_leads_only_into_the_tarball(page):
    assert check_tarball.page_problems(page, (ROOT / page).read_text(), FILES, TARGETS) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("see [the lab](lab.md)", "links to lab.md"),
        ("see [tests](../tests/run-build)", "links to ../tests/run-build"),
        ("[![picture](images/none.png)](report.md)", "links to images/none.png"),
        ("`gpufabric.rdma.sight`", "gpufabric.rdma.sight does not exist"),
        ("```console\n$ cp -r ~/.ansible/collections/ansible_collections/gpufabric/rdma/examples x\n```", "/examples"),
        ("run `make site INVENTORY=x`", "make site needs a clone"),
        ("first:\n\n```console\n$ make lab\n```", "make lab needs a clone"),
        ("In a clone `make nothing`", "make nothing does not exist"),
    ],
)
def test_a_planted_fault_is_named(text, problem):
    (found,) = check_tarball.page_problems("docs/planted.md", text, FILES, TARGETS)
    assert problem in found


def test_the_changelog_has_the_version_of_the_collection_and_all_that_was_released():
    version = yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]
    releases = yaml.safe_load((ROOT / "changelogs/changelog.yaml").read_text())["releases"]
    assert version in releases
    text = plain((ROOT / "CHANGELOG.md").read_text())
    entries = [
        entry
        for release in releases.values()
        for section in release["changes"].values()
        for entry in ([section] if isinstance(section, str) else section)
    ]
    assert len(entries) > 30
    assert [entry for entry in entries if plain(entry) not in text] == []
    assert [entry for entry in entries if re.search(r"\b[CMOV]\(", entry)] == [], "a changelog has no such markup"


def plain(text):
    """A changelog's words without markup, which antsibull-changelog writes in its own way."""
    return " ".join(re.sub(r"``|</?code>|[\\`*]", "", text).replace("&quot;", '"').split())


def test_the_program_for_pipelines_is_named_with_its_interpreter():
    """It has no mode bit: ansible-test refuses a first line with python3, and Debian has no python."""
    assert (ROOT / "bin/drift.py").stat().st_mode & 0o111 == 0
    named = re.compile(r"(\S+) \S*bin/drift\.py -i")
    shown = [found for page in PAGES for found in named.findall((ROOT / page).read_text())]
    assert shown
    assert set(shown) == {"python3"}
