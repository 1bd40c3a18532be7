"""gather() as a whole, and the tree: links that do not lead out of it, answers without a file."""

import collections
import errno
import json
import os
import random
import struct

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, dcb, paths, seams
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import node as machine
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import SUBSETS, gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.text import is_unknown
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.tree import Exhausted
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


WAYS, PARTS = ("gpu_initiated", "pcie"), ("gpudirect", "gids")  # gpudirect brings the first two


@pytest.mark.parametrize(("subset", "parts"), [
    (["min"], set()),
    (["hcas"], {"hcas", "cards_without_rdma"}),
    (["pci"], {"cards_without_rdma", "gpus"}),
    (["rails", "!gids"], {"rails", "not_rails", "shared_subnets", "qos"}),
    (["all", "!hcas", "!pci", "!rails", "!gpus"], {*SUBSETS, *WAYS} - {"hcas", "pci", "rails", "gpus", *PARTS}),
    (["all"], {*SUBSETS, "cards_without_rdma", "not_rails", "shared_subnets", "qos", *WAYS} - {"pci", *PARTS}),
])  # fmt: skip
def test_subsets(laid_out, subset, parts):
    facts = gathered(laid_out, subset=subset)
    assert set(facts) == {"schema", "node", "unfinished", "reboot_reasons", *parts}


def test_the_same_value_with_and_without_the_rest(laid_out):
    whole = gathered(laid_out)
    for name in set(SUBSETS) - {"pci", *PARTS}:
        assert gathered(laid_out, subset=[name])[name] == whole[name]


def test_each_file_is_read_once(laid_out):
    seen = collections.Counter()
    tree = Tree(str(laid_out), record=lambda operation, path: seen.update([(operation, path)]))
    gather(tree, from_seams)
    assert [access for access, times in seen.items() if times > 1] == []


@pytest.mark.parametrize("harm", ["missing", "refused", "scribbled"])
def test_any_path_may_be_missing_refuse_or_hold_anything(laid_out, tmp_path, harm):
    chance, aside = random.Random(3), tmp_path / "aside"
    pieces = [b"\n", b":", b"=", b"\0", b"\xff\xfe", b"0x", b"-1", b"../../..", b"net:[", b"[Service]\n", b"\\\n"]
    pieces += [b"9" * 5000, b"$(reboot)", b"pci=config_acs=5@a;@;ab@0000:3b:00.0", b"btime 9"]
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


@pytest.mark.parametrize(("path", "content", "wanted"), [
    ("/none", "", None),
    ("/run/systemd/container", "systemd-nspawn", "systemd-nspawn"),
    ("/run/host/container-manager", "podman", "podman"),
    ("/.dockerenv", "", "docker"),
    ("/run/.containerenv", "", "podman"),
    ("/proc/1/environ", b"PATH=/bin\0container=lxc\0", "lxc"),
    ("/proc/1/environ", b"xcontainer=lxc\0container=\0", None),
])  # fmt: skip
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
    links["deep"] = "a/" * 1500
    for path, target in links.items():
        os.symlink(target, root / path)
    files = {"etc/real/file": b"  inside \n", "outside": b"inside too", "bytes": b"a\xffb"}
    files |= {"large": b"x" * 9000, "sys/large": b"x" * 9000}
    files |= {"gids/0": b"fe80::1\n", "gids/2": b"0000\n", "gids/10": b"fe80::2\n", "gids/x": b"fe80::3"}
    for path, content in files.items():
        (root / path).write_bytes(content)
    os.mkfifo(root / "fifo")
    return request.param(str(root))


@pytest.mark.parametrize(("path", "wanted"), [
    *(("/etc/real/file", "inside"), ("/absolute/file", "inside"), ("/relative/file", "inside")),
    *(("/etc/../absolute/./file", "inside"), ("/link", "inside too"), ("/upwards", "inside too")),
    *(("/etc/real/none", None), ("/etc/real", None), ("/etc/real/file/below", None), ("/nul\0", None)),
    *(("/circle/file", None), ("/bytes", "a\ufffdb"), ("/large", "x" * 9000), ("/sys/large", "x" * 9000)),
    pytest.param("/deep/file", None, id="deep"),
    pytest.param("/etc/masked", None, id="not the reader's own /dev/null"),
])  # fmt: skip
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


def test_a_table_read_without_descriptors_is_not_a_short_one(tree, monkeypatch):
    def only_directories(path, flags, *, dir_fd=None, plain=os.open):
        if dir_fd is not None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return plain(path, flags)

    monkeypatch.setattr(os, "open", only_directories)
    with pytest.raises(Exhausted):
        tree.slots("/gids", b"0000")


def test_short_reads_do_not_end_a_procfs_file(tmp_path, monkeypatch):
    """seq_file returns whole records only, so a short read of cgroup.procs may not be the end."""
    (tmp_path / "sys/fs").mkdir(parents=True)
    (tmp_path / "sys/fs/procs").write_text("1\n2\n3\n")
    whole = os.read
    monkeypatch.setattr(os, "read", lambda fd, _size: whole(fd, 2))
    assert Tree(str(tmp_path)).read("/sys/fs/procs") == "1\n2\n3"


def test_the_machine_itself_is_read_without_a_prefix_and_a_fork(monkeypatch):
    assert Tree("/").live
    assert Tree("/").read("/proc/self/comm")
    assert gather(Tree("/"))["node"]["kernel"] == os.uname().release
    assert Tree("/").realpath("/proc/self") == f"/proc/{os.getpid()}"
    live = Seams.of(Tree("/"))
    assert "127.0.0.1/8" in live.addresses()["lo"]
    assert (live.machine(), live.forks) == (os.uname().machine, 0)
    monkeypatch.setattr(seams, "_SIOCGIFNETMASK", 0)
    assert live.addresses() == {}, "addresses that are gone meanwhile"


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
    assert (live.modinfo("/other.ko.zst"), live.rpm()) == (None, "rdma-core 48.0-1.el9\n")
    assert live.forks == 3
    assert live._run("no-such-program") is None


