# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far two PCI functions are from each other, in the classes that `nvidia-smi topo -m` prints.

PIX   at most one PCIe bridge (one switch) between them
PXB   several PCIe bridges, without the host bridge
PHB   through a PCIe host bridge, typically the CPU
NODE  through the interconnect between host bridges of one NUMA node
SYS   through the interconnect between NUMA nodes

Worked out from the device tree below /sys/devices: a host bridge is a `pci<domain>:<bus>` directory, and each bridge is
the parent directory of what hangs below it. The same rule stands behind NCCL's path types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Optional

from . import paths, pci
from .tree import Tree

CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
_HOST_BRIDGE = re.compile(r"^pci[0-9a-f]{4,}:[0-9a-f]{2}$")


def chain(tree: Tree, address: str) -> tuple[str, ...]:
    """Host bridge, bridges and the function itself, from the root down; empty when the function is not there."""
    path = tree.realpath(f"{paths.PCI}/{address}").split("/")
    for index, name in enumerate(path):
        if _HOST_BRIDGE.match(name):
            return tuple(path[index:])
    return ()


def distance(tree: Tree, one: str, other: str) -> Optional[str]:
    """Distance class of two PCI addresses; None when it cannot be seen because one of them is not there."""
    return between(chain(tree, one), chain(tree, other), lambda: same_node(tree, one, other))


def same_node(tree: Tree, one: str, other: str) -> bool:
    """Whether both hang on one NUMA node. A machine with a single node need not say so for each function (-1)."""
    first, second = pci.numa_node(tree, one), pci.numa_node(tree, other)
    return first == second or (-1 in (first, second) and _single_node(tree))


def _single_node(tree: Tree) -> bool:
    online = tree.read("/sys/devices/system/node/online")
    return online is None or online.isdigit()


def between(one: tuple[str, ...], other: tuple[str, ...], same_numa_node: Any) -> Optional[str]:
    """Distance class of two chains. same_numa_node: a call, asked only when they meet at no host bridge."""
    if not one or not other:
        return None
    shared = 0
    for left, right in zip(one, other):
        if left != right:
            break
        shared += 1
    last = one[shared - 1] if shared else ""
    if pci.ADDRESS.match(last):
        # They meet at a bridge. Below a switch's upstream port each side has its own downstream port, and that pair
        # belongs to the one switch; anything longer is a second switch on the way.
        below = max(len(one), len(other)) - shared - 1
        return "PIX" if below <= 1 else "PXB"
    if _HOST_BRIDGE.match(last):
        return "PHB"
    return "NODE" if same_numa_node() else "SYS"


def nearest(tree: Tree, address: str, others: Iterable[str]) -> list[dict[str, str]]:
    """Those of `others` in the nearest distance class, in PCI order: [{address, distance}]."""
    found: dict[str, list[str]] = {}
    for other in others:
        far = distance(tree, address, other)
        if far:
            found.setdefault(far, []).append(other)
    for far in CLASSES:
        if far in found:
            return [{"address": other, "distance": far} for other in sorted(found[far], key=pci.order)]
    return []
