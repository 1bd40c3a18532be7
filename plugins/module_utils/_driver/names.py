"""Where a node's network configuration uses an interface's name instead of its MAC.

Another driver may show other port names, which are part of interface names (enp1s0f0 and enp1s0f0np0), and a
configuration with the old name no longer matches. A .link file or udev rule that ties the name to the MAC or the PCI
address, or a netplan block that matches by MAC, keeps both.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import Any

from ..hca import paths, pci
from ..hca.modprobe import CMDLINE  # where dracut reads ip=NAME: and ifname=NAME:MAC of a node that boots by network
from ..hca.tree import Tree

_FILES = (
    ("/etc/netplan", (".yaml", ".yml")),
    ("/etc/NetworkManager/system-connections", ("",)),
    ("/etc/sysconfig/network-scripts", ("",)),
    ("/etc/sysconfig/network", ("",)),
    ("/etc/systemd/network", (".network", ".netdev")),
    ("/etc/network/interfaces.d", ("",)),
    ("/etc/network", ("interfaces",)),
)
# Files that tie a name to hardware: netplan writes such a .link file for set-name, installers write the rules.
_PINS = (("/etc/systemd/network", (".link",)), ("/run/systemd/network", (".link",)), ("/etc/udev/rules.d", (".rules",)))
_LEFT_BEHIND = (".bak", "~", ".rpmsave", ".dpkg-old")


def configured(tree: Tree, netdev: str) -> list[dict[str, Any]]:
    """[{path, line}] with the interface's name; none if something ties its name to its hardware."""
    marks = [hardware_address(tree, netdev), pci.above(tree.realpath(f"{paths.NET}/{netdev}/device"))[0]]
    name = re.compile(rf"(?<![\w-]){re.escape(netdev)}(?![\w-])")
    pin = re.compile(rf'\b(?:if)?name\s*:?=\s*"?{re.escape(netdev)}(?![\w-])', re.IGNORECASE)
    for path in (*_paths(tree, _PINS), CMDLINE):
        lines = [line for line in (tree.read(path) or "").splitlines() if line[:1] not in ("#", ";")]
        for text in lines if path.endswith(".rules") else ["\n".join(lines)]:
            if pin.search(text) and any(mark and mark in text.lower().replace("-", ":") for mark in marks):
                return []
    places = []
    files = {path: (tree.read(path) or "").splitlines() for path in (*_paths(tree, _FILES), CMDLINE)}
    plans = {path: lines for path, lines in files.items() if path.startswith("/etc/netplan")}
    labels = set().union(*map(_by_mac, plans.values()))
    for path, lines in files.items():
        if path in plans and netdev in labels:
            continue  # bonds and VLANs of any of its files refer to the label
        if path.endswith(f"/ifcfg-{netdev}") and not any(line.startswith(("DEVICE=", "HWADDR=")) for line in lines):
            places.append({"path": path, "line": 1})
        for number, line in enumerate(lines, 1):
            words = line.split("#", 1)[0].strip()
            known = path in plans and words.split(":")[0].strip("\"'") in labels
            if not known and not words.startswith((";", "id=", "NAME=")) and _names(words, name, netdev):
                places.append({"path": path, "line": number})
    return places


def hardware_address(tree: Tree, netdev: str) -> str:
    """The interface's own MAC; a member of a bond shows the bond's."""
    base = f"{paths.NET}/{netdev}"
    return (tree.read(f"{base}/bonding_slave/perm_hwaddr") or tree.read(f"{base}/address") or "").lower()


def _names(words: str, name: re.Pattern, netdev: str) -> bool:
    """Whether a line has the name, or a pattern that stops matching with or without a port name."""
    given = re.match(r"(?:Name\s*=|(?:.*[\s{,])?name:|interface-name=)(.*)", words)
    if not given:
        return bool(name.search(words))
    patterns = re.findall(r"[^\s,;'\"{}]+", given[1])
    other = netdev[:-3] if re.search(r"np\d$", netdev) else f"{netdev}np0"
    return any(fnmatch.fnmatchcase(netdev, pattern) for pattern in patterns) and not any(
        fnmatch.fnmatchcase(other, pattern) for pattern in patterns
    )


def _paths(tree: Tree, table) -> Iterator[str]:
    for directory, endings in table:
        for name in tree.listdir(directory):
            if name.endswith(endings) and not name.endswith(_LEFT_BEHIND) and not tree.isdir(f"{directory}/{name}"):
                yield f"{directory}/{name}"


def _by_mac(lines: list[str]) -> set[str]:
    """Blocks of a netplan file that match their interface by its MAC: their names are labels, like set-name."""
    plain = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in lines]
    text = "".join(f"{line}\n" for line in plain if line)
    blocks = re.findall(r"^( +)[\"']?([\w.-]+)[\"']?:(?=\n((?:\1 +.*\n)+))", text, re.MULTILINE)
    # What stands beside match, not in it, sets another MAC.
    by_mac = re.compile(r"^( +)match:(?: *\{[^}]*\bmacaddress:|\n(?:\1 +.*\n)*?\1 +macaddress:)", re.MULTILINE)
    return {label for _indent, name, inside in blocks if by_mac.search(inside) for label in (name, "set-name")}
