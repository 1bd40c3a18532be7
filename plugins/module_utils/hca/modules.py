"""Kernel modules: loaded, built in, available for this kernel, loaded at boot, blocked.

Sources: /sys/module, /lib/modules/<kernel>/{modules.dep,modules.builtin}, modprobe.d(5), modules-load.d(5).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

from . import modprobe, paths
from .modprobe import canonical
from .text import unknown
from .tree import Tree

NAMES = (
    "mlx5_core", "mlx5_ib", "mlx4_ib", "ib_core", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm", "ib_ipoib",
    "nvidia", "nvidia_peermem", "nv_peer_mem",
)  # fmt: skip


class Catalogue:
    """The modules of one kernel on disk, from depmod's text files; of two copies these list the one that wins."""

    def __init__(self, tree: Tree, kernel: Optional[str]):
        self.directory = f"/lib/modules/{kernel}" if kernel else None
        self.paths: Optional[dict[str, str]] = self._read(tree, "modules.dep") if kernel else None
        self.builtin = (self._read(tree, "modules.builtin") if kernel else None) or {}

    def _read(self, tree: Tree, name: str) -> Optional[dict[str, str]]:
        data = tree.read_bytes(f"{self.directory}/{name}")
        if data is None:
            return None
        found = {}
        for line in data.split(b"\n"):
            path = line.partition(b":")[0]
            file = path[path.rfind(b"/") + 1 :]
            stem = file.partition(b".ko")[0]
            if stem != file:
                found[stem.replace(b"-", b"_").decode("ascii", "replace")] = path.decode("utf-8", "replace")
        return found

    def path(self, name: str) -> Optional[str]:
        """Absolute path of a module's file; None if there is none or the catalogue is missing."""
        found = (self.paths or {}).get(canonical(name))
        if not found:
            return None
        return found if found.startswith("/") else f"{self.directory}/{found}"

    def available(self, name: str) -> bool | str:
        """Whether modprobe could load it; a string if depmod's files are missing."""
        if canonical(name) in self.builtin:
            return True
        if self.paths is None:
            return unknown(f"{self.directory or '/lib/modules'}/modules.dep is not readable")
        return canonical(name) in self.paths


def state(
    tree: Tree,
    names: Iterable[str] = NAMES,
    catalogue: Optional[Catalogue] = None,
    lines: Optional[list[modprobe.Line]] = None,
) -> dict[str, dict[str, Any]]:
    """{name: {loaded, builtin, available, persisted: [paths], blocked_by: [{path, line, text}]}}.

    A built-in module counts as loaded. catalogue (of the running kernel), lines: if already read.
    """
    tree = tree.snapshot()
    if catalogue is None:
        catalogue = Catalogue(tree, tree.read("/proc/sys/kernel/osrelease"))
    lines = modprobe.statements(tree) if lines is None else lines
    at_boot = modprobe.loaded_at_boot(tree)
    found = {}
    for name in names:
        wanted = canonical(name)
        builtin = wanted in catalogue.builtin
        found[name] = {
            "loaded": builtin or loaded(tree, name),
            "builtin": builtin,
            "available": catalogue.available(name),
            "persisted": sorted(path for path, module in at_boot if module == wanted),
            "blocked_by": [line.as_fact() for line in modprobe.blocks(lines, name)],
        }
    return found


def loaded(tree: Tree, name: str) -> bool:
    """Whether the running kernel has the module: /sys/module/<name> exists (also while it is still initialising)."""
    return tree.isdir(f"{paths.MODULE}/{canonical(name)}")