# Composed from include/uapi/linux/dcbnl.h: no NIC with these settings was available.
def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def dcb_answer(*ieee, dcbx=None, kind=78):
    body = bytes((0, 21, 0, 0)) + attribute(1, b"eth2\0") + attribute(13, b"".join(ieee))
    body += attribute(14, bytes([dcbx])) if dcbx is not None else b""
    return struct.pack("=IHHII", 16 + len(body), kind, 0, 1, 0) + body


def apps(*entries):
    return attribute(3, b"".join(attribute(1, struct.pack("=BBH", *entry)) for entry in entries))


def error(number):
    return struct.pack("=IHHIIi", 36, 2, 0, 1, 0, -number) + bytes(16)


PFC = attribute(2, struct.pack("=BBBxHxx8Q8Q", 8, 1 << 3 | 1 << 6, 0, 7, *range(16)))
ETS = attribute(1, struct.pack("=BBB8s8s8s8s24x", 1, 8, 0, bytes([50] * 2), bytes(8), b"\0\2\xff\1", bytes(range(8))))
BUFFERS = attribute(10, struct.pack("=8s8II", bytes([0] * 3 + [1] * 5), 1000, *range(7), 9))
EMPTY = {"dscp": {}, "pfc": None, "ets": None, "buffers": None, "dcbx": None}
PFC_3_6 = {"priorities": [3, 6], "capable": 8, "delay": 7}


@pytest.mark.parametrize(("answer", "settings"), [
    (dcb_answer(apps()), EMPTY),
    (dcb_answer(PFC, apps(), dcbx=0x0C), {**EMPTY, "pfc": PFC_3_6, "dcbx": "firmware"}),
    (
        dcb_answer(apps((5, 3, 26), (1, 7, 26), (5, 6, 48)), dcbx=9),
        {**EMPTY, "dscp": {"26": [3], "48": [6]}, "dcbx": "host"},
    ),
    (dcb_answer(apps((5, 5, 26), (5, 3, 26), (5, 1, 8))), {**EMPTY, "dscp": {"8": [1], "26": [3, 5]}}),
    (
        dcb_answer(ETS, BUFFERS, apps()),
        {
            **EMPTY,
            "ets": {
                "classes": [*range(8)],
                "bandwidth": [50, 50, *[0] * 6],
                "schedulers": ["strict", "ets", "vendor", "cb-shaper", *["strict"] * 4],
            },
            "buffers": {"of": [0, 0, 0, 1, 1, 1, 1, 1], "bytes": [1000, *range(7)]},
        },
    ),
    (error(errno.EOPNOTSUPP), dict.fromkeys(EMPTY)),
    (error(errno.EPERM), "Operation not permitted"),
    (error(errno.ENODEV), "No such device"),
    (dcb_answer(apps(), kind=79), "cut off"),
    (dcb_answer(attribute(2, b"\x08\x08")), "cut off"),
])  # fmt: skip
def test_of_what_the_kernel_answers_only_no_such_setting_is_nothing(answer, settings):
    asked = dcb.asked(lambda: dcb.parsed(answer), dcb.KEYS)
    if isinstance(settings, dict):
        assert asked == settings
    else:
        assert {*asked} == {*EMPTY}
        assert all(is_unknown(text) and settings in text for text in asked.values())


def test_half_an_answer_says_nothing():
    whole = dcb_answer(PFC, apps((5, 3, 26)), dcbx=9)
    for length in range(len(whole)):
        assert all(map(is_unknown, dcb.asked(lambda cut=whole[:length]: dcb.parsed(cut), dcb.KEYS).values()))


def test_the_kernel_itself_is_asked():
    """lo has none; those of a missing interface are unknown."""
    assert Seams.live().qos("lo") == {**dict.fromkeys(EMPTY), "pause": None}
    assert all(map(is_unknown, Seams.live().qos("none0").values()))


def test_only_the_netdevs_of_rails_are_asked_and_files_of_mofed_are_read(node):
    path = node.pci("pci0000:00/0000:00:01.0/0000:01:00.0", "15b3", "1021", "0x020000")
    node.hca("mlx5_0", path)
    node.netdev("eth2", path)
    node.netdev("lan0", address="52:54:00:00:00:01")
    node.write("/sys/class/net/eth2/qos/trust_state", "pcp").write("/usr/sbin/dcb")
    for number in range(8):
        node.write(f"/sys/class/net/eth2/ecn/roce_np/enable/{number}", str(int(number == 3)))
    asked = []
    answer = {**EMPTY, "dscp": {"26": [3]}, "pause": {"rx": True, "tx": False}}
    seams = Seams(addresses=dict, qos=lambda netdev: asked.append(netdev) or answer)
    qos = gather(node.tree(), seams, ["rails"])["qos"]
    assert (asked, qos["programs"], [row["netdev"] for row in qos["nics"]]) == (["eth2"], ["dcb"], ["eth2"])
    (row,) = qos["nics"]
    assert (row["pci"], row["trust"], row["ecn"]) == ("0000:01:00.0", "pcp", {"np": [3], "rp": None})
    assert {key: row[key] for key in answer} == answer
    assert is_unknown(node.facts(["rails"])["qos"]["nics"][0]["pfc"])
