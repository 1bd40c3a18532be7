"""The main routing tables of IPv4 and IPv6, as the kernel prints them. Other tables: see `management`.

Sources: fib_route_seq_show() of net/ipv4/fib_trie.c, rt6_info_route() of net/ipv6/route.c.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import NamedTuple

from .tree import Tree

IPV4 = "/proc/net/route"
IPV6 = "/proc/net/ipv6_route"
_UP, _REJECT = 0x1, 0x200  # RTF_UP, RTF_REJECT of include/uapi/linux/route.h


class Route(NamedTuple):
    """gateway is None for a network on the link; flags are the RTF_ bits."""

    netdev: str
    network: ipaddress.IPv4Network | ipaddress.IPv6Network
    gateway: ipaddress.IPv4Address | ipaddress.IPv6Address | None
    metric: int
    flags: int

    @property
    def usable(self) -> bool:
        """Whether packets leave the machine through it: it is up, not a reject route, and not on lo."""
        return self.flags & (_UP | _REJECT) == _UP and self.netdev != "lo"

    @property
    def default(self) -> bool:
        return not self.network.prefixlen


def usable(tree: Tree) -> list[Route]:
    """Usable routes of both families, IPv4 first, each family in the kernel's order."""
    found = [*ipv4(tree.read(IPV4) or ""), *ipv6(tree.read(IPV6) or "")]
    return [route for route in found if route.usable]


def destinations(tree: Tree) -> list[dict[str, str]]:
    """Usable routes as [{destination, netdev}], without IPv6's ubiquitous link-local and multicast routes."""
    return [
        {"destination": str(route.network), "netdev": route.netdev}
        for route in usable(tree)
        if route.network.version == 4 or not (route.network.is_link_local or route.network.is_multicast)
    ]


def ipv4(text: str) -> Iterator[Route]:
    """Every row of /proc/net/route; malformed rows are skipped."""
    for row in (line.split() for line in text.splitlines()[1:]):
        try:
            netdev, destination, gateway, flags, _references, _uses, metric, mask = row[:8]
            network = ipaddress.ip_network((from_kernel(destination), str(from_kernel(mask))), strict=False)
            yield Route(netdev, network, _gateway(from_kernel(gateway)), int(metric), int(flags, 16))
        except ValueError:
            continue


def ipv6(text: str) -> Iterator[Route]:
    """Every row of /proc/net/ipv6_route; malformed rows are skipped."""
    for row in (line.split() for line in text.splitlines()):
        try:
            destination, length, _source, _length, gateway, metric, _references, _uses, flags, netdev = row
            network = ipaddress.ip_network((bytes.fromhex(destination), int(length, 16)), strict=False)
            via = _gateway(ipaddress.IPv6Address(bytes.fromhex(gateway)))
            yield Route(netdev, network, via, int(metric, 16), int(flags, 16))
        except ValueError:
            continue


def from_kernel(word: str) -> ipaddress.IPv4Address:
    """An address printed as one number in host byte order; all supported machines are little-endian."""
    return ipaddress.IPv4Address(bytes.fromhex(word)[::-1])


def _gateway(address):
    return None if address.is_unspecified else address
