"""Locking memory and finding devices as a container would."""

from __future__ import annotations

import os
import pwd
import stat

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import probe

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="not verified: only root can switch to another user")


@needs_root
def test_a_low_limit_keeps_another_user_from_locking_and_says_so():
    outcome = probe.lock_memory(64 * 1024, "nobody")
    assert (outcome["locked"], outcome["reason"]) == (0, None)
    assert outcome["error"].startswith("mlock of 16 MiB: ")


@needs_root
def test_what_the_limit_allows_is_really_locked():
    outcome = probe.lock_memory(65536, "nobody", size=16384)
    assert outcome == {"locked": 16384, "error": None, "reason": None}


def test_an_unknown_user_is_a_reason_and_no_failure():
    outcome = probe.lock_memory("infinity", "no-such-user")
    assert outcome == {"locked": 0, "error": None, "reason": "no user no-such-user on the node"}


def test_only_character_devices_count(tmp_path):
    (tmp_path / "uverbs0").write_text("")
    os.symlink("/dev/null", tmp_path / "uverbs1")
    (null,) = probe.char_devices("nobody", str(tmp_path)).items()
    assert null == ("uverbs1", {"mode": "0666", "owner": "root", "group": "root", "usable": True})
    assert probe.char_devices("nobody", str(tmp_path / "none")) == {}


@pytest.fixture
def device(tmp_path):
    """A character device with mode, owner and group; its major number belongs to no driver."""

    def make(mode, owner=0, group=0):
        path = tmp_path / "uverbs3"
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(42, 3))
        except PermissionError:
            pytest.skip("not verified: no right to make a device node")
        os.chown(path, owner, group)
        os.chmod(path, mode)
        return probe.char_devices("nobody", str(tmp_path))["uverbs3"]

    return make


NOBODY, NOGROUP = pwd.getpwnam("nobody")[2:4]


@needs_root
@pytest.mark.parametrize(
    ("mode", "owner", "group", "usable"),
    [
        (0o666, 0, 0, True),
        (0o600, 0, 0, False),
        (0o664, 0, 0, False),
        (0o660, 0, NOGROUP, True),
        (0o606, 0, NOGROUP, False),  # a group's member has the group's rights only
        (0o600, NOBODY, 0, True),
        (0o066, NOBODY, 0, False),
        (0o666, 54321, 54321, True),
    ],
)
def test_a_device_is_usable_by_the_rights_of_the_first_class_that_fits(device, mode, owner, group, usable):
    found = device(mode, owner, group)
    assert (found["mode"], found["usable"]) == (f"{mode:04o}", usable)
    assert owner != 54321 or (found["owner"], found["group"]) == ("54321", "54321")


@needs_root
def test_without_the_user_the_rights_of_everybody_count(device, tmp_path):
    device(0o600)
    assert not probe.char_devices("no-such-user", str(tmp_path))["uverbs3"]["usable"]
