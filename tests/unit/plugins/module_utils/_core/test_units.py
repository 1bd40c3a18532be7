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
CONFIG = Change("/etc/a/config.json", "write", "", "{}\n")
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


def answers(ran, code=0):
    def run(argv):
        ran.append(argv)
        return code, "", "Failed to connect to bus" if code else ""

    return run


def test_files_and_links_are_made_below_the_root(tmp_path, units):
    changes = [UNIT, OLD, GONE, LINK, UNLINK]
    assert list(core_units.apply_units(str(tmp_path), changes, no_run)) == changes
    wanted = {"a.service": "[Unit]\n", "b.service": "after\n", "multi-user.target.wants/a.service": "../a.service"}
    assert state(units) == wanted


def test_a_failure_half_way_puts_everything_back(tmp_path, units):
    before = state(units)
    impossible = Change("/etc/systemd/system/none/x.service", "remove", "x", "")
    with pytest.raises(Refused) as raised:
        list(core_units.apply_units(str(tmp_path), [UNIT, OLD, GONE, LINK, UNLINK, impossible], no_run))
    assert raised.value.findings[0].object == impossible.object
    assert state(units) == before


def test_a_reload_that_fails_puts_units_back_so_that_the_next_run_does_both(tmp_path, units):
    """What systemd does not read stays and is reported as done."""
    before, ran = state(units), []
    (units / "b.service").chmod(0o600)
    with pytest.raises(Refused, match="Failed to connect to bus") as raised:
        core_units.apply_units(str(tmp_path), [CONFIG, UNIT, OLD, GONE], answers(ran, 1), live=True)
    assert (ran, raised.value.done) == ([["systemctl", "daemon-reload"]], [CONFIG])
    assert (tmp_path / "etc/a/config.json").read_text() == "{}\n"
    assert state(units) == before
    assert (units / "b.service").stat().st_mode & 0o777 == 0o600


def test_the_changes_come_back_in_the_order_of_the_plan(tmp_path, units):
    changes = [CONFIG, UNIT, Change("module a", "load", "not loaded", "loaded"), GONE]
    seen = []
    assert core_units.apply_units(str(tmp_path), changes, answers([]), seen.append, live=True) == seen == changes


@pytest.mark.parametrize(
    ("changes", "starting", "reloads"), [([], False, 0), ([CONFIG], False, 0), ([UNIT], False, 1), ([], True, 1)]
)
def test_systemd_reads_its_files_when_one_changed_and_before_every_start(tmp_path, changes, starting, reloads):
    """A run that was killed between a file and its reload has left nothing else to tell it by."""
    ran = []
    core_units.apply_units(str(tmp_path), changes, answers(ran), starting=starting, live=True)
    assert ran == [["systemctl", "daemon-reload"]] * reloads


def test_a_change_that_fails_puts_the_units_back_and_says_which_it_was(tmp_path, units):
    before = state(units)

    def act(change):
        if change == CONFIG:
            raise OSError(28, "No space left on device")
        core_units.apply_file(str(tmp_path), change)

    with pytest.raises(Refused) as raised:
        core_units.apply_units(str(tmp_path), [OLD, UNLINK, CONFIG], answers([]), act, live=True)
    assert [found.object for found in raised.value.findings] == [CONFIG.object]
    assert (raised.value.done, state(units)) == ([], before)
