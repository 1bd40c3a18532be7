# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The running plugin: turns what the node has and what the config wants into offers, whenever one of them changes."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from . import allocation, cdi, endpoints, events, links, log, notify, pools
from .config import Config, ConfigError, Pool, load
from .hca import Tree
from .lifecycle import CannotServe, Places, Resource, Timing
from .pools import Debounced, Inventory
from .server import Service
from .worker import Worker, take

# Where upstream's image has it.
CONFIG_FILE = "/k8s-rdma-shared-dev-plugin/config.json"
PortKey = tuple[str, int]


class Fatal(Exception):
    """Why the plugin cannot run; one line."""


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    config_file: str = CONFIG_FILE
    strict: bool = False
    use_cdi: bool = False
    cdi_mode: str = "devices"
    cdi_directory: str = cdi.DIRECTORY
    root: str = "/"
    places: Places = field(default_factory=Places)
    timing: Timing = field(default_factory=Timing)
    metrics: str = ""
    # Seconds: between looks at port states; from an event to the scan, so that one scan serves a burst; the longest
    # wait for the first scan; between scans while a pool is empty; after which a read counts as hung.
    port_poll: float = 0.5
    settle: float = 0.1
    first_scan: float = 3.0
    empty_scan: float = 5.0
    hung: float = 30.0


@dataclass
class Served:
    """A pool that is served."""

    pool: Pool
    service: Service
    resource: Resource
    ports: dict[PortKey, Debounced]
    task: asyncio.Task = field(init=False)


