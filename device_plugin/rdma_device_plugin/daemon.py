# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The running plugin: turns node state and config into offers whenever one of them changes."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
import stat
import time
from collections.abc import Awaitable, Iterable
from typing import Any, Callable, Optional

from . import allocation, cdi, events, log, modes, pools, status
from .config import Config, ConfigError, Pool, load
from .hca import Tree
from .lifecycle import CannotServe, Resource, Settings
from .pools import Memory, next_look, pending
from .server import Service
from .status import Served, State
from .worker import Worker, backstop, end, take


class Fatal(Exception):
    """Why the plugin cannot run; one line."""


class Plugin(State):
    """All pools of one node.

    tree, link_up: replaceable effects; interfaces are set up only when the node is this machine, unless link_up is
    given. listen: whether to listen to kernel events. Create it inside the event loop.
    """

    def __init__(
        self,
        settings: Settings,
        tree: Optional[Tree] = None,
        link_up: Optional[Callable[[str], Optional[str]]] = None,
        listen: bool = True,
    ):
        super().__init__(settings)
        self.config: Config
        self.parts: modes.Split
        self.ready = asyncio.Event()
        self._tree = tree or Tree(settings.root)
        self._link_up = link_up or (events.set_up if settings.root == "/" else None)
        self._listen = listen
        self._linked: set[str] = set()
        self._scan_wanted = asyncio.Event()
        self._reload_wanted = asyncio.Event()
        self._directories: events.Directories
        self._updating = asyncio.Lock()
        self._cdi_wanted = asyncio.Event()
        self._config_file = ConfigFile(settings.config_file, settings.strict, settings.hung)

    # Called from outside and from signal handlers.

    def rescan(self) -> None:
        self._scan_wanted.set()

    def reload(self) -> None:
        """Reread the config, scan, and resend everything to the kubelet, changed or not."""
        self._config_file.forget()
        self._reload_wanted.set()

    def poll_ports(self) -> None:
        self.port_reads.nudge()

    # Life cycle.

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Fatal if serving cannot start or continue."""
        self._directories = events.Directories()
        work = asyncio.ensure_future(self._work())
        halt = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({work, halt}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            status.tell("STOPPING=1")
            await end([work, halt], self.settings.stop)
            await self._stop_all()
            self._directories.close()
            self.sysfs.close()
            self.port_reads.close()
            self.files.close()
            self._config_file.close()

    async def _work(self) -> None:
        """Start, then run the permanent tasks; one that ends is an error."""
        self.config = await self._first_config()
        self._split()
        if self.settings.mode != modes.DEVICE_PLUGIN:
            from . import dra  # only if used: it doubles the memory

            self.front = dra.Front(self.settings, self._directories, self.files, self.rescan, lambda: self.hung)
        listeners = [events.watch_devices(self.rescan), events.watch_links(self.poll_ports)] if self._listen else []
        self._directories.watch(self._config_file.directory, self._config_changed)
        first = asyncio.ensure_future(self._scan())
        eternal = [first]
        try:
            await asyncio.wait({first}, timeout=self.settings.first_scan)
            if not first.done():
                log.error("the first scan of sysfs does not return; serving empty pools until it does")
            problem = self._counted_twice(self.config)
            if problem:
                raise Fatal(f"Exiting.. one or more invalid configuration(s) given: {problem}")
            if self.front:
                await self.front.start()
            await self._apply(self.config)
            await self._sockets_tried()
            self.ready.set()
            status.tell("READY=1", f"STATUS={status.line(self)}")
            parts = [self._scanner(first), self._port_poller(), self._reloader(), self._watchdog(), self._supervisor()]
            if self.settings.use_cdi:
                parts.append(self._cdi_keeper())
            if self.front:
                parts.append(self.front.run())
            if self.settings.metrics:
                parts.append(status.serve(self, self.settings.metrics))
            eternal = [asyncio.ensure_future(part) for part in parts]
            done, _pending = await asyncio.wait(eternal, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end(eternal, self.settings.stop / 2)
            for listener in listeners:
                if listener:
                    listener.close()

    async def _sockets_tried(self) -> None:
        """Wait until each resource has its socket or a reason to wait for one. The kubelet need not be up: it may start
        later.
        """
        resources = [served.resource for served in self.served.values()] + ([self.front.driver] if self.front else [])
        tried = [asyncio.ensure_future(resource.tried.wait()) for resource in resources]
        if tried:
            await asyncio.wait(tried, timeout=self.settings.first_scan)
        await end(tried, self.settings.stop / 2)
        _raise_for(self._registrations())

    async def _supervisor(self) -> None:
        while True:
            tasks = self._registrations()
            if not tasks:
                await asyncio.sleep(backstop(self.settings.timing.backstop))
                continue
            timeout = backstop(self.settings.timing.backstop)
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            _raise_for(tasks)

    def _registrations(self) -> set[asyncio.Task]:
        tasks = {served.task for served in self.served.values()}
        return tasks | {self.front.task} if self.front and self.front.task else tasks

    async def _stop_all(self) -> None:
        await end([served.task for served in self.served.values()], self.settings.stop / 2)
        # Each removes its sockets before it waits for anything; the servers end with the process at the latest.
        ending = [asyncio.ensure_future(served.resource.stop()) for served in self.served.values()]
        if self.front:
            ending.append(asyncio.ensure_future(self.front.stop()))
        if ending:
            await asyncio.wait(ending, timeout=self.settings.stop)
        self.served.clear()

    # Config.

    async def _first_config(self) -> Config:
        try:
            config = await self._config_file.read(lenient=True)
        except OSError as error:
            raise Fatal(f"Exiting.. fail to read config file {self.settings.config_file}: {error.strerror}") from None
        except ConfigError as error:
            raise Fatal(f"Exiting.. one or more invalid configuration(s) given: {error}") from None
        if config.refused:
            self.config_error = "; ".join(config.refused)
            log.error("left out of the pools, because the kubelet would refuse it", entries=self.config_error)
        return config

    def _split(self) -> None:
        self.parts = modes.split(self.config, self.settings.mode)
        for warning in self.parts.warnings:
            log.on_change(f"split {warning}", warning, logging.WARNING)

    def _counted_twice(self, config: Config) -> str:
        """Why a config must not be served: HCAs that DRA and another entry would count; empty for none."""
        parts = modes.split(config, self.settings.mode)
        return "; ".join([*modes.overlaps(parts, self.inventory).values(), *modes.contradictions(parts)])

    def _config_changed(self, _name: str) -> None:
        self._reload_wanted.set()

    async def _reloader(self) -> None:
        """Apply a changed config. If it is invalid, the running one stays in force."""
        while True:
            await take(self._reload_wanted, backstop(self.settings.timing.backstop))
            self._directories.watch(self._config_file.directory, self._config_changed)
            forced = self._config_file.forgotten
            try:
                if not await self._config_file.changed():
                    continue
                await asyncio.sleep(self.settings.settle)
                config = await self._config_file.read()
                problem = self._counted_twice(config)
                if problem:
                    raise ConfigError([problem])
            except (OSError, ConfigError) as error:
                self.reloads["failed"] += self.config_error != str(error)
                self.config_error = str(error)
                log.on_change("reload", f"the changed config cannot be used, the old one stays: {error}", logging.ERROR)
                continue
            self.config_error = ""
            if config != self.config or forced:
                self.reloads["applied"] += 1
                log.on_change("reload", "config applied", pools=len(config.pools), number=self.reloads["applied"])
                self.config = config
                self._split()
                await self._apply(config, forced)
            self.rescan()

    async def _apply(self, config: Config, force: bool = False) -> None:
        """Start, change and stop resources to match the config."""
        async with self._updating:
            await self._replace()
        await self._update(force)
        if force:
            for served in self.served.values():
                served.resource.announce()
            if self.front:
                self.front.driver.announce()

    async def _replace(self) -> None:
        wanted = {pool.name: pool for pool in self.parts.device}
        ending = [
            served
            for name, served in self.served.items()
            if name not in wanted or _identity(wanted[name]) != _identity(served.pool)
        ]
        for served in ending:
            del self.served[served.pool.name]
            await end([served.task], self.settings.stop / 2)
            await served.resource.stop()
            if served.pool.name not in wanted and served.resource.held.is_set():
                await self._files_of_cdi(served.pool.name, cdi.remove, served.pool.name)
            log.forget(f"offer {served.pool.resource}")
            log.forget(f"cdi {served.pool.name}")
            log.info(f"{served.pool.resource}: stopped, the config no longer has it in this form")
        for name, pool in wanted.items():
            if name in self.served:
                self.served[name].pool = pool
        starting = [pool for name, pool in wanted.items() if name not in self.served]
        for pool in starting:
            memory: Memory = {}
            offer = self._offer(pool, memory, 0)
            served = self._prepare(offer, memory)
            # The spec exists before its first device can be requested, and no other instance serves the pool.
            served.resource.begin = functools.partial(self._write_cdi, served)
            # An unusable directory ends a starting plugin, never one that already serves others.
            served.task = asyncio.ensure_future(served.resource.run(retry_always=self.ready.is_set()))
            self.served[pool.name] = served
        self.served = {name: self.served[name] for name in wanted}

    def _prepare(self, offer: allocation.Offer, memory: Memory) -> Served:
        mode = self.settings.cdi_mode if self.settings.use_cdi else None
        service = Service(offer, mode, self.settings.root, stale=self.rescan)
        resource = Resource(service, self.settings.places, self._directories, self.settings.timing)
        return Served(offer.pool, service, resource, memory)

    # The node.

    async def _scanner(self, first: Awaitable[None]) -> None:
        """Scan on events and in the config's interval; more often while a pool is empty: a driver may load."""
        await first
        while True:
            await self._set_up_links()
            interval = float(self.config.interval) or None
            empty = any(not served.service.offer.members for served in self.served.values())
            empty = empty or (self.front is not None and not self.front.devices)
            if interval and empty:
                interval = min(interval, self.settings.empty_scan)
            await take(self._scan_wanted, interval)
            await asyncio.sleep(self.settings.settle)
            self._scan_wanted.clear()
            await self._scan()

    async def _scan(self) -> None:
        wanted = pools.Wanted(
            pkeys=any(pool.extra.pKeys for pool in self.config.pools),
            details=bool(self.parts.dra),
            software=any(pool.software for pool in self.parts.dra),
        )
        begun = time.monotonic()
        try:
            inventory = await self.sysfs.run(pools.discover, self._tree, wanted)
        except Exception as error:  # noqa: BLE001 - an unreadable node must not end resources that are served already
            self.scan_failures += 1
            log.on_change("scan", f"the scan of sysfs failed, the last one stays in force: {error!r}", logging.ERROR)
            return
        self.scan_seconds = time.monotonic() - begun
        self.scan_seconds_total += self.scan_seconds
        self.scans += 1
        self.inventory = inventory
        self.ports.scanned(inventory)
        self.poll_ports()  # it compares with the previous states
        self._linked &= {netdev for hca in inventory.hcas for netdev in hca.netdevs}
        status.report(self.config, inventory)
        await self._update()

    async def _port_poller(self) -> None:
        """Poll port states often: InfiniBand ports change without an event. This loop only turns on news, when a
        change becomes final, or as a backstop.
        """
        timing, poll = self.settings.timing, self.settings.port_poll
        while True:
            memories = [(served.pool.health, served.memory) for served in self.served.values()]
            if self.front:
                memories += [(pool.health, self.front.memories.get(pool.name, {})) for pool in self.parts.dra]
            known = self.ports.states
            look = functools.partial(pools.port_states, self._tree, tuple(known))
            most = next_look(memories, time.monotonic(), backstop(timing.backstop))
            try:
                states = await self.port_reads.until(look, known, poll, most)
            except OSError as error:
                log.on_change(
                    "poll", f"port states cannot be read, the last ones stay in force: {error.strerror}", logging.ERROR
                )
                continue
            log.on_change("poll", "port states can be read", logging.DEBUG)
            waiting = pending(memory for _health, memory in memories)
            changed = self.ports.polled(states)
            if changed or waiting:
                await self._update()
            if changed and self.front:
                self.rescan()  # a link may have come up at another rate, which is an attribute

    async def _watchdog(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(backstop(self.settings.timing.backstop))
            status.tell("WATCHDOG=1")
            if told != status.line(self):
                told = status.line(self)
                status.tell(f"STATUS={told}")
            if self.hung:
                log.on_change("sysfs", "a read of sysfs hangs: health is no longer known", logging.ERROR)
            else:
                log.on_change("sysfs", "reads of sysfs return again", logging.DEBUG)

    # Offers.

    def _offer(self, pool: Pool, memory: Memory, known: int) -> allocation.Offer:
        """The current offer of a pool. memory: the history of its ports, updated here."""
        chosen = pools.members(pool, self.inventory)
        healthy, active = self.ports.judge(pool, chosen, memory, time.monotonic())
        return allocation.offer(
            pool,
            chosen,
            healthy,
            common=self.inventory.common,
            exclusive=self.inventory.exclusive,
            active=active,
            known=known,
        )

    async def _update(self, force: bool = False) -> None:
        """Update every pool's offer from node and config."""
        async with self._updating:
            for served in self.served.values():
                offer = self._offer(served.pool, served.memory, served.service.offer.known)
                if not offer.same_for_kubelet(served.service.offer):
                    await self._write_cdi(served, offer)
                served.service.offers(offer, force)
                self._log_offer(offer)
            if self.front:
                self.front.update(self.parts, self.inventory, self.ports)

    def _log_offer(self, offer: allocation.Offer) -> None:
        name = offer.pool.resource
        who = " ".join(hca.name for hca in offer.members) or "none"
        level = logging.INFO if offer.healthy or not offer.count else logging.WARNING
        log.on_change(f"offer {name}", f"{name}: offer", level, devices=offer.count, healthy=offer.healthy, hcas=who)

    async def _write_cdi(self, served: Served, offer: Optional[allocation.Offer] = None) -> None:
        offer = offer or served.service.offer
        if self.settings.use_cdi and served.resource.held.is_set():
            served.service.cdi_ready = await self._files_of_cdi(offer.pool.name, cdi.write, offer)

    async def _cdi_keeper(self) -> None:
        """Keep the specs correct: rewrite removed or damaged ones, retry failed ones."""
        while True:
            self._directories.watch(self.settings.cdi_directory, self._cdi_changed)
            await take(self._cdi_wanted, backstop(self.settings.timing.backstop))
            async with self._updating:
                for served in self.served.values():
                    await self._write_cdi(served)

    def _cdi_changed(self, name: str) -> None:
        if not name or cdi.is_ours(name):
            self._cdi_wanted.set()

    async def _files_of_cdi(self, pool: str, action: Callable[..., bool], what: Any) -> bool:
        directory = self.settings.cdi_directory
        if not self.settings.use_cdi:
            return False
        try:
            await self.files.within(self.settings.cdi_patience, action, directory, what)
        except asyncio.TimeoutError:
            problem = f"writing the CDI spec of {pool} in {directory} does not return"
        except OSError as error:
            problem = f"cannot write the CDI spec of {pool} in {directory}: {error.strerror}"
        else:
            log.on_change(f"cdi {pool}", f"the CDI spec of {pool} is in place", directory=directory)
            return True
        log.on_change(f"cdi {pool}", problem, logging.ERROR)
        return False

    async def _set_up_links(self) -> None:
        """Like upstream for each selected interface, once when the interface appears."""
        chosen = [(served.pool, served.service.offer.members) for served in self.served.values()]
        chosen += [(pool, pools.members(pool, self.inventory)) for pool in self.parts.dra]
        for pool, members in chosen if self._link_up else ():
            for hca in members if pool.link_up else ():
                for netdev in sorted({port.netdev for port in hca.ports if port.netdev}):
                    if netdev not in self._linked:
                        self._linked.add(netdev)
                        problem = await self.sysfs.run(self._link_up, netdev)
                        if problem:
                            log.warning(f"cannot set {netdev} up", reason=problem, resource=pool.resource)


def _raise_for(tasks: Iterable[asyncio.Task]) -> None:
    """Fatal if a resource has ended on its own."""
    for task in tasks:
        if task.done() and not task.cancelled():
            error = task.exception()
            raise Fatal(str(error)) if isinstance(error, CannotServe) else error or Fatal("a resource ended")


def _identity(pool: Pool) -> tuple[Any, ...]:
    """The registration with the kubelet: a different one is a different resource."""
    return pool.resource, pool.allocation != "all"


class ConfigFile:
    """One file, read in its own thread: it may be on a network file system, and nothing else may wait for that.

    patience: seconds after which an unresponsive file is an error (OSError, ETIMEDOUT).
    """

    def __init__(self, path: str, strict: bool, patience: float):
        self.path = path
        self.directory = os.path.dirname(path) or "."
        self._strict = strict
        self._patience = patience
        self._worker = Worker("config")
        self._seen: Any = None

    async def read(self, lenient: bool = False) -> Config:
        """The current config. OSError, ConfigError. lenient: see config.load."""
        try:
            self._seen, data = await self._ask(_read)
        except OSError as error:
            self._seen = error.errno if error.errno == errno.ETIMEDOUT else await self._ask(_stamp)
            raise
        config = load(data, self._strict, lenient)
        for warning in config.warnings:
            log.on_change(f"config {warning}", warning, logging.WARNING)
        return config

    async def changed(self) -> bool:
        """Whether it differs from the last read. OSError if it does not respond."""
        return self._seen is None or await self._ask(_stamp) != self._seen

    async def _ask(self, job: Callable[[str], Any]) -> Any:
        try:
            return await self._worker.within(self._patience, job, self.path)
        except asyncio.TimeoutError:
            text = f"has not answered for {self._patience:g} s (a hung mount?)"
            raise OSError(errno.ETIMEDOUT, text, self.path) from None

    def close(self) -> None:
        self._worker.close()

    def forget(self) -> None:
        """Treat the next one as changed in any case."""
        self._seen = None

    @property
    def forgotten(self) -> bool:
        return self._seen is None


def _read(path: str) -> tuple[Any, bytes]:
    # O_NONBLOCK: opening a FIFO would wait for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return _stamp_of(status), file.read()


def _stamp(path: str) -> Any:
    try:
        return _stamp_of(os.stat(path))
    except OSError as error:
        return error.errno


def _stamp_of(status: os.stat_result) -> Any:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
