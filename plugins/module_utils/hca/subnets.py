"""Rails of one node in one subnet: Linux sends by the first route and answers ARP on any of them.

Sources: fib_lookup() and arp_process() of net/ipv4; Documentation/networking/ip-sysctl.rst (of arp_ignore and
arp_announce the larger of `all` and the interface counts).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any, Optional

from .seams import Seams
from .text import integer
from .tree import Tree

_SYSCTLS = ("arp_ignore", "arp_announce")


def shared(tree: Tree, seams: Seams, hcas: list[dict[str, Any]], rails: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """[{network, rails: [{index, netdev, pci, mac, management, address, leaves_by, arp_ignore, arp_announce}]}] for
    each subnet of more than one rail.

    leaves_by: the netdev by which the kernel sends from the address into the subnet; None if only files are available.
    The sysctls are the effective ones of IPv4; None for IPv6 and if unknown.
    """
    members: dict[Any, list[tuple[dict[str, Any], Any]]] = {}
    there = sorted(_addressed(hcas, rails), key=lambda pair: (pair[0].network.prefixlen, pair[1]["index"]))
    for interface, row in there:
        network = next(
            (wide for wide in members if wide.version == interface.version and interface.network.subnet_of(wide)),
            interface.network,
        )
        members.setdefault(network, []).append((row, interface.ip))
    return [
        {"network": str(network), "rails": _rails(tree, seams, network, rows)}
        for network, rows in members.items()
        if len({row["netdev"] for row, _address in rows}) > 1
    ]


def _addressed(hcas: list[dict[str, Any]], rails: list[dict[str, Any]]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """(address with its network, rail) of every rail's interface. Link-local addresses share fe80::/64 everywhere."""
    netdevs = {netdev["name"]: netdev for hca in hcas for netdev in hca["netdevs"]}
    for rail in rails:
        netdev = netdevs.get(rail["netdev"], {})
        addresses = netdev.get("addresses")
        for text in addresses if isinstance(addresses, list) else ():
            try:
                interface = ipaddress.ip_interface(text)
            except ValueError:
                continue
            if not interface.is_link_local and netdev["mac"]:
                yield interface, {**rail, "mac": netdev["mac"], "management": netdev["management"]}


def _rails(tree: Tree, seams: Seams, network: Any, rows: list[tuple[dict[str, Any], Any]]) -> list[dict[str, Any]]:
    own = {address for _rail, address in rows}
    peer = str(next((host for host in network.hosts() if host not in own), network.network_address))
    return [
        {
            **{key: rail[key] for key in ("index", "netdev", "pci", "mac", "management")},
            "address": str(address),
            "leaves_by": seams.egress(str(address), peer),
            **{name: _sysctl(tree, rail["netdev"], name) if address.version == 4 else None for name in _SYSCTLS},
        }
        for rail, address in rows
    ]


def _sysctl(tree: Tree, netdev: str, name: str) -> Optional[int]:
    values = [integer(tree.read(f"/proc/sys/net/ipv4/conf/{folder}/{name}")) for folder in ("all", netdev)]
    return None if None in values else max(values)
