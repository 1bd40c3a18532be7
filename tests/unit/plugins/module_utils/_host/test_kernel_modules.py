"""The modules of a node, the initramfs images to rebuild, and the doctor's verdicts about nvidia_peermem."""

import copy
import json
import shutil
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import initramfs
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import (
    REFUSED,
    SYMBOL,
    complete,
    diagnose,
    examine,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.kernel_modules import PEERMEM, PEERMEM_SOFTDEP, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import elf, paths
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.modules.kernel_modules import SUBSET
from ansible_collections.gpufabric.rdma.tests.unit.plugins.module_utils.hca import conftest

LOADED = {"loaded": True, "builtin": False, "available": True, "persisted": [], "blocked_by": []}
ABSENT = {**LOADED, "loaded": False}
NOT_THERE = {**ABSENT, "available": False}
WANTED = {"required": ["mlx5_core", "ib_umad"], "ipoib": "auto", "gpudirect": "auto"}
LOAD_FILE, OURS = paths.OWN_MODULES_LOAD, paths.OWN_MODPROBE
LISTED = f"{paths.HEADER}\nmlx5_core\nib_umad\n"
OLD, NEW = "/boot/initrd.img-6.1", "/boot/initrd.img-6.8"


def owned(text: str, mode: str = "0644") -> dict:
    return {"mode": mode, "content": text}


def port(layer: str) -> dict:
    return {"name": "mlx5_0", "ports": [{"number": 1, "link_layer": layer}]}


@pytest.fixture
def facts() -> dict:
    images = [{"path": OLD, "kernel": "6.1", "mtime": 100.0}, {"path": NEW, "kernel": "6.8", "mtime": 300.0}]
    return {
        "node": {"kernel": "6.1.0-56-amd64", "container": None, "os": {"id": "debian", "like": []}},
        "hcas": [port("Ethernet")],
        "cards_without_rdma": [],
        "gpus": [],
        "modules": {name: copy.deepcopy(LOADED) for name in ("mlx5_core", "ib_umad", "ib_ipoib", PEERMEM)},
        "initramfs": {"generator": "update-initramfs", "images": images},
        "owned_files": {LOAD_FILE: owned(LISTED)},
    }


@pytest.mark.parametrize(
    ("choice", "layer", "expected"),
    [
        ("auto", "Ethernet", False),
        ("auto", "InfiniBand", True),
        ("always", "Ethernet", True),
        ("never", "InfiniBand", False),
    ],
)
def test_ipoib_follows_the_ports(facts, choice, layer, expected):
    facts["hcas"] = [port("Ethernet"), port(layer)]
    made = plan(facts, {**WANTED, "ipoib": choice})
    assert ("ib_ipoib" in "".join(change.after for change in made.changes)) is expected


@pytest.mark.parametrize("loaded", [True, False])
def test_a_blacklist_is_named_with_path_and_line_and_never_forced(facts, loaded):
    line = {"path": "/etc/modprobe.d/ofed-blacklist.conf", "line": 3, "text": "blacklist ib_umad"}
    facts["modules"]["ib_umad"] = {**ABSENT, "loaded": loaded, "blocked_by": [line]}
    made = plan(facts, WANTED)
    assert [finding.object for finding in made.findings] == ["module ib_umad"]
    assert "/etc/modprobe.d/ofed-blacklist.conf:3" in made.findings[0].seen
    assert not any(change.action == "load" for change in made.changes)


@pytest.mark.parametrize(
    ("system", "like", "package"),
    [
        ("debian", "", "linux-image-amd64"),
        ("ubuntu", "debian", "linux-modules-extra-6.1.0-56-amd64"),
        ("rocky", "rhel centos fedora", "kernel-modules-6.1.0-56-amd64, else kernel-modules-extra-6.1.0-56-amd64"),
        ("arch", "", "kernel package"),
    ],
)
def test_modules_that_the_kernel_lacks_name_kernel_and_package_all_at_once(facts, system, like, package):
    facts["modules"] = {"mlx5_core": NOT_THERE, "ib_umad": NOT_THERE}
    facts["node"]["os"] = {"id": system, "like": like.split()}
    found = plan(facts, WANTED).findings
    assert [finding.object for finding in found] == ["module mlx5_core", "module ib_umad"]
    assert all("6.1.0-56-amd64" in finding.seen and package in finding.next_step for finding in found)


@pytest.mark.parametrize(("container", "root"), [("systemd-nspawn", "/"), (None, "/captured")])
def test_in_a_container_or_another_root_files_are_written_and_the_kernel_is_left_alone(facts, container, root):
    facts["node"]["container"] = container
    facts["modules"]["ib_umad"] = NOT_THERE
    facts["owned_files"] = {}
    made = plan(facts, WANTED, root=root)
    assert ([change.object for change in made.changes], made.findings) == ([LOAD_FILE], [])
    assert "ib_umad" in made.not_verified[0]


def initiated(why="absent", loaded=True, **more):
    ways = {"ibgda": {"works": not why, "missing": [{"need": "stream-memory", "why": why}] if why else []}}
    return {"loaded": loaded, "foreign_dwords": "", "overridden": [], "ways": ways, **more}


LATER = [{"path": "/etc/modprobe.d/zzz.conf", "line": 2, "text": "options nvidia NVreg_EnableStreamMemOPs=0"}]
DWORDS = 'NVreg_RegistryDwords="{}PeerMappingOverride=1;"'


@pytest.mark.parametrize(("state", "choice", "root", "told", "dwords"), [
    (initiated(), "write", "/", ["reboot_reasons"], DWORDS.format("")),
    (initiated(foreign_dwords="RmX=3;PeerMappingOverride=0"), "write", "/", ["reboot_reasons"],
     'NVreg_RegistryDwords="RmX=3;PeerMappingOverride=1;"'),
    (initiated(foreign_dwords='A=1;B="$(x)'), "write", "/", ["findings", "reboot_reasons"], "B="),
    (initiated("reboot"), "write", "/", ["reboot_reasons"], DWORDS.format("")),
    (initiated("ignored"), "write", "/", ["notes"], DWORDS.format("")),
    (initiated("unknown"), "write", "/", [], DWORDS.format("")),
    (initiated(""), "write", "/", [], DWORDS.format("")),
    (initiated(loaded=False), "write", "/", [], DWORDS.format("")),
    (initiated(), "write", "/captured", ["not_verified"], DWORDS.format("")),
    (initiated("overridden", overridden=LATER), "write", "/", ["findings", "reboot_reasons"], DWORDS.format("")),
    (initiated(), "report", "/", [], None),
    (None, "write", "/", [], None),
])  # fmt: skip
def test_options_of_the_nvidia_driver_are_written_on_request_and_taken_back(facts, state, choice, root, told, dwords):
    facts["gpu_initiated"] = state
    made = plan(facts, {**WANTED, "gpu_initiated": choice}, root)
    lists = ("findings", "reboot_reasons", "not_verified", "notes")
    assert [name for name in lists if getattr(made, name)] == told
    written = [change.after for change in made.changes if change.object == OURS]
    assert [dwords in text for text in written] == ([True] if dwords else [])
    assert made.stale_images == ([OLD, NEW] if dwords and root == "/" else []), (
        "a written modprobe file makes images stale"
    )
    facts["owned_files"][OURS] = owned(written[0] if written else f"{paths.HEADER}\noptions nvidia NVreg_X=1\n")
    again = [change.after for change in plan(facts, {**WANTED, "gpu_initiated": choice}, root).changes]
    assert again == ([] if dwords else [paths.HEADER + "\n"])


@pytest.mark.parametrize(("sources", "stale", "expected"), [
    ({}, [], []),
    ({OURS: 50.0}, [], []),
    ({OURS: 100.0}, [], [OLD]),
    ({OURS: 400.0}, [], [OLD, NEW]),
    ({OURS: 50.0, "/etc/modprobe.d": 200.0}, [], [OLD]),
    ({}, [NEW, "/boot/gone"], [NEW]),  # what check mode would make stale is announced
])  # fmt: skip
def test_images_are_rebuilt_by_age(facts, sources, stale, expected):
    made = initramfs.plan(facts, {"sources": sources, "stale": stale})
    assert [(change.object, change.action) for change in made.changes] == [(path, "rebuild") for path in expected]


@pytest.mark.parametrize(
    ("container", "root", "generator", "where"),
    [
        ("docker", "/", "dracut", "not_verified"),
        (None, "/captured", "dracut", "not_verified"),
        (None, "/", None, "notes"),
    ],
)
def test_what_cannot_be_rebuilt_from_here_is_reported(facts, container, root, generator, where):
    facts["node"]["container"] = container
    facts["initramfs"]["generator"] = generator
    made = initramfs.plan(facts, {"sources": {OURS: 200.0}, "stale": []}, root)
    assert made.changes == []
    assert OLD in getattr(made, where)[0]


PEERMEM_OBJECT, STACK = "module nvidia_peermem", "kernel/ib_core.ko"
OLD_KERNEL = "5.15.0-1-generic"
OFED, DKMS = "updates/dkms/ib_core.ko", "updates/dkms/nvidia-peermem.ko"
GPU = "/sys/devices/pci0000:00/0000:17:00.0"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.172.08"


class Node(conftest.Node):
    """A node with one GPU, the NVIDIA driver loaded, and the modules that a test adds."""

    def __init__(self, root, kernel):
        super().__init__(root)
        self.kernel, self.modules = kernel, []
        self.write("/proc/sys/kernel/osrelease", kernel)
        self.pci("pci0000:00/0000:17:00.0", "10de", "2330", "0x030200")
        self.write("/proc/driver/nvidia/version", CLOSED)
        self.write("/sys/module/nvidia/version", "570.172.08")

    def add(self, source, path):
        """Puts a module file at a path that depmod would list."""
        self.modules.append(path)
        data = source.read_bytes()
        if path.endswith(".zst"):
            data = subprocess.run(["zstd", "-q", "-c", str(source)], check=True, capture_output=True).stdout
        self.write(f"/lib/modules/{self.kernel}/{path}", data)
        return self.write(f"/lib/modules/{self.kernel}/modules.dep", "\n".join(f"{name}:" for name in self.modules))

    def gathered(self, subset=("gpus", "driver", "modules", "gpudirect")):
        return gather(self.tree(), Seams(), list(subset))

    def diagnose(self, policy="auto", run=None):
        return diagnose(examine(self.tree(), self.gathered(), None, run), policy)


@pytest.fixture
def node(tmp_path, kernel):
    return Node(tmp_path, kernel)


@pytest.fixture
def modules(node, built):
    """Puts ib_core of one build and nvidia-peermem of another; returns the node."""

    def put(core, client, where=OFED, ending=""):
        node.add(built[core] / "ib_core.ko", where + ending)
        return node.add(built[client] / "nvidia-peermem.ko", DKMS + ending)

    return put


def wrong_tree(node, built):
    shutil.copytree(built["old"], node.host(f"/usr/src/ofa_kernel/x86_64/{OLD_KERNEL}"))
    node.host("/usr/src/ofa_kernel/default").symlink_to(f"x86_64/{OLD_KERNEL}")


def legacy(node, built):
    node.add(built["old"] / "nvidia-peermem.ko", "updates/dkms/nv_peer_mem.ko")


def stale(node, _built):
    node.write("/sys/module/ib_core/srcversion", "0123456789ABCDEF0123456")


def nothing(_node, _built):
    pass


@pytest.mark.parametrize(("core", "client", "where", "more", "verdict", "action"), [
    ("old", "old", OFED, nothing, "ready", "Load nvidia_peermem"),
    ("inbox", "inbox", STACK, nothing, "stub", "Install the OFED driver first"),
    ("new", "inbox", STACK, nothing, "stub", "Rebuild the NVIDIA driver for kernel"),
    ("new", "old", OFED, nothing, "crc-mismatch", "Rebuild the NVIDIA driver"),
    ("inbox", "old", STACK, nothing, "missing-symbol", "driver_flavor: doca"),
    ("new", "old", OFED, wrong_tree, "wrong-tree", OLD_KERNEL),
    ("new", "inbox", OFED, wrong_tree, "wrong-tree", OLD_KERNEL),
    ("old", "old", OFED, legacy, "legacy", "nvidia-peer-memory-dkms"),
    ("old", "old", OFED, stale, "stale-memory", "Reload the RDMA driver or reboot"),
])  # fmt: skip
def test_verdicts_and_a_module_that_cannot_load_is_refused(modules, built, core, client, where, more, verdict, action):
    node = modules(core, client, where)
    more(node, built)
    found = node.diagnose()
    assert (found.verdict, found.mode) == (verdict, "none")
    assert action in f"{found.sentence} {found.action}"
    for choice in ("auto", "peermem"):
        gpudirect, made, loads, listed = decided(node, choice)
        assert [finding.object for finding in made.findings] == [PEERMEM_OBJECT] * (verdict in REFUSED)
        for finding in made.findings:
            assert (loads, listed, finding.seen.partition(": ")[0]) == (False, False, verdict)
            assert gpudirect["action"] in finding.next_step
            assert "kernel_modules_gpudirect: off" in finding.next_step


def test_zst_is_unpacked_by_zstd_and_is_unknown_without_it(modules):
    if not shutil.which("zstd"):
        pytest.skip("not verified: no zstd on this machine")
    node = modules("old", "old", ending=".zst")

    def run(argv):
        return subprocess.run([*argv[:-1], str(node.host(argv[-1]))], check=True, capture_output=True).stdout

    assert node.diagnose(run=run).verdict == "ready"
    found = node.diagnose()
    assert (found.verdict, "zstd" in found.action) == ("unknown", True)


def test_kallsyms_tells_that_memory_lacks_the_symbol(modules):
    node = modules("old", "old").write("/sys/module/ib_core/refcnt", "1")
    node.write("/proc/kallsyms", f"0000000000000000 t not_{SYMBOL}\t[x]\n0000000000000000 T ib_free_cq\t[ib_core]\n")
    assert node.diagnose().verdict == "stale-memory"
    node.write("/proc/kallsyms", f"0000000000000000 T {SYMBOL}\t[ib_core]\n")
    assert node.diagnose().verdict == "ready"


def test_dma_buf_needs_no_peermem_unless_it_is_asked_for_and_grace_wants_its_option(modules):
    node = modules("inbox", "inbox", STACK).write("/proc/driver/nvidia/version", OPEN)
    found, asked = node.diagnose(), node.diagnose("peermem")
    assert (found.verdict, found.mode, found.action) == ("not-needed", "dmabuf", None)
    assert (asked.verdict, asked.mode) == ("stub", "dmabuf")
    node.write("/proc/sys/kernel/arch", "aarch64")
    assert "NVreg_GrdmaPciTopoCheckOverride=1" in node.diagnose().evidence[0]


def test_what_is_blocked_loaded_missing_or_of_another_version(node, modules):
    node.write(f"/lib/modules/{node.kernel}/modules.dep")
    assert node.diagnose().verdict == "missing-module"
    assert [finding.object for finding in decided(node, "peermem")[1].findings] == [PEERMEM_OBJECT]
    assert "Rebuild the NVIDIA driver" in decided(node)[1].notes[0]
    modules("old", "old").write("/etc/modprobe.d/no.conf", "install nvidia_peermem /bin/true\n")
    assert "no.conf:1" in node.diagnose().sentence
    node.write("/sys/module/nvidia/version", "580.65.06")
    assert node.diagnose().verdict == "version-mismatch"
    node.write("/sys/module/nvidia_peermem/refcnt", "0")
    assert node.diagnose().verdict == "loaded"


def test_nodes_of_another_kernel_without_driver_or_gpu(tmp_path, modules, node, built):
    other = Node(tmp_path / "other", "6.99.0-1-generic")
    other.add(built["old"] / "ib_core.ko", OFED).add(built["old"] / "nvidia-peermem.ko", DKMS)
    assert other.diagnose().verdict == "wrong-kernel"
    node.host("/proc/driver/nvidia/version").unlink()
    shutil.rmtree(node.host("/sys/module/nvidia"))
    assert node.diagnose().verdict == "no-driver"


def test_a_truncated_file_is_not_a_module(built):
    data = (built["old"] / "ib_core.ko").read_bytes()
    assert elf.symbols(data[: len(data) // 2], "x") is None
    assert elf.symbols(b"#!/bin/sh\n", "x") is None


def decided(node, gpudirect="auto", **more):
    """(fact gpudirect, Plan, whether it is loaded now, whether it is listed for the boot)"""
    facts = json.loads(json.dumps(complete(node.gathered(SUBSET), node.tree())))
    made = plan(facts, {"required": [], "ipoib": "never", "gpudirect": gpudirect, **more})
    loads = [change.object for change in made.changes if change.action == "load"]
    listed = next((change.after for change in made.changes if change.object == paths.OWN_MODULES_LOAD), "")
    assert set(loads) <= {PEERMEM_OBJECT}, "the NVIDIA driver is not loaded as a side effect"
    return facts["gpudirect"], made, bool(loads), "\nnvidia_peermem\n" in listed


FITS, STUB = ("old", "old", OFED), ("inbox", "inbox", STACK)
OTHER = {"/sys/module/nvidia/version": "580.65.06"}
STALE = {"/sys/module/ib_core/srcversion": "0123456789ABCDEF0123456"}


LOADED_ALREADY = {"/sys/module/nvidia_peermem/refcnt": "0"}
UNREADABLE = {f"/lib/modules/{{kernel}}/{OFED}": "cut", "/sys/module/ib_core/refcnt": "0"}
FORBIDDEN = {"/etc/modprobe.d/no.conf": "install nvidia_peermem /bin/true"}
NO_GPU = {f"{GPU}/vendor": "0x1002"}


@pytest.mark.parametrize(("built_as", "files", "options", "loads", "listed", "told"), [
    pytest.param(STUB, {}, {"gpudirect": "dmabuf"}, False, False, ["notes"], id="dma-buf is asked for"),
    pytest.param(STUB, {}, {"gpudirect": "off"}, False, False, [], id="off"),
    pytest.param(FITS, LOADED_ALREADY, {"gpudirect": "off"}, False, False, ["notes"], id="nothing is unloaded"),
    pytest.param(STUB, {}, {"driver_changes": True}, False, None, ["not_verified"], id="the driver changes first"),
    pytest.param(STUB, {"/proc/driver/nvidia/version": OPEN}, {}, False, False, [], id="not needed"),
    pytest.param(FITS, {"/proc/driver/nvidia/version": OPEN}, {"gpudirect": "peermem"}, True, True, [], id="asked for"),
    pytest.param(FITS, {}, {}, True, True, [], id="it fits"),
    pytest.param(FITS, LOADED_ALREADY, {}, False, True, [], id="it is loaded"),
    pytest.param(FITS, UNREADABLE, {}, True, True, [], id="a file that cannot be unpacked"),
    pytest.param(FITS, FORBIDDEN, {}, False, False, ["notes"], id="blocked"),
    pytest.param(FITS, STALE, {}, False, True, ["not_applied"], id="it fits the disk only"),
    pytest.param(FITS, OTHER, {}, False, None, ["notes"], id="a driver of another version"),
    pytest.param(FITS, {"/sys/module/nvidia": None}, {}, False, None, ["notes"], id="no driver loaded"),
    pytest.param(FITS, NO_GPU, {}, False, False, [], id="no GPU"),
    pytest.param(FITS, NO_GPU, {"gpudirect": "peermem"}, False, False, ["notes"], id="no GPU, and asked for"),
])  # fmt: skip
def test_who_does_not_need_it_now_is_not_stopped(modules, built_as, files, options, loads, listed, told):
    node = modules(*built_as)
    for path, text in files.items():
        shutil.rmtree(node.host(path)) if text is None else node.write(path.format(kernel=node.kernel), text)
    gpudirect, made, *found = decided(node, **options)
    assert made.findings == []
    assert found[0] is loads
    assert listed in (None, found[1])
    softdep = [PEERMEM_SOFTDEP in change.after for change in made.changes if change.object == OURS]
    assert softdep == [True] * found[1]
    assert [place for place in ("not_applied", "not_verified", "notes") if getattr(made, place)] == told
    assert (gpudirect["evidence"] is None) == (files is NO_GPU)
