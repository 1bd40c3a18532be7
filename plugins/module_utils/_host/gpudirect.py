"""How HCAs reach GPU memory, and whether nvidia_peermem loads, fails to load or is not needed, before any modprobe.

`examine` reads (files only), `diagnose` decides (pure). `complete` puts both into the facts, so the planner of
kernel_modules decides on the controller and on the node without reading again. Files show that a way is open, not that
data flows: only a transfer from GPU memory proves that.

nvidia_peermem fails with `Invalid argument` for two different reasons. Built without the peer-memory symbols it is a
stub whose init fails without a kernel message. Built against other symbols, the kernel rejects it because their CRCs
differ. `Unknown symbol` is a third reason: the ib_core in memory exports none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

from ..hca import driver, elf, paths, pci, pcie_path
from ..hca import facts as node_facts
from ..hca.modprobe import said
from ..hca.modules import Catalogue
from ..hca.seams import Seams
from ..hca.text import is_unknown
from ..hca.tree import Tree

SYMBOL = "ib_register_peer_memory_client"
PROVIDERS = ("ib_core", "ib_uverbs")  # OFED exports it from ib_core, Ubuntu's patched kernels from ib_uverbs
LEGACY = "nv_peer_mem"
OFA = "/usr/src/ofa_kernel"
OFA_DKMS = "/var/lib/dkms/mlnx-ofed-kernel"
# The first kernel with ib_umem_dmabuf_get().
_DMABUF_KERNEL = (5, 12)
# Without them mlx5 refuses to register dma-buf memory (EOPNOTSUPP).
_NEEDED = ("INFINIBAND_ON_DEMAND_PAGING", "INFINIBAND_USER_MEM")


class Diagnosis(NamedTuple):
    """verdict: a code for programs; mode: that of the facts; sentence and action: for people."""

    verdict: str
    sentence: str
    action: Optional[str] = None
    evidence: Sequence[str] = ()
    mode: str = "none"


# The module exists, is wanted and cannot load; only an operator can fix it.
REFUSED = ("legacy", "stub", "wrong-tree", "missing-symbol", "crc-mismatch")


def examine(
    tree: Tree, facts: dict, seams: Optional[Seams], run: Optional[Callable[[list[str]], bytes]]
) -> dict[str, Any]:
    """The evidence. Module files are read whole; nothing is loaded. A file that cannot be unpacked here only shows what
    modinfo tells of it.
    """
    tree = tree.snapshot()
    kernel = facts["node"]["kernel"]
    catalogue = Catalogue(tree, kernel)
    peermem_path = catalogue.path("nvidia_peermem")
    peermem = elf.module_file(tree, peermem_path, run) if peermem_path else None
    if peermem_path and peermem is None:
        peermem = elf.ModuleFile(peermem_path, elf.modinfo(tree, peermem_path, seams) or {})
    provider = None
    unread = []
    for name in PROVIDERS:
        path = catalogue.path(name)
        module = elf.module_file(tree, path, run) if path else None
        if path and module is None:
            unread.append(path)
        elif module and SYMBOL in module.exports:
            provider = {"module": name, "path": path, "crc": module.exports[SYMBOL]}
            break
    return {
        "kernel": kernel,
        "architecture": facts["node"]["architecture"],
        "nvidia": _nvidia(tree, catalogue, seams),
        "peermem": _peermem_file(peermem) if peermem else None,
        "provider": provider,
        "unread": unread,
        "in_memory": _in_memory(tree),
        "memory_agrees": facts["driver"]["agree"],
        "loaded": {name: tree.isdir(f"{paths.MODULE}/{name}") for name in ("nvidia_peermem", LEGACY, "ib_core")},
        "legacy": _legacy(tree, catalogue),
        "blocked_by": (facts["modules"].get("nvidia_peermem") or {}).get("blocked_by", []),
        "build_tree": _build_tree(tree, kernel, facts["node"]["architecture"]),
        "ofed": facts["driver"]["on_disk"]["flavor"] not in (driver.INBOX, None)
        and not is_unknown(facts["driver"]["on_disk"]["flavor"]),
        "dmabuf_doubts": doubts(facts["pcie"]),
    }


def _peermem_file(module: elf.ModuleFile) -> dict[str, Any]:
    """wants_symbol: None if not even modinfo tells of the file."""
    wants = SYMBOL in module.imports or bool({*PROVIDERS} & {*module.depends})
    return {
        "path": module.path,
        "version": module.info.get("version"),
        "kernel": (module.info.get("vermagic", "").split() or [None])[0],
        "wants_symbol": wants if module.info else None,
        "crc": module.imports.get(SYMBOL),
    }


class Runner:
    """Runs a program of the node for `examine`; forks counts how often. Only .ko.zst needs one."""

    def __init__(self, module: Any):
        self._module = module
        self.forks = 0

    def __call__(self, argv: list[str]) -> Optional[bytes]:
        program = self._module.get_bin_path(argv[0])
        if not program:
            return None
        self.forks += 1
        code, out, _error = self._module.run_command([program, *argv[1:]], encoding=None)
        return None if code else out


def complete(facts: dict, tree: Tree, seams: Optional[Seams] = None, run: Optional[Callable] = None) -> dict:
    """The facts with gpudirect, if that was gathered: {mode: peermem|dmabuf|none, verdict: sentence, action: sentence
    or None, not_verified: see `doubts`, evidence: None without an NVIDIA GPU}.
    """
    if "pcie" not in facts:
        return facts
    missing = [name for name in ("gpus", "driver", "modules") if name not in facts]
    known = {**node_facts.gather(tree, seams, missing), **facts} if missing else facts
    evidence, diagnosis = None, Diagnosis("no-gpu", "There is no NVIDIA GPU on PCI.")
    if any(gpu["vendor"] == pci.NVIDIA for gpu in known["gpus"]):
        evidence = examine(tree, known, seams, run if tree.live else None)
        diagnosis = diagnose(evidence)
        if not evidence["nvidia"]["loaded"] and diagnosis.verdict not in (*REFUSED, "no-driver"):
            step = "Install or load the NVIDIA driver; GPUDirect RDMA needs it."
            diagnosis = Diagnosis("not-loaded", "The nvidia module is not loaded.", step)
    unsure = evidence["dmabuf_doubts"] if evidence and diagnosis.mode == "dmabuf" else []
    verdict = {"mode": diagnosis.mode, "verdict": diagnosis.sentence, "action": diagnosis.action}
    return {**facts, "gpudirect": {**verdict, "not_verified": unsure, "evidence": evidence}}


def _nvidia(tree: Tree, catalogue: Catalogue, seams: Optional[Seams]) -> dict[str, Any]:
    """The GPU driver in memory, else on disk. It reports itself whether it is the open one, else its licence does (Dual
    MIT/GPL); None if neither does.
    """
    said = tree.read("/proc/driver/nvidia/version")
    path = catalogue.path("nvidia")
    fields = (elf.modinfo(tree, path, seams) or {}) if path and not said else {}
    license_ = fields.get("license")
    return {
        "loaded": tree.isdir(f"{paths.MODULE}/nvidia"),
        "on_disk": path is not None,
        "version": tree.read(f"{paths.MODULE}/nvidia/version") or fields.get("version"),
        "open": "Open Kernel Module" in said if said else "GPL" in license_ if license_ else None,
    }


def _in_memory(tree: Tree) -> Optional[bool]:
    """Whether the running kernel exports the symbol; None if /proc/kallsyms does not show it."""
    data = tree.read_bytes("/proc/kallsyms")
    if not data:
        return None
    return re.search(rb"^[0-9a-f]+ \w " + SYMBOL.encode() + rb"(\t|\n|$)", data, re.MULTILINE) is not None


def _legacy(tree: Tree, catalogue: Catalogue) -> list[str]:
    """Remains of nv_peer_mem, the pre-2021 module that conflicts with nvidia_peermem."""
    traces = [path for path in ("/etc/init.d/nv_peer_mem", "/etc/infiniband/nv_peer_mem.conf") if tree.exists(path)]
    path = catalogue.path(LEGACY)
    return traces + ([path] if path else [])


def _build_tree(tree: Tree, kernel: str, architecture: str) -> Optional[dict[str, Any]]:
    """The OFED sources that a rebuild of the NVIDIA driver uses: {path, real, kernel, crc}; None without OFED's.

    nvidia-peermem.Kbuild tries <arch>/<kernel>, <kernel>, then `default`, which may lead to another kernel's.
    """
    for path in (f"{OFA}/{architecture}/{kernel}", f"{OFA}/{kernel}", f"{OFA}/default", OFA_DKMS):
        if not tree.isdir(path):
            continue
        real = tree.realpath(path)
        text = tree.read(f"{path}/Module.symvers")
        named = real.rpartition("/")[2]
        known = re.match(r"\d+\.\d+", named) is not None
        return {
            "path": path,
            "real": real,
            "kernel": named if known else None,
            "symvers": text is not None,
            "crc": elf.symvers(text or "").get(SYMBOL),
        }
    return None


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


def diagnose(evidence: dict, policy: str = "auto") -> Diagnosis:
    """policy: auto, peermem (wanted even if dma-buf would do), dmabuf."""
    nvidia = evidence["nvidia"]
    if not nvidia["loaded"] and not nvidia["on_disk"]:
        return Diagnosis(
            "no-driver",
            f"The NVIDIA driver is not installed for kernel {evidence['kernel']}.",
            "Install the NVIDIA driver; GPUDirect RDMA needs it.",
        )
    dmabuf = nvidia["open"] is True and dmabuf_kernel(evidence["kernel"])
    mode = "dmabuf" if dmabuf else "none"
    if evidence["legacy"]:
        return Diagnosis(
            "legacy",
            "The legacy module nv_peer_mem is installed, and it conflicts with nvidia_peermem.",
            "Remove the package nvidia-peer-memory-dkms (rpm: nvidia_peer_memory), then run again.",
            evidence["legacy"] + (["nv_peer_mem is loaded"] if evidence["loaded"][LEGACY] else []),
            mode,
        )
    if evidence["loaded"]["nvidia_peermem"]:
        return Diagnosis("loaded", "nvidia_peermem is loaded: HCAs reach GPU memory through it.", mode="peermem")
    if dmabuf and policy != "peermem":
        unsure = evidence["dmabuf_doubts"]
        sentence = f"nvidia_peermem is not needed. {dmabuf_verdict(evidence['kernel'], unsure)}"
        grace = ["On bare-metal Grace dma-buf may need NVreg_GrdmaPciTopoCheckOverride=1 for nvidia."]
        known = evidence["architecture"] != "aarch64" or any("NVreg_" in text for text in unsure)
        return Diagnosis("not-needed", sentence, None, unsure if known else [*grace, *unsure], mode)
    return _peermem(evidence)._replace(mode=mode)


def _peermem(evidence: dict) -> Diagnosis:
    peermem, kernel = evidence["peermem"], evidence["kernel"]
    rebuild = f"Rebuild the NVIDIA driver for kernel {kernel} (dkms remove and install nvidia, -k {kernel})"
    if peermem is None:
        return Diagnosis(
            "missing-module",
            f"Kernel {kernel} has no module nvidia-peermem.",
            f"{rebuild}, or switch to the open kernel modules, which do not need it.",
        )
    path = peermem["path"]
    if peermem["wants_symbol"] is None:
        return Diagnosis("unknown", f"{path} cannot be read here.", "Install zstd on the node and run again.")
    if peermem["kernel"] and peermem["kernel"] != kernel:
        return Diagnosis(
            "wrong-kernel",
            f"{path} was built for kernel {peermem['kernel']}, but {kernel} is running.",
            f"{rebuild}.",
        )
    version = evidence["nvidia"]["version"]
    if version and peermem["version"] and version != peermem["version"]:
        return Diagnosis(
            "version-mismatch",
            f"{path} is from NVIDIA driver {peermem['version']}, but {version} is in use.",
            "Reboot, so that one NVIDIA driver is in memory and on disk."
            if evidence["nvidia"]["loaded"]
            else f"{rebuild}.",
        )
    if not peermem["wants_symbol"]:
        return _stub(evidence, rebuild, _tree_problem(evidence))
    return _symbol(evidence, rebuild) or _outlook(evidence)


def _symbol(evidence: dict, rebuild: str) -> Optional[Diagnosis]:
    """The problem with the symbol that the module needs, on disk."""
    peermem, provider, kernel = evidence["peermem"], evidence["provider"], evidence["kernel"]
    path = peermem["path"]
    if provider is None:
        if evidence["unread"]:
            return Diagnosis("unknown", f"{evidence['unread'][0]} cannot be read here.", "Install zstd and run again.")
        return Diagnosis(
            "missing-symbol",
            f"{path} needs {SYMBOL}, which no module of kernel {kernel} exports: it was built for an OFED stack, but "
            "the inbox one is on disk.",
            "Install the OFED driver again (driver_flavor: doca), or switch to dma-buf (open NVIDIA kernel modules).",
        )
    offered, wanted = provider["crc"], peermem["crc"]
    if offered is None or wanted is None or offered == wanted:
        return None
    evidence_lines = [
        f"{path} needs {SYMBOL} with CRC {wanted:#010x}",
        f"{provider['path']} exports it with CRC {offered:#010x}",
    ]
    tree = _tree_problem(evidence)
    if tree and evidence["build_tree"]["crc"] != offered:
        return Diagnosis("wrong-tree", *_wrong_tree(evidence, tree), evidence_lines)
    return Diagnosis(
        "crc-mismatch",
        f"{path} was built against another RDMA stack than the one on disk: the CRCs of {SYMBOL} differ.",
        f"{rebuild}; it then uses the symbols of the installed stack.",
        evidence_lines,
    )


def _outlook(evidence: dict) -> Diagnosis:
    """The result of loading a module that matches the stack on disk."""
    peermem, provider = evidence["peermem"], evidence["provider"]
    stale = evidence["loaded"]["ib_core"] and (evidence["in_memory"] is False or evidence["memory_agrees"] is False)
    if stale:
        seen = "does not export the symbol" if evidence["in_memory"] is False else "is not the one on disk"
        return Diagnosis(
            "stale-memory",
            f"On disk {peermem['path']} and {provider['path']} match, but the RDMA stack in memory {seen}.",
            "Reload the RDMA driver or reboot; nvidia_peermem then loads.",
        )
    if evidence["blocked_by"]:
        return Diagnosis(
            "blocked",
            f"nvidia_peermem would load, but {said(evidence['blocked_by'][0])}.",
            "Remove that line.",
        )
    unchecked = provider["crc"] is None or peermem["crc"] is None
    return Diagnosis(
        "ready",
        f"nvidia_peermem matches {provider['module']} and is not loaded yet.",
        "Load nvidia_peermem (kernel_modules does).",
        [f"CRCs of {SYMBOL} could not be compared: a kernel without module versions"] if unchecked else [],
    )


def _stub(evidence: dict, rebuild: str, tree: Optional[str]) -> Diagnosis:
    path = evidence["peermem"]["path"]
    seen = f"{path} is a stub: it was built without {SYMBOL} and refuses to load (Invalid argument, no kernel message)."
    offers = evidence["provider"] is not None
    if not evidence["ofed"] and not offers:
        return Diagnosis(
            "stub",
            seen,
            "Install the OFED driver first (driver_flavor: doca) and rebuild the NVIDIA driver after it, or switch to "
            "its open kernel modules (dma-buf).",
        )
    if tree:
        return Diagnosis("wrong-tree", *_wrong_tree(evidence, tree), [seen])
    return Diagnosis("stub", seen, f"{rebuild}; the installed RDMA stack has the symbol.")


def _tree_problem(evidence: dict) -> Optional[str]:
    """Why a rebuild of the NVIDIA driver would use the wrong OFED sources; None if it would not."""
    tree, kernel = evidence["build_tree"], evidence["kernel"]
    if tree is None:
        return f"{OFA} does not exist" if evidence["ofed"] else None
    if tree["kernel"] and tree["kernel"] != kernel:
        return f"{tree['path']} points to {tree['real']}, which belongs to kernel {tree['kernel']}"
    if not tree["symvers"]:
        return f"{tree['path']} has no Module.symvers"
    if tree["crc"] is None:
        return f"{tree['path']}/Module.symvers has no {SYMBOL}"
    return None


def _wrong_tree(evidence: dict, problem: str) -> tuple[str, str]:
    kernel = evidence["kernel"]
    return (
        f"The NVIDIA driver was built against the wrong RDMA sources: {problem}.",
        f"Build the OFED driver for {kernel} (dkms install mlnx-ofed-kernel -k {kernel}), make sure that {OFA}/default "
        f"points to {kernel}'s sources, then rebuild the NVIDIA driver.",
    )
