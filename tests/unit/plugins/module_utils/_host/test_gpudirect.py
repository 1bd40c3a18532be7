"""The doctor's verdicts about nvidia_peermem, from module files that modpost made, and what kernel_modules decides."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import module_file
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import REFUSED, SYMBOL, complete
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.kernel_modules import plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.modules.kernel_modules import SUBSET
from ansible_collections.gpufabric.rdma.tests.tools.kernel_modules import DKMS, GPU, OFED, OPEN, Node

PEERMEM, STACK = "module nvidia_peermem", "kernel/ib_core.ko"
OLD_KERNEL = "5.15.0-1-generic"


@pytest.fixture
def node(tmp_path, kernel):
    return Node(tmp_path, kernel)


@pytest.fixture
def modules(node, built):
    """Puts ib_core of one build and nvidia-peermem of another; returns the node."""

    def put(core, client, where=OFED, ending=""):
        return node.module(built[core] / "ib_core.ko", where + ending).module(
            built[client] / "nvidia-peermem.ko", DKMS + ending
        )

    return put


def wrong_tree(node, built):
    """nvidia-peermem.Kbuild follows /usr/src/ofa_kernel/default, wherever it leads."""
    shutil.copytree(built["old"], node.host(f"/usr/src/ofa_kernel/x86_64/{OLD_KERNEL}"))
    node.host("/usr/src/ofa_kernel/default").symlink_to(f"x86_64/{OLD_KERNEL}")


def legacy(node, built):
    node.module(built["old"] / "nvidia-peermem.ko", "updates/dkms/nv_peer_mem.ko")


def stale(node, _built):
    node.write("/sys/module/ib_core/srcversion", "0123456789ABCDEF0123456")


def nothing(_node, _built):
    pass


@pytest.mark.parametrize(
    ("core", "client", "where", "more", "verdict", "action"),
    [
        ("old", "old", OFED, nothing, "ready", "Load nvidia_peermem"),
        ("inbox", "inbox", STACK, nothing, "stub", "Install the OFED driver first"),
        ("new", "inbox", STACK, nothing, "stub", "Rebuild the NVIDIA driver for kernel"),
        ("new", "old", OFED, nothing, "crc-mismatch", "Rebuild the NVIDIA driver"),
        ("inbox", "old", STACK, nothing, "missing-symbol", "driver_flavor: doca"),
        ("new", "old", OFED, wrong_tree, "wrong-tree", OLD_KERNEL),
        ("new", "inbox", OFED, wrong_tree, "wrong-tree", OLD_KERNEL),
        ("old", "old", OFED, legacy, "legacy", "nvidia-peer-memory-dkms"),
        ("old", "old", OFED, stale, "stale-memory", "Reload the RDMA driver or reboot"),
    ],
)
def test_verdicts(modules, built, core, client, where, more, verdict, action):
    node = modules(core, client, where)
    more(node, built)
    found = node.diagnose()
    assert (found.verdict, found.mode) == (verdict, "peermem" if verdict == "ready" else "none")
    assert action in f"{found.sentence} {found.action}"


@pytest.mark.parametrize("ending", [".xz", ".gz"])
def test_packed_modules_are_read(modules, ending):
    assert modules("old", "old", ending=ending).diagnose().verdict == "ready"


def test_zst_is_unpacked_by_zstd_and_is_unknown_without_it(modules):
    if not shutil.which("zstd"):
        pytest.skip("not verified: no zstd on this machine")
    node = modules("old", "old", ending=".zst")

    def run(argv):
        return subprocess.run([*argv[:-1], str(node.host(argv[-1]))], check=True, capture_output=True).stdout

    assert node.diagnose(run=run).verdict == "ready"
    found = node.diagnose()
    assert (found.verdict, "zstd" in found.action) == ("unknown", True)


def test_crcs_that_differ_are_both_shown(modules, built):
    node = modules("new", "old")
    shutil.copytree(built["new"], node.host(f"/usr/src/ofa_kernel/x86_64/{node.kernel}"))
    found = node.diagnose()
    assert found.verdict == "crc-mismatch"
    for name, said in zip(("old", "new"), found.evidence):
        assert f"CRC {crc_by_modpost(built[name])}" in said


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
    assert node.diagnose().verdict == "missing-module"
    modules("old", "old").write("/etc/modprobe.d/no.conf", "install nvidia_peermem /bin/true\n")
    assert "no.conf:1" in node.diagnose().sentence
    node.write("/sys/module/nvidia/version", "580.65.06")
    assert node.diagnose().verdict == "version-mismatch"
    node.write("/sys/module/nvidia_peermem/refcnt", "0")
    assert node.diagnose().verdict == "loaded"


def test_nodes_of_another_kernel_without_driver_or_gpu(tmp_path, modules, node, built):
    other = Node(tmp_path / "other", "6.99.0-1-generic")
    other.module(built["old"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)
    assert other.diagnose().verdict == "wrong-kernel"
    node.host("/proc/driver/nvidia/version").unlink()
    shutil.rmtree(node.host("/sys/module/nvidia"))
    assert node.diagnose().verdict == "no-driver"
    node.write(f"{GPU}/vendor", "0x1002")
    assert node.diagnose().verdict == "no-gpu"


def crc_by_modpost(folder):
    """The CRC as Kbuild itself wrote it down."""
    return next(line.split("\t")[0] for line in (folder / "Module.symvers").read_text().splitlines() if SYMBOL in line)


@pytest.mark.parametrize("name", ["old", "new"])
def test_what_the_reader_finds_is_what_modpost_wrote(built, name):
    folder = built[name]
    crc = int(crc_by_modpost(folder), 16)
    client = module_file.parse((folder / "nvidia-peermem.ko").read_bytes(), "nvidia-peermem.ko")
    assert module_file.parse((folder / "ib_core.ko").read_bytes(), "ib_core.ko").exports == {SYMBOL: crc}
    assert (client.imports[SYMBOL], client.info["version"], client.depends) == (crc, "570.172.08", ["ib_core"])
    assert module_file.symvers((folder / "Module.symvers").read_text())[SYMBOL][0] == crc


def test_a_truncated_file_is_not_a_module(built):
    data = (built["old"] / "ib_core.ko").read_bytes()
    assert module_file.parse(data[: len(data) // 2], "x") is None
    assert module_file.parse(b"#!/bin/sh\n", "x") is None


# --- what kernel_modules makes of it, from facts as they reach the controller --------------------------------------


def decided(node, gpudirect="auto", **more):
    """(fact gpudirect, Plan, whether it is loaded now, whether it is listed for the boot)"""
    tree = Tree(str(node.root))
    facts = json.loads(json.dumps(complete(gather(tree, Seams.none(), SUBSET), tree)))
    made = plan(facts, {"required": [], "ipoib": "never", "gpudirect": gpudirect, **more})
    loads = [change.object for change in made.changes if change.action == "load"]
    listed = next((change.after for change in made.changes if change.object == paths.OWN_MODULES_LOAD), "")
    assert set(loads) <= {PEERMEM}, "the NVIDIA driver is not loaded as a side effect"
    return facts["gpudirect"], made, bool(loads), "\nnvidia_peermem\n" in listed


@pytest.mark.parametrize("choice", ["auto", "peermem"])
@pytest.mark.parametrize(
    ("verdict", "core", "client", "where", "more"),
    [
        ("stub", "inbox", "inbox", STACK, nothing),
        ("crc-mismatch", "new", "old", OFED, nothing),
        ("missing-symbol", "inbox", "old", STACK, nothing),
        ("wrong-tree", "new", "old", OFED, wrong_tree),
        ("legacy", "old", "old", OFED, legacy),
    ],
)
def test_a_module_that_cannot_load_is_refused(modules, built, choice, verdict, core, client, where, more):
    node = modules(core, client, where)
    more(node, built)
    gpudirect, made, loads, listed = decided(node, choice)
    (finding,) = made.findings
    assert verdict in REFUSED
    assert (finding.object, loads, listed) == (PEERMEM, False, False)
    assert finding.seen.startswith(f"{verdict}: ")
    assert gpudirect["action"] in finding.next_step
    assert "kernel_modules_gpudirect: off" in finding.next_step


FITS, STUB = ("old", "old", OFED), ("inbox", "inbox", STACK)
OTHER = {"/sys/module/nvidia/version": "580.65.06"}
STALE = {"/sys/module/ib_core/srcversion": "0123456789ABCDEF0123456"}


@pytest.mark.parametrize(
    ("built_as", "files", "options", "loads", "listed", "told"),
    [
        pytest.param(STUB, {}, {"gpudirect": "dmabuf"}, False, False, ["notes"], id="dma-buf is asked for"),
        pytest.param(STUB, {}, {"gpudirect": "off"}, False, False, [], id="off"),
        pytest.param(STUB, {}, {"driver_changes": True}, False, None, ["not_verified"], id="the driver changes first"),
        pytest.param(STUB, {"/proc/driver/nvidia/version": OPEN}, {}, False, False, [], id="not needed"),
        pytest.param(FITS, {}, {}, True, True, [], id="it fits"),
        pytest.param(FITS, STALE, {}, False, True, ["not_applied"], id="it fits the disk only"),
        pytest.param(FITS, OTHER, {}, False, None, ["notes"], id="a driver of another version"),
        pytest.param(FITS, {"/sys/module/nvidia": None}, {}, False, None, ["notes"], id="no driver loaded"),
        pytest.param(FITS, {f"{GPU}/vendor": "0x1002"}, {}, False, False, [], id="no GPU"),
    ],
)
def test_who_does_not_need_it_now_is_not_stopped(modules, built, built_as, files, options, loads, listed, told):
    node = modules(*built_as)
    for path, text in files.items():
        shutil.rmtree(node.host(path)) if text is None else node.write(path, text)
    gpudirect, made, *found = decided(node, **options)
    assert made.findings == []
    assert found[0] is loads
    assert listed in (None, found[1])
    assert [place for place in ("not_applied", "not_verified", "notes") if getattr(made, place)] == told
    assert (gpudirect["evidence"] is None) == (GPU in "".join(files))


def test_a_driver_of_another_version_is_a_problem_where_it_is_asked_for(modules):
    node = modules("old", "old").write("/sys/module/nvidia/version", "580.65.06")
    (finding,) = decided(node, "peermem")[1].findings
    assert finding.seen.startswith("version-mismatch: ")
