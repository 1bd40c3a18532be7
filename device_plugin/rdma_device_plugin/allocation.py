# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of a pool: the HCAs of each, a container's devices for it, and units that fit together. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from types import MappingProxyType
from typing import NamedTuple, Optional

from . import pools
from .config import Pool
from .pools import Hca

_NOT_IN_ENV = re.compile("[^A-Z0-9]")
_SHOWN = 40  # characters shown of an ID that was never advertised


class Refused(Exception):
    """A request that cannot be served; the text has the unit and the reason."""


class Group(NamedTuple):
    """HCAs that go to a container together. nodes: their NUMA nodes, as a hint for the kubelet."""

    hcas: tuple[Hca, ...]
    healthy: bool
    nodes: tuple[int, ...] = ()


class Offer(NamedTuple):
    """A pool as advertised; immutable. Unit i maps to group i modulo their number, so IDs never move.

    count: units advertised. known: IDs below it were advertised before and are still served.
    """

    pool: Pool
    members: tuple[Hca, ...] = ()
    groups: tuple[Group, ...] = ()
    count: int = 0
    known: int = 0
    common: frozenset[str] = frozenset()
    # Ports that are up, by HCA: for environment variables only, not for the kubelet.
    active: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    def devices(self) -> Iterator[tuple[str, bool, tuple[int, ...]]]:
        """(ID, healthy, NUMA nodes) of every unit. Units without an HCA behind them are unhealthy."""
        groups = self.groups or (Group((), False),)
        for index in range(self.count):
            group = groups[index % len(groups)]
            yield str(index), group.healthy, group.nodes

    @property
    def healthy(self) -> int:
        full, rest = divmod(self.count, len(self.groups) or 1)
        return sum(full + (index < rest) for index, group in enumerate(self.groups) if group.healthy)

    def hcas_of(self, ids: Iterable[str]) -> tuple[Hca, ...]:
        """The HCAs behind units, in the pool's order. Refused lists each unit that was never advertised."""
        ids = list(ids)
        strange = [unit for unit in ids if _number(unit, self.known) is None]
        if strange:
            shown = ", ".join(unit if len(unit) <= _SHOWN else f"{unit[:_SHOWN]}..." for unit in strange[:10])
            units = f"0 to {self.known - 1}" if self.known else "none"
            raise Refused(f"{self.pool.resource}: never advertised device {shown}; this pool has advertised {units}")
        limit = self.pool.max_per_container
        if limit and len(ids) > limit:
            raise Refused(f"{self.pool.resource}: a container asks for {len(ids)}, maxPerContainer is {limit}")
        if not self.groups:
            raise Refused(f"{self.pool.resource}: no HCA is behind this pool now; run `explain` on the node for why")
        wanted = {hca.name for unit in ids for hca in self.groups[int(unit) % len(self.groups)].hcas}
        return tuple(hca for hca in self.members if hca.name in wanted)

    def files(self, chosen: tuple[Hca, ...]) -> list[str]:
        """Character devices for a container with these HCAs."""
        found = [path for hca in chosen for path in pools.files(self.pool, hca)]
        return found + pools.common_files(self.pool, chosen, self.common)

    def same_for_kubelet(self, other: Offer) -> bool:
        """Whether both look the same to the kubelet: `active` only affects containers."""
        return self._replace(active={}) == other._replace(active={})

    def env(self, chosen: tuple[Hca, ...]) -> dict[str, str]:
        """The HCAs that the container may use, for its libraries. Never a GID index, which changes while pods run."""
        if not self.pool.env or not chosen:
            return {}
        places = [f"{hca.name}:{port}" for hca in chosen for port in self.active.get(hca.name, ())]
        places = places or [f"{hca.name}:{port.number}" for hca in chosen for port in hca.ports]
        return variables(self.pool.env, {self.pool.name: [hca.name for hca in chosen]}, places)

    def prefer(self, available: list[str], required: list[str], size: int) -> list[str]:
        """`size` units: the required ones, then those that add HCAs, close to the chosen ones, and least used.

        Free units show the load: the HCA with the most available units serves the fewest containers.
        """
        chosen = list(dict.fromkeys(required))
        known = [unit for unit in dict.fromkeys(available) if _number(unit, self.known) is not None]
        units = [unit for unit in known if unit not in chosen]
        if not self.groups or len(self.groups) == 1:
            return (chosen + sorted(units, key=int))[: max(size, len(chosen))]
        free = Counter(int(unit) % len(self.groups) for unit in units)
        waiting: dict[int, list[str]] = {}
        for unit in sorted(units, key=int, reverse=True):
            waiting.setdefault(int(unit) % len(self.groups), []).append(unit)
        taken = Counter(int(unit) % len(self.groups) for unit in chosen if _number(unit, self.known) is not None)
        while len(chosen) < size and waiting:
            nodes = {node for index in taken for node in self._nodes(index)}
            best = min(
                waiting,
                key=lambda index: (
                    taken[index],
                    bool(nodes) and not nodes.intersection(self._nodes(index)),
                    -free[index],
                    index,
                ),
            )
            chosen.append(waiting[best].pop())
            taken[best] += 1
            free[best] -= 1
            if not waiting[best]:
                del waiting[best]
        return chosen

    def _nodes(self, index: int) -> tuple[int, ...]:
        return tuple({hca.numa_node for hca in self.groups[index].hcas if hca.numa_node >= 0})


