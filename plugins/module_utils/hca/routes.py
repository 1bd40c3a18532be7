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
    """A route by which packets leave the machine: it is up, no reject route, and not on lo."""

    netdev: str
    network: ipaddress.IPv4Network | ipaddress.IPv6Network

    @property
    def default(self) -> bool:
        return not self.network.prefixlen


def usable(tree: Tree) -> list[Route]:
    """Routes of both families, IPv4 first, each family in the kernel's order."""
    return [*ipv4(tree.read(IPV4) or ""), *ipv6(tree.read(IPV6) or "")]


def destinations(tree: Tree) -> list[dict[str, str]]:
    """Usable routes as [{destination, netdev}], without IPv6's ubiquitous link-local and multicast routes."""
    return [
        {"destination": str(route.network), "netdev": route.netdev}
        for route in usable(tree)
        if route.network.version == 4 or not (route.network.is_link_local or route.network.is_multicast)
    ]


def ipv4(text: str) -> Iterator[Route]:
    """Usable rows of /proc/net/route; malformed ones are skipped."""
    for row in (line.split() for line in text.splitlines()[1:]):
        try:
            netdev, destination, _gateway, flags, _references, _uses, _metric, mask = row[:8]
            network = ipaddress.ip_network((from_kernel(destination), str(from_kernel(mask))), strict=False)
            if _leaves(netdev, flags):
                yield Route(netdev, network)
        except ValueError:
            continue


def ipv6(text: str) -> Iterator[Route]:
    """Usable rows of /proc/net/ipv6_route; malformed ones are skipped."""
    for row in (line.split() for line in text.splitlines()):
        try:
            destination, length, _source, _length, _gateway, _metric, _references, _uses, flags, netdev = row
            network = ipaddress.ip_network((bytes.fromhex(destination), int(length, 16)), strict=False)
            if _leaves(netdev, flags):
                yield Route(netdev, network)
        except ValueError:
            continue


def _leaves(netdev: str, flags: str) -> bool:
    return int(flags, 16) & (_UP | _REJECT) == _UP and netdev != "lo"


def from_kernel(word: str) -> ipaddress.IPv4Address:
    """An address printed as one number in host byte order; all supported machines are little-endian."""
    return ipaddress.IPv4Address(bytes.fromhex(word)[::-1])
