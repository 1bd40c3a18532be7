# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API server over lightkube, which is imported with the first call: it takes longer than the kubelet waits."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncGenerator
from typing import Any, Optional

from . import slices
from .devices import DRIVER
from .worker import Worker

FIELD_MANAGER = "gpufabric-rdma-device-plugin"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_CHECK = 10.0  # seconds between looks at the kubeconfig file


_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
# What an HTTP status means here, 0 without an answer; and a missing object.
_ADVICE: dict[Any, str] = {
    _UNTRUSTED: " (see the CA of the credential, and the node's clock)",
    "get node": " (is -node-name that of the Node object?)",
    0: " (is the API server up?)",
    401: " (the credential is not accepted: see -kubeconfig)",
    403: f" (the plugin's ClusterRole and its binding are missing, or the credential is of another node: {DRIVER})",
    404: " (the cluster has no resource.k8s.io/v1: Kubernetes 1.34 or newer is needed)",
}


class ApiProblem(Exception):
    """A failed call; the text is for people. code: HTTP status, 0 without one. gone: only the object, not its type."""

    def __init__(self, text: str, code: int = 0, gone: bool = False):
        super().__init__(text)
        self.code, self.gone = code, gone


class Api:
    """The few calls that DRA needs. kubeconfig: empty for the pod's service account. timeout: seconds for each."""

    def __init__(self, kubeconfig: str, node: str, timeout: float = 10.0):
        self.node = node
        self._fields = {"spec.nodeName": node, "spec.driver": DRIVER}
        self._kubeconfig = kubeconfig
        self._timeout = timeout
        # Imports and TLS set-up, off the event loop.
        self._worker = Worker("api")
        self._opening = asyncio.Lock()
        self._client: Any = None
        self._stamp: Any = None
        self._checked = 0.0
        self._kinds: Any = None

    async def node_uid(self) -> str:
        found = await self._call("get", "node", self.node)
        return str((found.get("metadata") or {}).get("uid") or "")

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        return await self._call("get", "claim", name, namespace=namespace)

    async def slices(self) -> tuple[dict[str, slices.Slice], str]:
        """({name: slice}, resource version) of this node and driver."""
        client = await self._open()
        try:
            listing = client.list(self._kinds["slice"], fields=self._fields)
            found = {one["metadata"]["name"]: dict(one) async for one in listing}
            return found, listing.resourceVersion
        except Exception as error:
            raise self._problem(error, "list resourceslices") from error

    async def watch(self, version: str, seconds: int) -> AsyncGenerator[tuple[str, slices.Slice], None]:
        """(type, slice) of each change after a resource version; ends only with an error."""
        client = await self._open()
        changes = client.watch(
            self._kinds["slice"], fields=self._fields, server_timeout=seconds, resource_version=version
        )
        try:
            async for kind, found in changes:
                yield kind, dict(found)
        except Exception as error:
            raise self._problem(error, "watch resourceslices") from error
        finally:
            await changes.aclose()  # else its connection stays open until the garbage is collected

    async def write(self, step: slices.Step, dry_run: bool = False) -> slices.Slice:
        """Carry out a step; returns the API server's object. Empty for a deletion, even of a slice already gone."""
        if step.verb != "delete":
            options = {"field_manager": FIELD_MANAGER, "dry_run": dry_run}
            return await self._call(step.verb, "slice", body=step.body, **options)
        try:
            await self._call("delete", "slice", step.name)
        except ApiProblem as problem:
            if problem.code != 404:
                raise
        return {}

    async def close(self) -> None:
        client, self._client = self._client, None
        if client:
            await client.close()
        self._worker.close()

    # Below.

    async def _call(
        self, method: str, kind: str, *arguments: Any, body: Optional[dict[str, Any]] = None, **options: Any
    ) -> dict[str, Any]:
        client = await self._open()
        what = self._kinds[kind] if body is None else self._kinds[kind](body)
        try:
            return dict(await getattr(client, method)(what, *arguments, **options) or {})
        except Exception as error:
            raise self._problem(error, f"{method} {kind}") from error

    async def _open(self) -> Any:
        """The client, recreated when the credentials changed or no longer work."""
        async with self._opening:
            now = time.monotonic()
            if self._client is not None and now - self._checked < _CHECK:
                return self._client
            self._checked = now
            stamp = await self._worker.run(_stamp, self._kubeconfig)
            if self._client is None or stamp != self._stamp:
                before, self._client = self._client, None
                if before:
                    await before.close()
                try:
                    self._client, self._kinds = await self._worker.run(_connect, self._kubeconfig, self._timeout)
                except Exception as error:
                    seen = f"{self._kubeconfig or SERVICE_ACCOUNT}: {type(error).__name__}: {error}"
                    raise ApiProblem(f"no access to the API server: {seen}; give a file with -kubeconfig") from error
                self._stamp = stamp
            return self._client

    def _problem(self, error: Exception, what: str) -> ApiProblem:
        """Any error of a network library is a failed call, never the end of the plugin."""
        response = getattr(error, "response", None)
        status = getattr(error, "status", None)
        code = getattr(response, "status_code", 0) or getattr(status, "code", 0) or 0
        if code in (0, 401):
            self._stamp, self._checked = None, 0.0  # certificates and tokens rotate: read them again
        detail = str(error).strip().partition("\n")[0] or type(error).__name__
        gone = code == 404 and bool(getattr(getattr(status, "details", None), "name", None))
        advice = _ADVICE.get(_UNTRUSTED if _UNTRUSTED in detail else what if gone else int(code), "")
        return ApiProblem(f"{what}: {detail}{advice}", int(code), gone)


def _stamp(kubeconfig: str) -> Any:
    try:
        status = os.stat(kubeconfig or f"{SERVICE_ACCOUNT}/token")
    except OSError as error:
        return error.errno
    return status.st_ino, status.st_size, status.st_mtime_ns


def _connect(kubeconfig: str, timeout: float) -> tuple[Any, dict[str, Any]]:
    """(client, {name: class of a kind})."""
    from lightkube import AsyncClient, KubeConfig
    from lightkube.core.generic_client import httpx

    config = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_service_account()
    # No proxy from the environment: the API server is in the cluster, and NO_PROXY is often a list of networks.
    return AsyncClient(config=config.get(), timeout=httpx.Timeout(timeout), trust_env=False), _kinds()


@functools.cache  # the library accepts each kind once
def _kinds() -> dict[str, Any]:
    """Plain dictionaries, so no field gets lost with any version of the cluster."""
    from lightkube.generic_resource import create_global_resource, create_namespaced_resource

    group, _slash, version = slices.API_VERSION.partition("/")
    return {
        "node": create_global_resource("", "v1", "Node", "nodes"),
        "slice": create_global_resource(group, version, slices.KIND, "resourceslices"),
        "claim": create_namespaced_resource(group, version, "ResourceClaim", "resourceclaims"),
    }
