# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The DRA side of the daemon: devices from the node's state, published and prepared. Imported only where it is used."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterable
from typing import Callable, Optional

from . import devices, log, modes, pools
from .claims import Refused
from .config import Pool
from .devices import DRIVER, Device, Form
from .draservice import REFRESH, DraService
from .events import Directories
from .health import Memory, Ports
from .kubeapi import Api, ApiProblem
from .lifecycle import WATCH, Places, Resource, Timing
from .listener import Listener
from .modes import Split
from .pools import Inventory
from .preparer import Preparer
from .publisher import Publisher
from .settings import Settings
from .worker import Worker, end, take

SOCKET = "dra.sock"
CHECKPOINT = "checkpoint.json"
# Seconds between comparisons of the prepared claims with the API server.
COMPARE = 300.0


class Driver(Resource):
    """Registers the driver: its RPCs get a socket of their own, which is there before the kubelet is told of it."""

    def __init__(self, service: DraService, places: Places, directories: Directories, timing: Timing, home: str):
        super().__init__(service, places._replace(mode=WATCH), directories, timing)
        self._home = home
        self._rpcs = Listener(home, SOCKET)

    async def _serve(self) -> bool:
        made = not self._rpcs.published
        if made:
            os.makedirs(self._home, mode=0o750, exist_ok=True)
            self._generation += 1
            await self._rpcs.start(self.service, self._generation)
        self._directories.watch(self._home, self._changed, (SOCKET,))
        # A new socket of the RPCs needs no new registration: the kubelet connects to the path again.
        return await super()._serve()

    async def stop(self) -> None:
        # The registration goes first, so that the kubelet does not look for RPCs that are gone.
        await super().stop()
        await self._rpcs.stop(self._timing.stop)


class Front:
    """DRA as the daemon sees it: `start`, `update` with each change of the node, `run` forever, `stop`."""

    def __init__(self, settings: Settings, directories: Directories, files: Worker, stale: Callable[[], None]):
        self.node = settings.node_name
        self.overlap = ""
        self.devices: tuple[Device, ...] = ()
        self.pools: tuple[Pool, ...] = ()
        self.memories: dict[str, Memory] = {}
        self.hung: Callable[[], bool] = lambda: False
        self.task: Optional[asyncio.Task] = None
        home = f"{settings.plugins_directory}/{DRIVER}"
        self._checkpoint = f"{home}/{CHECKPOINT}"
        self._settings = settings
        self._directories = directories
        self._api = Api(settings.kubeconfig, self.node, settings.api_timeout)
        self.publisher = Publisher(self._api)
        self.preparer = Preparer(
            self._api,
            files,
            self._checkpoint,
            settings.cdi_directory,
            root=settings.root,
            patience=settings.cdi_patience,
            stale=stale,
        )
        self.service = DraService(self.preparer, self.node, f"{home}/{SOCKET}")
        self.driver = Driver(self.service, settings.places, directories, settings.timing, home)
        self._loaded = False
        self._keep = asyncio.Event()

    async def start(self) -> None:
        """Know what is prepared, then be there for the kubelet; both only once no other instance serves here."""
        self.driver.begin = self._load
        self.task = asyncio.ensure_future(self.driver.run())

    async def _load(self) -> None:
        try:
            await self.preparer.load()
            self._loaded = True
        except Refused as refusal:
            log.on_change("checkpoint", "the prepared claims cannot be read yet", logging.ERROR, reason=str(refusal))

    async def run(self) -> None:
        """The permanent tasks; one that ends is an error."""
        eternal = [asyncio.ensure_future(part) for part in (self._speak(), self._keeper(), self._refresher())]
        try:
            done, _pending = await asyncio.wait(eternal, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end(eternal, 2.0)

    async def stop(self) -> None:
        if self.task:
            await end([self.task], 1.0)
        await self.driver.stop()
        await self._api.close()

    def update(self, parts: Split, inventory: Inventory, ports: Ports) -> None:
        """Take the node's present state over."""
        self.pools = parts.dra
        found = modes.overlaps(parts, inventory)
        self.overlap = modes.problem(found)
        if self.overlap:
            log.on_change("overlap", "left out over DRA", logging.ERROR, reason=self.overlap)
        inventory = modes.without(found, inventory)
        entries = []
        now = time.monotonic()
        for pool in parts.dra:
            memory = self.memories.setdefault(pool.name, {})
            entries.append((pool, ports.judge(pool, pools.members(pool, inventory), memory, now)[1]))
        for name in set(self.memories) - {pool.name for pool in parts.dra}:
            del self.memories[name]
        self.devices = devices.devices(entries, inventory, ports.states)
        self.preparer.devices, self.preparer.inventory = self.devices, inventory
        if self.publisher.offer(self.devices):
            self._tell_health()
            self._keep.set()
            up = sum(device.up for device in self.devices)
            names = " ".join(device.name for device in self.devices) or "none"
            level = logging.INFO if up == len(self.devices) else logging.WARNING
            log.on_change("dra", f"{DRIVER}: devices", level, usable=up, all=names)

    def problems(self) -> list[str]:
        """What keeps DRA from working, a line each."""
        found = []
        if not self.driver.registered:
            why = f" ({self.driver.error})" if self.driver.error else ""
            found.append(f"{DRIVER}: {self.driver.state}{why}")
        if self.publisher.error:
            found.append(f"{DRIVER}: ResourceSlices of node {self.node}: {self.publisher.error}")
        if self.preparer.error:
            found.append(f"{DRIVER}: {self.preparer.error}")
        if self.overlap:
            found.append(f"{DRIVER}: left out: {self.overlap}")
        return found

    def watch_files(self) -> None:
        self._directories.watch(self._settings.cdi_directory, self._cdi_changed)

    def _cdi_changed(self, _name: str) -> None:
        self._keep.set()

    def _tell_health(self) -> None:
        """Under the names of both forms: claims may be older than the present one."""
        known = {device.hca.name for device in self.devices}
        gone = [
            one.result.device
            for record in self.preparer.records.values()
            for one in record.devices
            if one.hca not in known
        ]
        forms: Iterable[Form] = [self.publisher.form] if self.publisher.form else [Form(True), Form(False)]
        self.service.health(self.devices, forms, gone, self.hung())

    async def _refresher(self) -> None:
        while True:
            self._tell_health()
            await asyncio.sleep(REFRESH)

    async def _speak(self) -> None:
        """With the API server, once the kubelet knows us: the library's import takes longer than its patience."""
        while not self.driver.registered:
            await asyncio.sleep(0.05)
        publishing = asyncio.ensure_future(self.publisher.run())
        compared = 0.0
        try:
            while not publishing.done():
                try:
                    await self.preparer.rebuild()
                    if not compared or time.monotonic() - compared >= COMPARE:
                        await self.preparer.compare()
                        compared = time.monotonic()
                    await asyncio.wait({publishing}, timeout=60)
                except (ApiProblem, Refused) as problem:
                    log.on_change("rebuild", "prepared claims are not known again yet", reason=str(problem))
                    await asyncio.wait({publishing}, timeout=self._settings.timing.backstop)
            publishing.result()
        finally:
            await end([publishing], 1.5)

    async def _keeper(self) -> None:
        """Keep the claims' CDI specs right, as the pools' are kept."""
        await self.driver.held.wait()
        while True:
            self.watch_files()
            await take(self._keep, self._settings.timing.backstop)
            if not self._loaded:
                await self._load()
            await self.preparer.keep()
