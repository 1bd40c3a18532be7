# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's firewall: which of the connections that the node needs it drops, and what would open them.

PRIVATE to the collection. `read` asks the node; everything else is pure. The kernel's rules decide, whoever wrote them;
ufw and firewalld are only looked at for how to open a port. What cannot be read is unknown, never open.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import re
from collections.abc import Iterable
from typing import Any, Callable
from xml.etree import ElementTree

from .._core import programs
from .._core.change import warn
from ..hca import Tree
from ..hca.routes import Route, usable
from . import netfilter, netlink
from .netfilter import DROP, UNKNOWN, Outcome, Packet, Table
from .networks import netdevs

RECORD = "/var/lib/gpufabric-rdma/firewall.json"
UFW, FIREWALLD = TOOLS = ("ufw", "firewalld")
OPEN, BLOCKED, NOT_KNOWN = "open", "blocked", "unknown"
# Where each back end of iptables tells which tables it has.
_LEGACY = {"iptables": "/proc/net/ip_tables_names", "ip6tables": "/proc/net/ip6_tables_names"}
_FILTERING = frozenset({"filter", "mangle", "raw", "security"})
# Tables that iptables-nft makes.
_OF_IPTABLES = frozenset(f"{family} {name}" for family in ("ip", "ip6") for name in (*_FILTERING, "nat"))
# Answers of a kernel that has no nftables.
_WITHOUT_NFTABLES = frozenset({errno.EPROTONOSUPPORT, errno.EINVAL, errno.EOPNOTSUPP})
# The first ufw that can name VRRP in a rule: https://launchpad.net/bugs/1996636
_UFW_WITH_VRRP = (0, 36, 2)
_UFW_CHAIN = re.compile(r"ufw6?-")
_FIREWALLD_CHAIN = re.compile(r"(INPUT|FORWARD|IN|FWD[IO]?|FORWARD_(IN|OUT))_")
_FIREWALLD_UNITS = (
    "/etc/systemd/system/multi-user.target.wants/firewalld.service",
    "/etc/systemd/system/dbus-org.fedoraproject.FirewallD1.service",
)


def info(tree: Tree, run: Callable, needs: list[dict], partial: bool = False) -> dict:
    """What the module firewall_info returns of a node: see its documentation."""
    state = read(tree, run, protocols={need["protocol"] for need in needs})
    found = answers(state, needs)
    addresses = {name: netdev["addresses"] for name, netdev in netdevs(tree).items()}
    return {
        "tool": state["tool"],
        "filters": bool(state["unread"]) or any(map(_filters, state["tables"])),
        "address": _default_address(state["routes"], addresses),
        "addresses": addresses,
        "answers": found,
        "unread": state["unread"],
        "at_boot": state["at_boot"],
        "recorded": state["recorded"],
        "installed": [tool for tool, program in zip(TOOLS, ("ufw", "firewall-cmd")) if programs.found(program)],
        **opening(state, needs, found, partial),
    }


def told(module: Any, tree: Tree, needs: list[dict], partial: bool = False) -> dict:
    """firewall, not_verified and notes of the module firewall_info; the last two are warnings of the AnsibleModule."""
    found = info(tree, lambda argv: module.run_command(argv, environ_update={"LC_ALL": "C"}), needs, partial)
    more = remarks(found) if needs else {"not_verified": [], "notes": found["at_boot"]}
    warn(module, [*more["not_verified"], *more["notes"]])
    return {"firewall": found, **more}


def remarks(found: dict) -> dict:
    """not_verified and notes: what a person should know of the answers that stop nothing."""
    answers_ = found["answers"]
    unknown = list(dict.fromkeys(one["by"] for one in answers_ if one["state"] == NOT_KNOWN))
    partly = [one for one in answers_ if one["state"] == BLOCKED and one["hook"] == "forward" and not one["every"]]
    return {
        "not_verified": [f"what the firewall lets through: {reason}" for reason in unknown],
        "notes": [
            *found["at_boot"],
            *(f"{one['ports']}/{one['protocol']} of pods: dropped by {one['by']}" for one in partly),
        ],
    }


def _filters(table: Table) -> bool:
    return any(table.chains.values()) or any(base.policy == DROP for base in table.bases)


