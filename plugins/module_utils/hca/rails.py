# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rails: the HCA ports on the fabric, in an order that is the same on identically built nodes.

Named rails are used as given. Automatic rails are all suitable ports of physical functions, numbered in PCI order, or
in GPU order where each GPU has its own card. Cabling does not matter: rail 3 stays rail 3 while rail 2 is unplugged.
"""

from __future__ import annotations

from typing import Any, Optional

from . import pci, topology
from .tree import Tree

KEYS = ("hca", "pci", "netdev", "mac")
AUTOMATIC, NAMED = "automatic", "named"


def rails(
    tree: Tree,
    hcas: list[dict[str, Any]],
    gpus: list[dict[str, Any]],
    wanted: Optional[list[dict[str, Any]]] = None,
    software: bool = False,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(rails, rails_excluded).

    wanted: [{hca|pci|netdev|mac: value, port: number}], port optional. software: allow rxe and siw as automatic rails.
    """
    tree = tree.snapshot()
    if wanted:
        return _named(tree, hcas, gpus, wanted)
    return _automatic(tree, hcas, gpus, software)


def _rail(
    index: int, hca: dict[str, Any], port: dict[str, Any], gpu: Optional[dict[str, Any]], reason: str
) -> dict[str, Any]:
    return {
        "index": index,
        "hca": hca["name"],
        "port": port["number"],
        "netdev": port["netdev"],
        "pci": hca["pci"]["address"] if hca["pci"] else None,
        "gpu": gpu["address"] if gpu else None,
        "distance": gpu["distance"] if gpu else None,
        "reason": reason,
    }


