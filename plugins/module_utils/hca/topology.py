"""How far two PCI functions are from each other, in the classes that `nvidia-smi topo -m` prints.

PIX   at most one PCIe bridge (one switch) between them
PXB   several PCIe bridges, without the host bridge
PHB   through a PCIe host bridge, typically the CPU
NODE  through the interconnect between host bridges of one NUMA node
SYS   through the interconnect between NUMA nodes

Derived from the device tree below /sys/devices: a host bridge is a `pci<domain>:<bus>` directory, and each bridge is
the parent directory of the devices below it. NCCL's path types follow the same rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Optional

from . import paths, pci
from .tree import Tree

CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
_HOST_BRIDGE = re.compile(r"^pci[0-9a-f]{4,}:[0-9a-f]{2}$")


def _chains(_tree: Tree) -> dict[str, tuple[str, ...]]:
    """Results of `Topology.chain` in a tree so far."""
    return {}


class Topology:
    """Distances on one node; each function's place in the tree is looked up once."""

    def __init__(self, tree: Tree):
        self._tree = tree.snapshot()
        self._chains = self._tree.once(_chains)

    def chain(self, address: str) -> tuple[str, ...]:
        """Host bridge, bridges and the function itself, from the root down; empty if the function does not exist."""
        found = self._chains.get(address)
        if found is None:
            parts = self._tree.realpath(f"{paths.PCI}/{address}").split("/")
            root = next((index for index, name in enumerate(parts) if _HOST_BRIDGE.match(name)), len(parts))
            found = self._chains[address] = tuple(parts[root:])
        return found

    def distance(self, one: str, other: str) -> Optional[str]:
        """Distance class of two PCI addresses; None if one of them does not exist."""
        left, right = self.chain(one), self.chain(other)
        if not left or not right:
            return None
        if left[0] != right[0]:
            return "NODE" if self._same_node(one, other) else "SYS"
        shared = shared_places(left, right)
        if shared == 1:
            return "PHB"
        # They meet at a bridge. Below a switch's upstream port each side has its own downstream port, and that pair
        # belongs to the one switch; anything longer means a second switch.
        return "PIX" if max(len(left), len(right)) - shared <= 2 else "PXB"

    def nearest(self, address: str, others: Iterable[str]) -> list[dict[str, str]]:
        """The functions of `others` in the nearest distance class, in PCI order: [{address, distance}]."""
        far = {other: self.distance(address, other) for other in others}
        best = next((distance for distance in CLASSES if distance in far.values()), None)
        near = [other for other in far if best and far[other] == best]
        return [{"address": other, "distance": best} for other in sorted(near, key=pci.order)]

    def numa_node(self, address: str) -> int:
        return pci.numa_node(self._tree, address)

    def vacant(self, chain: tuple[str, ...]) -> set[tuple[str, ...]]:
        """The `ports` of the bridges at or below this place of the tree that have nothing behind them."""
        path = f"/sys/devices/{'/'.join(chain)}"
        below = [name for name in self._tree.listdir(path) if pci.ADDRESS.match(name)]
        if below:
            return set().union(*(self.vacant((*chain, name)) for name in below))
        empty = (self._tree.read(f"{path}/class") or "").startswith(pci.BRIDGE_CLASS)
        return {ports(chain)} if empty else set()

    def _same_node(self, one: str, other: str) -> bool:
        """A machine with a single NUMA node need not report it for each function (-1)."""
        first, second = self.numa_node(one), self.numa_node(other)
        if first == second:
            return True
        if -1 not in (first, second):
            return False
        online = self._tree.read("/sys/devices/system/node/online")
        return online is None or online.isdecimal()


def ports(chain: tuple[str, ...]) -> tuple[str, ...]:
    """The device and function numbers of the bridges below a root port: the same in switches of one kind."""
    return tuple(name.rpartition(":")[2] for name in chain[2:])


def shared_places(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """The number of common places of two chains, from the root down."""
    return next((at for at, (mine, its) in enumerate(zip(one, other)) if mine != its), min(len(one), len(other)))
