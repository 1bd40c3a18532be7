# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make a service a registered resource: sockets, the registration state machine, kubelet restarts.

Knows nothing about devices; also has the settings. There are two ways to register:
  watch   the kubelet finds our socket in plugins_registry, calls GetInfo and connects;
  legacy  we call Register on kubelet.sock, and it connects to our socket next to it before it returns.
If plugins_registry exists, watch comes first. Silence means that nothing watches the directory (a hostPath mount
created it, or the kubelet has another root); then we try legacy. Registration is complete with an open ListAndWatch
stream, and a lost stream starts it again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable
from typing import Any, Callable, NamedTuple, Optional
from urllib.parse import quote

import grpc

from . import cdi, log, sockets
from .config import KUBELET_SOCKET
from .events import Directories
from .kubelet import Stub
from .kubelet import deviceplugin_pb2 as api
from .server import VERSION, Observer, Service
from .sockets import Listener
from .worker import backstop, end, take

WATCH, LEGACY = "watch", "legacy"
REGISTERED = "registered"
# A kubelet may give new reasons every time; at most this many are logged until a registration works.
_REASONS_TOLD = 20
_CHANNEL = (
    # A socket file exists a moment before anyone listens; the default would only retry after a second.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)
# Waiting does not help: not a directory, or not writable for us.
_UNRECOVERABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


class Timing(NamedTuple):
    """Seconds.

    confirm: silence after which a directory counts as unwatched. grace: how long a lost stream may come back on its
    own. connect: from a confirmed registration to its stream. register: the kubelet dials back up to 10 s inside
    Register. backstop: polling interval in case inotify misses something.
    """

    confirm: float = 5.0
    grace: float = 1.0
    connect: float = 15.0
    register: float = 20.0
    retry_first: float = 1.0
    retry_most: float = 60.0
    backstop: float = 5.0
    stop: float = 0.3


class Places(NamedTuple):
    """registry follows the kubelet's --root-dir; the directory of kubelet.sock does not: it is fixed."""

    registry: str = "/var/lib/kubelet/plugins_registry"
    plugins: str = "/var/lib/kubelet/device-plugins"
    mode: str = "auto"

    @property
    def kubelet(self) -> str:
        return f"{self.plugins}/{KUBELET_SOCKET}"

    def watched(self) -> bool:
        """Whether to start with the watched directory."""
        return self.mode == WATCH or (self.mode == "auto" and os.path.isdir(self.registry))


class CannotServe(Exception):
    """The socket directory is unusable."""


class Resource(Observer):
    """Keeps one resource, or a DRA driver, registered as long as `run` runs."""

    def __init__(self, service: Service, places: Places, directories: Directories, timing: Timing):
        self.service = service
        self.name = service.name
        self.registrations: Counter[tuple[str, str]] = Counter()
        self.mode: Optional[str] = None
        self.state = "starting"
        self.error = ""
        # The first attempt to get a socket is over: it exists, or `state` says why not yet.
        self.tried = asyncio.Event()
        # This process holds the lock, and `begin` has run: nothing may be written before that.
        self.held = asyncio.Event()
        self.begin: Callable[[], Awaitable[None]] = _nothing
        self._places = places
        self._directories = directories
        self._timing = timing
        self._socket = service.socket
        self._watched_names = (self._socket, KUBELET_SOCKET)
        self._claims: dict[str, sockets.Claim] = {}
        self._listeners: dict[str, Listener] = {}
        self._generation = 0
        # Failed tries since the last registration.
        self.attempts = 0
        self._told: set[tuple[Any, ...]] = set()
        self._failures = 0
        self._was_registered = False
        self._kubelet = sockets.identity(places.kubelet)
        # In the watched directory: the kubelet asked at the present socket; that socket has had its chance; it was
        # refused, and why. And whether silence there led to a legacy registration that worked.
        self._asked = False
        self._spent = False
        self._refused: Optional[str] = None
        self._unwatched = False
        self._wake = asyncio.Event()
        service.observer = self

    @property
    def registered(self) -> bool:
        """The kubelet listens to our list."""
        return self.service.connected

    # Events from the RPCs and the file system.

    def streams_changed(self, count: int) -> None:
        self._wake.set()

    def info_asked(self) -> None:
        self._asked, self._spent, self._unwatched = True, False, False
        self.mode = WATCH
        self._wake.set()

    def notified(self, registered: bool, error: str) -> None:
        self.registrations[WATCH, "accepted" if registered else "refused"] += 1
        if not registered:
            self._refused, self._spent = error or "no reason given", True
            self._say("refused", self._refused, logging.WARNING, mode=WATCH)
        self._wake.set()

    def _changed(self, _name: str) -> None:
        self._wake.set()

    def announce(self) -> None:
        """Check everything again, now."""
        self._failures = 0
        self._wake.set()

    # The state machine.

    async def run(self, retry_always: bool = False) -> None:
        """Register, stay registered. Ends on cancellation, or with CannotServe before the first socket was served.

        retry_always: retry even if waiting is not expected to help.
        """
        first = True
        while True:
            try:
                if not self._take_claim():
                    self.tried.set()
                    await self._pause(min(0.2, self._timing.backstop))
                    continue
                if not self.held.is_set():
                    self.held.set()
                    await self.begin()
                replaced = await self._serve() and not first
                first = False
                self.tried.set()
                await self._step(replaced)
            except OSError as error:
                self.tried.set()
                if first and not retry_always and error.errno in _UNRECOVERABLE:
                    raise CannotServe(f"{self.name}: {error.strerror}: {error.filename or self._socket}") from error
                self._say("cannot serve", str(error), logging.WARNING)
                await self._pause(self._timing.retry_first)

    def _directory(self) -> str:
        return self._places.registry if self._places.watched() else self._places.plugins

    def _take_claim(self) -> bool:
        """One instance per socket. Both ways of registering can see the lock."""
        directory = self._places.plugins if os.path.isdir(self._places.plugins) else self._directory()
        claim = self._claims.setdefault(directory, sockets.Claim(directory, self._socket))
        if claim.take():
            return True
        reason = f"process {claim.holder()} holds {claim.path}; stop it"
        self._say("waiting for another instance", reason, logging.WARNING)
        return False

    async def _serve(self) -> bool:
        """Publish our socket where the current mode needs it, and where it was; True if one had to be created."""
        self._directories.watch(self._places.plugins, self._changed, self._watched_names)
        wanted = {self._directory(), *self._listeners}
        made = []
        for directory in sorted(wanted):
            self._directories.watch(directory, self._changed, self._watched_names)
            if os.path.isdir(directory) or directory == self._directory():
                made.append(await self._publish(directory))
        return any(made)

    async def _publish(self, directory: str, anew: bool = False) -> bool:
        listener = self._listeners.setdefault(directory, Listener(directory, self._socket))
        if listener.published and not anew:
            return False
        if listener.foreign:
            raise sockets.in_use(listener.path)
        self._generation += 1
        await listener.start(self.service, self._generation)
        if directory == self._places.registry:
            self._asked = self._spent = False
        return True

    async def _step(self, replaced: bool) -> None:
        """Work towards the next stream, or wait for an event. replaced: one of our sockets was lost."""
        watched = self._places.watched() and not self._unwatched
        if self._kubelet_is_new() or replaced:
            self._kubelet = sockets.identity(self._places.kubelet)
            self._failures = 0
            self._asked = False
            self.service.kubelet_replaced()
            if not watched and self._places.mode != WATCH:
                await self._register()
                return
        elif self.registered:
            await self._settled()
            return
        elif self._was_registered:
            self._was_registered = self._asked = False
            self._say("stream lost", "the kubelet closed the connection", logging.WARNING)
            if await self._streaming(self._timing.grace):
                return
            self._spent = not self._asked
        if watched and await self._confirmed():
            return
        if self._kubelet_is_new():
            return  # wait for it again
        if self._places.mode == WATCH or not await self._register():
            self._failures += 1
            self.attempts += 1
            await self._back_off()

    async def _confirmed(self) -> bool:
        """Whether the kubelet connects on its own to our socket in the watched directory."""
        if self._spent:
            # It knows this socket and ignores it: only a new one makes it look again.
            await self._publish(self._places.registry, anew=True)
        self._refused = None
        await self._streaming(self._timing.confirm, until_asked=True)
        if self._asked:
            await self._streaming(self._timing.connect)
        if self.registered:
            return True
        if self._refused is None:
            what = "asked but did not connect" if self._asked else "no call"
            self._say("waiting for the kubelet", f"{what} in {self._places.registry}", mode=WATCH)
        # Silence once: the kubelet may not be up yet and will look later. Twice: it may have missed us.
        self._spent = self._asked or self._failures > 0
        return False

    async def _register(self) -> bool:
        """Legacy: call Register, then wait for the stream."""
        if not await self._kubelet_listens():
            self._say("waiting for the kubelet", f"nothing is listening on {self._places.kubelet}")
            return False
        await self._publish(self._places.plugins)
        self._kubelet = sockets.identity(self._places.kubelet)
        self._refused = None
        problem = await self._call_register()
        if problem is None:
            return False
        self.registrations[LEGACY, "refused" if problem else "accepted"] += 1
        if problem:
            self._say("refused", problem, logging.WARNING, mode=LEGACY)
            return False
        self._unwatched = self._places.watched() and not self._asked
        self.mode = LEGACY
        return await self._streaming(self._timing.connect)

    async def _kubelet_listens(self) -> bool:
        """Whether the kubelet can be called. A socket exists before anyone listens on it, so allow a moment."""
        deadline = _now() + self._timing.grace
        while not sockets.answers(self._places.kubelet):
            found = sockets.identity(self._places.kubelet)
            if found is None or _now() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def _call_register(self) -> Optional[str]:
        """Empty if the kubelet accepted us, else its error; None if it was replaced before it replied.

        A waiting call would reach the next kubelet, which removes our socket before it listens and would then look for
        it for 10 s.
        """
        channel = grpc.aio.insecure_channel(f"unix:{quote(self._places.kubelet)}", options=_CHANNEL)
        call = asyncio.ensure_future(self._answer_of(channel))
        try:
            while True:
                waking = asyncio.ensure_future(self._wake.wait())
                try:
                    both, most = {call, waking}, self._timing.backstop
                    await asyncio.wait(both, timeout=most, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    waking.cancel()  # also when this resource is removed meanwhile
                self._wake.clear()
                if call.done():
                    return call.result()
                if self._kubelet_is_new() or not self._listeners[self._places.plugins].published:
                    return None
        finally:
            await end([call], self._timing.grace)
            await channel.close()

    async def _answer_of(self, channel: grpc.aio.Channel) -> str:
        request = api.RegisterRequest(
            version=VERSION, endpoint=self._socket, resource_name=self.name, options=self.service.options()
        )
        try:
            stub = Stub(channel, api, "Registration")
            await stub.Register(request, timeout=self._timing.register, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    async def _settled(self) -> None:
        """Registered: wait for its end."""
        self._failures = 0
        self._was_registered = True
        self.error = ""
        self._say(REGISTERED, "", mode=self.mode or WATCH)
        await self._pause(backstop(self._timing.backstop))

    async def _streaming(self, seconds: float, until_asked: bool = False) -> bool:
        """Wait for a stream. Ends early on a refusal, a new kubelet, or (until_asked) when the kubelet has asked."""
        deadline = _now() + seconds
        while not self.registered and self._refused is None and not (until_asked and self._asked):
            left = deadline - _now()
            if left <= 0 or self._kubelet_is_new():
                break
            await self._pause(left)
        return self.registered

    async def _back_off(self) -> None:
        """Wait longer after each failure, with jitter so that eight resources do not retry in step; events end it."""
        most = min(self._timing.retry_first * 2 ** min(self._failures - 1, 16), self._timing.retry_most)
        deadline = _now() + most * random.uniform(0.8, 1.2)
        asked = self._asked
        while not self.registered and self._failures and (asked or not self._asked) and not self._kubelet_is_new():
            left = min(deadline - _now(), self._timing.backstop)
            if deadline <= _now() or not all(listener.published for listener in self._listeners.values()):
                break
            await self._pause(left)

    def _kubelet_is_new(self) -> bool:
        now = sockets.identity(self._places.kubelet)
        return now is not None and now != self._kubelet

    async def _pause(self, seconds: float) -> None:
        """Sleep until an event, at most this long."""
        await take(self._wake, seconds)

    def _say(self, state: str, reason: str, level: int = logging.INFO, **fields: Any) -> None:
        """Set a state and log it once. Without a kubelet both ways keep failing in turn: each reason is logged
        once, and the number of tries at the end.
        """
        self.state = state
        if reason:
            self.error = fields["reason"] = reason
        told = (state, *fields.values())
        if state == REGISTERED:
            if told in self._told:
                return
            self._told = {told}
            if self.attempts:
                fields["failed_attempts"] = self.attempts
            self.attempts = 0
        else:
            self._told = {one for one in self._told if one[0] != REGISTERED}
            if told in self._told or len(self._told) >= _REASONS_TOLD:
                return
            self._told.add(told)
        log.on_change(f"resource {self.name}", f"{self.name}: {state}", level, **fields)

    async def stop(self) -> None:
        """Close streams, remove our sockets, release the claim. Bounded by Timing.stop."""
        self._directories.forget(self._changed)
        self.service.close()
        await asyncio.gather(*(listener.stop(self._timing.stop) for listener in self._listeners.values()))
        for claim in self._claims.values():
            claim.release()
        log.forget(f"resource {self.name}")


async def _nothing() -> None:
    pass


def _now() -> float:
    return asyncio.get_running_loop().time()


class Settings(NamedTuple):
    """The command line's settings."""

    config_file: str
    strict: bool = False
    use_cdi: bool = False
    cdi_mode: str = "devices"
    cdi_directory: str = cdi.DIRECTORY
    root: str = "/"
    places: Places = Places()
    timing: Timing = Timing()
    metrics: str = ""
    # DRA: the API for the config's entries; credential and node name, the kubelet's directory for drivers, and the
    # prefix of the configurations of claims' networks.
    mode: str = "device-plugin"
    kubeconfig: str = ""
    node_name: str = ""
    plugins_directory: str = "/var/lib/kubelet/plugins"
    claim_networks: str = ""
    # Seconds: between looks at port states; from an event to the scan, so that one scan serves a burst; the longest
    # wait for the first scan; between scans while a pool is empty; after which a read counts as hung; the longest wait
    # for a CDI spec to be written, for an answer of the API server, and for all servers to end.
    port_poll: float = 0.5
    settle: float = 0.1
    first_scan: float = 3.0
    empty_scan: float = 5.0
    hung: float = 30.0
    cdi_patience: float = 5.0
    api_timeout: float = 10.0
    stop: float = 5.0
