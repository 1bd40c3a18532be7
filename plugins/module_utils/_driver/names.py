"""Where a node's network configuration uses an interface's name instead of its MAC.

Another driver may show other port names, which are part of interface names (enp1s0f0 and enp1s0f0np0), and a
configuration with the old name no longer matches. A .link file or udev rule that ties the name to the MAC, or a
netplan block that matches by MAC, keeps both.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import Any

from ..hca import paths
from ..hca.tree import Tree

_FILES = (
    ("/etc/netplan", (".yaml", ".yml")),
    ("/etc/NetworkManager/system-connections", (".nmconnection",)),
    ("/etc/sysconfig/network-scripts", ("",)),
    ("/etc/systemd/network", (".network", ".netdev")),
    ("/etc/network/interfaces.d", ("",)),
    ("/etc/network", ("interfaces",)),
)
# Files that tie a name to a MAC: netplan writes such a .link file for set-name, installers write the rules.
_PINS = (("/etc/systemd/network", (".link",)), ("/run/systemd/network", (".link",)), ("/etc/udev/rules.d", (".rules",)))
_LEFT_BEHIND = (".bak", "~", ".rpmsave", ".dpkg-old")


def configured(tree: Tree, netdev: str) -> list[dict[str, Any]]:
    """[{path, line}] with the interface's name; none if something ties its name to the MAC."""
    mac = (tree.read(f"{paths.NET}/{netdev}/address") or "").lower()
    name = re.compile(rf"(?<![\w-]){re.escape(netdev)}(?![\w-])")
    for path in _paths(tree, _PINS):
        text = tree.read(path) or ""
        if mac and mac in text.lower().replace("-", ":") and name.search(text):
            return []
    places = []
    for path in _paths(tree, _FILES):
        lines = (tree.read(path) or "").splitlines()
        labels = _by_mac(lines) if path.startswith("/etc/netplan") else ()
        for number, line in enumerate(lines, 1):
            words = line.split("#", 1)[0].strip()
            if (
                words.startswith((";", "id=", "NAME="))
                or words.split(":")[0] in labels
                or not _names(words, name, netdev)
            ):
                continue
            places.append({"path": path, "line": number})
    return places


def _names(words: str, name: re.Pattern, netdev: str) -> bool:
    """Whether a line has the name, or a networkd pattern that stops matching with or without a port name."""
    if not words.startswith("Name="):
        return bool(name.search(words))
    patterns = words[len("Name=") :].split()
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
    labels = set()
    for number, line in enumerate(lines):
        block = re.match(r"^(\s+)([\w.-]+):\s*$", line)
        if not block:
            continue
        inside = []
        for following in lines[number + 1 :]:
            if following.strip() and len(following) - len(following.lstrip()) <= len(block.group(1)):
                break
            inside.append(following.strip())
        if re.search(r"match:\s*\{?\s*(name:[^\n]*\n?)?\s*macaddress:", "\n".join(inside)):
            labels.update((block.group(2), "set-name"))
    return labels