def variables(words: tuple[str, ...], names: Mapping[str, Iterable[str]], places: list[str]) -> dict[str, str]:
    """The environment that an entry's `env` asks for. names: HCAs by pool or request; places: all as HCA:port."""
    found = {f"RDMA_{_NOT_IN_ENV.sub('_', of.upper())}_DEVICES": ",".join(hcas) for of, hcas in names.items()}
    if "nccl" in words:
        # Without "=" NCCL treats the names as prefixes: mlx5_1 would match mlx5_10 too.
        found["NCCL_IB_HCA"] = f"={','.join(places)}"
    if "ucx" in words:
        found["UCX_NET_DEVICES"] = ",".join(places)
    return found


def _number(unit: str, known: int) -> Optional[int]:
    """The index of an ID that was advertised; None for any other text, of any length."""
    if not (unit.isascii() and unit.isdecimal()) or len(unit) > len(str(known)):
        return None
    return int(unit) if int(unit) < known else None


def arrange(pool: Pool, chosen: tuple[Hca, ...]) -> list[tuple[Hca, ...]]:
    """The groups of HCAs that units represent, in turn."""
    if not chosen:
        return []
    size = pool.hcas_per_unit
    if pool.allocation == "spread":
        return _turns(chosen, size or 1)
    if pool.allocation == "numa":
        nodes: dict[int, list[Hca]] = {}
        for hca in chosen:
            nodes.setdefault(hca.numa_node, []).append(hca)
        turns = [_turns(tuple(nodes[node]), size or len(nodes[node])) for node in sorted(nodes)]
        longest = max(map(len, turns))
        # Interleaved by NUMA node, so neighbouring units are on different nodes, for any number of HCAs.
        return [turn[index % len(turn)] for index in range(longest) for turn in turns]
    return [chosen]


def _turns(chosen: tuple[Hca, ...], size: int) -> list[tuple[Hca, ...]]:
    """Groups of `size` that rotate through all HCAs until each is in equally many."""
    total = len(chosen)
    if size >= total:
        return [chosen]
    return [
        tuple(chosen[(turn * size + step) % total] for step in range(size)) for turn in range(total // gcd(total, size))
    ]


def offer(
    pool: Pool,
    chosen: tuple[Hca, ...],
    healthy: Mapping[str, bool],
    common: frozenset[str] = frozenset(pools.COMMON),
    exclusive: bool = False,
    active: Optional[Mapping[str, tuple[int, ...]]] = None,
    known: int = 0,
) -> Offer:
    """The offer of a pool. healthy: {HCA name: bool}. known: number of units advertised before.

    A pool that loses its last HCA keeps its units as unhealthy ones: units that disappear would count as a new
    resource when they return. With allocation `all` a pool is healthy while one of its HCAs is; with health.ports all,
    while all are.
    """
    groups = []
    strict = pool.health.ports == "all"
    hints = pool.topology == "auto" and all(hca.numa_node >= 0 for hca in chosen)
    for group in arrange(pool, chosen):
        states = [healthy.get(hca.name, False) for hca in group]
        groups.append(
            Group(
                hcas=group,
                healthy=not exclusive and (all(states) if strict else any(states)),
                nodes=tuple(sorted({hca.numa_node for hca in group})) if hints else (),
            )
        )
    count = pool.count if chosen or known else 0
    return Offer(
        pool=pool,
        members=chosen,
        groups=tuple(groups),
        count=count,
        known=max(known, count),
        common=common,
        active=dict(active or {}),
    )
