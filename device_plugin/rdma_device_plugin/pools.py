# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HCAs of a node, those of each pool, and their health. Reads only through a Tree."""

from __future__ import annotations

import fnmatch
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

from . import log
from .config import RDMA_MODULES, CharDevices, Health, Pool
from .hca import Tree, hcas, netdevs, netns, paths, pci
from .hca.seams import Seams
from .hca.text import integer, is_unknown

ACTIVE = "ACTIVE"
# Character devices shared by all HCAs of a node, in the order in which containers get them.
COMMON = {"rdma_cm": "/dev/infiniband/rdma_cm", "gdrdrv": "/dev/gdrdrv"}
# Whichever is visible: the device's class entry, its module, or the node itself.
_RDMA_CM_SIGNS = ("/sys/class/misc/rdma_cm", "/sys/module/rdma_ucm", COMMON["rdma_cm"])
_MODULES = {"uverbs": "ib_uverbs", "umad": "ib_umad", "issm": "ib_umad", "rdma_cm": "rdma_ucm", "gdrdrv": "gdrdrv"}


def _names(netdevs: tuple[str, ...]) -> str:
    return f" ({', '.join(netdevs)})" if netdevs else ""


class Port(NamedTuple):
    number: int
    state: Optional[str]
    link_layer: Optional[str]
    netdev: Optional[str]


class Details(NamedTuple):
    """Attributes of an HCA that only DRA publishes. root: its PCIe root. rails, rates: {port: index or Gb/s}."""

    model: Optional[str] = None
    psid: Optional[str] = None
    firmware: Optional[str] = None
    node_guid: Optional[str] = None
    root: Optional[str] = None
    rails: tuple[tuple[int, int], ...] = ()
    rates: tuple[tuple[int, float], ...] = ()


class Hca(NamedTuple):
    """What a pool needs to know about an RDMA device. Software devices (rxe, siw) have no address, vendor or driver."""

    name: str
    address: Optional[str] = None
    vendor: Optional[str] = None
    device: Optional[str] = None
    driver: Optional[str] = None
    numa_node: int = -1
    network_class: bool = True
    netdevs: tuple[str, ...] = ()
    link_types: tuple[str, ...] = ()
    uverbs: tuple[str, ...] = ()
    umad: tuple[str, ...] = ()
    issm: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    pkeys: frozenset[int] = frozenset()
    details: Details = Details()

    @property
    def software(self) -> bool:
        return self.address is None

    @property
    def label(self) -> str:
        """For messages: name, address, netdevs."""
        return f"{self.name} {self.address or 'software'}{_names(self.netdevs)}"


class Card(NamedTuple):
    """A network function without an RDMA device."""

    address: str
    driver: Optional[str]
    netdevs: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.address}{_names(self.netdevs)}"

    @property
    def reason(self) -> str:
        if self.driver is None:
            return "no RDMA device: no driver is bound"
        module = RDMA_MODULES.get(self.driver)
        if module:
            return f"no RDMA device: driver {self.driver} is bound, {module} has created none (modprobe {module})"
        return f"no RDMA device: driver {self.driver} does not create one"


class Inventory(NamedTuple):
    """A node at one moment. common: which of COMMON are there. netns: shared, exclusive, or why that is unknown."""

    hcas: tuple[Hca, ...] = ()
    cards: tuple[Card, ...] = ()
    common: frozenset[str] = frozenset()
    netns: str = netns.SHARED

    @property
    def exclusive(self) -> bool:
        return self.netns == netns.EXCLUSIVE


class Out(NamedTuple):
    """Why an HCA is not in a pool: a code for metrics and tests, a sentence for messages."""

    code: str
    text: str


# Discover.


def _parents_node(tree: Tree, ports: list) -> int:
    """NUMA node of a software HCA: that of its parent NIC, even through virtio; -1 for a virtual one."""
    address = pci.below(tree, next((port["netdev"] for port in ports if port["netdev"]), None))
    return pci.numa_node(tree, address) if address else -1


class Wanted(NamedTuple):
    """What to read besides the minimum. software: count rxe and siw among the automatic rails."""

    pkeys: bool = False
    details: bool = False
    software: bool = False


_MINIMUM = Wanted()


