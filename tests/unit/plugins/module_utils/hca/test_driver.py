"""Module files, packages, and the three answers about the driver; GPUDirect stands on the same files."""

from __future__ import annotations

import gzip
import lzma
import struct

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import driver, elf, gpudirect, modules
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

KERNEL = "6.1.0-test"
CORE = "kernel/drivers/mlx5_core.ko"
DKMS = "updates/dkms/mlx5_core.ko"


def note(build_id: str) -> bytes:
    return struct.pack("<III4s", 4, len(build_id) // 2, 3, b"GNU") + bytes.fromhex(build_id)


def module_file(order: str = "<", build_id: str = "", **fields: str) -> bytes:
    """The smallest ELF object that has a .modinfo section and, where asked for, a build id."""
    info = b"".join(f"{key}={value}".encode() + b"\0" for key, value in fields.items()) + b"alias=a\0alias=b\0"
    parts = [(b".shstrtab", b""), (b".modinfo", info)]
    if build_id:
        parts.append((b".note.gnu.build-id", note(build_id)))
    strings = b"\0" + b"".join(name + b"\0" for name, _content in parts)
    parts[0] = (b".shstrtab", strings)
    table = 64 + sum(len(content) for _name, content in parts)
    header = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
    header += struct.pack(order + "HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, len(parts) + 1, 1)
    sections, offset = bytes(64), 64
    for name, content in parts:
        place = (strings.index(name), 1, 0, 0, offset, len(content), 0, 0, 1, 0)
        sections += struct.pack(order + "IIQQQQIIQQ", *place)
        offset += len(content)
    return header + b"".join(content for _name, content in parts) + sections


def install(node, path: str, **fields: str) -> None:
    directory = f"/lib/modules/{KERNEL}"
    known = node.tree().read(f"{directory}/modules.dep") or ""
    node.write(f"{directory}/modules.dep", f"{known}\n{path}:")
    node.write(f"{directory}/{path}", module_file(**fields))


def state(node, seams=None):
    tree = node.tree()
    return driver.state(tree, modules.Catalogue(tree, KERNEL), seams)


@pytest.mark.parametrize(
    ("name", "pack", "order"),
    [("x.ko", bytes, "<"), ("x.ko", bytes, ">"), ("x.ko.xz", lzma.compress, "<"), ("x.ko.gz", gzip.compress, "<")],
)
def test_modinfo_reads_the_file_itself(node, name, pack, order):
    node.write(f"/{name}", pack(module_file(order, version="1.2", srcversion="ABC")))
    assert elf.modinfo(node.tree(), f"/{name}") == {"version": "1.2", "srcversion": "ABC", "alias": "a"}


@pytest.mark.parametrize("name", ["x.ko", "x.ko.xz", "x.ko.gz"])
@pytest.mark.parametrize("data", [b"", b"no module", b"\x7fELF\x02\x01" + bytes(58), module_file()[:90]])
def test_what_is_not_a_module_has_no_modinfo(node, name, data):
    node.write(f"/{name}", data)
    assert elf.modinfo(node.tree(), f"/{name}") is None


def test_zstd_and_captured_modules_are_asked_for_by_the_seam(node):
    answers = {"/x.ko.zst": {"srcversion": "Z"}, "/gone.ko": {"srcversion": "G"}}
    node.write("/x.ko.zst", b"\x28\xb5\x2f\xfd")
    for path, fields in answers.items():
        assert elf.modinfo(node.tree(), path, Seams.recorded({"modinfo": answers})) == fields
        assert elf.modinfo(node.tree(), path) is None


def packages(node, text):
    """`name version[ status]` of each package, as dpkg keeps them."""
    rows = [(*one.split(), "install")[:3] for one in filter(None, text.split(", "))]
    stanzas = [f"Package: {name}\nStatus: {how} ok installed\nVersion: {version}\n" for name, version, how in rows]
    gone = "Package: doca-ofed\nStatus: deinstall ok config-files\nVersion: 3.0.0\nDescription: x\n Package: fake\n"
    node.write("/var/lib/dpkg/status", "\n".join([*stanzas, gone]))


def test_inbox_memory_and_disk(node):
    install(node, CORE, srcversion="A")
    node.module("mlx5_core", srcversion="A")
    packages(node, "rdma-core 44.0-2")
    found = state(node)
    assert found["installed"] == {"flavor": "inbox", "version": None, "packages": {"rdma-core": "44.0-2"}}
    stack = {"flavor": "inbox", "version": None, "srcversion": "A"}
    module = {"version": None, "srcversion": "A", "build_id": None}
    place = {"path": f"/lib/modules/{KERNEL}/{CORE}", **module}
    assert found["on_disk"] == {**stack, "modules": {"mlx5_core": place}}
    assert found["loaded"] == {**stack, "modules": {"mlx5_core": module}}
    assert found["agree"] is True


def test_installed_and_on_disk_but_not_yet_loaded(node):
    install(node, DKMS, version="25.10-1.2.8", srcversion="B", depends="mlx_compat,psample")
    node.module("mlx5_core", srcversion="A")
    packages(node, "mlnx-ofed-kernel-dkms 25.10-1, doca-ofed 3.2.1 hold")
    found = state(node)
    assert [found[part]["flavor"] for part in ("installed", "on_disk", "loaded")] == ["doca", "doca", "inbox"]
    assert [found[part]["version"] for part in ("installed", "on_disk", "loaded")] == ["3.2.1", "25.10-1.2.8", None]
    assert found["agree"] is False
    (reason,) = node.facts(["driver"])["reboot_reasons"]
    assert all(part in reason for part in ("srcversion A", f"/lib/modules/{KERNEL}/{DKMS}", "25.10-1.2.8", "B)"))


@pytest.mark.parametrize(
    ("listed", "info", "wanted"),
    [
        ("rdma-core 44", None, ("inbox", None)),
        ("doca-ofed-userspace 3.2", None, ("inbox", None)),
        ("mlnx-ofed-kernel-dkms 24.10", None, ("mlnx_ofed", "24.10")),
        ("mlnx-ofed-kernel-dkms 25.10, doca-ofed 3.2.1", None, ("doca", "3.2.1")),
        ("mlnx-ofed-kernel-dkms 25.10", "echo OFED-internal-25.10-1.2.8:", ("doca", "25.10-1.2.8")),
        ("", 'echo "MLNX_OFED_LINUX-24.10-3.2.5.0 (OFED-24.10)"', ("mlnx_ofed", "24.10-3.2.5.0")),
        ("linux-modules-doca-ofed-3.4-generic 6.14, doca-ofed-generic 3.4", None, ("ubuntu_archive", "3.4")),
    ],
)
def test_the_installed_stack(node, listed, info, wanted):
    packages(node, listed)
    if info:
        node.write("/usr/bin/ofed_info", f"#!/bin/bash\n{info}")
    found = driver.installed(node.tree())
    assert (found["flavor"], found["version"]) == wanted


def test_the_rpm_database_is_asked_only_where_it_exists(node):
    seams = Seams.recorded({"rpm": "rdma-core 48.0-1.el9\nkmod-mlnx-ofa_kernel 24.10-1\nbash 5.1-9\n"})
    assert driver.installed(node.tree(), seams)["flavor"].startswith("unknown: ")
    node.write("/var/lib/rpm/rpmdb.sqlite")
    found = driver.installed(node.tree(), seams)
    assert found["flavor"] == "mlnx_ofed"
    assert found["packages"] == {"kmod-mlnx-ofa_kernel": "24.10-1", "rdma-core": "48.0-1.el9"}


def test_mlx_compat_in_memory_is_an_ofed_stack(node):
    node.module("mlx5_core", version="24.10-1.1.4", srcversion="A").module("mlx_compat")
    assert driver.loaded(node.tree())["flavor"] == "ofed"
    assert driver.loaded(node.tree(), "doca")["flavor"] == "doca"


def test_what_cannot_be_compared_is_unknown(node):
    assert state(node)["agree"] == "unknown: no RDMA driver module is loaded"
    node.module("mlx5_core")
    found = state(node)
    assert found["agree"].startswith("unknown: no loaded module has a srcversion or build id")
    assert found["on_disk"]["flavor"] == f"unknown: /lib/modules/{KERNEL}/modules.dep is not readable"


@pytest.mark.parametrize(("running", "agree"), [("aa" * 20, True), ("bb" * 20, False)])
def test_debian_modules_are_compared_by_their_build_id(node, running, agree):
    """Debian's kernels leave srcversion out of modules that have no version of their own."""
    install(node, CORE, build_id="aa" * 20)
    node.module("mlx5_core").write("/sys/module/mlx5_core/notes/.note.gnu.build-id", note(running))
    found = state(node)
    assert found["agree"] is agree
    assert found["on_disk"]["modules"]["mlx5_core"]["build_id"] == "aa" * 20
    assert found["loaded"]["modules"]["mlx5_core"]["build_id"] == running


@pytest.mark.parametrize("content", [None, b"", b"short", note("")])
def test_a_note_without_a_build_id(content):
    assert elf.build_id(content) is None


OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05"
NVIDIA, MIT = {"license": "NVIDIA"}, {"license": "Dual MIT/GPL"}
STUB, WHOLE = {"depends": "nvidia"}, {"depends": "nvidia,ib_uverbs"}


@pytest.mark.parametrize(
    ("loaded", "version", "kernel", "nvidia", "peermem", "mode", "action"),
    [
        (None, "", KERNEL, None, None, "none", None),  # no GPU
        ("", "", KERNEL, None, None, "none", ""),
        ("nvidia nvidia_peermem", "", KERNEL, None, None, "peermem", None),
        ("nvidia nv_peer_mem", "", KERNEL, None, None, "peermem", None),
        ("nvidia", OPEN_MODULE, "6.8.0-60-generic", None, None, "dmabuf", None),
        ("nvidia", OPEN_MODULE, "5.4.0-200-generic", None, None, "none", ""),
        # The licence tells where the driver does not.
        ("nvidia", "", KERNEL, MIT, None, "dmabuf", None),
        ("nvidia", "", KERNEL, NVIDIA, None, "none", "Rebuild the NVIDIA driver"),
        ("nvidia ib_core", "", KERNEL, NVIDIA, STUB, "none", "Install the OFED driver first"),
        ("nvidia ib_core", "", KERNEL, NVIDIA, WHOLE, "none", "Load nvidia_peermem"),
        ("nvidia", "", KERNEL, NVIDIA, WHOLE, "none", "Load the RDMA modules"),
    ],
)
def test_gpudirect(node, loaded, version, kernel, nvidia, peermem, mode, action):
    if loaded is not None:
        node.pci("pci0000:00/0000:00:01.0", "10de", "2330", "0x030200", "nvidia")
    for name in (loaded or "").split():
        node.module(name)
    if version:
        node.write("/proc/driver/nvidia/version", version)
    for name, fields in (("nvidia.ko", nvidia), ("nvidia-peermem.ko", peermem)):
        if fields:
            install(node, f"updates/dkms/{name}", **fields)
    tree = node.tree()
    found = gpudirect.state(tree, node.facts(["gpus"])["gpus"], kernel, modules.Catalogue(tree, KERNEL))
    assert found["mode"] == mode
    assert found["action"] is None if action is None else action in found["action"], found
    assert found["peermem_loadable"] == (peermem == WHOLE and "ib_core" in loaded)