def _default_address(routes: Iterable[Route], addresses: dict) -> str | None:
    """As k3s chooses its node-ip: the address of the interface with the default route, where there is exactly one."""
    names = {route.netdev for route in routes if route.default and route.network.version == 4}
    found = [text.partition("/")[0] for name in names for text in addresses.get(name, ()) if ":" not in text]
    return found[0] if len(found) == 1 else None


# --- reading ----------------------------------------------------------------------------------------------------------


def read(
    tree: Tree, run: Callable, tables_of_kernel: Callable = netlink.nft_tables, protocols: Iterable[str] = ()
) -> dict:
    """tables; tool (ufw, firewalld or None); zones and default_zone of firewalld; unread and at_boot (sentences);
    routes; recorded (rules that we opened); permanent (those of firewalld's files, as keys); unnamed (protocols that
    the tool knows no name of, of the given ones).

    run(argv) returns exit status, output and error text.
    """
    state: dict = {
        "tables": [],
        "tool": None,
        "zones": {},
        "default_zone": "",
        "unread": [],
        "at_boot": [],
        "routes": usable(tree),
        "recorded": _recorded(tree),
        "permanent": set(),
        "unnamed": frozenset(),
    }
    if not tree.live:
        state["unread"].append(f"{tree.root} is a tree of files, which filters nothing")
        return state
    _read_nft(state, tree, run, tables_of_kernel)
    _read_legacy(state, tree, run)
    _read_firewalld(state, tree, run)
    _read_ufw(state, tree)
    state["unnamed"] = _unnamed(state["tool"], run, netfilter.WITHOUT_PORTS.intersection(protocols))
    return state


def _recorded(tree: Tree) -> list[dict]:
    """Rules that we opened. A record that is not ours proves nothing."""
    try:
        rules = json.loads(tree.read(RECORD) or "{}")["rules"]
    except (ValueError, TypeError, KeyError):
        return []
    return [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []


def _loadable(tree: Tree, name: str) -> bool:
    """Whether a part of the kernel is there: to ask it would load a module that is not."""
    loaded = tree.read("/proc/modules")
    if loaded is None:
        return True  # a kernel without modules
    kernel = (tree.read("/proc/sys/kernel/osrelease") or "").strip()
    builtin = tree.read(f"/lib/modules/{kernel}/modules.builtin") or ""
    return re.search(rf"^{name} ", loaded, re.MULTILINE) is not None or f"/{name}.ko" in builtin


def _saved(state: dict, run: Callable, family: str, backend: str, why: str) -> list[Table]:
    """The tables that iptables of this back end has; none, with the reason, where they cannot be read."""
    program = f"{family}{backend}"
    path = programs.found(f"{program}-save", programs.BUNDLED)
    if path is None:
        plain = programs.found(f"{family}-save", programs.BUNDLED)
        word = "nf_tables" if backend == "-nft" else "legacy"
        path = plain if plain and word in run([plain, "--version"])[1] else None
    if path is None:
        state["unread"].append(f"{why}, and no {program}-save is there to read them")
        return []
    code, said, error = run([path])
    try:
        if code == 0:
            return netfilter.from_iptables(said, program)
    except ValueError as reason:
        error = str(reason)
    state["unread"].append(f"{path}: {_line(error) or f'exit status {code}'}")
    return []


def _read_nft(state: dict, tree: Tree, run: Callable, tables_of_kernel: Callable) -> None:
    if not _loadable(tree, "nf_tables"):
        return
    try:
        there = tables_of_kernel()
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) not in _WITHOUT_NFTABLES:
            state["unread"].append(f"tables of nftables: {getattr(error, 'strerror', None) or error}")
        return
    if not there:
        return
    shown = _of_nft(state, run, there)
    state["tables"] += [table for table in shown if not netfilter.opaque(table)]
    by_iptables = [table.name for table in shown if netfilter.opaque(table)]
    if programs.found("nft") is None:
        by_iptables = [name for name in there if name in _OF_IPTABLES]
    for family, word in (("ip", "iptables"), ("ip6", "ip6tables")):
        names = [name for name in by_iptables if name.split()[0] == family and name.split()[1] in _FILTERING]
        if names:
            saved = _saved(state, run, word, "-nft", f"tables {', '.join(names)} of iptables-nft")
            state["tables"] += [table for table in saved if f"{family} {table.name}" in names]


