"""Reading a node: files below a root that no link leads out of, and the answers that no file gives."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, seams
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams


@pytest.fixture(params=[Tree, lambda root: Tree(root).snapshot()], ids=["tree", "snapshot"])
def tree(request, tmp_path):
    (tmp_path / "outside").write_text("of the machine that reads")
    root = tmp_path / "root"
    for folder in ("etc/real", "gids/3", "sys"):
        (root / folder).mkdir(parents=True)
    links = {"absolute": "/etc/real", "relative": "etc/real", "link": "/outside", "gids/4": "/outside"}
    links |= {"upwards": "../../../../../../outside", "circle": "circle", "etc/masked": "/dev/null"}
    for path, target in links.items():
        os.symlink(target, root / path)
    files = {"etc/real/file": b"  inside \n", "outside": b"inside too", "bytes": b"a\xffb"}
    files |= {"large": b"x" * 9000, "sys/large": b"x" * 9000}
    files |= {"gids/0": b"fe80::1\n", "gids/2": b"0000\n", "gids/10": b"fe80::2\n", "gids/x": b"fe80::3"}
    for path, content in files.items():
        (root / path).write_bytes(content)
    os.mkfifo(root / "fifo")
    return request.param(str(root))


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        *(("/etc/real/file", "inside"), ("/absolute/file", "inside"), ("/relative/file", "inside")),
        *(("/etc/../absolute/./file", "inside"), ("/link", "inside too"), ("/upwards", "inside too")),
        *(("/etc/real/none", None), ("/etc/real", None), ("/etc/real/file/below", None), ("/nul\0", None)),
        *(("/circle/file", None), ("/bytes", "a\ufffdb"), ("/large", "x" * 9000), ("/sys/large", "x" * 9000)),
        pytest.param("/etc/masked", None, id="not the reader's own /dev/null"),
    ],
)
def test_reads_strip_stay_inside_and_absent_is_none(tree, path, wanted):
    assert tree.read(path) == wanted
    folder, _slash, name = path.rpartition("/")
    if "\0" not in path:
        assert tree.attributes(folder or "/", [name]) == {name: wanted}


def test_links_are_followed_inside_and_end(tree):
    for path in ("/link", "/upwards"):
        assert (tree.stat(path).st_size, tree.realpath(path)) == (len("inside too"), "/outside")
    assert tree.listdir("/absolute") == ["file"]
    assert (tree.realpath("/circle"), tree.listdir("/circle"), tree.stat("/circle")) == ("/circle", [], None)
    assert tree.realpath("/absolute/none/below") == "/etc/real/none/below"
    assert (tree.target("/absolute"), tree.target("/etc/real/file")) == ("real", None)
    assert tree.readlink("/etc/masked") == "/dev/null"


def test_slots_leave_out_empty_and_unreadable_ones(tree):
    assert tree.slots("/gids", b"0000") == [(0, "fe80::1"), (10, "fe80::2")]
    assert tree.slots("/none", b"0000") == []


def test_a_fifo_does_not_hang_the_reader(tree):
    assert tree.read("/fifo") in (None, "")


def test_short_reads_do_not_end_a_procfs_file(tmp_path, monkeypatch):
    """seq_file returns whole records only, so a read of cgroup.procs may be short with more to come."""
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/procs").write_text("1\n2\n3\n")
    whole = os.read
    monkeypatch.setattr(os, "read", lambda fd, _size: whole(fd, 2))
    assert Tree(str(tmp_path)).read("/sys/fs/procs") == "1\n2\n3"


def test_a_snapshot_reads_once_and_a_tree_each_time(tmp_path):
    seen = []
    tree = Tree(str(tmp_path), record=lambda operation, path: seen.append((operation, path)))
    once = tree.snapshot()
    for text in ("1", "2"):
        (tmp_path / "value").write_text(text)
        assert (tree.read("/value"), once.read("/value")) == (text, "1")
        assert once.attributes("/", ["value"]) == {"value": "1"}
    assert seen.count(("read", "/value")) == 3
    assert once.snapshot() is once


def test_the_machine_itself_is_read_without_a_prefix_and_a_fork():
    """Every Linux machine has 127.0.0.1/8 on lo."""
    assert Tree("/").live
    assert Tree("/").read("/proc/self/comm")
    assert gather(Tree("/"))["node"]["kernel"] == os.uname().release
    assert Tree("/").realpath("/proc/self") == f"/proc/{os.getpid()}"
    live = Seams.of(Tree("/"))
    assert "127.0.0.1/8" in live.addresses()["lo"]
    assert (live.machine(), live.forks) == (os.uname().machine, 0)


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_recorded_answers_that_are_none(tmp_path, content):
    if content is not None:
        (tmp_path / ".seams.json").write_text(content)
    assert Seams.of(Tree(str(tmp_path))).addresses() is None


def test_a_tree_brings_its_recorded_answers(tmp_path):
    (tmp_path / ".seams.json").write_text('{"addresses": {"eth0": ["10.0.0.1/24"]}, "rpm": "a 1", "modinfo": null}')
    found = Seams.of(Tree(str(tmp_path)))
    assert (found.addresses(), found.rpm_query()) == ({"eth0": ["10.0.0.1/24"]}, "a 1")
    assert (found.modinfo("/x.ko"), found.machine()) == (None, None)


def test_programs_are_asked_in_their_machine_readable_form(tmp_path, monkeypatch):
    answer = r"filename=/x.ko.zst\0version=1=2\0alias=a\0alias=b\0"
    said = {"modinfo": f"""[ "$1 $2" = "-0 /x.ko.zst" ] && printf '{answer}'""", "rpm": "echo rdma-core 48.0-1.el9"}
    for name, text in said.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(seams, "_PATH", f"{tmp_path}:/usr/bin:/bin")
    live = Seams.live()
    assert live.modinfo("/x.ko.zst") == {"filename": "/x.ko.zst", "version": "1=2", "alias": "a"}
    assert (live.modinfo("/other.ko.zst"), live.rpm_query()) == (None, "rdma-core 48.0-1.el9\n")
    assert live.forks == 3
    assert live._run("no-such-program") is None
