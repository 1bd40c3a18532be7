"""Which pairs are measured at the same time, so that no shared resource serves two tests at once.

Pure. Each group (the ends of one rail in one network) is a complete graph, and a round is a set of its edges without a
common vertex. The circle method colours the edges of a complete graph with n vertices in n - 1 rounds for even n and n
for odd n, and no colouring needs fewer. Groups run side by side; if two of them share something, a PCIe link or
the processor of a software HCA, first fit puts the later pair into a later round. First fit never needs more than 2d -
1 rounds, d being the most pairs that one shared resource takes part in.
"""

from typing import Optional

from .._verify.pairs import book


def circle(names: list, peers: Optional[int] = None) -> list[list[tuple]]:
    """Rounds of disjoint pairs in which every two names meet exactly once, or each name at least `peers` others.

    The first name keeps its seat, the others move on by one seat a round, and the name opposite is the partner. With an
    odd number of names the one opposite the empty seat pauses, once in all rounds: for `peers`, one more round.
    """
    seats: list = [*names, *([None] if len(names) % 2 else [])]
    half = len(seats) // 2
    rounds = []
    for _turn in range(turns(len(names), peers)):
        pairs = zip(seats[:half], reversed(seats[half:]))
        rounds.append([(one, other) for one, other in pairs if one is not None and other is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in rounds if pairs]


def turns(names: int, peers: Optional[int] = None) -> int:
    every = max(0, names - 1 + names % 2)
    return every if peers is None else min(every, peers + names % 2)


def count(names: int, peers: Optional[int] = None) -> int:
    return turns(names, peers) * (names // 2)


def rounds(groups: list[list], resources: dict, peers: Optional[int] = None) -> list[list[tuple]]:
    """Rounds of pairs: every two ends of a group meet once, and no two pairs of a round need the same resource.

    groups: lists of ends. resources: {end: names of what it uses}. The two ends of a pair may share none either. peers:
    the least number of others in its group that an end meets; None: all.
    """
    busy: dict = {}
    scheduled: list[list[tuple]] = []
    for group in groups:
        for pairs in circle(group, peers):
            for one, other in pairs:
                book(scheduled, busy, resources[one] | resources[other], (one, other))
    return scheduled
