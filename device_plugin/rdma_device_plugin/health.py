# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Port states over time: the last state, link flaps, and each pool's view with its hysteresis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Optional

from . import log, pools
from .config import Health, Pool
from .pools import Debounced, Hca, Inventory

PortKey = tuple[str, int]
# What a pool remembers of its ports.
Memory = dict[PortKey, Debounced]


class Ports:
    """The node's ports as they were last seen. flaps: how often each left ACTIVE."""

    def __init__(self) -> None:
        self.states: dict[PortKey, Optional[str]] = {}
        self.flaps: Counter[PortKey] = Counter()

    def scanned(self, inventory: Inventory) -> None:
        """Store the set of ports and their states."""
        self.observe({(hca.name, port.number): port.state for hca in inventory.hcas for port in hca.ports})

    def polled(self, states: Mapping[PortKey, Optional[str]]) -> bool:
        """Store states of known ports; True when one changed.

        A scan may have run in the meantime; only scans change the set of ports.
        """
        now = {key: states.get(key, state) for key, state in self.states.items()}
        differs = now != self.states
        self.observe(now)
        return differs

    def observe(self, states: dict[PortKey, Optional[str]]) -> None:
        for key, state in states.items():
            before = self.states.get(key)
            if before == pools.ACTIVE and state != pools.ACTIVE:
                self.flaps[key] += 1
            if key in self.states and before != state:
                log.on_change(f"port {key}", f"port {key[0]}/{key[1]} is {state or 'unreadable'}")
        self.states = states

    def judge(
        self, pool: Pool, chosen: Iterable[Hca], memory: Memory, now: float
    ) -> tuple[dict[str, bool], dict[str, tuple[int, ...]]]:
        """({HCA: healthy}, {HCA: ports that are up}) as the pool sees it; updates its memory."""
        remembered: Memory = {}
        healthy: dict[str, bool] = {}
        active: dict[str, tuple[int, ...]] = {}
        for hca in chosen:
            states = []
            for port in hca.ports:
                key = (hca.name, port.number)
                up = self.states.get(key) == pools.ACTIVE
                remembered[key] = pools.debounce(memory.get(key), up, now, pool.health)
                states.append(remembered[key].up)
            healthy[hca.name] = pools.hca_healthy(pool.health, states)
            active[hca.name] = tuple(port.number for port, up in zip(hca.ports, states) if up)
        memory.clear()
        memory.update(remembered)
        return healthy, active


def pending(memories: Iterable[Memory]) -> bool:
    """Whether a port's state differs from its debounced one and is waiting for time to pass."""
    return any(port.differs_since is not None for memory in memories for port in memory.values())


def next_look(memories: Iterable[tuple[Health, Memory]], now: float, poll: float) -> float:
    """Seconds to the next check of the ports: the poll interval, or when a pending state becomes final."""
    due = [port.due(health) for health, memory in memories for port in memory.values()]
    return max(0.005, min([poll, *(moment - now for moment in due if moment is not None)]))
