"""Rails: the HCA ports on the fabric, in an order that is the same on identically built nodes.

Named rails are used as given. An automatic rail has evidence: verbs, its own port, a GID or a LID while its link is up,
and no management on it. Rails have one link layer, one rate and one kind of card: the kind that pairs with the GPUs
(see `pairing`), else the one with the most ports. A number belongs to a place, not to a device: an unplugged, unbound
or missing card leaves its number empty and moves no other.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, Optional

from . import management, pairing, paths, pci, roots
from .netdevs import ZERO_GID, same_address
from .text import unknown
from .topology import Topology
from .tree import Tree

KEYS = ("hca", "pci", "netdev", "mac")
AUTOMATIC, NAMED = "automatic", "named"
_NO_LID = (None, 0, 0xFFFF)
_INFINIBAND_CLASS = "0x0207"
# Reasons that leave a port part of its card, so its number stays empty; with the others it is not a port of it.
_HELD = ("management", "unused", "no-gid", "no-lid")


class Lack(NamedTuple):
    """Why a port is not an automatic rail: a code for programs, a sentence for people."""

    code: str
    text: str


class Place(NamedTuple):
    """A port of a card, or a PCI function without an RDMA device (hca and port are None)."""

    address: str
    hca: Optional[dict[str, Any]] = None
    port: Optional[dict[str, Any]] = None
    lack: Optional[Lack] = None

    @property
    def managed(self) -> bool:
        return bool(self.lack) and self.lack.code == "management"


class Bus:
    """The functions on PCI and their places. functions: `pci.classes`."""

    def __init__(self, tree: Tree, functions: Optional[dict[str, str]] = None):
        self.tree = tree
        self.where = Topology(tree)
        self.functions = pci.classes(tree) if functions is None else functions
        self._direct = roots.data_direct_functions(tree, self.functions)

    def data_direct(self, address: str) -> Optional[str]:
        """The function through which a card reaches its GPU; a string if that is unknown."""
        direct = roots.data_direct(self.tree, address, self.functions, self._direct)
        if direct or not self._direct or pci.kind(self.tree, address) not in roots.DATA_DIRECT_CARDS:
            return direct
        return unknown("no vital product data ties a Data Direct function to this card; its GPU is by order")

    def end(self, address: str) -> str:
        """The function where the path to the GPUs starts: Data Direct's, if the card has one."""
        return roots.data_direct(self.tree, address, self.functions, self._direct) or address


class Group(NamedTuple):
    """The cards of one link layer and kind. cards: {slot: places in the order of functions and ports}."""

    layer: str
    kind: str
    cards: dict[str, list[Place]]

    @property
    def places(self) -> list[Place]:
        return [place for places in self.cards.values() for place in places]

    @property
    def free(self) -> list[Place]:
        """The places without management."""
        return [place for place in self.places if not place.managed]


