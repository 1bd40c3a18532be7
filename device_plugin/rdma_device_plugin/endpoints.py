# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""/metrics, /healthz and /readyz. Off unless an address is given: upstream opens no port, and hosts share theirs."""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import Any

from . import log, status
from .hca import Tree
from .state import State
from .worker import Worker

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_TEXT = "text/plain; charset=utf-8"
_PATIENCE = 5.0
# Connections at a time. Scrapers need two or three; more must not use up the descriptors of the sockets.
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
            problems = status.problems(self._state)
            return (
                (503 if problems else 200),
                _TEXT,
                ("\n".join(problems or ["ok", *status.empty(self._state)]) + "\n").encode(),
            )
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
