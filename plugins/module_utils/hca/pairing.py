"""Assigns cards to GPUs along the PCI tree, stable even with missing cards and GPUs.

GPUs and cards form a domain where they meet: below one root port, one host bridge or one NUMA node, whichever is the
nearest for most GPUs. A domain has as many seats for cards as similar domains have cards for each GPU, so a missing
card leaves an empty seat, and a card whose GPU is missing keeps its seat.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from typing import NamedTuple, Optional

from . import pci
from .topology import CLASSES, Topology, ports

SWITCH, _HOST_BRIDGE, _NODE, _MACHINE = range(4)


class Pairing(NamedTuple):
    """seats, in the order of the GPUs: (card or None, its GPU or None). served: GPUs with their own card."""

    seats: list[tuple[Optional[str], Optional[str]]]
    served: int
    level: int


class _Domain(NamedTuple):
    gpus: list[str]
    cards: list[str]


def pair(where: Topology, cards: dict[str, str], gpus: list[str], spare: Collection[str] = ()) -> Optional[Pairing]:
    """cards: {card: the PCI function where its path to the GPUs starts}. spare: cards that are hardly rails, which get
    a seat only if there would be too few. None without GPUs or cards.
    """
    for level in (SWITCH, _HOST_BRIDGE, _NODE, _MACHINE):
        domains = _domains(where, level, cards, gpus)
        covered = [domain for domain in domains.values() if domain.gpus and domain.cards]
        if 2 * sum(len(domain.gpus) for domain in covered) > len(gpus):
            break
    else:
        return None
    paired = {card for domain in covered for card in domain.cards}
    depths = {len(where.chain(cards[card])) for card in paired}
    spots = {ports(where.chain(gpu)[:-1]) for gpu in gpus}
    likely = {key: [card for card in domain.cards if card not in spare] for key, domain in domains.items()}
    served = [_Domain(domain.gpus, likely[key]) for key, domain in domains.items() if domain.gpus and likely[key]]
    usual = _usual(served or covered)
    kept = []
    for key, domain in domains.items():
        if not domain.gpus:
            # Its GPU is not on the bus: a card placed like the paired ones, beside an empty port of its switch, where
            # another switch has its GPU. Storage cards are beside empty bays.
            alike = {len(where.chain(cards[card])) for card in domain.cards} <= depths
            if level != SWITCH or not alike or not likely[key] or not spots & where.vacant(key):
                continue
        enough = len(likely[key]) >= _share(len(domain.gpus), usual.cards, usual.gpus)
        kept.append(_Domain(domain.gpus, likely[key] if enough else domain.cards))
    return Pairing(_seats(where, cards, kept), sum(min(len(one.gpus), len(one.cards)) for one in kept), level)


def _domains(where: Topology, level: int, cards: dict[str, str], gpus: list[str]) -> dict[tuple, _Domain]:
    found: dict[tuple, _Domain] = {}
    for kind, items in (("gpus", {gpu: gpu for gpu in gpus}), ("cards", cards)):
        for item, address in items.items():
            key = _domain(where, level, address)
            if key:
                getattr(found.setdefault(key, _Domain([], [])), kind).append(item)
    return found


def _domain(where: Topology, level: int, address: str) -> tuple:
    chain = where.chain(address)
    if level == SWITCH:
        return chain[:2] if len(chain) > 2 else ()
    if level == _HOST_BRIDGE:
        return chain[:1]
    return (where.numa_node(address) if level == _NODE else 0, "node") if chain else ()


def _seats(where: Topology, cards: dict[str, str], domains: list[_Domain]) -> list[tuple[Optional[str], Optional[str]]]:
    usual = _usual([one for one in domains if one.gpus and one.cards])
    planned = []
    for gpus, mine in domains:
        ends = {cards[card]: card for card in mine}
        order = sorted(ends, key=lambda end: (_nearest(where, end, gpus), pci.order(end)))
        wide = max(len(mine), _share(len(gpus), usual.cards, usual.gpus))
        planned.append((gpus, order, wide, max(len(gpus), _share(wide, usual.gpus, usual.cards)), ends))
    planned.sort(key=lambda row: pci.order((row[0] or row[1])[0]))
    whole = [row for row in planned if row[0] and len(row[1]) == row[2] and len(row[0]) == row[3]]
    seats: list[tuple[Optional[str], Optional[str]]] = []
    for gpus, order, wide, places, ends in planned:
        like = [row for row in whole if row[2:4] == (wide, places)]
        at = _aligned(where, order, gpus, wide, [(row[1], row[0]) for row in like])
        beside = dict(zip(_aligned(where, gpus, order, places, [(row[0], row[1]) for row in like]), gpus))
        by_seat = {seat: ends[end] for seat, end in zip(at, order)}
        for seat in range(wide):
            # GPUs that share a card: the card belongs to none of them.
            gpu = beside.get(seat * places // wide) if places <= wide else None
            seats.append((by_seat.get(seat), gpu))
    return seats


def _usual(domains: list[_Domain]) -> _Domain:
    """A domain with the most common number of cards per GPU; on a tie the one with most members: it lacks nothing."""
    ratios = Counter(len(one.cards) / len(one.gpus) for one in domains)
    return max(domains, key=lambda one: (ratios[len(one.cards) / len(one.gpus)], len(one.cards + one.gpus)))


def _share(count: int, some: list[str], others: list[str]) -> int:
    """The share for a count, rounded up."""
    return -(-count * len(some) // len(others))


def _nearest(where: Topology, card: str, gpus: list[str]) -> float:
    """The mean position of the GPUs nearest to a card: puts cards in the order of their GPUs."""
    far = [CLASSES.index(where.distance(gpu, card) or CLASSES[-1]) for gpu in gpus]
    nearest = min(far, default=None)
    near = [position for position, distance in enumerate(far) if distance == nearest]
    return sum(near) / len(near) if near else 0


def _aligned(
    where: Topology, present: list[str], base: list[str], count: int, like: list[tuple[list[str], list[str]]]
) -> tuple[int, ...]:
    """The seats of the present ones if some of `count` are missing, as in the most similar domain.

    base: their neighbours; like: (all of them, their neighbours) of domains that lack nothing.
    """
    first = tuple(range(len(present)))
    if len(present) >= count or not like or not present or not base:
        return first

    def apart(seats: tuple[int, ...]) -> list[int]:
        found = []
        for its, theirs in like:
            steps = [_unlike(where, one, base[0], its[seat], theirs[0]) for one, seat in zip(present, seats)]
            found.append([sum(step) for step in zip(*steps)])
        return min(found)

    return min(itertools.combinations(range(count), len(present)), key=apart)


def _unlike(where: Topology, one: str, base: str, other: str, other_base: str) -> tuple[int, int, int]:
    """The difference between two functions' places: device numbers on the path, then segment and bus from the base."""
    mine, its = where.chain(one), where.chain(other)
    steps = sum(left.rpartition(":")[2] != right.rpartition(":")[2] for left, right in zip(mine[1:], its[1:]))
    here, there = (
        [left - right for left, right in zip(pci.numbers(at), pci.numbers(beside))]
        for at, beside in ((one, base), (other, other_base))
    )
    return steps + abs(len(mine) - len(its)), abs(here[0] - there[0]), abs(here[1] - there[1])
