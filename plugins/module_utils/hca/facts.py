# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""gather(): the whole model of a node as one dictionary, `ansible_facts.rdma`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

from . import hcas as devices
from . import modprobe, modules, netns, pci
from . import node as machine
from .netdevs import Network
from .seams import Seams
from .tree import Tree

SCHEMA = 1
SUBSETS = (
    "hcas",
    "pci",
    "gpus",
    "rails",
    "subsystem",
    "driver",
    "gpudirect",
    "modules",
    "limits",
    "initramfs",
    "owned_files",
    "gids",
)


def gather(
    tree: Tree,
    seams: Optional[Seams] = None,
    subset: Optional[Iterable[str]] = None,
    software_hcas: bool = False,
    rails: Optional[list[dict[str, Any]]] = None,
) -> dict[str, Any]:
    tree = tree.snapshot()
    seams = seams or Seams.of(tree)
    facts: dict[str, Any] = {"schema": SCHEMA, "node": machine.node(tree, seams)}
    network = Network(tree, seams.addresses())
    functions = pci.classes(tree)
    catalogue = modules.Catalogue(tree, machine.kernel(tree))
    lines = modprobe.statements(tree)
    found = devices.hcas(tree, network, True, functions)
    gpus = pci.gpus(tree, functions)
    devices.place(tree, found, gpus)
    facts["hcas"] = found
    facts["gpus"] = gpus
    facts["cards_without_rdma"] = devices.cards_without_rdma(
        tree,
        found,
        functions,
        network,
        lambda names: modules.state(tree, names, catalogue=catalogue, lines=lines),
    )
    facts["subsystem"] = netns.state(tree, lines)
    facts["modules"] = modules.state(tree, modules.NAMES, catalogue=catalogue, lines=lines)
    return facts
