# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin's state, which the daemon writes, as sentences: for the log, /readyz and /metrics, and a manager.

Nothing is served unless an address is given: upstream opens no port, and hosts share theirs.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Optional

from . import log, pools
from .config import Config, Pool
from .hca import Tree
from .lifecycle import Resource, Settings
from .pools import Inventory, Memory, Ports
from .server import Service
from .worker import Poller, Worker

if TYPE_CHECKING:
    from .dra import Front


class Served:
    """A served pool. task: its registration, once it has started."""

    task: asyncio.Task

    def __init__(self, pool: Pool, service: Service, resource: Resource, memory: Memory) -> None:
        self.pool = pool
        self.service = service
        self.resource = resource
        self.memory = memory


class State:
    """All pools of one node, by name, and the result of the last scan."""

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
        # The DRA side, if the mode has one.
        self.front: Optional[Front] = None
        # Reads of sysfs can hang with the hardware; the plugin's own files must not wait for them.
        self.sysfs = Worker("sysfs")
        self.port_reads = Poller("ports")
        self.files = Worker("files")

    @property
    def pools(self) -> list[Pool]:
        return [served.pool for served in self.served.values()] + list(self.front.pools if self.front else ())

    @property
    def hangs(self) -> float:
        """Seconds that the current read of sysfs has taken so far."""
        return max(self.sysfs.hangs(), self.port_reads.hangs())

    @property
    def hung(self) -> bool:
        """Whether a read of sysfs hangs, so that health is unknown."""
        return self.hangs > self.settings.hung


EXCLUSIVE = (
    "incorrect RDMA subsystem network namespace mode: exclusive, wanted shared; all devices are Unhealthy. Set it "
    "before pods run: rdma system set netns shared, or options ib_core netns_mode=1 (role gpufabric.rdma.rdma_netns)"
)


def problems(state: State) -> list[str]:
    """Problems that keep the plugin from serving, one line each; empty if all is well."""
    found = [
        f"{served.pool.resource}: {served.resource.state}"
        + (f" ({served.resource.error})" if served.resource.error else "")
        + (f", tried {served.resource.attempts} times" if served.resource.attempts > 1 else "")
        for served in state.served.values()
        if not served.resource.registered
    ]
    if state.front:
        found += state.front.problems()
    found += filter(None, (pools.moved(pool, state.inventory) for pool in state.pools))
    if state.inventory.exclusive:
        found.append(EXCLUSIVE)
    if state.hung:
        found.append(f"a read of sysfs has been hanging for {state.hangs:.0f} s: health is unknown")
    if state.config_error:
        found.append(f"the config file cannot be used: {state.config_error}")
    return found


def empty(state: State) -> list[str]:
    """Resources that select no HCA of this node, which is right if the node has none."""
    served = [one for one in state.served.values() if not one.service.offer.members]
    return [f"{one.pool.resource}: no HCA of this node is selected, see the command explain" for one in served]


def line(state: State) -> str:
    """One line for a service manager."""
    registered = sum(served.resource.registered for served in state.served.values())
    why = log.printable("; ".join(problems(state)))
    known = [f"{registered} of {len(state.served)} resources registered"] if state.served or not state.front else []
    if state.front:
        published = state.front.publisher.published
        known.append(f"DRA driver {'' if state.front.driver.registered else 'not '}registered, {published} devices")
    return ", ".join(known) + (f": {why}" if why else "")


def report(config: Config, inventory: Inventory) -> None:
    """Log the result of a scan if it differs from the last one."""
    for pool in config.pools:
        for hca in inventory.hcas:
            out = pools.judge(pool, hca, inventory.common)
            # Only HCAs that are selected but left out are logged; `explain` covers the rest.
            if out and out.code.startswith("no-"):
                log.on_change(
                    f"judge {pool.name} {hca.name}", f"{pool.resource}: {hca.label} {out.text}", logging.WARNING
                )
            elif not out:
                log.on_change(f"judge {pool.name} {hca.name}", f"{pool.resource}: has {hca.label}")
    if inventory.exclusive:
        log.on_change("netns", EXCLUSIVE, logging.ERROR)
    else:
        log.on_change("netns", f"RDMA network namespace mode: {inventory.netns}")