def discover(tree: Tree, wanted: Wanted = _MINIMUM) -> Inventory:
    """Every HCA that may be in a pool, PCI ones in address order, and the network functions without one."""
    tree = tree.snapshot()
    functions = pci.classes(tree)
    network = {address for address, code in functions.items() if code.startswith(pci.NETWORK_CLASS)}
    found = []
    taken = set()
    # Sessions come and go, and the number of a rail does not.
    interfaces = netdevs.Network(tree, Seams.of(tree) if wanted.details else None, sessions=False)
    facts = hcas.hcas(tree, interfaces, gids=False, functions=functions)
    details = _details(tree, facts, functions, wanted.software) if wanted.details else {}
    for fact in facts:
        function = fact["pci"] or {}
        taken.update([function.get("address"), *fact["bonded_functions"]])
        names = [netdev["name"] for netdev in fact["netdevs"]]
        kinds = [netdev["type"] or "" for netdev in fact["netdevs"]]
        characters = fact["char_devices"]
        found.append(
            Hca(
                name=fact["name"],
                address=function.get("address"),
                vendor=function.get("vendor"),
                device=function.get("device"),
                driver=function.get("driver"),
                numa_node=function["numa_node"] if function else _parents_node(tree, fact["ports"]),
                network_class=not function or function["address"] in network,
                netdevs=tuple(sorted({*names, *fact["representors"]})),
                link_types=tuple(sorted({*kinds, *(["ether"] if fact["representors"] else [])})) or ("",),
                uverbs=(characters["uverbs"],) if characters["uverbs"] else (),
                umad=tuple(characters["umad"]),
                issm=tuple(characters["issm"]),
                ports=tuple(
                    Port(port["number"], port["state"], port["link_layer"], port["netdev"]) for port in fact["ports"]
                ),
                pkeys=_pkeys(tree, fact["name"], fact["ports"]) if wanted.pkeys else frozenset(),
                details=details.get(fact["name"], Details()),
            )
        )
    cards = tuple(
        Card(address, pci.driver(tree, address), tuple(tree.listdir(f"{paths.PCI}/{address}/net")))
        for address in sorted(network - taken, key=pci.order)
    )
    return Inventory(
        hcas=tuple(found),
        cards=cards,
        common=_common(tree),
        netns=netns.running(tree),
    )


def _common(tree: Tree) -> frozenset[str]:
    # GDRCopy's module creates no device node; a container without /dev can only look for the module.
    gdrdrv = COMMON["gdrdrv"] if tree.exists("/dev/infiniband") else "/sys/module/gdrdrv"
    found = {"rdma_cm": any(tree.exists(sign) for sign in _RDMA_CM_SIGNS), "gdrdrv": tree.exists(gdrdrv)}
    return frozenset(name for name, there in found.items() if there)


def _details(tree: Tree, facts: list[dict], functions: dict[str, str], software: bool) -> dict[str, Details]:
    """{HCA: Details}. The rails are those of the collection's facts without named rails."""
    from .hca import rails, roots  # for DRA only

    gpus = pci.gpus(tree, functions)
    hcas.place(tree, facts, gpus)
    numbers: dict[str, dict[int, int]] = {}
    for rail in rails.rails(tree, facts, gpus, software=software, functions=functions)[0]:
        numbers.setdefault(rail["hca"], {})[rail["port"]] = rail["index"]
    return {
        fact["name"]: Details(
            model=_known(fact["pci"] and fact["pci"]["model"]),
            psid=fact["psid"],
            firmware=fact["firmware"],
            node_guid=fact["node_guid"],
            root=roots.hca_root(tree, fact, functions),
            rails=tuple(sorted(numbers.get(fact["name"], {}).items())),
            rates=tuple((port["number"], port["rate_gbps"]) for port in fact["ports"] if port["rate_gbps"]),
        )
        for fact in facts
    }


def _known(text: Optional[str]) -> Optional[str]:
    return None if is_unknown(text) else text


def _pkeys(tree: Tree, name: str, ports: list[dict]) -> frozenset[int]:
    """Partitions of all ports, without the full-membership bit."""
    found = set()
    for port in ports:
        directory = f"{paths.INFINIBAND}/{name}/ports/{port['number']}/pkeys"
        for index in tree.listdir(directory):
            value = integer(tree.read(f"{directory}/{index}")) or 0
            if value & 0x7FFF:
                found.add(value & 0x7FFF)
    return frozenset(found)


def port_states(tree: Tree, hca_ports: tuple[tuple[str, int], ...]) -> dict[tuple[str, int], Optional[str]]:
    """Current {(HCA, port): state}; None if it cannot be read. Cheap enough to poll often."""
    found = {}
    for name, number in hca_ports:
        text = tree.read(f"{paths.INFINIBAND}/{name}/ports/{number}/state")
        found[name, number] = text.partition(": ")[2] or text if text else None
    return found


# Select.


def needs(wanted: CharDevices, hca: Hca) -> dict[str, str]:
    """required, optional or never for each character device of an HCA.

    By default: InfiniBand needs management datagrams and RoCE does not; other link layers (EFA) have neither datagrams
    nor a connection manager.
    """
    layers = {port.link_layer for port in hca.ports}
    infiniband = "InfiniBand" in layers
    plain = infiniband or "Ethernet" in layers or not layers - {None}
    derived = {
        "uverbs": "required",
        "umad": "required" if infiniband else "optional",
        "issm": "optional",
        "rdma_cm": "required" if plain else "optional",
        "gdrdrv": "never",
    }
    return {name: getattr(wanted, name) or default for name, default in derived.items()}


