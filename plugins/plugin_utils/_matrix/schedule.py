# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pairs are measured at the same time, so that no shared resource serves two tests at once.

PRIVATE to the collection. Pure. Each group (the ends of one rail in one network) is a complete graph, and a round is a
set of its edges without a common vertex. The circle method colours the edges of a complete graph with n vertices in
n - 1 rounds for even n and n for odd n, and no colouring needs fewer. Groups run beside each other; where two of them
share something, a PCIe link or the processor of a software HCA, first fit puts the later pair into a later round. First
fit never needs more than 2d - 1 rounds, d being the most pairs that one shared resource takes part in.
"""

from __future__ import annotations


def circle(names: list) -> list[list[tuple]]:
    """Rounds of disjoint pairs in which every two names meet exactly once.

    The first name keeps its seat, the others move on by one seat a round, and who sits opposite is the partner. With an
    odd number of names the one opposite the empty seat pauses.
    """
    seats: list = [*names, *([None] if len(names) % 2 else [])]
    half = len(seats) // 2
    rounds = []
    for _turn in range(len(seats) - 1):
        pairs = zip(seats[:half], reversed(seats[half:]))
        rounds.append([(one, other) for one, other in pairs if one is not None and other is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in rounds if pairs]


def rounds(groups: list[list], resources: dict) -> list[list[tuple]]:
    """Rounds of pairs: every two ends of a group meet once, and within a round no resource is needed by two pairs.

    groups: lists of ends. resources: {end: names of what it uses}. The two ends of a pair may share none either.
    """
    busy: list[set] = []
    found: list[list[tuple]] = []
    for group in groups:
        for pairs in circle(group):
            for one, other in pairs:
                needed = resources[one] | resources[other]
                number = next((index for index, taken in enumerate(busy) if not taken & needed), len(busy))
                if number == len(busy):
                    busy.append(set())
                    found.append([])
                busy[number] |= needed
                found[number].append((one, other))
    return found
