"""Whether an HCA can reach GPU memory directly, and how: by nvidia_peermem or dma-buf."""

from __future__ import annotations

import re
from typing import Any, Optional

from . import elf, modules, paths, pci, pcie_path
from .modules import Catalogue
from .seams import Seams
from .text import is_unknown
from .tree import Tree

# The first kernel with ib_umem_dmabuf_get().
_DMABUF_KERNEL = (5, 12)
# Without them mlx5 refuses to register dma-buf memory (EOPNOTSUPP).
_NEEDED = ("INFINIBAND_ON_DEMAND_PAGING", "INFINIBAND_USER_MEM")


def state(
    tree: Tree,
    gpus: list[dict[str, Any]],
    kernel: Optional[str],
    catalogue: Catalogue,
    pcie: dict[str, Any],
    seams: Optional[Seams] = None,
) -> dict[str, Any]:
    """{mode: peermem|dmabuf|none, verdict: sentence, action: sentence or None, peermem_loadable: bool, not_verified}.

    peermem_loadable: the driver needs nvidia_peermem, it is not loaded, and nothing on disk keeps it from loading.
    not_verified: see `doubts`. pcie: see `pcie.state`.

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
    if nvidia(tree, catalogue, seams)[0]:
        if dmabuf_kernel(kernel):
            unsure = doubts(pcie)
            return {**_answer("dmabuf", dmabuf_verdict(kernel, unsure)), "not_verified": unsure}
        return _answer(
            "none",
            f"The open NVIDIA kernel module is loaded, but kernel {kernel} is too old for dma-buf (5.12).",
            "Load nvidia_peermem: kernel_modules_gpudirect: peermem.",
        )
    return _proprietary(tree, catalogue, seams)


def _answer(mode: str, verdict: str, action: Optional[str] = None, loadable: bool = False) -> dict[str, Any]:
    return {"mode": mode, "verdict": verdict, "action": action, "peermem_loadable": loadable, "not_verified": []}


def nvidia(tree: Tree, catalogue: Catalogue, seams: Optional[Seams] = None) -> tuple[Optional[bool], Optional[str]]:
    """(whether the NVIDIA driver is the open one, its version), from memory, else from the module file.

    It reports that itself, else its licence does (Dual MIT/GPL); None if neither does.
    """
    said = tree.read("/proc/driver/nvidia/version")
    path = None if said else catalogue.path("nvidia")
    fields = (elf.modinfo(tree, path, seams) or {}) if path else {}
    license_ = fields.get("license")
    is_open = "Open Kernel Module" in said if said else "GPL" in license_ if license_ else None
    return is_open, tree.read(f"{paths.MODULE}/nvidia/version") or fields.get("version")


def dmabuf_kernel(kernel: Optional[str]) -> bool:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", kernel or "")[:2]) >= _DMABUF_KERNEL


def dmabuf_verdict(kernel: Optional[str], unsure: list[str]) -> str:
    able = f"The open NVIDIA kernel module and kernel {kernel} have dma-buf"
    return f"{able}; whether it works is not verified: {'; '.join(unsure)}." if unsure else f"{able}."


def doubts(pcie: dict[str, Any]) -> list[str]:
    """Reasons why dma-buf does not, or may not, work although driver and kernel have it, one clause each.

    Only a transfer from GPU memory decides: NVIDIA's driver does not ask for PCI_P2PDMA itself.
    """
    config, ways = pcie["kernel_config"], pcie["paths"]
    if not ways:
        return ["no rail has a GPU whose path could be judged"]
    if is_unknown(config):
        found = [config[len("unknown: ") :]]
    else:
        off = [name for name in _NEEDED if not config[name]]
        found = [f"the kernel has no {' and '.join(off)}, so that mlx5 refuses it (EOPNOTSUPP)"] if off else []
        found += [] if config["PCI_P2PDMA"] else ["the kernel has no PCI_P2PDMA"]
    apart = [way for way in ways if way["topology"] == "data-direct" and not way["group_shared"]]
    if apart:
        found.append(
            f"GPU {apart[0]['gpu']} and {apart[0]['function']} are in different IOMMU groups, which the GPU driver "
            "refuses without NVreg_GrdmaPciTopoCheckOverride=1"
        )
    unsure = [way for way in ways if way["verdict"] == pcie_path.UNKNOWN]
    wrong = [way for way in ways if way not in apart and pcie_path.against_rule(way, pcie["functions"])]
    for same in filter(None, (unsure, wrong)):
        found.append(f"the PCIe path of {len(same)} of {len(ways)} rails is {same[0]['verdict']} ({same[0]['reason']})")
    return found


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