def judge(pool: Pool, hca: Hca, common: frozenset[str] = frozenset(COMMON)) -> Optional[Out]:
    """Why an HCA is not in a pool; None if it is."""
    return unselected(pool, hca) or _incomplete(pool, hca, common)


def unselected(pool: Pool, hca: Hca) -> Optional[Out]:
    """Why a pool's selectors leave an HCA out, regardless of its character devices."""
    if hca.software and not pool.software:
        return Out("software", "software HCA, and the pool does not set softwareDevices: true")
    if not hca.network_class:
        return Out("class", "its PCI function is not a network controller (class 0x02)")
    chosen, extra = pool.selectors, pool.extra
    plain = (
        ("vendors", chosen.vendors, (hca.vendor,)),
        ("deviceIDs", chosen.deviceIDs, (hca.device,)),
        ("drivers", chosen.drivers, (hca.driver,)),
        ("ifNames", chosen.ifNames, hca.netdevs),
        ("linkTypes", chosen.linkTypes, hca.link_types),
        ("extraSelectors.numaNodes", extra.numaNodes, (hca.numa_node,)),
        ("extraSelectors.pKeys", tuple(key & 0x7FFF for key in extra.pKeys), tuple(hca.pkeys)),
    )
    for name, wanted, seen in plain:
        if wanted and not set(wanted).intersection(seen):
            return _unlike(name, wanted, seen)
    patterns = (
        ("extraSelectors.rdmaDevices", extra.rdmaDevices, (hca.name,)),
        ("extraSelectors.pciAddresses", extra.pciAddresses, (hca.address,)),
        ("extraSelectors.ifNames", extra.ifNames, hca.netdevs),
    )
    for name, wanted, seen in patterns:
        if wanted and not any(fnmatch.fnmatchcase(value or "", pattern) for value in seen for pattern in wanted):
            return _unlike(name, wanted, seen)
    return None


def _unlike(name: str, wanted: tuple, seen: tuple) -> Out:
    shown = ", ".join(str(value) for value in seen if value not in (None, "")) or "nothing"
    return Out(name, f"{name}: wanted {', '.join(map(str, wanted))}, it has {shown}")


def _incomplete(pool: Pool, hca: Hca, common: frozenset[str]) -> Optional[Out]:
    required = [name for name, need in needs(pool.char_devices, hca).items() if need == "required"]
    missing = [name for name in required if not (name in common if name in COMMON else getattr(hca, name))]
    if not missing:
        return None
    modules = " ".join(sorted({_MODULES[name] for name in missing}))
    return Out(
        f"no-{missing[0]}",
        f"has no character device {', '.join(missing)}: load {modules} (modprobe), it then joins automatically",
    )


def members(pool: Pool, inventory: Inventory) -> tuple[Hca, ...]:
    """The HCAs behind a pool, in the inventory's order."""
    return tuple(hca for hca in inventory.hcas if judge(pool, hca, inventory.common) is None)


def moved(pool: Pool, inventory: Inventory) -> str:
    """Where an empty pool's interfaces went: an HCA exists without any; empty if there is none."""
    chosen, kinds = pool.selectors, pool.selectors.linkTypes
    names = [*chosen.ifNames, *pool.extra.ifNames]
    rest = pool._replace(selectors=chosen._replace(ifNames=(), linkTypes=()), extra=pool.extra._replace(ifNames=()))
    bare = [hca for hca in inventory.hcas if not hca.netdevs and not hca.software and unselected(rest, hca) is None]
    layers = {{"ether": "Ethernet", "infiniband": "InfiniBand"}.get(kind) for kind in kinds}
    bare = [hca for hca in bare if not layers or layers & {port.link_layer for port in hca.ports}]
    if not (names or kinds) or not bare or members(pool, inventory):
        return ""
    ipoib = any(port.link_layer == "InfiniBand" for hca in bare for port in hca.ports)
    return (
        f"{pool.resource}: no device: the node has no interface {', '.join([*names, *kinds])}, and "
        f"{', '.join(hca.label for hca in bare)} has none: {'ib_ipoib is not loaded, or ' if ipoib else ''}it is in "
        "another network namespace, where host-device moves it for a pod; select by extraSelectors.pciAddresses"
    )


def files(pool: Pool, hca: Hca) -> tuple[str, ...]:
    """Character devices of one HCA that a container gets, in upstream's order; without COMMON."""
    need = needs(pool.char_devices, hca)
    return tuple(
        f"/dev/infiniband/{name}"
        for kind in ("issm", "umad", "uverbs")
        if need[kind] != "never"
        for name in getattr(hca, kind)
    )


