# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


@pytest.fixture(params=[Tree, lambda root: Tree(root).snapshot()], ids=["tree", "snapshot"])
def tree(request, tmp_path):
    (tmp_path / "outside").write_text("of the machine that reads")
    root = tmp_path / "root"
    (root / "etc/real").mkdir(parents=True)
    (root / "etc/real/file").write_text("  inside \n")
    (root / "outside").write_text("inside too")
    os.symlink("/etc/real", root / "absolute")
    os.symlink("etc/real", root / "relative")
    os.symlink("/outside", root / "link")
    os.symlink("../../../../../../outside", root / "upwards")
    os.symlink("circle", root / "circle")
    os.symlink("/dev/null", root / "etc/masked")
    return request.param(str(root))


def test_reads_strip_and_absent_is_none(tree):
    assert tree.read("/etc/real/file") == "inside"
    assert tree.read("/etc/real/none") is None
    assert tree.read("/etc/real") is None
    assert tree.read("/etc/real/file/below") is None
    assert tree.read("/nul\0") is None


@pytest.mark.parametrize("path", ["/absolute/file", "/relative/file", "/etc/../absolute/./file"])
def test_links_to_directories_stay_inside(tree, path):
    assert tree.read(path) == "inside"
    assert tree.listdir(os.path.dirname(path)) == ["file"]
    assert tree.attributes(os.path.dirname(path), ["file", "none"]) == {"file": "inside", "none": None}


@pytest.mark.parametrize("path", ["/link", "/upwards"])
def test_links_to_files_stay_inside(tree, path):
    assert tree.read(path) == "inside too"
    assert tree.stat(path).st_size == len("inside too")
    assert tree.attributes("/", [path[1:]]) == {path[1:]: "inside too"}
    assert tree.realpath(path) == "/outside"


def test_a_mask_is_an_absent_file(tree):
    """/dev/null of the node is not in the tree; the reader's own must not stand in for it."""
    assert tree.read("/etc/masked") is None
    assert tree.readlink("/etc/masked") == "/dev/null"


def test_links_in_a_circle_end(tree):
    assert tree.read("/circle/file") is None
    assert tree.realpath("/circle") == "/circle"
    assert tree.listdir("/circle") == []
    assert tree.stat("/circle") is None


def test_realpath_keeps_a_missing_rest(tree):
    assert tree.realpath("/absolute/none/below") == "/etc/real/none/below"


def test_target_is_the_last_component(tree):
    assert tree.target("/absolute") == "real"
    assert tree.target("/etc/real/file") is None


def test_slots_leave_out_empty_and_unreadable_ones(tree, tmp_path):
    gids = tmp_path / "root/gids"
    gids.mkdir()
    for number, text in (("0", "fe80::1\n"), ("2", "0000\n"), ("10", "fe80::2\n"), ("x", "fe80::3")):
        (gids / number).write_text(text)
    (gids / "3").mkdir()
    os.symlink("/outside", gids / "4")
    assert tree.slots("/gids", b"0000") == [(0, "fe80::1"), (10, "fe80::2")]
    assert tree.slots("/none", b"0000") == []


def test_a_fifo_does_not_hang_the_reader(tree, tmp_path):
    os.mkfifo(tmp_path / "root/fifo")
    assert tree.read("/fifo") in (None, "")


def test_large_files_arrive_whole(tree, tmp_path):
    (tmp_path / "root/sys").mkdir()
    for path in ("/large", "/sys/large"):
        (tmp_path / f"root{path}").write_bytes(b"x" * 9000)
        assert len(tree.read_bytes(path)) == 9000


def test_short_reads_do_not_end_a_procfs_file(tmp_path, monkeypatch):
    """seq_file returns whole records only, so a read of cgroup.procs may be short with more to come."""
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/procs").write_text("1\n2\n3\n")
    whole = os.read
    monkeypatch.setattr(os, "read", lambda fd, _size: whole(fd, 2))
    assert Tree(str(tmp_path)).read("/sys/fs/procs") == "1\n2\n3"


def test_what_is_not_utf8_is_replaced(tree, tmp_path):
    (tmp_path / "root/bytes").write_bytes(b"a\xffb")
    assert tree.read("/bytes") == "a\ufffdb"


def test_a_snapshot_reads_once_and_a_tree_each_time(tmp_path):
    file = tmp_path / "value"
    seen = []
    tree = Tree(str(tmp_path), record=lambda operation, path: seen.append((operation, path)))
    once = tree.snapshot()
    for text in ("1", "2"):
        file.write_text(text)
        assert tree.read("/value") == text
        assert once.read("/value") == "1"
        assert once.attributes("/", ["value"]) == {"value": "1"} or text == "1"
    assert seen.count(("read", "/value")) == 3
    assert once.snapshot() is once


def test_the_machine_itself_is_read_without_a_prefix():
    assert Tree("/").live
    assert Tree("/").read("/proc/self/comm")
    assert Tree("/").realpath("/proc/self") == f"/proc/{os.getpid()}"
