# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The RPCs of the DRA driver: registration, claims in each version of the API, and the health of devices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc

from . import log
from .claims import Key
from .claimspecs import ids
from .devices import DRIVER, Device, Form
from .kubelet import (
    dra_health_v1alpha1_pb2,
    dra_health_v1alpha1_pb2_grpc,
    dra_v1_pb2,
    dra_v1_pb2_grpc,
    dra_v1beta1_pb2,
    dra_v1beta1_pb2_grpc,
    pluginregistration_pb2_grpc,
)
from .kubelet import pluginregistration_pb2 as registration
from .preparer import Preparer
from .server import Feed, Observer

# Services as the kubelet names them; it takes the first that it knows.
VERSIONS = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH = "v1alpha1.DRAResourceHealth"
# Seconds between health messages. The kubelet takes a device for unknown after 30 s without one.
REFRESH = 10.0


class DraService:
    """Serves the driver on whatever sockets the lifecycle binds. endpoint: where the kubelet finds the claims' RPCs."""

    name = DRIVER
    socket = f"{DRIVER}-reg.sock"

    def __init__(self, preparer: Preparer, node: str, endpoint: str):
        self.observer = Observer()
        self.connected = False
        self._preparer = preparer
        self._node = node
        self._endpoint = endpoint
        self._health = _Health(node)

    def attach(self, server: grpc.aio.Server) -> None:
        pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(self, server)
        first, second = _Plugin(dra_v1_pb2, self._preparer), _Plugin(dra_v1beta1_pb2, self._preparer)
        dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(first, server)
        dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(second, server)
        dra_health_v1alpha1_pb2_grpc.add_DRAResourceHealthServicer_to_server(self._health, server)

    def options(self) -> Any:
        raise NotImplementedError("a DRA driver registers by its socket alone")

    def kubelet_replaced(self) -> None:
        """The new one has to ask us again."""
        self.connected = False

    def close(self) -> None:
        self._health.feed.close()

    def health(self, known: Iterable[Device], forms: Iterable[Form], gone: Iterable[str], unknown: bool) -> None:
        """Publish the health of all devices, under the names of each form. gone: names of claims without an HCA."""
        self._health.publish(tuple(known), tuple(forms), tuple(gone), unknown)

    @property
    def watchers(self) -> int:
        return self._health.watchers

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


class _Plugin:
    """k8s.io.kubelet.pkg.apis.dra.*.DRAPlugin; the versions differ in nothing but share_id."""

    def __init__(self, api: Any, preparer: Preparer):
        self._api = api
        self._preparer = preparer
        self._shares = "share_id" in api.Device.DESCRIPTOR.fields_by_name

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:
        keys = {claim.uid: Key(claim.namespace, claim.name, claim.uid) for claim in request.claims}
        answers = await asyncio.gather(*(self._preparer.prepare(key) for key in keys.values()), return_exceptions=True)
        response = self._api.NodePrepareResourcesResponse()
        for uid, answer in zip(keys, answers):
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
                if self._shares and one.result.share is not None:
                    device.share_id = one.result.share
        return response

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        keys = {claim.uid: Key(claim.namespace, claim.name, claim.uid) for claim in request.claims}
        answers = await asyncio.gather(
            *(self._preparer.unprepare(key) for key in keys.values()), return_exceptions=True
        )
        response = self._api.NodeUnprepareResourcesResponse()
        for uid, answer in zip(keys, answers):
            response.claims[uid].error = _internal(answer) if isinstance(answer, BaseException) else answer
        return response


def _internal(error: BaseException) -> str:
    """One claim's surprise is not the others'."""
    log.error("a claim's call failed unexpectedly", reason=repr(error))
    return f"internal error of the driver: {error!r}; see its log"


class _Health:
    """v1alpha1.DRAResourceHealth: complete lists, sent anew before the kubelet's patience ends."""

    def __init__(self, node: str):
        self.feed = Feed(())
        self.watchers = 0
        self._node = node

    def publish(self, known: tuple[Device, ...], forms: tuple[Form, ...], gone: tuple[str, ...], unknown: bool) -> None:
        api = dra_health_v1alpha1_pb2
        found = dict.fromkeys(gone, api.UNHEALTHY)
        for device in known:
            health = api.UNKNOWN if unknown else api.HEALTHY if device.up else api.UNHEALTHY
            found.update((name, health) for form in forms for name in device.names(form))
        self.feed.publish(tuple(found.items()))

    async def NodeWatchResources(self, request: Any, context: Any) -> AsyncIterator[Any]:
        api = dra_health_v1alpha1_pb2
        self.watchers += 1
        try:
            async for found in self.feed.follow():
                answer, now = api.NodeWatchResourcesResponse(), int(time.time())
                for name, health in found:
                    answer.devices.add(
                        device=api.DeviceIdentifier(pool_name=self._node, device_name=name),
                        health=health,
                        last_updated_time=now,
                    )
                yield answer
        finally:
            self.watchers -= 1
