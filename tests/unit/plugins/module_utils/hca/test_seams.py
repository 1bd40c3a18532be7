# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import stat

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, seams
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams


def test_live_addresses_come_without_a_fork():
    """Every Linux machine has 127.0.0.1/8 on lo."""
    live = Seams.live()
    assert "127.0.0.1/8" in live.addresses()["lo"]
    assert live.machine() == os.uname().machine
    assert live.forks == 0


def test_a_tree_brings_its_recorded_answers(tmp_path):
    assert Seams.of(Tree(str(tmp_path))).addresses() is None
    (tmp_path / ".seams.json").write_text('{"addresses": {"eth0": ["10.0.0.1/24"]}, "rpm": "a 1", "modinfo": null}')
    found = Seams.of(Tree(str(tmp_path)))
    assert found.addresses() == {"eth0": ["10.0.0.1/24"]}
    assert found.rpm_query() == "a 1"
    assert found.modinfo("/x.ko") is None
    assert found.machine() is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_recorded_answers_that_are_none(tmp_path, content):
    (tmp_path / ".seams.json").write_text(content)
    assert Seams.of(Tree(str(tmp_path))).addresses() is None


def test_the_machine_itself_has_live_seams():
    assert Seams.of(Tree("/")).machine() == os.uname().machine


@pytest.fixture
def program(tmp_path, monkeypatch):
    def write(name, text):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setattr(seams, "_PATH", f"{tmp_path}:/usr/bin:/bin")
    return write


def test_modinfo_is_asked_in_its_machine_readable_form(program):
    answer = r"filename=/x.ko.zst\0version=1=2\0alias=a\0alias=b\0"
    program("modinfo", f"""[ "$1 $2" = "-0 /x.ko.zst" ] && printf '{answer}'""")
    live = Seams.live()
    assert live.modinfo("/x.ko.zst") == {"filename": "/x.ko.zst", "version": "1=2", "alias": "a"}
    assert live.modinfo("/other.ko.zst") is None
    assert live.forks == 2


def test_rpm_and_a_program_that_is_not_there(program):
    program("rpm", "echo rdma-core 48.0-1.el9")
    live = Seams.live()
    assert live.rpm_query() == "rdma-core 48.0-1.el9\n"
    live_without = Seams.live()
    assert live_without._run("no-such-program") is None