def _named(
    tree: Tree, hcas: list[dict[str, Any]], gpus: list[dict[str, Any]], wanted: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    chosen: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
    excluded = []
    for index, item in enumerate(wanted):
        key, value = next(((key, str(item[key])) for key in KEYS if item.get(key)), ("hca", ""))
        found = [hca for hca in hcas if _matches(hca, key, value.lower())]
        ports = [(hca, port) for hca in found for port in _ports(hca, key, value, item.get("port"))]
        if len(ports) == 1:
            chosen.append((index, *ports[0]))
        else:
            seen = f"{len(ports)} ports have it; name the port too" if ports else "no HCA port has it"
            excluded.append({"hca": None, "reason": f"Rail {index} is named by {key} {value}, but {seen}."})
    cards: dict[str, list[dict[str, Any]]] = {}
    for _index, hca, _port in chosen:
        cards.setdefault(_card(hca), []).append(hca)
    pairs = _one_to_one(tree, cards, gpus)
    return [
        _rail(index, hca, port, pairs.get(_card(hca)) or _only_nearest(hca), NAMED) for index, hca, port in chosen
    ], excluded


def _matches(hca: dict[str, Any], key: str, value: str) -> bool:
    if key == "hca":
        return hca["name"].lower() == value
    if key == "pci":
        return bool(hca["pci"]) and hca["pci"]["address"] == value and hca["function"] != "sf"
    field = "name" if key == "netdev" else "mac"
    return any((netdev[field] or "").lower() == value for netdev in hca["netdevs"])


def _ports(hca: dict[str, Any], key: str, value: str, number: Any) -> list[dict[str, Any]]:
    """The ports that a name selects: all of the HCA's, or the one of the named interface."""
    ports = hca["ports"]
    if number:
        return [port for port in ports if port["number"] == int(number)]
    if key in ("netdev", "mac") and len(ports) > 1:
        field = "name" if key == "netdev" else "mac"
        on = {netdev["port"] for netdev in hca["netdevs"] if (netdev[field] or "").lower() == value.lower()}
        return [port for port in ports if port["number"] in on]
    return ports


def _automatic(
    tree: Tree, hcas: list[dict[str, Any]], gpus: list[dict[str, Any]], software: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Number the ports card by card, in GPU order where each GPU has its own card, else in PCI order."""
    found, excluded = [], []
    cards: dict[str, list[dict[str, Any]]] = {}
    for hca in hcas:
        reason = _ineligible(hca, software)
        if reason:
            excluded.append({"hca": hca["name"], "reason": reason})
        else:
            cards.setdefault(_card(hca), []).append(hca)
    pairs = _one_to_one(tree, cards, gpus)
    by_gpu = sorted(pairs, key=lambda card: pci.order(pairs[card]["address"]))
    index = 0
    for card in by_gpu or cards:
        for hca in cards.pop(card) if by_gpu else cards[card]:
            for port in hca["ports"]:
                spare = _unused(hca, port, hcas)
                if spare:
                    excluded.append({"hca": hca["name"], "reason": spare})
                else:
                    found.append(_rail(index, hca, port, pairs.get(card) or _only_nearest(hca), AUTOMATIC))
                index += 1
    if by_gpu:
        reason = "Every GPU is nearer to another card; name this one to use it."
        excluded += [{"hca": hca["name"], "reason": reason} for left in cards.values() for hca in left]
    return found, excluded


def _card(hca: dict[str, Any]) -> str:
    """The physical card: the functions of a PCI slot. A software HCA is its own card."""
    return pci.slot(hca["pci"]["address"]) if hca["pci"] else hca["name"]


def _ineligible(hca: dict[str, Any], software: bool) -> Optional[str]:
    """Why an HCA cannot be an automatic rail, whatever its cabling."""
    carrying = [netdev["name"] for netdev in hca["netdevs"] if netdev["default_route"]]
    if carrying:
        return f"{carrying[0]} carries the default route; name it to use it anyway."
    if hca["kind"] == "software" and not software:
        return "It is a software HCA; software_hcas allows those."
    if hca["function"] == "vf":
        return f"It is a virtual function of {hca['pci']['physfn']}."
    if hca["function"] == "sf":
        return f"It is a sub-function of {hca['pci']['address']}."
    if not hca["ports"]:
        return "It has no port."
    return None


def _unused(hca: dict[str, Any], port: dict[str, Any], hcas: list[dict[str, Any]]) -> Optional[str]:
    """Why a port counts as unused: down and without an address while another port of the card is in use.

    Its number stays unassigned: plugging it in or out renumbers no other rail.
    """
    if _used(hca, port):
        return None
    for other in hcas:
        for beside in other["ports"] if _card(other) == _card(hca) else ():
            if beside is not port and _used(other, beside):
                return (
                    f"Port {port['number']} is down and has no address, while {other['name']}/{beside['number']} "
                    "of the same card is in use; name it to use it."
                )
    return None


def _used(hca: dict[str, Any], port: dict[str, Any]) -> bool:
    if port["state"] != "DOWN":
        return True
    own = [netdev for netdev in hca["netdevs"] if netdev["port"] == port["number"]]
    return any(isinstance(netdev["addresses"], list) and netdev["addresses"] for netdev in own)


def _only_nearest(hca: dict[str, Any]) -> Optional[dict[str, Any]]:
    """The nearest GPU where there is exactly one."""
    return hca["nearest_gpus"][0] if len(hca["nearest_gpus"]) == 1 else None


def _one_to_one(
    tree: Tree, cards: dict[str, list[dict[str, Any]]], gpus: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """{card: {address, distance}} when each GPU gets its own nearest card and no nearest card is left over.

    Two GPUs and two cards below one switch are all equally near: they pair up in PCI order. Empty when GPUs would have
    to share, or when more cards are equally near than there are GPUs, because then the choice would be a guess.
    """
    where = topology.Topology(tree)
    near: list[list[str]] = []
    distances: list[str] = []
    for gpu in gpus:
        ranked: dict[str, list[str]] = {}
        for card, members in cards.items():
            function = members[0]["pci"]
            far = where.distance(gpu["address"], function["address"]) if function else None
            if far:
                ranked.setdefault(far, []).append(card)
        best = next((far for far in topology.CLASSES if far in ranked), None)
        if best is None:
            return {}
        near.append(ranked[best])
        distances.append(best)
    if len({card for nearest in near for card in nearest}) != len(near):
        return {}
    owner: dict[str, int] = {}
    for index in range(len(near)):
        if not _augment(near, index, owner, set()):
            return {}
    return {card: {"address": gpus[index]["address"], "distance": distances[index]} for card, index in owner.items()}


def _augment(near: list[list[str]], gpu: int, owner: dict[str, int], tried: set[str]) -> bool:
    """Kuhn's step of bipartite matching: a free card first, else one whose GPU can move to another."""
    for card in near[gpu]:
        if card not in owner:
            owner[card] = gpu
            return True
    for card in near[gpu]:
        if card not in tried:
            tried.add(card)
            if _augment(near, owner[card], owner, tried):
                owner[card] = gpu
                return True
    return False