def common_files(pool: Pool, chosen: tuple[Hca, ...], common: frozenset[str]) -> list[str]:
    """Which of COMMON containers of these HCAs get."""
    wanted = [needs(pool.char_devices, hca) for hca in chosen]
    return [COMMON[name] for name in COMMON if name in common and any(need[name] != "never" for need in wanted)]


def present(root: str, paths_wanted: tuple[str, ...]) -> bool:
    """Whether these nodes exist; assumed in a container without /dev/infiniband."""
    prefix = "" if root == "/" else root
    try:
        for path in paths_wanted:
            os.stat(prefix + path)
    except OSError:
        return not os.path.isdir(f"{prefix}/dev/infiniband")
    return True


# Health.


class Debounced(NamedTuple):
    """A port's state for a pool: `up` changes only after the port was in the other state for long enough.

    downs: when it went down, the last health.flaps times.
    """

    up: bool
    differs_since: Optional[float] = None
    downs: tuple[float, ...] = ()

    def due(self, health: Health) -> Optional[float]:
        """When the state changes, unless the port returns to it first."""
        if self.differs_since is None:
            return None
        if self.up:
            return self.differs_since + health.downSeconds
        back = self.differs_since + health.upSeconds
        often = health.flaps and len(self.downs) >= health.flaps
        return max(back, self.downs[-health.flaps] + health.flapSeconds) if often else back


def debounce(before: Optional[Debounced], up: bool, now: float, health: Health) -> Debounced:
    """The state after one observation. The first one of a port counts at once."""
    if before is None:
        return Debounced(up)
    if before.up == up:
        return before._replace(differs_since=None)
    waiting = before if before.differs_since is not None else before._replace(differs_since=now)
    due = waiting.due(health)
    if due is None or now < due:
        return waiting
    downs = waiting.downs if up else (*waiting.downs, now)
    return Debounced(up, None, downs[-health.flaps :] if health.flaps else ())


def hca_healthy(health: Health, states: list[bool]) -> bool:
    """An HCA without ports cannot be judged."""
    if health.ports == "ignore" or not states:
        return True
    return all(states) if health.ports == "all" else any(states)


PortKey = tuple[str, int]
# A pool's memory of its ports.
Memory = dict[PortKey, Debounced]


class Ports:
    """The node's ports as last seen. flaps: how often each left ACTIVE."""

    def __init__(self) -> None:
        self.states: dict[PortKey, Optional[str]] = {}
        self.flaps: Counter[PortKey] = Counter()

    def scanned(self, inventory: Inventory) -> None:
        """Store the set of ports and their states."""
        self.observe({(hca.name, port.number): port.state for hca in inventory.hcas for port in hca.ports})

    def polled(self, states: Mapping[PortKey, Optional[str]]) -> bool:
        """Store states of known ports; True if one changed.

        A scan may have run in the meantime; only scans change the set of ports.
        """
        now = {key: states.get(key, state) for key, state in self.states.items()}
        differs = now != self.states
        self.observe(now)
        return differs

    def observe(self, states: dict[PortKey, Optional[str]]) -> None:
        for key, state in states.items():
            before = self.states.get(key)
            if before == ACTIVE and state != ACTIVE:
                self.flaps[key] += 1
            if key in self.states and before != state:
                log.on_change(f"port {key}", f"port {key[0]}/{key[1]} is {state or 'unreadable'}")
        self.states = states

    def judge(
        self, pool: Pool, chosen: Iterable[Hca], memory: Memory, now: float
    ) -> tuple[dict[str, bool], dict[str, tuple[int, ...]]]:
        """({HCA: healthy}, {HCA: ports that are up}) for the pool; updates its memory."""
        remembered: Memory = {}
        healthy: dict[str, bool] = {}
        active: dict[str, tuple[int, ...]] = {}
        for hca in chosen:
            states = []
            for port in hca.ports:
                key = (hca.name, port.number)
                up = self.states.get(key) == ACTIVE
                remembered[key] = debounce(memory.get(key), up, now, pool.health)
                states.append(remembered[key].up)
            healthy[hca.name] = hca_healthy(pool.health, states)
            active[hca.name] = tuple(port.number for port, up in zip(hca.ports, states) if up)
        memory.clear()
        memory.update(remembered)
        return healthy, active


def pending(memories: Iterable[Memory]) -> bool:
    """Whether a port's state differs from its debounced one and is waiting for time to pass."""
    return any(port.differs_since is not None for memory in memories for port in memory.values())


def next_look(memories: Iterable[tuple[Health, Memory]], now: float, poll: float) -> float:
    """Seconds to the next check of the ports: the poll interval, or when a pending state becomes final."""
    due = [port.due(health) for health, memory in memories for port in memory.values()]
    return max(0.005, min([poll, *(moment - now for moment in due if moment is not None)]))
