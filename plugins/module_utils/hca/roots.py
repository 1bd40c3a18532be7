"""The PCIe root of an HCA, as in Kubernetes' standard device attribute resource.kubernetes.io/pcieRoot.

A claim asks for a GPU and an HCA whose values are equal, so the text has to equal that of other drivers' helper for the
same tree: k8s.io/dynamic-resource-allocation/deviceattribute, which knows domains of four digits and host bridges
directly below /sys/devices. If it refuses, there is no attribute.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any, Optional

from . import paths, pci
from .tree import Tree

_BUS_ID = re.compile(r"^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$")
_DEVICES = "/sys/devices/"
# The function through which a ConnectX-8 reaches GPU memory; it hangs below the GPU's root, the card's own may not.
DATA_DIRECT = f"{pci.MELLANOX}:2100"
# Kinds of cards that may have one.
DATA_DIRECT_CARDS = (f"{pci.MELLANOX}:1023", f"{pci.MELLANOX}:1025")
_DIRECT_CLASSES = (pci.NETWORK_CLASS, "0x08")  # firmware shows it as a network card or as a DMA controller
# Data that links functions of one card: the NIC's and its Data Direct function's own mark (rdma-core's rdma_topo
# compares V3, the kernel VU), then the serial number, which all functions of a card share.
_MARKS = (b"V3", b"VU", b"SN")
# Vital product data (PCI Local Bus Specification, appendix I): tags of the read-only part and of the end.
_READ_ONLY, _END = 0x90, 0x78


def pcie_root(tree: Tree, address: Optional[str]) -> Optional[str]:
    """`pciDDDD:BB` of a PCI function's root complex; None if the standard attribute has no value."""
    if not address or not _BUS_ID.match(address):
        return None
    target = tree.readlink(f"{paths.PCI}/{address}")
    if target is None:
        return None
    place = posixpath.normpath(posixpath.join(paths.PCI, target))
    if not place.startswith(f"{_DEVICES}pci") or posixpath.basename(place) != address:
        return None
    return place[len(_DEVICES) :].partition("/")[0]


def hca_root(tree: Tree, hca: dict[str, Any], functions: dict[str, str]) -> Optional[str]:
    """The PCIe root of an HCA of the facts. functions: `pci.classes`.

    For a card with Data Direct that function's root counts; a software HCA has that of the NIC below its netdev.
    """
    if hca["pci"]:
        direct = data_direct(tree, hca["pci"]["address"], functions, data_direct_functions(tree, functions))
        return pcie_root(tree, direct or hca["pci"]["address"])
    return pcie_root(tree, pci.below(tree, next((port["netdev"] for port in hca["ports"] if port["netdev"]), None)))


def data_direct_functions(tree: Tree, functions: dict[str, str]) -> list[str]:
    """Data Direct functions of all cards."""
    able = (address for address, code in functions.items() if code.startswith(_DIRECT_CLASSES))
    return [address for address in able if pci.kind(tree, address) == DATA_DIRECT]


def data_direct(tree: Tree, address: str, functions: dict[str, str], others: list[str]) -> Optional[str]:
    """The Data Direct function of a NIC's function: of the same card by its VPD, and of the same rank on it.

    others: `data_direct_functions`. None without one, or if the two cannot be paired, such as for a card with one NIC
    function and two of the others.
    """
    if not others or address in others:
        return None
    mine = _marks(tree, address)
    direct: list[str] = []
    for mark in _MARKS:
        direct = direct or [one for one in others if mine.get(mark) and _marks(tree, one).get(mark) == mine[mark]]
    if len(direct) <= 1:
        return direct[0] if direct else None
    beside = [one for one in functions if one not in others and pci.slot(one) == pci.slot(address)]
    nics = [one for one in beside if functions[one].startswith(pci.NETWORK_CLASS) and not pci.virtual(tree, one)]
    return direct[nics.index(address)] if address in nics and len(nics) == len(direct) else None


def _marks(tree: Tree, address: str) -> dict[bytes, bytes]:
    return vital_product_data(tree.read_bytes(f"{paths.PCI}/{address}/vpd") or b"")


def vital_product_data(data: bytes) -> dict[bytes, bytes]:
    """{keyword: value} of the read-only part, or of the readable start of a damaged one."""
    found: dict[bytes, bytes] = {}
    place = 0
    while place < len(data):
        tag = data[place]
        head, length = (3, int.from_bytes(data[place + 1 : place + 3], "little")) if tag & 0x80 else (1, tag & 7)
        if tag == _READ_ONLY:
            found.update(_keywords(data[place + head : place + head + length]))
        elif tag & 0xF8 == _END:
            break
        place += head + length
    return found


def _keywords(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    place = 0
    while place + 3 <= len(body):
        keyword, length = body[place : place + 2], body[place + 2]
        yield keyword, body[place + 3 : place + 3 + length].rstrip(b"\0 ")
        place += 3 + length
