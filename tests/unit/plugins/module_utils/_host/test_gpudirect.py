"""The doctor's verdicts on real ELF files: modules with and without the peer-memory symbols, and with other CRCs."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import module_file
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import SYMBOL
from ansible_collections.gpufabric.rdma.tests.tools.gpu_node import DKMS, GPU, OFED, OPEN, Node


@pytest.fixture
def node(tmp_path, kernel):
    return Node(tmp_path, kernel)


@pytest.mark.parametrize("ending", ["", ".xz", ".gz"])
def test_a_module_that_fits_is_ready(node, built, ending):
    node.module(built["old"] / "ib_core.ko", OFED + ending).module(built["old"] / "nvidia-peermem.ko", DKMS + ending)
    found = node.diagnose()
    assert (found.verdict, found.mode, found.evidence) == ("ready", "peermem", [])


def test_zst_is_unpacked_by_zstd_and_is_unknown_without_it(node, built):
    if not shutil.which("zstd"):
        pytest.skip("not verified: no zstd on this machine")
    node.module(built["old"] / "ib_core.ko", OFED + ".zst").module(built["old"] / "nvidia-peermem.ko", DKMS + ".zst")

    def run(argv):
        return subprocess.run([*argv[:-1], str(node.host(argv[-1]))], check=True, capture_output=True).stdout

    assert node.diagnose(run=run).verdict == "ready"
    found = node.diagnose()
    assert (found.verdict, found.action) == ("unknown", "Install zstd on the node and run again.")


def test_a_stub_on_the_inbox_stack(node, built):
    node.module(built["inbox"] / "ib_core.ko", "kernel/ib_core.ko").module(built["inbox"] / "nvidia-peermem.ko", DKMS)
    found = node.diagnose()
    assert found.verdict == "stub"
    assert "without ib_register_peer_memory_client" in found.sentence
    assert found.action.startswith("Install the OFED driver first")


def test_a_stub_although_the_stack_has_the_symbol_now(node, built):
    node.module(built["new"] / "ib_core.ko", "kernel/ib_core.ko").module(built["inbox"] / "nvidia-peermem.ko", DKMS)
    found = node.diagnose()
    assert found.verdict == "stub"
    assert found.action.startswith(f"Rebuild the NVIDIA driver for kernel {node.kernel}")


def test_crcs_that_differ_are_both_shown(node, built):
    node.module(built["new"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)
    shutil.copytree(built["new"], node.host(f"/usr/src/ofa_kernel/x86_64/{node.kernel}"))
    found = node.diagnose()
    assert found.verdict == "crc-mismatch"
    assert found.action.startswith("Rebuild the NVIDIA driver")
    crcs = {name: crc_by_modpost(built[name]) for name in ("old", "new")}
    assert crcs["old"] != crcs["new"]
    assert f"CRC {crcs['old']}" in found.evidence[0]
    assert f"CRC {crcs['new']}" in found.evidence[1]


def test_the_symbol_is_in_no_module_any_more(node, built):
    node.module(built["inbox"] / "ib_core.ko", "kernel/ib_core.ko").module(built["old"] / "nvidia-peermem.ko", DKMS)
    found = node.diagnose()
    assert found.verdict == "missing-symbol"
    assert "driver_flavor: doca" in found.action


@pytest.mark.parametrize("client", ["inbox", "old"])
def test_sources_of_another_kernel_are_the_wrong_tree(node, built, client):
    """nvidia-peermem.Kbuild follows /usr/src/ofa_kernel/default, wherever it leads."""
    node.module(built["new"] / "ib_core.ko", OFED).module(built[client] / "nvidia-peermem.ko", DKMS)
    node.module(built["new"] / "ib_core.ko", "updates/dkms/mlx5_core.ko")
    shutil.copytree(built["old"], node.host("/usr/src/ofa_kernel/x86_64/5.15.0-1-generic"))
    node.host("/usr/src/ofa_kernel/default").symlink_to("x86_64/5.15.0-1-generic")
    found = node.diagnose()
    assert found.verdict == "wrong-tree"
    assert "which belongs to kernel 5.15.0-1-generic" in found.sentence


def test_a_fitting_module_behind_an_old_stack_in_memory(node, built):
    node.module(built["old"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)
    node.write("/sys/module/ib_core/srcversion", "0123456789ABCDEF0123456")
    found = node.diagnose()
    assert (found.verdict, found.action) == (
        "stale-memory",
        "Reload the RDMA driver or reboot; nvidia_peermem then loads.",
    )


def test_kallsyms_tells_that_memory_lacks_the_symbol(node, built):
    node.module(built["old"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)
    node.write("/sys/module/ib_core/refcnt", "1")
    node.write("/proc/kallsyms", f"0000000000000000 t not_{SYMBOL}\t[x]\n0000000000000000 T ib_free_cq\t[ib_core]\n")
    assert node.diagnose().verdict == "stale-memory"
    node.write("/proc/kallsyms", f"0000000000000000 T {SYMBOL}\t[ib_core]\n")
    assert node.diagnose().verdict == "ready"


def test_dma_buf_needs_no_peermem_unless_it_is_asked_for(node, built):
    node.write("/proc/driver/nvidia/version", OPEN)
    node.module(built["inbox"] / "ib_core.ko", "kernel/ib_core.ko").module(built["inbox"] / "nvidia-peermem.ko", DKMS)
    found = node.diagnose()
    assert (found.verdict, found.mode, found.action) == ("not-needed", "dmabuf", None)
    asked = node.diagnose("peermem")
    assert (asked.verdict, asked.mode) == ("stub", "dmabuf")


def test_grace_gets_advice_about_its_option(node):
    node.write("/proc/driver/nvidia/version", OPEN).write("/proc/sys/kernel/arch", "aarch64")
    assert "NVreg_GrdmaPciTopoCheckOverride=1" in node.diagnose().evidence[0]


def test_the_legacy_module_comes_before_all_else(node, built):
    node.module(built["old"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)
    node.module(built["old"] / "nvidia-peermem.ko", "updates/dkms/nv_peer_mem.ko")
    node.write("/sys/module/nv_peer_mem/refcnt", "0")
    found = node.diagnose()
    assert found.verdict == "legacy"
    assert "nvidia-peer-memory-dkms" in found.action
    assert found.evidence[-1] == "nv_peer_mem is loaded"


def test_what_is_blocked_loaded_missing_or_of_another_version(node, built):
    assert node.diagnose().verdict == "missing-module"
    node.module(built["old"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)
    node.write("/etc/modprobe.d/no.conf", "install nvidia_peermem /bin/true\n")
    assert "no.conf:1" in node.diagnose().sentence
    node.write("/sys/module/nvidia/version", "580.65.06")
    assert node.diagnose().verdict == "version-mismatch"
    node.write("/sys/module/nvidia_peermem/refcnt", "0")
    assert node.diagnose().verdict == "loaded"


def test_a_module_of_another_kernel(tmp_path, built):
    node = Node(tmp_path, "6.99.0-1-generic")
    node.module(built["old"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)
    assert node.diagnose().verdict == "wrong-kernel"


def test_nodes_without_gpu_or_driver(tmp_path, node):
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
    provider = module_file.parse((folder / "ib_core.ko").read_bytes(), "ib_core.ko")
    client = module_file.parse((folder / "nvidia-peermem.ko").read_bytes(), "nvidia-peermem.ko")
    assert provider.exports == {SYMBOL: crc}
    assert client.imports[SYMBOL] == crc
    assert client.info["version"] == "570.172.08"
    assert client.depends == ["ib_core"]
    assert module_file.symvers((folder / "Module.symvers").read_text())[SYMBOL][0] == crc


def test_a_truncated_file_is_not_a_module(built):
    data = (built["old"] / "ib_core.ko").read_bytes()
    assert module_file.parse(data[: len(data) // 2], "x") is None
    assert module_file.parse(b"#!/bin/sh\n", "x") is None
