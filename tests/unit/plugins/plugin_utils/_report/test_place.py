"""Where the page of a run goes."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import place


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "racks").mkdir()
    (tmp_path / "racks/hosts.yml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("file", "sources", "expected"),
    [
        (None, ["racks"], "racks-report.html"),
        (None, ["racks/"], "racks-report.html"),
        (None, ["racks/hosts.yml"], "racks/hosts-report.html"),
        (None, ["node1,node2,", "racks"], "racks-report.html"),
        (None, ["node1,"], "report.html"),
        (None, [], "report.html"),
        ("out/page.html", ["racks"], "out/page.html"),
    ],
)
def test_the_page_is_beside_the_inventory_never_inside(here, file, sources, expected):
    assert place.page(file, sources) == here / expected


def test_asking_leaves_no_trace(here):
    assert place.findings(here / "new/folder/page.html") == []
    assert sorted(path.name for path in here.rglob("*")) == ["hosts.yml", "racks"]


@pytest.mark.parametrize("name", ["racks", "racks/hosts.yml/page.html"])
def test_what_cannot_be_written_is_named(here, name):
    (finding,) = place.findings(here / name)
    assert finding.object == f"the report {here / name}"
    assert "report_file" in finding.next_step


@pytest.mark.skipif(not os.path.isdir("/proc/self/fdinfo"), reason="not verified: no procfs to refuse a file")
def test_a_folder_that_takes_no_file_is_named_with_the_reason():
    """Also for root, whom no mode stops."""
    (finding,) = place.findings(place.page("/proc/self/fdinfo/page.html", []))
    assert finding.seen.startswith("/proc/self/fdinfo: ")
