"""The interfaces that a node's management uses, for rails, link settings, networks and the driver.

Sources: default routes of every table that applies to the node itself, with all their next hops; the node's ends of SSH
connections; the address and interface in k3s' configuration.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Any, Optional

from . import paths, routes, units
from .seams import Seams
from .tree import Tree

K3S = "/etc/rancher/k3s"
# Options of k3s' configuration and arguments with an address or interface of the node.
_K3S_KEYS = "node-ip|advertise-address|bind-address|flannel-iface"
K3S_LINE = re.compile(rf"""^\s*["']?(?:{_K3S_KEYS})["']?\s*:[ \t]*((?:\n\s*-[^\n]*)+|[^\n]*)""", re.M)
_K3S_ARGUMENT = re.compile(rf"""--(?:{_K3S_KEYS})["']?[=\s]\s*(\S+)""")
_WORD = re.compile(r"""[^\s,\[\]"']+""")
DEFAULT = ("default", "0.0.0.0/0", "::/0")
OVS = "ovs-system"
_MAIN = (None, "main", "default", 254, 253)


def uses(tree: Tree, seams: Seams, sessions: bool = True) -> dict[str, str]:
    """{interface: its use by management}, including those below a bond, bridge, VLAN or VRF.

    sessions: whether to count SSH connections, which come and go.
    """
    found: dict[str, str] = {}
    for via, why in ways(tree, seams, sessions):
        for name in below(tree, via):
            found.setdefault(name, why if name == via else f"{why}, through {via}")
    return found


def ways(tree: Tree, seams: Seams, sessions: bool = True) -> Iterator[tuple[str, str]]:
    """(interface, use), from routes, addresses and settings."""
    held = addresses(tree, seams)
    for name in sorted(default_netdevs(tree, seams, held)):
        yield name, "the default route"
    named = {address: f"an SSH session at {address}" for address in (seams.sessions(tree) if sessions else ())}
    known = set(tree.listdir(paths.NET))
    for word in _k3s_words(tree):
        if word in known:
            yield word, "the interface of k3s"
        named.setdefault(word, f"the address of k3s, {word}")
    for address, why in named.items():
        for name in held.get(address, ()):
            yield name, why


def addresses(tree: Tree, seams: Seams) -> dict[str, list[str]]:
    """{address: interfaces that have it} of both families."""
    found: dict[str, list[str]] = {}
    for name, own in (*(seams.addresses() or {}).items(), *ipv6_addresses(tree).items()):
        for entry in own:
            found.setdefault(entry.partition("/")[0], []).append(name)
    return found


def ipv6_addresses(tree: Tree) -> dict[str, list[str]]:
    """{interface: addresses with prefix length}; malformed rows are skipped."""
    found: dict[str, list[str]] = {}
    for row in (line.split() for line in (tree.read("/proc/net/if_inet6") or "").splitlines()):
        try:
            address = ipaddress.IPv6Address(bytes.fromhex(row[0]))
            found.setdefault(row[5], []).append(f"{address}/{int(row[2], 16)}")
        except (ValueError, IndexError):
            continue
    return found


def default_netdevs(tree: Tree, seams: Seams, held: dict[str, list[str]]) -> set[str]:
    """Interfaces of default routes: of the main tables by file, of all tables and next hops if netlink answers.

    A table only for traffic from its own interface's address carries no management: several rails get a gateway each
    this way.
    """
    # Switches advertise a default route of IPv6 on each of their ports; without an address nothing uses it.
    own = [ipaddress.ip_address(address) for address in held if ":" in address]
    unused = bool(own) and all(address.is_link_local or address.is_loopback for address in own)
    defaults = [route for route in routes.usable(tree) if route.default]
    found = {route.netdev for route in defaults if not (unused and route.network.version == 6)}
    rules = seams.rules()
    for row in seams.routes() or ():
        ipv6 = row.get("dst") == "::/0" or ":" in str(row.get("gateway"))
        if row.get("dst") in DEFAULT and row.get("type", "unicast") == "unicast" and not (unused and ipv6):
            hops = [hop.get("dev") for hop in (row, *row.get("nexthops", ()))]
            found.update(name for name in hops if name and _looked_up(tree, row.get("table"), name, rules, held))
    return found - {"lo"}


def _looked_up(
    tree: Tree, table: Any, netdev: str, rules: Optional[list[dict[str, Any]]], held: dict[str, list[str]]
) -> bool:
    if table in _MAIN or rules is None:
        return True
    own = [ipaddress.ip_address(address) for address, names in held.items() if netdev in names]
    for rule in rules:
        if rule.get("l3mdev") and tree.readlink(f"{paths.NET}/{netdev}/master"):
            return True
        forwarded = rule.get("iif") not in (None, "lo")  # lo: the node's own packets
        if rule.get("table") != table or forwarded or any(rule.get(key) for key in ("oif", "fwmark")):
            continue
        source = rule.get("src", "all")
        if source == "all":
            return True
        network = ipaddress.ip_network(f"{source}/{rule['srclen']}" if rule.get("srclen") else source, strict=False)
        if not any(address in network for address in own):
            return True
    return False


def _k3s_words(tree: Tree) -> Iterator[str]:
    """Addresses and interface names in k3s' configuration."""
    folder = f"{K3S}/config.yaml.d"
    files = [f"{folder}/{name}" for name in tree.listdir(folder) if name.lower().endswith((".yaml", ".yml"))]
    values = [value for path in (f"{K3S}/config.yaml", *files) for value in K3S_LINE.findall(tree.read(path) or "")]
    for unit in ("k3s.service", "k3s-agent.service"):
        started = units.settings(tree, unit, "Service").get("ExecStart") or [""]
        values += _K3S_ARGUMENT.findall(started[-1])
    for value in values:
        yield from (word for word in _WORD.findall(value.partition(" #")[0]) if word != "-")


def below(tree: Tree, name: str) -> set[str]:
    """An interface and all below it: members of a bond or VRF, parents of a VLAN, bridge or macvlan."""
    found: set[str] = set()
    known = tree.listdir(paths.NET)
    pending = [name]
    while pending:
        name = pending.pop()
        if name not in found and (name in known or not found):
            found.add(name)
            entries = tree.listdir(f"{paths.NET}/{name}")
            lower = [entry[len("lower_") :] for entry in entries if entry.startswith("lower_")]
            lower += (tree.read(f"{paths.NET}/{name}/bonding/slaves") or "").split() if "bonding" in entries else []
            # An Open vSwitch bridge is an interface with nothing below it; the ports of all bridges are in one place.
            pending += lower or filter(None, [parent(tree, name) if "device" in entries else OVS])
    return found


def parent(tree: Tree, name: str) -> Optional[str]:
    """The parent of an IPoIB child. One that came by netlink (networkd, ipoib-cni) shows only its index."""
    value = tree.attributes(f"{paths.NET}/{name}", ("parent", "ifindex", "iflink"))
    if value["parent"] or not value["iflink"] or value["iflink"] == value["ifindex"]:
        return value["parent"] or None
    there = (one for one in tree.listdir(paths.NET) if tree.read(f"{paths.NET}/{one}/ifindex") == value["iflink"])
    return next(there, f"if{value['iflink']}")
