"""Unit files and their reload go together."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import units as core_units
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Refused

UNIT = Change("/etc/systemd/system/a.service", "write", "", "[Unit]\n")
OLD = Change("/etc/systemd/system/b.service", "write", "before\n", "after\n")
GONE = Change("/etc/systemd/system/c.service", "remove", "gone\n", "")
LINK = Change("/etc/systemd/system/multi-user.target.wants/a.service", "link", "", "../a.service")
UNLINK = Change("/etc/systemd/system/multi-user.target.wants/c.service", "unlink", "../c.service", "")


@pytest.fixture
def units(tmp_path):
    directory = tmp_path / "etc/systemd/system"
    (directory / "multi-user.target.wants").mkdir(parents=True)
    (directory / "b.service").write_text("before\n")
    (directory / "c.service").write_text("gone\n")
    (directory / "multi-user.target.wants/c.service").symlink_to("../c.service")
    return directory


def state(directory) -> dict:
    return {
        str(path.relative_to(directory)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in directory.rglob("*.service")
    }


def no_run(_argv):
    raise AssertionError("below another root the service manager of this machine is left alone")


def test_files_and_links_are_made_below_the_root(tmp_path, units):
    changes = [UNIT, OLD, GONE, LINK, UNLINK]
    assert list(core_units.reload_or_undo(str(tmp_path), changes, no_run)) == changes
    assert state(units) == {
        "a.service": "[Unit]\n",
        "b.service": "after\n",
        "multi-user.target.wants/a.service": "../a.service",
    }


def test_a_failure_half_way_puts_everything_back(tmp_path, units):
    before = state(units)
    impossible = Change("/etc/systemd/system/none/x.service", "remove", "x", "")
    with pytest.raises(FileNotFoundError):
        list(core_units.reload_or_undo(str(tmp_path), [UNIT, OLD, GONE, LINK, UNLINK, impossible], no_run))
    assert state(units) == before


def test_a_reload_that_fails_puts_everything_back_so_that_the_next_run_does_both(tmp_path, units):
    before = state(units)
    ran = []

    def run(argv):
        ran.append(argv)
        return 1, "", "Failed to connect to bus"

    with pytest.raises(Refused, match="Failed to connect to bus"):
        list(core_units.reload_or_undo(str(tmp_path), [UNIT, OLD], run, live=True))
    assert ran == [["systemctl", "daemon-reload"]]
    assert state(units) == before


def test_nothing_changed_means_no_reload(tmp_path):
    assert list(core_units.reload_or_undo(str(tmp_path), [], no_run, live=True)) == []