def rails(
    tree: Tree,
    hcas: list[dict[str, Any]],
    gpus: list[dict[str, Any]],
    wanted: Optional[list[dict[str, Any]]] = None,
    software: bool = False,
    functions: Optional[dict[str, str]] = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(rails, not_rails).

    wanted: [{hca|pci|netdev|mac: value, port: number}], port optional. software: allow rxe and siw as automatic rails.
    functions: `pci.classes`, if already read.
    """
    bus = Bus(tree.snapshot(), functions)
    return _named(bus, hcas, gpus, wanted) if wanted else _automatic(bus, hcas, gpus, software)


def _rail(bus: Bus, index: int, place: Place, gpu: Optional[dict[str, Any]], reason: str) -> dict[str, Any]:
    hca, port = place.hca or {}, place.port or {}
    address = hca["pci"]["address"] if hca["pci"] else None
    if not gpu and len(hca["nearest_gpus"]) == 1:
        gpu = hca["nearest_gpus"][0]
    return {
        "index": index,
        "hca": hca["name"],
        "port": port["number"],
        "netdev": port["netdev"],
        "pci": address,
        "gpu": gpu["address"] if gpu else None,
        "distance": gpu["distance"] if gpu else None,
        "data_direct": bus.data_direct(address) if address else None,
        "card": hca["sys_image_guid"],
        "reason": reason,
        "lacks": place.lack.text if place.lack else None,
    }


def _no_rail(
    lack: Lack, place: Optional[Place] = None, index: Optional[int] = None, gpu: Optional[str] = None
) -> dict[str, Any]:
    hca, port = (place and place.hca) or {}, (place and place.port) or {}
    return {
        "hca": hca.get("name"),
        "port": port.get("number"),
        "pci": (place.address if place else None) or None,
        "index": index,
        "gpu": gpu,
        "code": lack.code,
        "reason": lack.text,
    }


# Named rails.


def _named(
    bus: Bus, hcas: list[dict[str, Any]], gpus: list[dict[str, Any]], wanted: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    chosen: list[tuple[int, Place]] = []
    missing = []
    for index, item in enumerate(wanted):
        key, value = next(((key, str(item[key])) for key in KEYS if item.get(key)), ("hca", ""))
        found = [hca for hca in hcas if matches(hca, key, value.lower())]
        ports = [(hca, port) for hca in found for port in _ports(hca, key, value, item.get("port"))]
        if len(ports) == 1:
            hca, port = ports[0]
            chosen.append((index, Place(_address(hca), hca, port, _lack(bus.tree, hca, port, hcas))))
        else:
            seen = f"{len(ports)} ports have it; name the port too" if ports else "no HCA port has it"
            missing.append(_no_rail(Lack("named", f"Rail {index} is named by {key} {value}, but {seen}."), index=index))
    cards = {_card(place): bus.end(place.address) for _index, place in chosen if place.address}
    paired = pairing.pair(bus.where, cards, [gpu["address"] for gpu in gpus])
    mine = {card: gpu for card, gpu in (paired.seats if paired else ()) if card}

    def beside(place: Place) -> Optional[dict[str, Any]]:
        gpu = mine.get(_card(place))
        return {"address": gpu, "distance": bus.where.distance(gpu, cards[_card(place)])} if gpu else None

    return [_rail(bus, index, place, beside(place), NAMED) for index, place in chosen], missing


def matches(hca: dict[str, Any], key: str, value: str) -> bool:
    """Whether an HCA matches a key of KEYS and its value, in lower case."""
    if key == "hca":
        return hca["name"].lower() == value
    if key == "pci":
        value = pci.full(value)
        ours = hca["function"] != "sf" and hca["char_devices"]["uverbs"] is not None
        return bool(hca["pci"]) and hca["pci"]["address"] == value and ours
    return any(_is(netdev, key, value) for netdev in hca["netdevs"])


def _is(netdev: dict[str, Any], key: str, value: str) -> bool:
    return same_address(netdev["mac"], value) if key == "mac" else netdev["name"].lower() == value.lower()


def _ports(hca: dict[str, Any], key: str, value: str, number: Any) -> list[dict[str, Any]]:
    """The ports that a name selects: all of the HCA's, or the one of the named interface."""
    ports = hca["ports"]
    if number:
        return [port for port in ports if port["number"] == int(number)]
    if key in ("netdev", "mac") and len(ports) > 1:
        on = {netdev["port"] for netdev in hca["netdevs"] if _is(netdev, key, value)}
        return [port for port in ports if port["number"] in on]
    return ports


# Evidence.


def only_manages(hca: dict[str, Any], hcas: list[dict[str, Any]]) -> bool:
    """Whether an HCA is a sub-device for management packets, as XDR has one on the function of each HCA."""
    if hca["char_devices"]["uverbs"] or hca["function"] != "pf":
        return False
    return any(other["char_devices"]["uverbs"] and _address(other) == _address(hca) for other in hcas)


def _lack(tree: Tree, hca: dict[str, Any], port: dict[str, Any], hcas: list[dict[str, Any]]) -> Optional[Lack]:
    """The evidence of a rail that a port lacks; reasons from its group come later."""
    if only_manages(hca, hcas):
        return Lack("no-verbs", "It has no verbs device: such a sub-device only carries management packets.")
    if hca["char_devices"]["uverbs"] is None:
        return Lack("no-verbs", "It has no verbs device: ib_uverbs is not loaded, or did not take it.")
    if hca["function"] == "vf":
        return Lack("virtual", f"It is a virtual function of {hca['pci']['physfn']}.")
    if hca["function"] == "sf":
        return Lack("virtual", f"It is a sub-function of {hca['pci']['address']}.")
    if hca["representors"] and port["number"] > 1:
        return Lack("representor", f"Port {port['number']} represents a virtual function or sub-function.")
    own = [netdev for netdev in hca["netdevs"] if netdev["port"] in (port["number"], None)]
    for netdev in own:
        if netdev["management"]:
            return Lack("management", f"{netdev['name']} carries {netdev['management']}; name it to use it anyway.")
    masters = {netdev["master"] for netdev in own} - {None}
    bond = next((name for name in sorted(masters) if any(netdev["name"] == name for netdev in own)), None)
    if bond:
        members = {netdev["name"] for other in hcas for netdev in other["netdevs"] if netdev["master"] == bond}
        members |= management.below(tree, bond) - {bond}
        beside = sorted(members - {netdev["name"] for netdev in hca["netdevs"]})
        if beside:
            return Lack("bond-member", f"It is a member of {bond}, beside {', '.join(beside)}.")
    return unproven(tree, hca, port) or _shared(hca, port, hcas) or _unused(hca, port, hcas)


def unproven(tree: Tree, hca: dict[str, Any], port: dict[str, Any]) -> Optional[Lack]:
    """An InfiniBand port in service has a LID, any other a GID; a port without a link needs neither yet."""
    up = port["state"] in ("ACTIVE", "ARMED")
    if port["link_layer"] == "InfiniBand":
        return Lack("no-lid", "Its link is up, but it has no LID.") if up and port["lid"] in _NO_LID else None
    if port["gids"]:
        return None
    gids = f"{paths.INFINIBAND}/{hca['name']}/ports/{port['number']}/gids"
    slots = tree.listdir(gids)
    if slots and (not up or tree.slots(gids, ZERO_GID, first=True)):
        return None
    why = "It has no GID, although its link is up" if slots else "Its GID table has no room, as in switchdev mode"
    return Lack("no-gid", f"{why}: it cannot carry RoCE.")


def _shared(hca: dict[str, Any], port: dict[str, Any], hcas: list[dict[str, Any]]) -> Optional[Lack]:
    """The second function of a Socket Direct card, whose only interface (multi-PF netdev) is the first's."""
    if hca["netdevs"] or port["link_layer"] != "Ethernet" or _used(hca, port) or not hca["pci"]:
        return None
    for other in hcas:
        alike = other["pci"] and other["function"] == "pf" and other["sys_image_guid"] == hca["sys_image_guid"]
        if alike and other["netdevs"] and pci.slot(_address(other)) != pci.slot(_address(hca)):
            text = f"It has no interface: it shares that of {other['name']}, another function of the same card."
            return Lack("shared", text)
    return None


def _unused(hca: dict[str, Any], port: dict[str, Any], hcas: list[dict[str, Any]]) -> Optional[Lack]:
    """Down and without an address while another port of the card is in use: probably left unconnected on purpose."""
    if _used(hca, port):
        return None
    card = pci.slot(_address(hca)) or hca["name"]
    for other in hcas:
        same = (pci.slot(_address(other)) or other["name"]) == card and other["char_devices"]["uverbs"]
        for beside in other["ports"] if same and other["function"] not in ("vf", "sf") else ():
            if beside is not port and _used(other, beside):
                return Lack(
                    "unused",
                    f"Port {port['number']} is down and has no address, while {other['name']}/{beside['number']} "
                    "of the same card is in use; name it to use it.",
                )
    return None


def _used(hca: dict[str, Any], port: dict[str, Any]) -> bool:
    if port["state"] != "DOWN":
        return True
    own = [netdev for netdev in hca["netdevs"] if netdev["port"] == port["number"]]
    return any(isinstance(netdev["addresses"], list) and netdev["addresses"] for netdev in own)


def _address(hca: dict[str, Any]) -> str:
    return hca["pci"]["address"] if hca["pci"] else ""


def _card(place: Place) -> str:
    """The physical card: the functions of a PCI slot. A software HCA is its own card."""
    return pci.slot(place.address) or (place.hca["name"] if place.hca else "")


# Groups.


def _automatic(
    bus: Bus, hcas: list[dict[str, Any]], gpus: list[dict[str, Any]], software: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    out: list[dict[str, Any]] = []
    groups = _groups(bus, hcas, software, out)
    numbered: list[tuple[int, Place, Optional[str]]] = []
    chosen = []
    paired = [(group, _paired(bus, group, gpus)) for group in groups if group.kind != "software"]
    paired = [(group, seats) for group, seats in paired if _expected(bus, group, seats)]
    if paired:
        group, seats = max(paired, key=lambda row: _rank(*row))
        chosen.append(group)
        numbered = _by_gpu(group, seats, out) if seats else _by_pci(group)
    for group in groups:
        if group.kind == "software":
            start = max((index for index, _place, _gpu in numbered), default=-1) + 1
            numbered += [(index + start, place, gpu) for index, place, gpu in _by_pci(group)]
            chosen.append(group)
    rate = _rate([place for _index, place, _gpu in numbered])
    found = []
    for index, place, gpu in numbered:
        lack = place.lack or _other_rate(place, rate)
        if place.hca is None:
            lack = Lack("no-rdma", f"The card {place.address} has no RDMA device: no driver for it, or it failed.")
        if lack:
            out.append(_no_rail(lack, place, index, gpu))
        else:
            far = {"address": gpu, "distance": bus.where.distance(gpu, bus.end(place.address))} if gpu else None
            found.append(_rail(bus, index, place, far, AUTOMATIC))
    placed = {id(place.port) for _index, place, _gpu in numbered}
    out += [
        _no_rail(place.lack or _left(group, chosen), place)
        for group in groups
        for place in group.places
        if place.hca and id(place.port) not in placed
    ]
    order = [(hca["name"], port["number"]) for hca in hcas for port in hca["ports"]]
    places = {port: place for place, port in enumerate(order)}
    return found, sorted(out, key=lambda row: places.get((row["hca"], row["port"]), len(places)))


def _left(group: Group, chosen: list[Group]) -> Lack:
    if group in chosen:
        return Lack("no-gpu", "Every GPU is nearer to another card of this kind; name it to use it.")
    rails_of = next((f"{one.layer} ports of {one.kind}" for one in chosen), "others")
    return Lack("other-kind", f"The rails are {rails_of}, this is {group.layer} of {group.kind}; name it to use it.")


def _other_rate(place: Place, rate: Optional[float]) -> Optional[Lack]:
    port = place.port
    if not rate or not port or not place.address or port["state"] != "ACTIVE" or port["rate_gbps"] in (None, rate):
        return None
    return Lack("other-rate", f"Its link runs at {port['rate_gbps']:g} Gb/s, that of the rails at {rate:g}.")


def _rate(places: list[Place]) -> Optional[float]:
    """The rate of most ports in service; a port without a link reports a stale rate."""
    rates = Counter(
        place.port["rate_gbps"]
        for place in places
        if place.address and place.port and not place.lack and place.port["state"] == "ACTIVE"
    )
    return max(rates, key=lambda rate: (rates[rate], rate or 0), default=None)


def _groups(bus: Bus, hcas: list[dict[str, Any]], software: bool, out: list[dict[str, Any]]) -> list[Group]:
    """Ports by link layer and kind of card, in PCI order; ports that do not belong to a card go to `out`."""
    found: dict[tuple[str, str], list[Place]] = {}
    for hca in hcas:
        if not hca["ports"]:
            out.append(_no_rail(Lack("no-port", "It has no port."), Place(_address(hca), hca)))
        for port in hca["ports"]:
            lack = _lack(bus.tree, hca, port, hcas)
            if hca["kind"] == "software" and not software and (lack is None or lack.code != "management"):
                lack = Lack("software", "It is a software HCA; software_hcas allows those.")
            place = Place(_address(hca), hca, port, lack)
            if lack and (lack.code not in _HELD or hca["kind"] == "software"):
                out.append(_no_rail(lack, place))
                continue
            kind = f"{hca['pci']['vendor']}:{hca['pci']['device']}" if hca["pci"] else "software"
            found.setdefault((str(port["link_layer"]), kind), []).append(place)
    dead = _dead(bus, hcas)
    live = {kind for _layer, kind in found}
    for kind in dead.keys() - live:  # no card of its kind works
        for address in dead[kind]:
            layer = "InfiniBand" if bus.functions[address].startswith(_INFINIBAND_CLASS) else "Ethernet"
            found.setdefault((layer, kind), [])
    groups = []
    for (layer, kind), places in found.items():
        each = max(Counter(place.hca["name"] for place in places if place.hca).values(), default=1)
        for address in dead.get(kind, ()):
            if bus.functions[address].startswith(_INFINIBAND_CLASS) == (layer == "InfiniBand"):
                places += [Place(address)] * each
        cards: dict[str, list[Place]] = {}
        for place in sorted(places, key=lambda place: pci.order(place.address)):
            cards.setdefault(_card(place), []).append(place)
        groups.append(Group(layer, kind, cards))
    return groups


def _dead(bus: Bus, hcas: list[dict[str, Any]]) -> dict[str, list[str]]:
    """{kind: addresses} of physical network functions without an RDMA device."""
    taken = {_address(hca) for hca in hcas} | {address for hca in hcas for address in hca["bonded_functions"]}
    found: dict[str, list[str]] = {}
    for address, code in bus.functions.items():
        if code.startswith(pci.NETWORK_CLASS) and address not in taken:
            kind = pci.kind(bus.tree, address)
            given_away = pci.virtual(bus.tree, address) or pci.passes_on(pci.driver(bus.tree, address))
            if not given_away and kind != roots.DATA_DIRECT:
                found.setdefault(kind, []).append(address)
    return found


def _expected(bus: Bus, group: Group, paired: Optional[pairing.Pairing]) -> bool:
    """Whether a group can be the rails. If none of its cards has an RDMA device, the vendor must make no other cards,
    or the cards must be next to the GPUs.
    """
    if any(place.hca for place in group.places):
        return True
    address = group.places[0].address
    beside = paired is not None and paired.level == pairing.SWITCH
    return beside or pci.is_card(bus.tree, address, bus.functions[address])


def _rank(group: Group, paired: Optional[pairing.Pairing]) -> tuple[Any, ...]:
    """The rank of a group as rails: GPUs with a card of it, their distance; without GPUs its number of ports.

    Nothing here depends on a cable except the rate, which comes last.
    """
    free = group.free
    quiet = len(free) == len(group.places)
    known = [place.hca for place in group.places if place.hca]
    links = [hca["pci"]["link"] for hca in known]
    lanes = max(((link["max_speed_gts"] or 0) * (link["max_width"] or 0) for link in links), default=0)
    size = (lanes, _rate(group.places) or 0, len(free)) if paired else (len(free), lanes, _rate(group.places) or 0)
    near = (paired.served, -paired.level) if paired else (0, 0)
    iwarp = bool(known) and known[0]["node_type"] == "RNIC"
    return (bool(free), *near, not iwarp, *((quiet,) if paired else ()), *size, quiet)


# Numbers.


def _by_pci(group: Group) -> list[tuple[int, Place, Optional[str]]]:
    """Card by card; a port that management uses takes no number."""
    return [(index, place, None) for index, place in enumerate(group.free)]


def _paired(bus: Bus, group: Group, gpus: list[dict[str, Any]]) -> Optional[pairing.Pairing]:
    ends = {card: bus.end(places[0].address) for card, places in group.cards.items()}
    spare = {card for card, places in group.cards.items() if all(place.managed for place in places)} | _unlike(group)
    return pairing.pair(bus.where, ends, [gpu["address"] for gpu in gpus], spare)


def _unlike(group: Group) -> set[str]:
    """Cards with other firmware or another number of ports than most: for storage, if the GPUs have cards besides."""
    makes = {card: (places[0].hca["psid"], len(places)) for card, places in group.cards.items() if places[0].hca}
    usual, count = max(Counter(makes.values()).items(), key=lambda row: row[1], default=(None, 0))
    return {card for card, make in makes.items() if make != usual and 2 * count > len(makes)}


def _by_gpu(group: Group, paired: pairing.Pairing, out: list[dict[str, Any]]) -> list[tuple[int, Place, Optional[str]]]:
    """Seat by seat; each card has as many numbers as the largest one.

    Ports that management uses take none, unless their card would then have fewer ports than the others.
    """
    cards = {card: group.cards[card] for card, _gpu in paired.seats if card}
    free = {card: [place for place in places if not place.managed] for card, places in cards.items()}
    width = max(map(len, free.values()), default=0) or 1
    found: list[tuple[int, Place, Optional[str]]] = []
    for seat, (card, gpu) in enumerate(paired.seats):
        if card is None:
            out.append(_no_rail(Lack("no-card", f"No rail card works beside GPU {gpu}."), index=seat * width, gpu=gpu))
            continue
        places = free[card] if len(free[card]) == width else cards[card][:width]
        at = [int(place.address[-1]) for place in places]
        if len(places) == width or len(set(at)) < len(at) or max(at) >= width:
            at = list(range(len(places)))  # else a function of the card is missing, and the others keep their numbers
        found += [(seat * width + offset, place, gpu) for offset, place in zip(at, places)]
    return found
