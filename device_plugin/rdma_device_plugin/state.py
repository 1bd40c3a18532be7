# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin's current state. The daemon writes it; status, metrics and endpoints read it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Optional

from .config import Pool
from .health import Memory, Ports
from .lifecycle import Resource
from .pools import Inventory
from .server import Service
from .settings import Settings
from .worker import Poller, Worker

if TYPE_CHECKING:
    from .dra import Front


class Served:
    """A pool that is served. task: its registration, once it has started."""

    task: asyncio.Task

    def __init__(self, pool: Pool, service: Service, resource: Resource, memory: Memory) -> None:
        self.pool = pool
        self.service = service
        self.resource = resource
        self.memory = memory


class State:
    """All pools of one node, by name, and what the last scan found."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.served: dict[str, Served] = {}
        self.inventory = Inventory()
        self.ports = Ports()
        self.scans = 0
        self.scan_failures = 0
        self.scan_seconds = 0.0
        self.scan_seconds_total = 0.0
        self.reloads: Counter[str] = Counter()
        self.config_error = ""
        # The DRA side, where the mode has one.
        self.front: Optional[Front] = None
        # Reads of sysfs can hang with the hardware; the plugin's own files must not wait for them.
        self.sysfs = Worker("sysfs")
        self.port_reads = Poller("ports")
        self.files = Worker("files")

    @property
    def pools(self) -> list[Pool]:
        """Those of both APIs."""
        return [served.pool for served in self.served.values()] + list(self.front.pools if self.front else ())

    @property
    def hangs(self) -> float:
        """Seconds that the current read of sysfs has taken so far."""
        return max(self.sysfs.hangs(), self.port_reads.hangs())

    @property
    def hung(self) -> bool:
        """Whether a read of sysfs hangs, so that health is unknown."""
        return self.hangs > self.settings.hung
