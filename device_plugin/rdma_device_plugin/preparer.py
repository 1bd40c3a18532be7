# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepares claims: an allocation becomes a CDI spec. Each claim gets an answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterable
from typing import Any, Callable, Optional

from . import allocation, claims, claimspecs, devices, log, pools
from .claims import Key, Prepared, Record, Refused, Result
from .devices import Device
from .kubeapi import Api, ApiProblem
from .pools import Inventory
from .worker import Worker


class Preparer:
    """The claims of this node.

    root: where /dev of the node is. networks: path of the networks' CNI configurations up to a network's name; empty
    without networks in claims. stale: called when a character device of the pool is found missing.
    patience: seconds for a write of a file.
    """

    def __init__(
        self,
        api: Api,
        files: Worker,
        cdi_directory: str,
        root: str = "/",
        networks: str = "",
        patience: float = 5.0,
        stale: Callable[[], None] = lambda: None,
    ):
        self.records: dict[str, Record] = {}
        self.error = ""
        self.devices: tuple[Device, ...] = ()
        self.inventory = Inventory()
        self._api, self._files, self._cdi = api, files, cdi_directory
        self._root, self._networks, self._patience, self._stale = root, networks, patience, stale
        self._writing = asyncio.Lock()
        self._claims: dict[str, tuple[asyncio.Lock, int]] = {}
        # Claims with an incomplete spec: damaged, or of an older version.
        self._unknown: dict[str, Optional[Key]] = {}

    # Start.

    async def load(self) -> None:
        """Read the specs, and correct those whose HCA has different files by now."""
        await self._file(claimspecs.sweep, self._cdi)
        self.records, self._unknown = await self._file(claimspecs.load, self._cdi)
        await self.keep()
        log.info("prepared claims", known=len(self.records), to_be_found=len(self._unknown))

    async def rebuild(self) -> None:
        """Ask the API server for the claims with incomplete specs. ApiProblem: unknown yet, so it stays."""
        for uid, key in list(self._unknown.items()):
            async with self._lock(uid):
                if uid not in self._unknown:
                    continue
                try:
                    record = await self._known_again(uid, key)
                except Refused as refusal:
                    log.warning("a CDI spec without a claim is removed", uid=uid, reason=str(refusal))
                    await self._change(uid, None)
                    continue
                if record:
                    await self._change(uid, record)
                    log.info("a prepared claim was recovered", claim=record.key.text, uid=uid)

    async def compare(self) -> None:
        """Release prepared claims that ended unnoticed: deleted, recreated, reserved for no pod, or allocated anew.
        ApiProblem: the end of one is unknown, so it stays.
        """
        for uid in list(self.records):
            async with self._lock(uid):
                record = self.records.get(uid)
                if record is None:
                    continue
                _found, why = await self._ended(record.key, tuple(one.result for one in record.devices))
                if why:
                    log.warning("a prepared claim is released", claim=record.key.text, uid=uid, reason=why)
                    await self._change(uid, None)

    async def _ended(self, key: Key, before: Optional[tuple[Result, ...]] = None) -> tuple[Any, str]:
        """(claim, why it has ended), see claims.ended. ApiProblem: unknown."""
        try:
            found = await self._api.claim(key.namespace, key.name)
        except ApiProblem as problem:
            if not problem.gone:
                raise
            return None, "it was deleted"
        return found, claims.ended(found, key, before)

    async def _known_again(self, uid: str, key: Optional[Key]) -> Optional[Record]:
        """None while it cannot be prepared, such as without its HCA: the existing spec is better than nothing."""
        if key is None:
            raise Refused(f"the spec of uid {uid} does not identify its claim")
        found, why = await self._ended(key)
        if why:
            raise Refused(f"claim {key.text}: {why}")
        try:
            return self._record(key, found, claims.results(found, key, self._api.node), check=False)
        except Refused as refusal:
            log.on_change(f"claim {uid}", "a prepared claim is not recovered yet", logging.WARNING, reason=str(refusal))
            return None

    # The kubelet's calls.

    async def prepare(self, key: Key) -> tuple[Record, str]:
        """(record, error text) for one claim; a repeated call gets the same answer."""
        try:
            claims.check(key)
            async with self._lock(key.uid):
                record = await self._allocated(key)
                await self._change(key.uid, record)
            return record, ""
        except (Refused, ApiProblem) as error:
            text = str(error)
            log.on_change(f"claim {key.uid[:64]}", "claim not prepared", logging.WARNING, reason=text)
            return Record(key), text

    async def unprepare(self, key: Key) -> str:
        """Error text; empty for an unknown claim, which is not prepared."""
        if not claims.valid_uid(key.uid):
            return ""
        async with self._lock(key.uid):
            try:
                await self._change(key.uid, None)
            except Refused as refusal:
                return f"claim {key.text}: {refusal}"
        log.forget(f"claim {key.uid}")
        return ""

    async def _allocated(self, key: Key) -> Record:
        """The present record, unless the claim has ended or has other devices by now, as far as the API server says."""
        record = self.records.get(key.uid)
        try:
            claim = await self._api.claim(key.namespace, key.name)
        except ApiProblem as problem:
            if record and not problem.gone:
                return record
            raise Refused(f"claim {key.text}: it cannot be read: {problem}; the kubelet tries again") from None
        results = claims.results(claim, key, self._api.node)
        if record and results == tuple(one.result for one in record.devices):
            return record
        return self._record(key, claim, results)

    def _record(self, key: Key, claim: Any, results: tuple[Result, ...], check: bool = True) -> Record:
        pod = claims.pod(claim, key) if any(result.network for result in results) else ""
        chosen, attributes = [], []
        for result in results:
            device = self._device(result, key)
            chosen.append(self._prepared(result, device, key, check))
            attributes.append(devices.attributes(device))
        metadata = claims.metadata(claim, key, attributes)
        return Record(key, tuple(_with_env(chosen, self.devices)), pod, metadata)

    def _device(self, result: Result, key: Key) -> Device:
        device = devices.find(result.device, self.devices)
        if device is None:
            names = ", ".join(sorted(device.name for device in self.devices)[:10])
            removed = f"it has {names}. Was its HCA removed? Delete the pod, it will be rescheduled"
            raise Refused(
                f"claim {key.text}: device {claims.shown(result.device)} is not on this node any more; "
                + (removed if names else "it has none. Its driver may not be loaded yet; the kubelet tries again")
            )
        return device

    def _prepared(self, result: Result, device: Device, key: Key, check: bool) -> Prepared:
        if check:
            self._usable(device, key)
        network = self._network(device, key) if result.network else ""
        return Prepared(result, device.hca.name, device.port, self._paths(device), network=network)

    def _usable(self, device: Device, key: Key) -> None:
        if self.inventory.exclusive:
            raise Refused(
                f"claim {key.text}: the RDMA subsystem is in netns mode exclusive, wanted shared (role rdma_netns)"
            )
        if not pools.present(self._root, pools.files(device.pool, device.hca)):
            self._stale()
            raise Refused(
                f"claim {key.text}: the character devices of {device.hca.label} are gone from /dev/infiniband"
            )

    def _network(self, device: Device, key: Key) -> str:
        number = devices.rail(device)
        name = f"rail{number}"
        path = f"{self._root.rstrip('/')}{self._networks}{name}"
        if number is None:
            seen = "it is not a rail"
        elif not self._networks:
            seen = "-claim-networks is empty"
        elif any(os.path.exists(f"{path}.{end}") for end in ("conf", "conflist")):
            return name
        else:
            seen = f"no {path}.conf"
        raise Refused(
            f"claim {key.text}: wanted the network of the rail of {device.hca.label}, seen {seen}; set "
            "networks_in_claims: true and run ansible-playbook gpufabric.rdma.cluster"
        )

    def _paths(self, device: Device) -> tuple[str, ...]:
        offer = allocation.Offer(device.pool, common=self.inventory.common)
        return tuple(offer.files((device.hca,)))

    # Files.

    async def keep(self) -> None:
        """Correct the CDI specs of claims whose HCA came back with other file names, and lost specs."""
        by_hca = {(device.hca.name, device.port): device for device in self.devices}
        for record in list(self.records.values()):
            try:
                async with self._lock(record.key.uid):
                    if self.records.get(record.key.uid) is record:  # and not unprepared meanwhile
                        await self._kept(record, by_hca)
            except Refused as refusal:
                log.on_change("claims", str(refusal), logging.ERROR)
                return

    async def _kept(self, record: Record, by_hca: dict[tuple[str, Optional[int]], Device]) -> None:
        present = (by_hca.get((prepared.hca, prepared.port)) for prepared in record.devices)
        chosen = tuple(
            prepared._replace(files=(device and self._paths(device)) or prepared.files)
            for prepared, device in zip(record.devices, present)
        )
        await self._change(record.key.uid, record._replace(devices=chosen))

    async def _change(self, uid: str, record: Optional[Record]) -> None:
        """Write the claim's spec, or remove it, and only then record it.

        Both, even if the caller is cancelled because the kubelet hung up: the folder must not differ from our record.
        """
        changing = asyncio.ensure_future(self._changed(uid, record))
        changing.add_done_callback(_seen)
        await asyncio.shield(changing)

    async def _changed(self, uid: str, record: Optional[Record]) -> None:
        async with self._writing:
            if record:
                await self._file(claimspecs.write, self._cdi, record)
                self.records[uid] = record
            else:
                await self._file(claimspecs.remove, self._cdi, uid)
                self.records.pop(uid, None)
            self._unknown.pop(uid, None)

    async def _file(self, job: Callable[..., Any], *arguments: Any) -> Any:
        """A job on files; Refused if it fails or hangs."""
        try:
            answer = await self._files.within(self._patience, job, *arguments)
        except asyncio.TimeoutError:
            self.error = f"{arguments[0]}: a file operation does not return"
            raise Refused(f"{self.error} (a hung mount?)") from None
        except OSError as error:
            self.error = f"{error.filename or arguments[0]}: {error.strerror}"
            raise Refused(self.error) from None
        self.error = ""
        return answer

    @contextlib.asynccontextmanager
    async def _lock(self, uid: str) -> AsyncIterator[None]:
        """One at a time per claim; other claims do not wait, because an API server may be slow."""
        lock, users = self._claims.get(uid) or (asyncio.Lock(), 0)
        self._claims[uid] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            users = self._claims[uid][1] - 1
            if users:
                self._claims[uid] = lock, users
            else:
                del self._claims[uid]


def _seen(task: asyncio.Future) -> None:
    """The waiting caller reports a failure; if it is gone, the kubelet asks again."""
    if not task.cancelled():
        task.exception()


def _with_env(chosen: list[Prepared], known: Iterable[Device]) -> list[Prepared]:
    """Environment for the libraries, as set in each HCA's entry.

    RDMA_<REQUEST>_DEVICES lists the HCAs of a request. NCCL's and UCX's variables exist once per container, so they
    list the HCAs of the whole claim.
    """
    entries = {(device.hca.name, device.port): device.pool for device in known}
    places = list(dict.fromkeys(f"{one.hca}:{one.port or 1}" for one in chosen))
    made = []
    for one in chosen:
        words = entries[one.hca, one.port].env if (one.hca, one.port) in entries else ()
        beside = {
            request: dict.fromkeys(other.hca for other in chosen if request in other.result.requests)
            for request in (one.result.requests if words else ())
        }
        made.append(one._replace(env=tuple(allocation.variables(words, beside, places).items())))
    return made
