"""The firewall that runs on a node, and its rules; _host.reach finds out whether a port is open."""

from __future__ import annotations

import re
from typing import Callable, Optional
from xml.etree import ElementTree

from .._core import programs
from .._core.files import recorded
from ..hca import Tree
from ..hca.routes import usable
from .networks import netdevs

RECORD = "/var/lib/gpufabric-rdma/firewall.json"
UFW, FIREWALLD, NFTABLES = "ufw", "firewalld", "nftables"
# The first ufw that accepts VRRP in a rule: https://launchpad.net/bugs/1996636
_UFW_WITH_VRRP = (0, 36, 2)
_TUPLE = re.compile(
    r"^### tuple ### (route:)?allow (\S+) (\S+) (?:0\.0\.0\.0/0|::/0) any (\S+) in(?: |$)", re.MULTILINE
)


def info(tree: Tree, run: Callable) -> dict:
    """The result of the module firewall_info: see its documentation. run(argv): exit status, output, error."""
    addresses = {name: netdev["addresses"] for name, netdev in netdevs(tree).items()}
    names = {route.netdev for route in usable(tree) if route.default and route.network.version == 4}
    own = [(name, text) for name in sorted(names) for text in addresses.get(name, ()) if ":" not in text]
    name, address = own[0] if len(own) == 1 else ("", "")
    firewall = {
        "tool": _tool(tree, run),
        "rules": [],
        "zones": {},
        "default_zone": "",
        "names_vrrp": True,
        "address": address.partition("/")[0] or None,
        "netdev": name or None,
        "addresses": addresses,
        "bound": {protocol: programs.bound(tree, protocol) for protocol in ("tcp", "udp")},
        "recorded": _recorded(tree),
        "installed": [tool for tool, program in ((UFW, "ufw"), (FIREWALLD, "firewall-cmd")) if programs.found(program)],
    }
    if firewall["tool"] == UFW:
        firewall["rules"] = ufw_rules(
            "\n".join(tree.read(f"/etc/ufw/{file}") or "" for file in ("user.rules", "user6.rules"))
        )
        firewall["names_vrrp"] = _names_vrrp(run([programs.found("ufw"), "version"])[1])
    elif firewall["tool"] == FIREWALLD:
        command = programs.found("firewall-cmd")
        firewall["default_zone"] = run([command, "--get-default-zone"])[1].strip()
        firewall["zones"] = zones(run([command, "--get-active-zones"])[1])
        for file in tree.listdir("/etc/firewalld/zones"):
            if file.endswith(".xml"):
                text = tree.read(f"/etc/firewalld/zones/{file}") or ""
                firewall["rules"] += firewalld_rules(file[: -len(".xml")], text)
    return firewall


def _tool(tree: Tree, run: Callable) -> Optional[str]:
    if not tree.live:
        return None
    command = programs.found("firewall-cmd")
    if command and run([command, "--state"])[0] == 0:
        return FIREWALLD
    enabled = re.search(r"^ENABLED=[\"']?yes", tree.read("/etc/ufw/ufw.conf") or "", re.MULTILINE)
    if enabled and programs.found("ufw"):
        return UFW
    return NFTABLES if programs.found("nft") else None


def _recorded(tree: Tree) -> list[dict]:
    """Rules that we added. A foreign record proves nothing."""
    rules = recorded(tree, RECORD).get("rules")
    return [rule for rule in rules if isinstance(rule, dict)] if isinstance(rules, list) else []


def _names_vrrp(said: str) -> bool:
    version = re.match(r"ufw (\d+)\.(\d+)(?:\.(\d+))?", said)
    return version is not None and tuple(int(part or 0) for part in version.groups()) >= _UFW_WITH_VRRP


# A rule as [kind (port, protocol, trust or route), source, protocol, ports, zone]: its identity.


def ufw_rules(text: str) -> list[list[str]]:
    rules = []
    for route, protocol, port, source in _TUPLE.findall(text):
        protocol, port = ("" if word == "any" else word for word in (protocol, port))
        kind = "route" if route else "port" if port else "protocol" if protocol else "trust"
        rules.append([kind, source, protocol, port.replace(":", "-"), ""])
    return rules


def firewalld_rules(zone: str, text: str) -> list[list[str]]:
    """The ports that a zone's file opens for a source, now and at boot."""
    try:
        top = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return []
    rules = [["trust", source.get("address") or "", "", "", zone] for source in top.findall("source")]
    for rule in top.findall("rule"):
        source, port, protocol = rule.find("source"), rule.find("port"), rule.find("protocol")
        if rule.find("accept") is None or source is None:
            continue
        address = source.get("address") or ""
        if port is not None:
            rules.append(["port", address, port.get("protocol") or "", port.get("port") or "", zone])
        elif protocol is not None:
            rules.append(["protocol", address, protocol.get("value") or "", "", zone])
    return rules


def zones(text: str) -> dict:
    """{zone: {interfaces, sources}} of `firewall-cmd --get-active-zones`."""
    by_zone: dict = {}
    zone: dict = {}
    for line in text.splitlines():
        if line[:1].strip():
            zone = by_zone.setdefault(line.split()[0], {"interfaces": [], "sources": []})
        elif line.strip():
            key, _colon, values = line.strip().partition(":")
            zone[key] = values.split()
    return by_zone
