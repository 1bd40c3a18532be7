# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The DRA side of the daemon: devices from the node's state, published and prepared, its RPCs. Imported if used."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any, Callable, Optional

import grpc

from . import devices, log, modes, pools
from .claims import Key, Refused
from .claimspecs import ids
from .config import Pool
from .devices import DRIVER, Device, Form
from .events import Directories
from .kubeapi import Api, ApiProblem
from .kubelet import dra_health_v1alpha1_pb2 as health_api
from .kubelet import dra_v1_pb2 as api
from .kubelet import pluginregistration_pb2 as registration
from .kubelet import serve
from .lifecycle import WATCH, Places, Resource, Settings, Timing
from .modes import Split
from .pools import Inventory, Memory, Ports
from .preparer import Preparer
from .publisher import Publisher
from .server import Feed, Observer
from .sockets import Listener
from .worker import Worker, end, take

# The kubelet's names of services; it takes the first that it knows. v1beta1 is v1 with an optional share_id.
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH = "v1alpha1.DRAResourceHealth"
# Seconds between health messages. After 30 s without one the kubelet considers a device unknown.
REFRESH = 10.0


class DraService:
    """Serves the driver on the sockets that the lifecycle binds. endpoint: where the kubelet finds the claims' RPCs."""

    name = DRIVER
    socket = f"{DRIVER}-reg.sock"

    def __init__(self, preparer: Preparer, node: str, endpoint: str):
        self.observer = Observer()
        self.connected = False
        self._preparer, self._node, self._endpoint = preparer, node, endpoint
        self._health = Feed(())

    def attach(self, server: grpc.aio.Server) -> None:
        serve(server, registration, "Registration", self)
        for version in VERSIONS:
            serve(server, api, "DRAPlugin", self, f"k8s.io.kubelet.pkg.apis.dra.{version}")
        serve(server, health_api, "DRAResourceHealth", self)

    def options(self) -> Any:
        raise NotImplementedError("a DRA driver registers only by its socket")

    def kubelet_replaced(self) -> None:
        """The new kubelet has to ask us again."""
        self.connected = False

    def close(self) -> None:
        self._health.close()

    def health(self, known: Iterable[Device], forms: list[Form], gone: list[str], unknown: bool) -> None:
        """Publish the health of all devices, under the names of each form. gone: names of claims without an HCA."""
        by_name = dict.fromkeys(gone, health_api.UNHEALTHY)
        for device in known:
            health = health_api.UNKNOWN if unknown else health_api.HEALTHY if device.up else health_api.UNHEALTHY
            by_name.update((name, health) for form in forms for name in device.names(form))
        self._health.publish(tuple(by_name.items()))

    # pluginregistration.Registration

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        self.observer.info_asked()
        return registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=self._endpoint, supported_versions=[*VERSIONS, HEALTH]
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        self.connected = request.plugin_registered
        self.observer.notified(request.plugin_registered, request.error)
        return registration.RegistrationStatusResponse()

    # k8s.io.kubelet.pkg.apis.dra.*.DRAPlugin

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        response = api.NodePrepareResourcesResponse()
        for uid, answer in await _each_claim(request, self._preparer.prepare):
            entry = response.claims[uid]
            record, entry.error = (None, _internal(answer)) if isinstance(answer, BaseException) else answer
            if entry.error:
                continue
            for one, qualified in zip(record.devices, ids(record)):
                device = entry.devices.add(
                    request_names=one.result.requests,
                    pool_name=one.result.pool,
                    device_name=one.result.device,
                    cdi_device_ids=[qualified],
                )
                if one.result.share is not None:
                    device.share_id = one.result.share
        return response

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        response = api.NodeUnprepareResourcesResponse()
        for uid, answer in await _each_claim(request, self._preparer.unprepare):
            response.claims[uid].error = _internal(answer) if isinstance(answer, BaseException) else answer
        return response

    # v1alpha1.DRAResourceHealth: complete lists, sent again before the kubelet's timeout.

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        async for by_name in self._health.follow():
            answer, now = health_api.NodeWatchResourcesResponse(), int(time.time())
            for name, health in by_name:
                answer.devices.add(
                    device=health_api.DeviceIdentifier(pool_name=self._node, device_name=name),
                    health=health,
                    last_updated_time=now,
                )
            yield answer


