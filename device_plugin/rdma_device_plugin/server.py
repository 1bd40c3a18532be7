# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The RPCs of one resource. Answers come from memory; nothing here reads sysfs or manages sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Callable, Optional

import grpc

from . import cdi, log, pools
from .allocation import Offer, Refused
from .kubelet import deviceplugin_pb2 as api
from .kubelet import pluginregistration_pb2 as registration
from .kubelet import serve

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
PERMISSIONS = "rwm"


class Feed:
    """The newest value for any number of followers: a slow one skips replaced values, none misses the last."""

    def __init__(self, value: Any):
        self._value = value
        self._version = 0
        self._closed = False
        self._changed = asyncio.Event()

    def publish(self, value: Any) -> None:
        self._value = value
        self._version += 1
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self) -> AsyncIterator[Any]:
        seen = -1
        while not self._closed:
            changed = self._changed
            if seen != self._version:
                seen = self._version
                yield self._value
            else:
                await changed.wait()


def device_list(offer: Offer) -> api.ListAndWatchResponse:
    """The list for the kubelet; every message is complete."""
    answer = api.ListAndWatchResponse()
    for unit, healthy, nodes in offer.devices():
        device = answer.devices.add(ID=unit, health=HEALTHY if healthy else UNHEALTHY)
        for node in nodes:
            device.topology.nodes.add(ID=node)
    return answer


class Observer:
    """The events that a resource's lifecycle needs from its RPCs."""

    def streams_changed(self, count: int) -> None: ...

    def info_asked(self) -> None: ...

    def notified(self, registered: bool, error: str) -> None: ...


class Service:
    """Serves one resource on the sockets that the lifecycle binds.

    cdi_mode: None for character devices, else how CDI device names are passed. root: where /dev of the node is.
    stale: called when a device node of the pool is found missing.
    """

    def __init__(
        self,
        offer: Offer,
        cdi_mode: Optional[str] = None,
        root: str = "/",
        stale: Callable[[], None] = lambda: None,
    ):
        self.offer = offer
        self.observer = Observer()
        self.streams = 0
        self.updates = 0
        self.allocations: Counter[str] = Counter()
        # Cleared while the CDI spec cannot be written: containers then get character devices.
        self.cdi_ready = True
        self._cdi_mode = cdi_mode
        self._root = root
        self._stale = stale
        self._feed = Feed(device_list(offer))

    def offers(self, offer: Offer, force: bool) -> None:
        """Set a new offer. The kubelet gets it if something visible to it changed, or by force."""
        differs = force or not offer.same_for_kubelet(self.offer)
        self.offer = offer
        if differs:
            self.updates += 1
            self._feed.publish(device_list(offer))

    @property
    def name(self) -> str:
        return self.offer.pool.resource

    @property
    def socket(self) -> str:
        return self.offer.pool.socket

    @property
    def connected(self) -> bool:
        """Whether the kubelet listens to our list."""
        return self.streams > 0

    def kubelet_replaced(self) -> None:
        """Its ending streams also report that."""

    def attach(self, server: grpc.aio.Server) -> None:
        """Register both services: the kubelet calls GetInfo on the same socket as the rest."""
        serve(server, api, "DevicePlugin", self)
        serve(server, registration, "Registration", self)

    def close(self) -> None:
        """End the streams, so that a server can stop without waiting for them."""
        self._feed.close()

    def options(self) -> api.DevicePluginOptions:
        # With allocation `all` all units are equal; a call would only cost the kubelet time.
        return api.DevicePluginOptions(get_preferred_allocation_available=self.offer.pool.allocation != "all")

    # DevicePlugin

    async def GetDevicePluginOptions(self, request: Any, context: Any) -> api.DevicePluginOptions:
        return self.options()

    async def ListAndWatch(self, request: Any, context: Any) -> AsyncIterator[api.ListAndWatchResponse]:
        self.streams += 1
        self.observer.streams_changed(self.streams)
        try:
            async for answer in self._feed.follow():
                yield answer
        finally:
            self.streams -= 1
            self.observer.streams_changed(self.streams)

    async def GetPreferredAllocation(self, request: Any, context: Any) -> api.PreferredAllocationResponse:
        answer = api.PreferredAllocationResponse()
        for wanted in request.container_requests:
            answer.container_responses.add(
                deviceIDs=self.offer.prefer(
                    list(wanted.available_deviceIDs), list(wanted.must_include_deviceIDs), wanted.allocation_size
                )
            )
        return answer

    async def Allocate(self, request: Any, context: Any) -> api.AllocateResponse:
        answer = api.AllocateResponse()
        try:
            for wanted in request.container_requests:
                self._allocate(wanted.devices_ids, answer.container_responses.add())
        except Refused as refusal:
            self.allocations["refused"] += 1
            log.warning("Allocate refused", reason=str(refusal))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refusal))
        self.allocations["granted"] += len(answer.container_responses)
        return answer

    def _allocate(self, ids: Any, answer: api.ContainerAllocateResponse) -> None:
        offer = self.offer
        chosen = offer.hcas_of(ids)
        there = tuple(hca for hca in chosen if pools.present(self._root, pools.files(offer.pool, hca)))
        if there != chosen:
            self._stale()
            gone = ", ".join(hca.label for hca in chosen if hca not in there)
            if not there:
                raise Refused(f"{offer.pool.resource}: the character devices of {gone} are gone from /dev/infiniband")
            log.warning("Allocate leaves out an HCA whose nodes are gone", resource=offer.pool.resource, hca=gone)
        for name, value in offer.env(there).items():
            answer.envs[name] = value
        if self._cdi_mode and self.cdi_ready:
            names = cdi.qualified(offer, there)
            if self._cdi_mode == "annotations":
                answer.annotations[cdi.ANNOTATION] = ",".join(names)
            else:
                for name in names:
                    answer.cdi_devices.add(name=name)
            return
        for path in offer.files(there):
            answer.devices.add(container_path=path, host_path=path, permissions=PERMISSIONS)

    async def PreStartContainer(self, request: Any, context: Any) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()

    # pluginregistration.Registration

    async def GetInfo(self, request: Any, context: Any) -> registration.PluginInfo:
        self.observer.info_asked()
        # No endpoint: the kubelet then uses the path where it found us. Our path is that of our mount namespace and
        # would be wrong under another kubelet root.
        return registration.PluginInfo(
            type="DevicePlugin", name=self.offer.pool.resource, endpoint="", supported_versions=[VERSION]
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> registration.RegistrationStatusResponse:
        self.observer.notified(request.plugin_registered, request.error)
        return registration.RegistrationStatusResponse()
