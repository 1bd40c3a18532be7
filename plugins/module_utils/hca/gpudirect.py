"""Whether an HCA can reach GPU memory directly, and how: by nvidia_peermem or dma-buf."""

from __future__ import annotations

import re
from typing import Any, Optional

from . import elf, modules, paths, pci
from .modules import Catalogue
from .seams import Seams
from .tree import Tree

# The first kernel with ib_umem_dmabuf_get().
_DMABUF_KERNEL = (5, 12)


def state(
    tree: Tree, gpus: list[dict[str, Any]], kernel: Optional[str], catalogue: Catalogue, seams: Optional[Seams] = None
) -> dict[str, Any]:
    """{mode: peermem|dmabuf|none, verdict: sentence, action: sentence or None, peermem_loadable: bool}.

    peermem_loadable: the driver needs nvidia_peermem, it is not loaded, and nothing on disk keeps it from loading.

    Files show that a path is open, not that data flows: only a transfer from GPU memory proves that.
    """
    tree = tree.snapshot()
    if not any(gpu["vendor"] == pci.NVIDIA for gpu in gpus):
        return _answer("none", "There is no NVIDIA GPU on PCI.")
    for name in ("nvidia_peermem", "nv_peer_mem"):
        if modules.loaded(tree, name):
            return _answer("peermem", f"{name} is loaded: HCAs reach GPU memory through it.")
    if not modules.loaded(tree, "nvidia"):
        return _answer(
            "none", "The nvidia module is not loaded.", "Install or load the NVIDIA driver; GPUDirect RDMA needs it."
        )
    if open_module(tree, catalogue, seams):
        release = tuple(int(part) for part in re.findall(r"\d+", kernel or "")[:2])
        if release >= _DMABUF_KERNEL:
            return _answer("dmabuf", f"The open NVIDIA kernel module and kernel {kernel} support dma-buf.")
        return _answer(
            "none",
            f"The open NVIDIA kernel module is loaded, but kernel {kernel} is too old for dma-buf (5.12).",
            "Load nvidia_peermem: kernel_modules_gpudirect: peermem.",
        )
    return _proprietary(tree, catalogue, seams)


def _answer(mode: str, verdict: str, action: Optional[str] = None, loadable: bool = False) -> dict[str, Any]:
    return {"mode": mode, "verdict": verdict, "action": action, "peermem_loadable": loadable}


def open_module(tree: Tree, catalogue: Catalogue, seams: Optional[Seams] = None) -> bool:
    """Whether the NVIDIA driver is the open one: it says so itself, else its licence does (Dual MIT/GPL)."""
    version = tree.read("/proc/driver/nvidia/version")
    if version:
        return "Open Kernel Module" in version
    path = catalogue.path("nvidia")
    fields = elf.modinfo(tree, path, seams) if path else None
    return "GPL" in (fields or {}).get("license", "")


def _proprietary(tree: Tree, catalogue: Catalogue, seams: Optional[Seams]) -> dict[str, Any]:
    """The proprietary driver needs nvidia_peermem. Its file shows beforehand whether it can load."""
    closed = "The proprietary NVIDIA kernel module is loaded, which needs nvidia_peermem"
    path = catalogue.path("nvidia_peermem")
    if path is None:
        if catalogue.paths is None:
            return _answer("none", f"{closed}; without modules.dep it is unknown whether it exists.")
        return _answer(
            "none",
            f"{closed}; this kernel has no such module.",
            "Rebuild the NVIDIA driver for this kernel, or switch to its open kernel modules (dma-buf).",
        )
    fields = elf.modinfo(tree, path, seams)
    needs = (fields or {}).get("depends", "").split(",")
    if fields is not None and not {"ib_core", "ib_uverbs"} & set(needs):
        return _answer(
            "none",
            f"{closed}; {path} was built without peer-memory support and will refuse to load (Invalid argument).",
            "Install the OFED driver first and rebuild the NVIDIA driver, or switch to its open kernel modules.",
        )
    if not tree.isdir(f"{paths.MODULE}/ib_core"):
        return _answer("none", f"{closed}; ib_core is not loaded yet.", "Load the RDMA modules, then nvidia_peermem.")
    return _answer(
        "none",
        f"{closed}; it is not loaded.",
        "Load nvidia_peermem: kernel_modules_gpudirect: auto or peermem.",
        loadable=True,
    )