# Seconds: the loop that answers the kubelet does not wait longer for a manager with a full queue.
_QUEUE_PATIENCE = 0.2


def tell(*lines: str) -> None:
    """Send lines such as READY=1 or STATUS=text to the socket in NOTIFY_SOCKET; nothing if nothing is listening."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.settimeout(_QUEUE_PATIENCE)
        try:
            channel.sendto("\n".join(lines).encode(), target)
        except OSError:
            pass  # a manager that does not listen is not a reason to stop serving pods


_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_TEXT = "text/plain; charset=utf-8"
_PATIENCE = 5.0
# Simultaneous connections. Scrapers need two or three; more must not use up the sockets' descriptors.
_MOST = 32


def parse_address(text: str) -> tuple[str, int]:
    """`host:port`, `:port` or `[v6]:port` as (host, port). ValueError describes the problem."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise ValueError(f'wanted host:port or :port, got "{text}"')
    return host.strip("[]"), int(port)


async def serve(state: State, address: str) -> None:
    """Serve forever. A port in use does not end the plugin: pods matter more than metrics."""
    host, port = parse_address(address)
    pages = Pages(state)
    while True:
        try:
            server = await asyncio.start_server(pages.answer, host or None, port, limit=8192)
        except OSError as error:
            log.on_change("metrics", f"cannot serve metrics on {address}: {error.strerror}", logging.ERROR)
            await asyncio.sleep(10)
            continue
        names = ", ".join("{}:{}".format(*socket.getsockname()[:2]) for socket in server.sockets)
        log.on_change("metrics", f"metrics, healthz and readyz on {names}")
        async with server:
            await server.serve_forever()


class Pages:
    """Answers one request per connection."""

    def __init__(self, state: State):
        self._state = state
        self._tree = Tree(state.settings.root)
        # Counters are read from firmware and may hang; the ports' health must not wait for them.
        self._worker = Worker("counters")
        # Imports and rendering wait neither for them nor for the plugin's files.
        self._renderer = Worker("metrics")
        self._open = 0
        self._counters: Any = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= _MOST:
            writer.transport.abort()
            return
        self._open += 1
        try:
            request = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _PATIENCE)
            method, _space, rest = request.decode("latin-1").partition(" ")
            code, kind, body = await self._page(method, rest.split()[0].partition("?")[0])
            head = f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + (b"" if method == "HEAD" else body))
            await asyncio.wait_for(writer.drain(), _PATIENCE)
        except (
            OSError,
            ValueError,
            IndexError,
            asyncio.TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            pass  # a client that does not speak HTTP, or hung up
        finally:
            self._open -= 1
            writer.close()

    async def _page(self, method: str, path: str) -> tuple[int, str, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, _TEXT, b"only GET\n"
        if path == "/metrics":
            # Costs 5 MB and 0.1 s: only when scraped, and not on the event loop.
            metrics = await self._renderer.run(importlib.import_module, f"{__package__}.metrics")
            return 200, metrics.CONTENT_TYPE, await self._metrics(metrics)
        if path == "/healthz":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            found = problems(self._state)
            lines = found or ["ok", *empty(self._state)]
            return (503 if found else 200), _TEXT, ("\n".join(lines) + "\n").encode()
        return 404, _TEXT, b"not found; try /metrics, /healthz or /readyz\n"

    async def _metrics(self, metrics: Any) -> bytes:
        ports = tuple(self._state.ports.states)
        try:
            if not self._worker.hangs():
                read = self._worker.run(metrics.port_counters, self._tree, ports)
                self._counters = await asyncio.wait_for(read, _PATIENCE)
        except asyncio.TimeoutError:
            self._counters = []  # old values would look like a port without traffic
        return await self._renderer.run(metrics.render, metrics.families(self._state, self._counters))
