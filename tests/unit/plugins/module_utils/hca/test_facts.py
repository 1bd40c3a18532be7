"""gather() as a whole, and below it the tree: files that no link leads out of, answers that no file gives."""

from __future__ import annotations

import collections
import json
import os
import random

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths, seams
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import node as machine
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import SUBSETS, gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixtures

from_seams = Seams.recorded({"addresses": {"enp1s0f0np0": ["10.0.0.1/24"]}})


@pytest.fixture(params=["exclusive-netns-foreign-file", "bond"])
def laid_out(request, tmp_path):
    """The root of a machine with namespaces, services and foreign files, and of one with a bond."""
    return fixtures.lay_out(fixtures.load(request.param), tmp_path / "root")


def gathered(root, **options):
    facts = gather(Tree(str(root)), from_seams, software_hcas=True, **options)
    json.dumps(facts)
    return facts


WAYS = "gpu_initiated"  # comes with gpudirect


@pytest.mark.parametrize(
    ("subset", "parts"),
    [
        (["min"], set()),
        (["hcas"], {"hcas", "cards_without_rdma"}),
        (["pci"], {"cards_without_rdma", "gpus"}),
        (["rails", "!gids"], {"rails", "not_rails", "shared_subnets"}),
        (["all", "!hcas", "!pci", "!rails", "!gpus"], set(SUBSETS) - {"hcas", "pci", "rails", "gpus", "gids"} | {WAYS}),
        (["all"], {*SUBSETS, "cards_without_rdma", "not_rails", "shared_subnets", WAYS} - {"pci", "gids"}),
    ],
)
def test_subsets(laid_out, subset, parts):
    facts = gathered(laid_out, subset=subset)
    assert set(facts) == {"schema", "node", "virtualization", "unfinished", "reboot_reasons", *parts}


def test_the_same_value_with_and_without_the_rest(laid_out):
    whole = gathered(laid_out)
    for name in set(SUBSETS) - {"pci", "gids"}:
        assert gathered(laid_out, subset=[name])[name] == whole[name]


def test_a_subset_that_does_not_exist_is_refused(node):
    with pytest.raises(ValueError, match="hca, rail"):
        gather(node.tree(), from_seams, ["rail", "!hca"])


def test_each_file_is_read_once(laid_out):
    seen = collections.Counter()
    tree = Tree(str(laid_out), record=lambda operation, path: seen.update([(operation, path)]))
    gather(tree, from_seams)
    assert [access for access, times in seen.items() if times > 1] == []


@pytest.mark.parametrize("harm", ["missing", "refused", "scribbled"])
def test_any_path_may_be_missing_refuse_or_hold_anything(laid_out, tmp_path, harm):
    """A driver unloads, a card falls off the bus; a directory in place of a file fails as ENODEV and EINVAL do."""
    chance, aside = random.Random(3), tmp_path / "aside"
    pieces = [b"\n", b":", b"=", b"\0", b"\xff\xfe", b"0x", b"-1", b"../../..", b"net:[", b"[Service]\n", b"\\\n"]
    for place in sorted(laid_out.rglob("*")):
        if harm != "missing" and place.is_dir() and not place.is_symlink():
            continue
        content = place.read_bytes() if place.is_file() else b""
        os.rename(place, aside)
        if harm == "refused":
            place.mkdir()
        elif harm == "scribbled":
            place.write_bytes(b"".join(chance.choices([*pieces, content[:7], content], k=chance.randrange(8))))
        gathered(laid_out)
        if harm == "refused":
            place.rmdir()
        os.rename(aside, place)


@pytest.mark.parametrize(
    ("running", "ours", "foreign", "wanted"),
    [("N", "1", None, 1), ("Y", "1", None, 0), ("N", None, "1", 0), (None, "1", None, 0), ("N", "x", None, 0)],
)
def test_our_pending_netns_mode_is_a_reason_to_reboot(node, running, ours, foreign, wanted):
    if running:
        node.write("/sys/module/ib_core/parameters/netns_mode", running)
    for path, value in ((paths.OWN_MODPROBE, ours), ("/etc/modprobe.d/a.conf", foreign)):
        if value:
            node.write(path, f"options ib_core netns_mode={value}")
    assert len(node.facts(["subsystem"])["reboot_reasons"]) == wanted


@pytest.mark.parametrize(
    ("path", "content", "wanted"),
    [
        ("/none", "", None),
        ("/run/systemd/container", "systemd-nspawn", "systemd-nspawn"),
        ("/run/host/container-manager", "podman", "podman"),
        ("/.dockerenv", "", "docker"),
        ("/run/.containerenv", "", "podman"),
        ("/proc/1/environ", b"PATH=/bin\0container=lxc\0", "lxc"),
        ("/proc/1/environ", b"xcontainer=lxc\0container=\0", None),
    ],
)
def test_containers(node, path, content, wanted):
    node.write(path, content)
    assert machine.container(node.tree()) == wanted


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


def test_short_reads_do_not_end_a_procfs_file(tmp_path, monkeypatch):
    """seq_file returns whole records only, so a read of cgroup.procs may be short with more to come."""
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/procs").write_text("1\n2\n3\n")
    whole = os.read
    monkeypatch.setattr(os, "read", lambda fd, _size: whole(fd, 2))
    assert Tree(str(tmp_path)).read("/sys/fs/procs") == "1\n2\n3"


def test_the_machine_itself_is_read_without_a_prefix_and_a_fork():
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


def test_programs_are_asked_in_their_machine_readable_form(tmp_path, monkeypatch, script):
    answer = r"filename=/x.ko.zst\0version=1=2\0alias=a\0alias=b\0"
    said = {"modinfo": f"""[ "$1 $2" = "-0 /x.ko.zst" ] && printf '{answer}'""", "rpm": "echo rdma-core 48.0-1.el9"}
    for name, text in said.items():
        script(name, text)
    monkeypatch.setattr(seams, "_PATH", f"{tmp_path}:/usr/bin:/bin")
    live = Seams.live()
    assert live.modinfo("/x.ko.zst") == {"filename": "/x.ko.zst", "version": "1=2", "alias": "a"}
    assert (live.modinfo("/other.ko.zst"), live.rpm_query()) == (None, "rdma-core 48.0-1.el9\n")
    assert live.forks == 3
    assert live._run("no-such-program") is None
