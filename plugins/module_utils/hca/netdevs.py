"""Network interfaces of HCAs: addresses, default route, bonds, and the RDMA MTU they allow.

Sources: /sys/class/net (Documentation/ABI/testing/sysfs-class-net), /proc/net/if_inet6.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from . import management, paths
from .seams import Seams
from .text import integer, unknown
from .tree import Tree

ZERO_GID = b":".join([b"0000"] * 8)
IPOIB, GUID = 59, 23  # characters of 20 and of 8 octets
TYPES = {1: "ether", 32: "infiniband"}  # ARPHRD_ETHER, ARPHRD_INFINIBAND
# include/rdma/ib_addr.h, iboe_get_mtu(): GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4.
ROCE_OVERHEAD = 96
# drivers/infiniband/sw/rxe/rxe_param.h: RXE_MAX_HDR_LENGTH
RXE_OVERHEAD = 80
IB_MTUS = (4096, 2048, 1024, 512, 256)
# Names of VF and SF representors, which a NIC in switchdev mode shows besides its uplink; not ports of the card. mlx5,
# bnxt_en: pf0vf1, c1pf0sf88; ice: pf0vfr1; sfc: p0pf0vf1.
_REPRESENTOR = re.compile(r"^([cp]\d+)?pf\d+((vfr?|sf)\d+)?$")
_MAC = re.compile(r"[0-9a-fA-F:]*\Z")
_ATTRIBUTES = ("address", "mtu", "type", "operstate", "carrier", "speed", "phys_port_name", "dev_port", "dev_id")


def ib_mtu(mtu: Optional[int], overhead: int = ROCE_OVERHEAD) -> Optional[int]:
    """RDMA MTU in bytes that fits into a netdev MTU: 1500 -> 1024, 4200 -> 4096, 9000 -> 4096; None below 256."""
    return next((size for size in IB_MTUS if mtu is not None and mtu - overhead >= size), None)


class Network:
    """The node's interfaces, read on demand. sessions: see `management.uses`."""

    def __init__(self, tree: Tree, seams: Optional[Seams] = None, sessions: bool = True):
        self._tree = tree
        self._seams = seams or Seams()
        self._sessions = sessions
        self._ipv4 = self._seams.addresses()
        self._ipv6: Optional[dict[str, list[str]]] = None
        self._management: Optional[dict[str, str]] = None

    def names(self) -> list[str]:
        return [name for name in self._tree.listdir(paths.NET) if self._tree.readlink(f"{paths.NET}/{name}")]

    def master(self, name: str) -> Optional[str]:
        """The bond or bridge that an interface is enslaved to."""
        return self._tree.target(f"{paths.NET}/{name}/master")

    def aggregates(self, master: dict[str, Any], members: list[dict[str, Any]]) -> bool:
        """Whether a master is a link aggregation: a bond, or a team device. Not a bridge, Open vSwitch or VRF.

        sysfs only shows that a team is virtual and has its ports' MAC: a VRF, and the one device of Open vSwitch,
        have their own, and Hyper-V's, above its VF, has a parent.
        """
        names = self._tree.listdir(f"{paths.NET}/{master['name']}")
        alike = any(same_address(master["mac"], member["mac"]) for member in members)
        return "bonding" in names or (alike and not {"bridge", "device"} & {*names})

    def netdev(self, name: str) -> Optional[dict[str, Any]]:
        """One interface; None if it is gone.

        mtu in bytes, speed in Mbit/s (None if down or virtual), carrier None while the interface is down. `dev_port`
        is the zero-based port of the card. `parent` is set for an IPoIB child.
        """
        base = f"{paths.NET}/{name}"
        value = self._tree.attributes(base, _ATTRIBUTES)
        mtu, kind, speed = integer(value["mtu"]), integer(value["type"]), integer(value["speed"])
        if mtu is None and kind is None:
            return None
        carrier = integer(value["carrier"])
        return {
            "name": name,
            "mac": value["address"] if _MAC.match(value["address"] or "") else None,
            "mtu": mtu,
            "operstate": value["operstate"],
            "carrier": None if carrier is None else bool(carrier),
            "speed_mbps": speed if speed and speed > 0 else None,
            "type": TYPES.get(kind, kind if kind is None else str(kind)),
            "phys_port_name": value["phys_port_name"] or None,
            "parent": management.parent(self._tree, name) if kind == 32 else None,
            "dev_port": max(integer(value["dev_port"]) or 0, integer(value["dev_id"]) or 0),
            "master": self.master(name),
            "default_route": (self.management().get(name) or "").startswith("the default route"),
            "management": self.management().get(name),
            "addresses": self.addresses(name),
        }

    def representor(self, name: str) -> bool:
        """Whether an interface represents a VF or SF in switchdev mode instead of a port of the card."""
        return bool(_REPRESENTOR.match(self._tree.read(f"{paths.NET}/{name}/phys_port_name") or ""))

    def addresses(self, name: str) -> list[str] | str:
        """Addresses with prefix length, IPv4 first; a string if IPv4 cannot be known."""
        if self._ipv4 is None:
            return unknown("IPv4 addresses were not captured")
        if self._ipv6 is None:
            self._ipv6 = management.ipv6_addresses(self._tree)
        return sorted(self._ipv4.get(name, [])) + sorted(self._ipv6.get(name, []))

    def management(self) -> dict[str, str]:
        """{interface: its use by management}."""
        if self._management is None:
            self._management = management.uses(self._tree, self._seams, self._sessions)
        return self._management

    def by_mac(self, mac: str) -> Optional[str]:
        """The one interface with a MAC; None if there is none or several (VLANs share their parent's)."""
        if not mac:
            return None  # tunnels have an empty one
        found = [name for name in self.names() if self._tree.read(f"{paths.NET}/{name}/address") == mac]
        return found[0] if len(found) == 1 else None


def same_address(one: Optional[str], other: Optional[str]) -> bool:
    """Whether two hardware addresses mean one interface. Only the last eight of IPoIB's 20 octets are stable; the
    others hold the queue pair's number, new with each load of the driver, and the subnet prefix."""
    mine, its = (one or "").lower(), (other or "").lower()
    if len(mine) == len(its) == IPOIB:
        mine, its = mine[-GUID:], its[-GUID:]
    return bool(mine) and mine == its