class Plugin:
    """All pools of one node.

    tree, link_up: effects that can be replaced; interfaces are set up only where the node is this machine, unless
    link_up is given. listen: whether to listen to the kernel's events. To be made inside the event loop.
    """

    def __init__(
        self,
        settings: Settings,
        tree: Optional[Tree] = None,
        link_up: Optional[Callable[[str], Optional[str]]] = None,
        listen: bool = True,
    ):
        self.settings = settings
        self.served: dict[str, Served] = {}
        self.inventory = Inventory()
        self.states: dict[PortKey, Optional[str]] = {}
        self.flaps: Counter[PortKey] = Counter()
        self.scans = 0
        self.scan_failures = 0
        self.scan_seconds = 0.0
        self.scan_seconds_total = 0.0
        self.reloads: Counter[str] = Counter()
        self.config_error = ""
        self.config: Config
        self.ready = asyncio.Event()
        self._tree = tree or Tree(settings.root)
        self._link_up = link_up or (links.set_up if settings.root == "/" else None)
        self._listen = listen
        self._linked: set[str] = set()
        self._scan_wanted = asyncio.Event()
        self._poll_wanted = asyncio.Event()
        self._reload_wanted = asyncio.Event()
        self._config_seen: Any = None
        self._directories: events.Directories
        self._updating = asyncio.Lock()
        # Port states and scans may hang with the hardware, files of the plugin's own must not wait for them.
        self._sysfs = Worker("sysfs")
        self.files = Worker("files")

    # What may be asked of it from outside, and from signal handlers.

    def rescan(self) -> None:
        """Look at the node again soon."""
        self._scan_wanted.set()

    def reload(self) -> None:
        """Read the config again, scan, and tell the kubelet everything once more, changed or not."""
        self._config_seen = None
        self._reload_wanted.set()

    def poll_ports(self) -> None:
        self._poll_wanted.set()

    @property
    def hung(self) -> bool:
        """Whether a read of sysfs does not come back, so that health is not known any more."""
        return self._sysfs.hangs() > self.settings.hung

    def unready(self) -> list[str]:
        """Why the plugin does not do what it is there for, one line each; empty when all is well."""
        problems = [
            f"{served.pool.resource}: {served.resource.state}"
            + (f" ({served.resource.error})" if served.resource.error else "")
            for served in self.served.values()
            if not served.resource.registered
        ]
        if self.inventory.exclusive:
            problems.append(_EXCLUSIVE)
        if self.hung:
            problems.append(f"a read of sysfs hangs since {self._sysfs.hangs():.0f} s: health is not known")
        if self.config_error:
            problems.append(f"the config file was changed and cannot be used: {self.config_error}")
        return problems

    # Its life.

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Fatal when that cannot begin or go on."""
        self._directories = events.Directories()
        work = asyncio.ensure_future(self._work())
        halt = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({work, halt}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            notify.tell("STOPPING=1")
            await _end([work, halt])
            await self._stop_all()
            self._directories.close()
            self._sysfs.close()
            self.files.close()

    async def _work(self) -> None:
        """Begin, then run the eternal parts; one that ends is an error."""
        self.config = await self._first_config()
        listeners = [events.watch_devices(self.rescan), events.watch_links(self.poll_ports)] if self._listen else []
        self._directories.watch(os.path.dirname(self.settings.config_file) or ".", self._config_changed)
        first = asyncio.ensure_future(self._scan())
        eternal = [first]
        try:
            await asyncio.wait({first}, timeout=self.settings.first_scan)
            if not first.done():
                log.error("the first scan of sysfs does not come back; serving empty pools until it does")
            await self._apply(self.config)
            self.ready.set()
            notify.tell("READY=1", self._status())
            parts = [self._scanner(first), self._port_poller(), self._reloader(), self._watchdog(), self._supervisor()]
            if self.settings.metrics:
                parts.append(endpoints.serve(self, self.settings.metrics))
            eternal = [asyncio.ensure_future(part) for part in parts]
            done, _pending = await asyncio.wait(eternal, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await _end(eternal)
            for listener in listeners:
                if listener:
                    listener.close()

    async def _supervisor(self) -> None:
        while True:
            tasks = {served.task for served in self.served.values()}
            if not tasks:
                await asyncio.sleep(self.settings.timing.backstop)
                continue
            done, _pending = await asyncio.wait(
                tasks, timeout=self.settings.timing.backstop, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if not task.cancelled():
                    error = task.exception()
                    raise Fatal(str(error)) if isinstance(error, CannotServe) else error or Fatal("a resource ended")

    async def _stop_all(self) -> None:
        for served in self.served.values():
            served.task.cancel()
        await asyncio.gather(*(served.task for served in self.served.values()), return_exceptions=True)
        await asyncio.gather(*(served.resource.stop() for served in self.served.values()), return_exceptions=True)
        self.served.clear()

    # Config.

    async def _first_config(self) -> Config:
        try:
            return await self._read_config()
        except OSError as error:
            raise Fatal(f"Exiting.. fail to read config file {self.settings.config_file}: {error.strerror}") from None
        except ConfigError as error:
            raise Fatal(f"Exiting.. one or more invalid configuration(s) given: {error}") from None

    async def _read_config(self) -> Config:
        self._config_seen, data = await self.files.run(_read, self.settings.config_file)
        config = load(data, self.settings.strict)
        for warning in config.warnings:
            log.on_change(f"config {warning}", warning, logging.WARNING)
        return config

    def _config_changed(self, _name: str) -> None:
        self._reload_wanted.set()

    async def _reloader(self) -> None:
        """Take over a changed config. One that cannot be used leaves the running one in force."""
        while True:
            await take(self._reload_wanted, self.settings.timing.backstop)
            self._directories.watch(os.path.dirname(self.settings.config_file) or ".", self._config_changed)
            forced = self._config_seen is None
            if not forced and await self.files.run(_stamp, self.settings.config_file) == self._config_seen:
                continue
            await asyncio.sleep(self.settings.settle)
            try:
                config = await self._read_config()
            except (OSError, ConfigError) as error:
                self.reloads["failed"] += 1
                self.config_error = str(error)
                log.on_change("reload", f"the changed config cannot be used, the old one stays: {error}", logging.ERROR)
                if isinstance(error, OSError):
                    self._config_seen = await self.files.run(_stamp, self.settings.config_file)
                continue
            self.config_error = ""
            if config != self.config or forced:
                self.reloads["applied"] += 1
                log.on_change("reload", "config applied", pools=len(config.pools), number=self.reloads["applied"])
                self.config = config
                await self._apply(config, forced)
            self.rescan()

    async def _apply(self, config: Config, force: bool = False) -> None:
        """Start, change and stop resources so that they are those of the config."""
        async with self._updating:
            await self._replace(config)
        await self._update(force)
        if force:
            for served in self.served.values():
                served.resource.announce()

    async def _replace(self, config: Config) -> None:
        wanted = {pool.name: pool for pool in config.pools}
        ending = [
            served
            for name, served in self.served.items()
            if name not in wanted or _identity(wanted[name]) != _identity(served.pool)
        ]
        for served in ending:
            del self.served[served.pool.name]
            served.task.cancel()
            await asyncio.gather(served.task, return_exceptions=True)
            await served.resource.stop()
            if served.pool.name not in wanted:
                await self._files_of_cdi(cdi.remove, served.pool.name)
            log.forget(f"offer {served.pool.resource}")
            log.info(f"{served.pool.resource}: stopped, the config has it no longer in this form")
        for name, pool in wanted.items():
            if name in self.served:
                self.served[name].pool = pool
        starting = [pool for name, pool in wanted.items() if name not in self.served]
        for pool in starting:
            ports: dict[PortKey, Debounced] = {}
            offer = self._offer(pool, ports, 0)
            served = self._prepare(offer, ports)
            # The spec is there before the first device of it can be asked for.
            await self._write_cdi(served.service, offer)
            # A directory that cannot be used ends a plugin that begins, never one that serves others already.
            served.task = asyncio.ensure_future(served.resource.run(hopeful=self.ready.is_set()))
            self.served[pool.name] = served
        self.served = {name: self.served[name] for name in wanted}

    def _prepare(self, offer: allocation.Offer, ports: dict[PortKey, Debounced]) -> Served:
        mode = self.settings.cdi_mode if self.settings.use_cdi else None
        service = Service(offer, mode, self.settings.root, stale=self.rescan)
        resource = Resource(service, self.settings.places, self._directories, self.settings.timing)
        return Served(offer.pool, service, resource, ports)

    # The node.

    async def _scanner(self, first: Awaitable[None]) -> None:
        """Scan on events and in the config's interval; more often while a pool is empty: a driver may load."""
        await first
        while True:
            await self._set_up_links()
            interval = float(self.config.interval) or None
            empty = any(not served.service.offer.members for served in self.served.values())
            if interval and empty:
                interval = min(interval, self.settings.empty_scan)
            await take(self._scan_wanted, interval)
            await asyncio.sleep(self.settings.settle)
            self._scan_wanted.clear()
            await self._scan()

    async def _scan(self) -> None:
        pkeys = any(pool.extra.pKeys for pool in self.config.pools)
        begun = time.monotonic()
        try:
            inventory = await self._sysfs.run(pools.discover, self._tree, pkeys)
        except Exception as error:  # noqa: BLE001 - a node we cannot read must not end what is served already
            self.scan_failures += 1
            log.on_change("scan", f"the scan of sysfs failed, the last one counts: {error!r}", logging.ERROR)
            return
        self.scan_seconds = time.monotonic() - begun
        self.scan_seconds_total += self.scan_seconds
        self.scans += 1
        self.inventory = inventory
        self._observe({(hca.name, port.number): port.state for hca in inventory.hcas for port in hca.ports})
        self._report()
        await self._update()

    async def _port_poller(self) -> None:
        """Look at port states often: InfiniBand ports change without an event."""
        while True:
            await take(self._poll_wanted, self._next_look())
            states = await self._sysfs.run(pools.port_states, self._tree, tuple(self.states))
            # A scan may have come between; what ports there are is its business.
            now = {key: states.get(key, state) for key, state in self.states.items()}
            waiting = any(port.differs_since for served in self.served.values() for port in served.ports.values())
            if now != self.states or waiting:
                self._observe(now)
                await self._update()

    def _status(self) -> str:
        """One line for `systemctl status`."""
        registered = sum(served.resource.registered for served in self.served.values())
        problems = log.printable("; ".join(self.unready()))
        return f"STATUS={registered} of {len(self.served)} resources registered" + (f": {problems}" if problems else "")

    async def _watchdog(self) -> None:
        told = ""
        while True:
            await asyncio.sleep(self.settings.timing.backstop)
            if told != self._status():
                told = self._status()
                notify.tell(told)
            if self.hung:
                log.on_change("sysfs", "a read of sysfs hangs: health is not known any more", logging.ERROR)
            else:
                log.on_change("sysfs", "reads of sysfs come back", logging.DEBUG)

    def _next_look(self) -> float:
        """Seconds to the next look at the ports: the poll's, or when a state that waits becomes certain."""
        now = time.monotonic()
        due = [
            port.due(served.pool.health) or now + self.settings.port_poll
            for served in self.served.values()
            for port in served.ports.values()
            if port.differs_since is not None
        ]
        return max(0.005, min([self.settings.port_poll, *(moment - now for moment in due)]))

    def _observe(self, states: dict[PortKey, Optional[str]]) -> None:
        """Take over port states, count links that went down."""
        for key, state in states.items():
            before = self.states.get(key)
            if before == pools.ACTIVE and state != pools.ACTIVE:
                self.flaps[key] += 1
            if key in self.states and before != state:
                log.on_change(f"port {key}", f"port {key[0]}/{key[1]} is {state or 'unreadable'}")
        self.states = states

    # Offers.

    def _offer(self, pool: Pool, ports: dict[PortKey, Debounced], known: int) -> allocation.Offer:
        """The offer of a pool now. ports: what is remembered of its ports, brought up to date here."""
        chosen = pools.members(pool, self.inventory)
        now = time.monotonic()
        remembered = {}
        healthy = {}
        active = {}
        for hca in chosen:
            states = []
            for port in hca.ports:
                key = (hca.name, port.number)
                up = self.states.get(key) == pools.ACTIVE
                remembered[key] = pools.debounce(ports.get(key), up, now, pool.health)
                states.append(remembered[key].up)
            healthy[hca.name] = pools.hca_healthy(pool.health, states)
            active[hca.name] = tuple(port.number for port, up in zip(hca.ports, states) if up)
        ports.clear()
        ports.update(remembered)
        return allocation.offer(
            pool,
            chosen,
            healthy,
            rdma_cm=self.inventory.rdma_cm,
            exclusive=self.inventory.exclusive,
            active=active,
            known=known,
        )

    async def _update(self, force: bool = False) -> None:
        """Let every pool offer what the node and the config say now."""
        async with self._updating:
            for served in self.served.values():
                offer = self._offer(served.pool, served.ports, served.service.offer.known)
                if offer != served.service.offer:
                    await self._write_cdi(served.service, offer)
                served.service.offers(offer, force)
                self._tell(offer)

    def _tell(self, offer: allocation.Offer) -> None:
        name = offer.pool.resource
        who = " ".join(hca.name for hca in offer.members) or "none"
        level = logging.INFO if offer.healthy or not offer.count else logging.WARNING
        log.on_change(f"offer {name}", f"{name}: offer", level, devices=offer.count, healthy=offer.healthy, hcas=who)

    async def _write_cdi(self, service: Service, offer: allocation.Offer) -> None:
        if self.settings.use_cdi:
            service.cdi_ready = await self._files_of_cdi(cdi.write, offer)

    async def _files_of_cdi(self, action: Callable[..., bool], what: Any) -> bool:
        directory = self.settings.cdi_directory
        if not self.settings.use_cdi:
            return False
        try:
            await self.files.run(action, directory, what)
        except OSError as error:
            log.on_change("cdi", f"cannot write CDI specs in {directory}: {error.strerror}", logging.ERROR)
            return False
        log.on_change("cdi", "CDI specs are in place", directory=directory)
        return True

    async def _set_up_links(self) -> None:
        """What upstream does for each interface it selects, once when the interface comes."""
        for served in list(self.served.values()) if self._link_up else ():
            for hca in served.service.offer.members if served.pool.link_up else ():
                for netdev in sorted({port.netdev for port in hca.ports if port.netdev}):
                    if netdev not in self._linked:
                        self._linked.add(netdev)
                        problem = await self._sysfs.run(self._link_up, netdev)
                        if problem:
                            log.warning(f"cannot set {netdev} up", reason=problem, resource=served.pool.resource)

    def _report(self) -> None:
        """Say what the scan has found, where it differs from the last time."""
        present = {netdev for hca in self.inventory.hcas for netdev in hca.netdevs}
        self._linked &= present
        for pool in self.config.pools:
            for hca in self.inventory.hcas:
                out = pools.judge(pool, hca, self.inventory.rdma_cm)
                # Only what the selectors ask for and the pool does without is news; the rest is what `explain` is for.
                if out and out.code.startswith("no-"):
                    log.on_change(
                        f"judge {pool.name} {hca.name}", f"{pool.resource}: {hca.label} {out.text}", logging.WARNING
                    )
                elif not out:
                    log.on_change(f"judge {pool.name} {hca.name}", f"{pool.resource}: has {hca.label}")
        if self.inventory.exclusive:
            log.on_change("netns", _EXCLUSIVE, logging.ERROR)
        else:
            log.on_change("netns", f"RDMA network namespace mode: {self.inventory.netns}")


_EXCLUSIVE = (
    "incorrect RDMA subsystem network namespace mode: exclusive, wanted shared; all devices are Unhealthy. Set it "
    "before pods run: rdma system set netns shared, or options ib_core netns_mode=1 (role gpufabric.rdma.rdma_netns)"
)


async def _end(tasks: list[asyncio.Future]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _identity(pool: Pool) -> tuple[Any, ...]:
    """What the kubelet was told at registration: another one is another resource."""
    return pool.resource, pool.allocation != "all"


def _read(path: str) -> tuple[Any, bytes]:
    with open(path, "rb") as file:
        return _stamp_of(os.fstat(file.fileno())), file.read()


def _stamp(path: str) -> Any:
    try:
        return _stamp_of(os.stat(path))
    except OSError as error:
        return error.errno


def _stamp_of(status: os.stat_result) -> Any:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