def _of_nft(state: dict, run: Callable, there: list[str]) -> list[Table]:
    path = programs.found("nft")
    if path is None:
        foreign = [name for name in there if name not in _OF_IPTABLES and name.split()[0] in ("ip", "ip6", "inet")]
        if foreign:
            state["unread"].append(f"table {', '.join(foreign)} of nftables, and no nft is there to read it")
        return []
    code, said, error = run([path, "--json", "list", "ruleset"])
    try:
        if code == 0:
            return netfilter.from_nft(said)
    except (ValueError, KeyError, TypeError) as reason:
        error = str(reason)
    state["unread"].append(f"{path} --json list ruleset: {_line(error) or f'exit status {code}'}")
    return []


def _read_legacy(state: dict, tree: Tree, run: Callable) -> None:
    for family, path in _LEGACY.items():
        names = (tree.read(path) or "").split()
        if tree.exists(path) and tree.read(path) is None:
            state["unread"].append(f"{path}: not readable; it takes root")
        elif _FILTERING & set(names):
            why = f"tables {', '.join(names)} of {family}-legacy"
            state["tables"] += _saved(state, run, family, "-legacy", why)


def _read_firewalld(state: dict, tree: Tree, run: Callable) -> None:
    command = programs.found("firewall-cmd")
    if command is None:
        return
    if not _firewalld_runs(state, command, run):
        masked = tree.readlink("/etc/systemd/system/firewalld.service") == "/dev/null"
        if not masked and any(tree.readlink(path) is not None for path in _FIREWALLD_UNITS):
            state["at_boot"].append("firewalld is enabled and does not run: after the next boot it filters")
        return
    state["tool"] = FIREWALLD
    state["default_zone"] = run([command, "--get-default-zone"])[1].strip()
    state["zones"] = zones(run([command, "--get-active-zones"])[1])
    for name in tree.listdir("/etc/firewalld/zones"):
        if name.endswith(".xml"):
            state["permanent"] |= permanent(name[: -len(".xml")], tree.read(f"/etc/firewalld/zones/{name}") or "")


def _firewalld_runs(state: dict, command: str, run: Callable) -> bool:
    """firewall-cmd is a Python program: it is asked only where firewalld's rules are in the kernel, or may be."""
    chains = ((table, name) for table in state["tables"] for name in table.chains)
    if not state["unread"] and not any(_of_firewalld(*one) for one in chains):
        return False
    code, said, _error = run([command, "--state"])
    return code == 0 and said.strip() == "running"


def _of_firewalld(table: Table, chain: str) -> bool:
    return table.name.endswith(" firewalld") or _FIREWALLD_CHAIN.match(chain) is not None


def _read_ufw(state: dict, tree: Tree) -> None:
    enabled = re.search(r"^ENABLED=[\"']?yes", tree.read("/etc/ufw/ufw.conf") or "", re.MULTILINE) is not None
    if any(_UFW_CHAIN.match(name) for table in state["tables"] for name in table.chains):
        state["tool"] = state["tool"] or UFW
        if not enabled:
            state["at_boot"].append("ufw's rules are in the kernel although ufw is not enabled: until the next boot")
    elif enabled and not state["unread"]:
        state["at_boot"].append("ufw is enabled and its rules are not in the kernel: after the next boot it filters")


def _unnamed(tool: str | None, run: Callable, protocols: frozenset[str]) -> frozenset[str]:
    command = programs.found("ufw") if tool == UFW and protocols else None
    return protocols if command and not _ufw_names_vrrp(run([command, "version"])[1]) else frozenset()


def _ufw_names_vrrp(said: str) -> bool:
    version = re.match(r"ufw (\d+)\.(\d+)(?:\.(\d+))?", said)
    return version is not None and tuple(int(part or 0) for part in version.groups()) >= _UFW_WITH_VRRP


def zones(text: str) -> dict:
    """{zone: {interfaces, sources}} of `firewall-cmd --get-active-zones`."""
    found: dict = {}
    zone: dict = {}
    for line in text.splitlines():
        if line[:1].strip():
            zone = found.setdefault(line.split()[0], {"interfaces": [], "sources": []})
        elif line.strip():
            key, _colon, values = line.strip().partition(":")
            zone[key] = values.split()
    return found


