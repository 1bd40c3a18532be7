# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps the node's ResourceSlices as they should be: writes, reads back, and restores removed ones.

A starting kubelet deletes its node's slices, and an API server silently drops fields of gates that are off: a dry run
decides the form, and every answer is compared with the request.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from typing import Optional

from . import devices, log, slices
from .devices import Device, Form
from .kubeapi import Api, ApiProblem
from .worker import end

# Seconds: until everything is read again, gates included; from a change to the write, so that one write serves a burst;
# the first and the longest wait before a new try.
_WATCH, _SETTLE, _RETRY_FIRST, _RETRY_MOST = 300, 0.05, 0.2, 5.0
# How often in a row to write a slice that the API server keeps changing.
_REWRITES = 5


class Stale(Exception):
    """The slices have to be read again."""


class Publisher:
    """Publishes `offer`ed devices as long as `run` runs. error: why it cannot now; empty while all is well."""

    def __init__(self, api: Api):
        self.error = ""
        self.form: Optional[Form] = None
        self.published = 0
        self.writes = 0
        self.current = False
        self._api = api
        self._wanted: tuple[Device, ...] = ()
        self._seen: dict[str, slices.Slice] = {}
        self._gone: set[str] = set()
        self._owner = slices.Owner(api.node, "")
        self._kept = slices.Kept()
        self._wake = asyncio.Event()
        self._failures = 0

    def offer(self, wanted: Iterable[Device]) -> bool:
        """Set the devices; True if they differ from the last ones."""
        wanted = tuple(wanted)
        if wanted == self._wanted:
            return False
        self._wanted = wanted
        self.current = False
        self._wake.set()
        return True

    async def run(self) -> None:
        while True:
            try:
                await self._session()
            except Stale:
                continue
            except ApiProblem as problem:
                self._failures += 1
                self.error, self.current = str(problem), False
                text = "the ResourceSlices cannot be kept up to date"
                log.on_change("slices", text, logging.WARNING, reason=self.error)
                most = min(_RETRY_FIRST * 2 ** min(self._failures, 16), _RETRY_MOST)
                await asyncio.sleep(most * random.uniform(0.5, 1.0))

    async def _session(self) -> None:
        """Read everything, then work until it has to be read again."""
        self._owner = slices.Owner(self._api.node, await self._api.node_uid())
        self._seen, version = await self._api.slices()
        self._gone = set()
        await self._probe()
        watching = asyncio.ensure_future(self._watch(version))
        deadline = asyncio.get_running_loop().time() + _WATCH * random.uniform(0.9, 1.0)
        try:
            rewrites = 0
            while True:
                wrote = await self._reconcile()
                rewrites = rewrites + 1 if wrote else 0
                if rewrites > _REWRITES:
                    raise ApiProblem("resourceslices: something else keeps changing the plugin's slices")
                if wrote:
                    continue
                self._failures, self.error, self.current = 0, "", True
                await self._change(watching, deadline)
        finally:
            await end([watching], 1.0)

    async def _change(self, watching: asyncio.Future, deadline: float) -> None:
        """Wait for a change on either side. Stale if the watch has lasted long enough, or cannot continue."""
        waking = asyncio.ensure_future(self._wake.wait())
        left = deadline - asyncio.get_running_loop().time()
        try:
            done, _pending = await asyncio.wait({waking, watching}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()
        if watching in done:
            try:
                watching.result()
            except ApiProblem as problem:
                if problem.code in (0, 401, 403):
                    raise
        if watching in done or not done:
            raise Stale  # 410, too far behind, among others
        await asyncio.sleep(_SETTLE)
        self._wake.clear()

    async def _watch(self, version: str) -> None:
        """Follow the slices. Ends with Stale if one is gone, or with an error."""
        changes = self._api.watch(version, _WATCH)
        try:
            async for kind, found in changes:
                self._note(kind, found)
        finally:
            await changes.aclose()

    def _note(self, kind: str, found: slices.Slice) -> None:
        name = found["metadata"]["name"]
        if kind == "DELETED":
            self._gone.add(name)
            if name in self._seen:
                raise Stale  # by a starting kubelet, with its Node object, or by hand: not by us
            return
        there = self._seen.get(name)
        if there is None or _version(found) > _version(there):
            self._seen[name] = found
            self._wake.set()

    async def _probe(self) -> None:
        """The gated fields that this API server keeps."""
        answer = await self._api.write(slices.Step("create", "", slices.probe(self._owner)), dry_run=True)
        self.form = slices.form(answer)
        log.on_change(
            "form",
            "form of the ResourceSlices",
            sharing="consumable capacity" if self.form.shared else "one device per share",
            down="taint" if self.form.taints else "leaves the pool",
        )

    async def _reconcile(self) -> bool:
        """One round of writes; False if there was nothing to write."""
        form = self.form or Form()
        self._wake.clear()
        wanted = slices.chunks(devices.published(self._wanted, form), form)
        self.published = sum(map(len, wanted))
        steps = slices.plan(self._seen, wanted, self._owner, self._kept)
        for step in steps:
            try:
                await self._carry_out(step)
            except ApiProblem as problem:
                if problem.code in (404, 409):
                    log.on_change("conflict", "a slice was changed by others, reading all again", logging.DEBUG)
                    await asyncio.sleep(_SETTLE)
                    raise Stale from None
                raise
        if steps:
            count, size = self.published, len(wanted)
            log.on_change("published", "ResourceSlices written", devices=count, slices=size, number=self.writes)
        return bool(steps)

    async def _carry_out(self, step: slices.Step) -> None:
        if step.verb == "delete":
            self._seen.pop(step.name, None)  # before the write: the watch must not take it for a foreign one
        answer = await self._api.write(step)
        self.writes += 1
        if step.verb == "delete":
            return
        name = answer["metadata"]["name"]
        if name in self._gone:
            raise Stale  # its deletion was seen before the answer to its creation
        if name not in self._seen or _version(answer) > _version(self._seen[name]):
            self._seen[name] = answer
        if not self._kept.note(step.body, answer):
            before = self.form
            await self._probe()
            if self.form == before:
                log.on_change("kept", "the API server changes the plugin's slices", logging.WARNING)


def _version(found: slices.Slice) -> int:
    text = str(found["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
