"""Our files: compared as text, written whole, read back."""

from __future__ import annotations

import os
import stat

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Plan

PATH = "/etc/modprobe.d/zz.conf"


@pytest.mark.parametrize(
    ("owned", "expected"),
    [
        (None, ("write", "", "new\n")),
        ({"mode": "0644", "content": "old"}, ("write", "old\n", "new\n")),
        ({"mode": "0600", "content": "new"}, ("mode", "0600", "0644")),
        ({"mode": "0644", "content": "new\n"}, None),
        ({"mode": "0644", "content": "new"}, None),
    ],
)
def test_what_is_planned(owned, expected):
    made = Plan()
    changed = files.plan_file(made, {"owned_files": {PATH: owned} if owned else {}}, PATH, "new\n")
    assert made.changes == ([(PATH, *expected)] if expected else [])
    assert changed is (bool(expected) and expected[0] == "write")


def test_removal_of_what_is_not_there_is_no_change():
    made = Plan()
    files.plan_removal(made, {"owned_files": {}}, PATH)
    assert made.changes == []


def test_changes_are_carried_out_below_the_root(tmp_path):
    target = tmp_path / "etc/modprobe.d/zz.conf"
    files.apply_file(str(tmp_path), Change(PATH, "write", "", "text\n"))
    assert target.read_text() == "text\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    target.chmod(0o600)
    files.apply_file(str(tmp_path), Change(PATH, "mode", "0600", "0644"))
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    files.apply_file(str(tmp_path), Change(PATH, "remove", "text\n", ""))
    assert not target.exists()


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path):
    target = tmp_path / "file"
    target.mkdir()
    (target / "occupied").touch()
    with pytest.raises(OSError, match=r"directory|not empty"):
        files.write(str(target), "text")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("content", "directive", "line", "expected"),
    [
        ("", "options ib_core", "options ib_core netns_mode=1", ["options ib_core netns_mode=1"]),
        (
            "options ib_core netns_mode=0",
            "options ib_core",
            "options ib_core netns_mode=1",
            ["options ib_core netns_mode=1"],
        ),
        ("softdep b pre: c", "options ib_core", "options ib_core x=1", ["options ib_core x=1", "softdep b pre: c"]),
        ("softdep b pre: c\noptions ib_core x=1", "softdep b", None, ["options ib_core x=1"]),
        ("options ib_core_other y=1", "options ib_core", None, ["options ib_core_other y=1"]),
        ("options ib_core x=1", "options ib_core", None, []),
    ],
)
def test_two_roles_share_one_file_line_by_line(content, directive, line, expected):
    text = files.with_directive(content, directive, line)
    assert text == files.HEADER + "".join(f"{kept}\n" for kept in expected)
    assert files.with_directive(text, directive, line) == text