def permanent(zone: str, text: str) -> set[tuple]:
    """What a zone's file opens for a source, as keys of rules: see key()."""
    try:
        top = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return set()
    found = {
        ("trust", _network(one.get("address")), "", "", zone) for one in top.findall("source") if one.get("address")
    }
    for rule in top.findall("rule"):
        source, port, protocol = rule.find("source"), rule.find("port"), rule.find("protocol")
        if rule.find("accept") is None or source is None or not source.get("address"):
            continue
        address = _network(source.get("address"))
        if port is not None:
            found.add(("port", address, port.get("protocol"), port.get("port"), zone))
        elif protocol is not None:
            found.add(("protocol", address, protocol.get("value"), "", zone))
    return found


def _network(text: str | None) -> str:
    try:
        return str(ipaddress.ip_network(text or "", strict=False))
    except ValueError:
        return text or ""


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


# --- judging ----------------------------------------------------------------------------------------------------------


def answers(state: dict, needs: list[dict]) -> list[dict]:
    """What becomes of each need: one answer for all that is open, and one for each reason why the rest is not.

    A need: id, what, hook (input or forward), protocol, ports ([first, last]; 0 for a protocol without ports), peers
    ([{host, address}]), to (address of the node, or of a pod of another), iif and oif (None: by the route to the peer),
    rules (what opens it), later (whether Flannel accepts it in the FORWARD chain of iptables, which it appends to).
    An answer: id, what, hook, protocol, ports (as text), every (whether these are all of the need's ports), peers,
    state, by (which rule), tool (whose rule; empty for one that neither wrote), remove (the command that takes it out).
    """
    found = []
    for need in needs:
        parts = netfilter.parts(state["tables"], *need["ports"])
        seen: dict[tuple, dict] = {}
        for first, last in parts:
            for peer in need["peers"]:
                outcome = _outcome(state, need, peer, first)
                place = seen.setdefault(_said(outcome), {"outcome": outcome, "ports": [], "peers": []})
                _append(place["ports"], (first, last))
                _append(place["peers"], peer)
        for (what, by), place in seen.items():
            unread = what == OPEN and bool(state["unread"])
            found.append(
                {
                    **{name: need[name] for name in ("id", "what", "hook", "protocol")},
                    "state": NOT_KNOWN if unread else what,
                    "ports": _written(place["ports"]),
                    "every": _total(place["ports"]) == _total(parts),
                    "peers": place["peers"],
                    "by": "; ".join(state["unread"]) if unread else by,
                    "tool": _owner(state, place["outcome"], need["protocol"]),
                    "remove": _removal(place["outcome"]),
                }
            )
    return found


def _outcome(state: dict, need: dict, peer: dict, port: int) -> Outcome | None:
    address = peer["address"].partition("/")[0]
    local = need["hook"] == "input"
    iif = need["iif"] or towards(state["routes"], address)
    oif = None if local else need["oif"] or towards(state["routes"], need["to"])
    packet = Packet(need["protocol"], port, address, need["to"], iif, oif, local)
    outcome = netfilter.verdict(state["tables"], packet)
    return None if need["later"] and outcome is not None and _flannel_opens(outcome) else outcome


def _flannel_opens(outcome: Outcome) -> bool:
    return outcome.rule is None and outcome.chain == "FORWARD" and outcome.table.program != "nft"


def towards(routes: Iterable[Route], address: str) -> str | None:
    """The interface of the route to an address, which its packets come in on too."""
    ip = ipaddress.ip_address(address)
    fitting = [route for route in routes if route.network.version == ip.version and ip in route.network]
    best = max(fitting, key=lambda route: (route.network.prefixlen, -route.metric), default=None)
    return best.netdev if best else None


def _said(outcome: Outcome | None) -> tuple[str, str]:
    if outcome is None:
        return OPEN, ""
    return (BLOCKED if outcome.verdict == DROP else NOT_KNOWN), outcome.said()


def _append(items: list, item) -> None:
    if item not in items:
        items.append(item)


def _total(ports: list[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ports)


def _written(ports: list[tuple[int, int]]) -> str:
    joined: list[list[int]] = []
    for first, last in sorted(ports):
        if joined and joined[-1][1] == first - 1:
            joined[-1][1] = last
        else:
            joined.append([first, last])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in joined)