async def _each_claim(request: Any, job: Callable[[Key], Awaitable[Any]]) -> Iterable[tuple[str, Any]]:
    """(uid, answer or error) of a job for each claim of a request, all at once."""
    keys = {claim.uid: Key(claim.namespace, claim.name, claim.uid) for claim in request.claims}
    return zip(keys, await asyncio.gather(*map(job, keys.values()), return_exceptions=True))


def _internal(error: BaseException) -> str:
    """An unexpected error of one claim must not affect the others."""
    log.error("a claim's call failed unexpectedly", reason=repr(error))
    return f"internal error of the driver: {error!r}; see its log"


SOCKET = "dra.sock"
# Seconds between comparisons of the prepared claims with the API server.
COMPARE = 300.0


class Driver(Resource):
    """Registers the driver: its RPCs have a separate socket, which exists before the kubelet hears of it."""

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
        # The registration goes first, so the kubelet does not look for RPCs that are gone.
        await super().stop()
        await self._rpcs.stop(self._timing.stop)


class Front:
    """DRA for the daemon: `start`, `update` with each change of the node, `run` forever, `stop`."""

    def __init__(
        self,
        settings: Settings,
        directories: Directories,
        files: Worker,
        stale: Callable[[], None],
        hung: Callable[[], bool],
    ):
        self.node = settings.node_name
        self.overlap = ""
        self.devices: tuple[Device, ...] = ()
        self.pools: tuple[Pool, ...] = ()
        self.memories: dict[str, Memory] = {}
        self.task: Optional[asyncio.Task] = None
        home = f"{settings.plugins_directory}/{DRIVER}"
        self._settings, self._hung = settings, hung
        self._directories = directories
        self._api = Api(settings.kubeconfig, self.node, settings.api_timeout)
        self.publisher = Publisher(self._api)
        self.preparer = Preparer(
            self._api,
            files,
            settings.cdi_directory,
            root=settings.root,
            networks=settings.claim_networks,
            patience=settings.cdi_patience,
            stale=stale,
        )
        self.service = DraService(self.preparer, self.node, f"{home}/{SOCKET}")
        self.driver = Driver(self.service, settings.places, directories, settings.timing, home)
        self._loaded = False
        self._keep = asyncio.Event()

    async def start(self) -> None:
        """Read the prepared claims, then serve the kubelet; both only once no other instance serves here."""
        self.driver.begin = self._load
        self.task = asyncio.ensure_future(self.driver.run())

    async def _load(self) -> None:
        try:
            await self.preparer.load()
            self._loaded = True
        except Refused as refusal:
            log.on_change("prepared", "the prepared claims cannot be read yet", logging.ERROR, reason=str(refusal))

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
        """Adopt the node's present state."""
        self.pools = parts.dra
        overlaps = modes.overlaps(parts, inventory)
        self.overlap = "; ".join(overlaps.values())
        if self.overlap:
            log.on_change("overlap", "left out over DRA", logging.ERROR, reason=self.overlap)
        # An HCA that starts to overlap while serving stays with its first entry.
        inventory = inventory._replace(hcas=tuple(hca for hca in inventory.hcas if hca.label not in overlaps))
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
        """What keeps DRA from working, one line each."""
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
        forms = [self.publisher.form] if self.publisher.form else [Form(True), Form(False)]
        self.service.health(self.devices, forms, gone, self._hung())

    async def _refresher(self) -> None:
        while True:
            self._tell_health()
            await asyncio.sleep(REFRESH)

    async def _speak(self) -> None:
        """With the API server, once the kubelet knows us: the library's import takes longer than the kubelet waits."""
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
                    log.on_change("rebuild", "prepared claims have not been recovered yet", reason=str(problem))
                    await asyncio.wait({publishing}, timeout=self._settings.timing.backstop)
            publishing.result()
        finally:
            await end([publishing], 1.5)

    async def _keeper(self) -> None:
        """Keep the claims' CDI specs correct, like those of pools."""
        await self.driver.held.wait()
        while True:
            self._directories.watch(self._settings.cdi_directory, self._cdi_changed)
            await take(self._keep, self._settings.timing.backstop)
            if not self._loaded:
                await self._load()
            await self.preparer.keep()
