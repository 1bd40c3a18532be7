"""Locking memory and finding devices as a container would."""

from __future__ import annotations

import os

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
    assert probe.char_devices(str(tmp_path)) == ["uverbs1"]
    assert probe.char_devices(str(tmp_path / "none")) == []
