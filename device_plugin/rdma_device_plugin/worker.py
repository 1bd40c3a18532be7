# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Waits that can always be cancelled, and a thread for reads that may hang.

sysfs of a NIC with stuck firmware responds after minutes or never.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Iterable
from typing import Any, Callable, Optional

from . import log


class Worker:
    """Runs one job after the other in a daemon thread: unlike with a ThreadPoolExecutor, a hung job does not keep the
    process from exiting.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._busy_since: Optional[float] = None
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def hangs(self) -> float:
        """Seconds that the current job has taken so far."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    async def run(self, job: Callable[..., Any], *arguments: Any) -> Any:
        """The job's result. A caller may give up waiting; the job continues."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._jobs.put((loop, future, job, arguments))
        return await future

    async def within(self, seconds: float, job: Callable[..., Any], *arguments: Any) -> Any:
        """The job's result. asyncio.TimeoutError after `seconds`, or at once while an earlier job hangs that long."""
        if self.hangs() > seconds:
            raise asyncio.TimeoutError
        # Not asyncio.wait_for, see `take`.
        task = asyncio.ensure_future(self.run(job, *arguments))
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            task.cancel()
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()

    def close(self) -> None:
        self._jobs.put(None)

    def _pause(self, event: threading.Event, seconds: float) -> bool:
        """For a job: whether an event came within this many seconds, which do not count as hung."""
        self._busy_since = None
        try:
            return event.wait(seconds)
        finally:
            self._busy_since = time.monotonic()

    def _work(self) -> None:
        while True:
            item = self._jobs.get()
            if item is None:
                return
            loop, future, job, arguments = item
            self._busy_since = time.monotonic()
            result: Any = None
            failure: Optional[BaseException] = None
            try:
                result = job(*arguments)
            except BaseException as error:  # noqa: BLE001 - any error is the caller's, not this thread's
                failure = error
            self._busy_since = None
            try:
                loop.call_soon_threadsafe(_settle, future, result, failure)
            except RuntimeError:
                return  # the loop is closed: nothing is waiting any more


class Poller(Worker):
    """Repeats a read that may hang. A look without news does not wake the event loop, which would take three times as
    long as the look itself.
    """

    def __init__(self, name: str) -> None:
        self._nudged = threading.Event()
        self._closed = False
        super().__init__(name)

    def nudge(self) -> None:
        """Look now, and report the result in any case."""
        self._nudged.set()

    def close(self) -> None:
        self._closed = True
        self.nudge()
        super().close()

    async def until(self, look: Callable[[], Any], known: Any, every: float, most: float) -> Any:
        """The result of `look` once it differs from `known`, at the latest after `most` seconds or a nudge."""
        return await self.run(self._until, look, known, every, most)

    def _until(self, look: Callable[[], Any], known: Any, every: float, most: float) -> Any:
        deadline = time.monotonic() + most
        while True:
            left = deadline - time.monotonic()
            nudged = self._pause(self._nudged, max(0.0, min(every, left)))
            self._nudged.clear()
            found = look()
            if nudged or left <= every or found != known or self._closed:
                return found


def _settle(future: asyncio.Future, result: Any, failure: Optional[BaseException]) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(result)


async def take(event: asyncio.Event, seconds: Optional[float]) -> None:
    """Wait for an event, at most this long, and clear it.

    Not asyncio.wait_for: before Python 3.12 that swallows a cancellation that coincides with the event.
    """
    waiter = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiter}, timeout=seconds)
    finally:
        waiter.cancel()
    event.clear()


def backstop(period: float) -> float:
    """Seconds to the next multiple of a period on the loop's clock, so all its waiters wake together."""
    return period - asyncio.get_running_loop().time() % period


async def end(tasks: Iterable[asyncio.Future], seconds: float) -> None:
    """Cancel tasks and wait for their end, at most this long: one that swallows its cancellation is reported and left.

    A task that ends other tasks gets longer than those: publisher 1 s, then dra 1.5 and 2, then daemon.
    """
    tasks = set(tasks)
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, left = await asyncio.wait(tasks, timeout=seconds)
    for task in ended:
        if not task.cancelled():
            task.exception()  # has been seen
    for task in left:
        log.error("a task does not end, continuing without it", task=_where(task))


def _where(task: asyncio.Future) -> str:
    """The frames in which a task waits, outermost first."""
    names = []
    at: Any = task.get_coro() if isinstance(task, asyncio.Task) else None
    while at is not None and len(names) < 20:
        names.append(getattr(at, "__qualname__", type(at).__name__))
        at = getattr(at, "cr_await", None) or getattr(at, "ag_await", None)
    return " > ".join(names) or repr(task)