def _owner(state: dict, outcome: Outcome | None, protocol: str) -> str:
    """The tool that wrote what drops a packet, so far as it runs: only there a rule of it would open the port."""
    if outcome is None or outcome.verdict == UNKNOWN or protocol in state["unnamed"]:
        return ""
    table, chain = outcome.table, outcome.chain
    of_iptables = table.program != "nft" and table.name == "filter"
    theirs = {
        UFW: of_iptables and (_UFW_CHAIN.match(chain) is not None or outcome.rule is None),
        FIREWALLD: _of_firewalld(table, chain),
    }
    return state["tool"] if theirs.get(state["tool"]) else ""


def _removal(outcome: Outcome | None) -> str:
    return outcome.rule.remove if outcome is not None and outcome.rule is not None else ""


# --- opening ----------------------------------------------------------------------------------------------------------


def key(rule: dict) -> tuple:
    """What makes two rules the same: kind (port, protocol, trust or route), source, protocol, ports, zone."""
    parts = [rule.get(part) or "" for part in ("kind", "source", "protocol", "ports", "zone")]
    return (parts[0], _network(parts[1]), *parts[2:])


def opening(state: dict, needs: list[dict], found: list[dict], partial: bool = False) -> dict:
    """add: rules that open what the node's tool drops; remove: rules that we opened and nothing needs any longer;
    record: those that are ours afterwards.

    A rule that is not ours is never touched, and none is added for what passes already. partial: some peers are not in
    this run, so a rule that seems to be for none of them stays.
    """
    blocked = [one for one in found if one["state"] == BLOCKED and one["tool"]]
    wanted: dict[tuple, dict] = {}
    add: dict[tuple, dict] = {}
    recorded = {(rule.get("tool"), *key(rule)): rule for rule in state["recorded"]}
    for need in needs:
        peers = [peer for one in blocked if one["id"] == need["id"] for peer in one["peers"]]
        for rule in _rules(state, need):
            mine = {**rule, "tool": state["tool"]}
            wanted[(state["tool"], *key(rule))] = mine
            if any(_covers(rule, need, peer) for peer in peers):
                add[(state["tool"], *key(rule))] = mine
    if state["tool"] == FIREWALLD:
        lost = [name for name in recorded if name in wanted and name[1:] not in state["permanent"]]
        add.update((name, wanted[name]) for name in lost)
    remove = [rule for name, rule in recorded.items() if name not in wanted and not partial]
    kept = {name: rule for name, rule in recorded.items() if name in wanted or partial}
    return {"add": list(add.values()), "remove": remove, "record": [*{**kept, **add}.values()]}


def _rules(state: dict, need: dict) -> list[dict]:
    """The rules of a need in the words of the node's tool; firewalld's have the zone that a peer's packets are in."""
    if state["tool"] == UFW:
        return [rule for rule in need["rules"] if rule["kind"] != "trust" or need["hook"] == "input"] + [
            {**rule, "kind": "route"} for rule in need["rules"] if need["hook"] == "forward"
        ]
    if state["tool"] != FIREWALLD:
        return []
    found = []
    for rule in need["rules"]:
        if rule["kind"] == "trust":
            found.append({**rule, "zone": "trusted"})
        else:
            found.append({**rule, "zone": _zone(state, rule["source"])})
    return found


def _zone(state: dict, source: str) -> str:
    """A zone bound to the source comes before that of the interface, as firewalld does it."""
    network = ipaddress.ip_network(source)
    for name, zone in state["zones"].items():
        for text in zone["sources"]:
            try:
                bound = ipaddress.ip_network(text, strict=False)
            except ValueError:
                continue  # a MAC address or a set
            if bound.version == network.version and network.subnet_of(bound):
                return name
    netdev = towards(state["routes"], str(network.network_address))
    for name, zone in state["zones"].items():
        if netdev in zone["interfaces"]:
            return name
    return state["default_zone"]


def _covers(rule: dict, need: dict, peer: dict) -> bool:
    if need["hook"] == "forward" or rule["kind"] == "trust":
        return True
    address = ipaddress.ip_address(peer["address"].partition("/")[0])
    network = ipaddress.ip_network(rule["source"])
    return address.version == network.version and address in network
