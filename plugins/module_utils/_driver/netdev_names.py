# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The name an interface gets when it next appears, and the files that still use the old one.

PRIVATE to the collection. How udev names an interface: a rule with NAME= wins; else the first matching .link file
decides, by its NamePolicy and then its Name=. A policy picks from the names that systemd's net_id derives from the PCI
address, with the suffix `n<phys_port_name>` when the driver shows a port name. A driver change adds that suffix
(enp1s0f0 becomes enp1s0f0np0); NVIDIA's rule 77-mlnx-net-names.rules removes it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from typing import Any, Optional

from ..hca import modprobe, paths
from ..hca.netdevs import TYPES
from ..hca.text import integer
from ..hca.tree import Tree

_LINK_DIRECTORIES = (
    "/etc/systemd/network",
    "/run/systemd/network",
    "/usr/local/lib/systemd/network",
    "/usr/lib/systemd/network",
    "/lib/systemd/network",
)
_RULE_DIRECTORIES = ("/etc/udev/rules.d", "/run/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d")
_POLICIES = {
    "database": "ID_NET_NAME_FROM_DATABASE",
    "onboard": "ID_NET_NAME_ONBOARD",
    "slot": "ID_NET_NAME_SLOT",
    "path": "ID_NET_NAME_PATH",
    "mac": "ID_NET_NAME_MAC",
}
# These include the suffix; a MAC name has none.
_WITH_PORT = ("ID_NET_NAME_ONBOARD", "ID_NET_NAME_SLOT", "ID_NET_NAME_PATH")
_PORT_SUFFIX = re.compile(r"np\d+(?=(v\d+)?$)")
_STRIPS_PORT = re.compile(r"s/np")
# Files that name interfaces. Comments do not count.
_REFERRERS = (
    ("/etc/netplan", (".yaml", ".yml")),
    ("/etc/NetworkManager/system-connections", ("",)),
    ("/etc/NetworkManager/conf.d", (".conf",)),
    ("/etc/sysconfig/network-scripts", ("",)),
    ("/etc/systemd/network", (".network", ".netdev")),
    ("/run/systemd/network", (".network", ".netdev")),
    ("/etc/network/interfaces.d", ("",)),
    ("/etc/rancher/k3s/config.yaml.d", (".yaml",)),
    ("/etc/cni/net.d", (".conf", ".conflist")),
    ("/etc/sysctl.d", (".conf",)),
    ("/etc/firewalld/zones", (".xml",)),
)
_REFERRING_FILES = (
    "/etc/network/interfaces",
    "/etc/rancher/k3s/config.yaml",
    "/etc/systemd/system/k3s.service",
    "/etc/systemd/system/k3s-agent.service",
    "/etc/sysctl.conf",
    "/etc/nftables.conf",
    "/etc/nccl.conf",
)


def renames(tree: Tree, netdevs: list[str], attachments: list[dict], port_names: Optional[bool] = None) -> list[dict]:
    """Interfaces that come back under another name: [{netdev, mac, predicted, because, references}].

    predicted is None where the name is unknown. port_names: whether the new driver shows port names; None when the
    driver does not change.
    """
    found = []
    links = _links(tree)
    for netdev in netdevs:
        predicted, because = predict(tree, netdev, links, port_names)
        if predicted == netdev:
            continue
        found.append(
            {
                "netdev": netdev,
                "mac": tree.read(f"{paths.NET}/{netdev}/address"),
                "predicted": predicted,
                "because": because,
                "references": references(tree, netdev, predicted, attachments) if predicted else [],
            }
        )
    return found


def predict(
    tree: Tree, netdev: str, links: Optional[list[dict]] = None, port_names: Optional[bool] = None
) -> tuple[Optional[str], str]:
    """(name, why) when the interface next appears; (None, why) where that is unknown."""
    device = _device(tree, netdev)
    ruled = _named_by_rule(tree, device)
    if ruled:
        return ruled
    properties = _properties(tree, device, port_names)
    for link in _links(tree) if links is None else links:
        matches, unsure = _matches(link["match"], device)
        if unsure:
            return None, f"{link['path']} matches on {unsure}, which is not known here"
        if matches:
            return _linked(tree, link, netdev, properties)
    if "net.ifnames=0" in modprobe.command_line(tree):
        return netdev, "the kernel's own name (net.ifnames=0)"
    return netdev, "no .link file matches"


def _linked(tree: Tree, link: dict, netdev: str, properties: Optional[dict]) -> tuple[Optional[str], str]:
    section = link["link"]
    policies = (section.get("NamePolicy") or [""])[-1].split()
    if "net.ifnames=0" in modprobe.command_line(tree):
        policies = []
    for policy in policies:
        if policy in ("keep", "kernel"):
            # `kernel` only covers names the kernel declares final, `keep` those set by user space: a new HCA
            # interface has neither.
            continue
        if properties is None:
            return None, f"{link['path']} names by policy, but udev has no data for {netdev}"
        name = properties.get(_POLICIES.get(policy, ""))
        if name:
            return name, f"{link['path']} names by {policy}"
    static = (section.get("Name") or [""])[-1]
    if static:
        return static, f"{link['path']} says Name={static}"
    return netdev, f"{link['path']} names nothing"


def _device(tree: Tree, netdev: str) -> dict[str, Any]:
    base = f"{paths.NET}/{netdev}"
    data: dict[str, str] = {}
    index = tree.read(f"{base}/ifindex")
    text = tree.read(f"/run/udev/data/n{index}")
    for line in (text or "").splitlines():
        if line.startswith("E:"):
            key, _equals, value = line[2:].partition("=")
            data[key] = value
    address = tree.realpath(f"{base}/device").rpartition("/")[2] if tree.readlink(f"{base}/device") else ""
    return {
        "name": netdev,
        "mac": (tree.read(f"{base}/address") or "").lower(),
        "driver": tree.target(f"{base}/device/driver") or data.get("ID_NET_DRIVER") or "",
        "type": TYPES.get(integer(tree.read(f"{base}/type")), ""),
        "path": data.get("ID_PATH") or (f"pci-{address}" if re.fullmatch(r"[0-9a-f:]+\.\d", address) else ""),
        "port": tree.read(f"{base}/phys_port_name") or "",
        "function": address.rpartition(".")[2],
        "data": data if text is not None else None,
    }


def _properties(tree: Tree, device: dict, port_names: Optional[bool]) -> Optional[dict[str, str]]:
    """net_id's future names: the same base, with the suffix from the driver and the rules."""
    if device["data"] is None:
        return None
    port = device["port"]
    if port_names is False:
        port = ""
    elif port_names and not port and device["driver"] == "mlx5_core" and device["type"] == "ether":
        port = f"p{device['function']}"
    if device["driver"] == "mlx5_core" and _rule_strips_ports(tree):
        port = ""
    names = {}
    for key, value in device["data"].items():
        if key in _WITH_PORT and re.fullmatch(r"p\d+", port or "p0"):
            base = _PORT_SUFFIX.sub("", value)
            function = re.search(r"v\d+$", base)
            stem, tail = (base[: function.start()], function.group()) if function else (base, "")
            value = f"{stem}{'n' + port if port else ''}{tail}"
        names[key] = value
    return names


def _rules(tree: Tree) -> Iterator[tuple[str, str]]:
    """(path, text) of the effective udev rule files."""
    chosen: dict[str, str] = {}
    for directory in _RULE_DIRECTORIES:
        for name in tree.listdir(directory):
            if name.endswith(".rules"):
                chosen.setdefault(name, f"{directory}/{name}")
    for name in sorted(chosen):
        yield chosen[name], tree.read(chosen[name]) or ""


def _rule_strips_ports(tree: Tree) -> bool:
    return any("mlx5_core" in text and _STRIPS_PORT.search(text) for _path, text in _rules(tree))


def _named_by_rule(tree: Tree, device: dict) -> Optional[tuple[str, str]]:
    """A rule that sets NAME for the MAC of the interface, as 70-persistent-net.rules does."""
    for path, text in _rules(tree):
        for line in text.replace("\\\n", " ").splitlines():
            name = re.search(r'\bNAME\s*:?=\s*"([^"%$]+)"', line)
            mac = re.search(r'\bATTR\{address\}\s*==\s*"([0-9A-Fa-f:]+)"', line)
            if name and mac and not line.lstrip().startswith("#") and mac.group(1).lower() == device["mac"]:
                return name.group(1), f"{path} names {device['mac']}"
    return None


def _links(tree: Tree) -> list[dict[str, Any]]:
    """The .link files in the order udev tries them: by file name; of equal names the first directory wins."""
    chosen: dict[str, str] = {}
    for directory in _LINK_DIRECTORIES:
        for name in tree.listdir(directory):
            if name.endswith(".link"):
                chosen.setdefault(name, f"{directory}/{name}")
    found = []
    for name in sorted(chosen):
        path = chosen[name]
        if tree.readlink(path) == "/dev/null":
            continue
        sections = _sections(tree.read(path) or "")
        for directory in _LINK_DIRECTORIES:
            for drop_in in tree.listdir(f"{directory}/{name}.d"):
                if drop_in.endswith(".conf"):
                    for section, values in _sections(tree.read(f"{directory}/{name}.d/{drop_in}") or "").items():
                        for key, more in values.items():
                            sections.setdefault(section, {}).setdefault(key, []).extend(more)
        found.append({"path": path, "match": sections.get("Match") or {}, "link": sections.get("Link") or {}})
    return found


def _sections(text: str) -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            section = found.setdefault(line[1:-1], {})
        elif "=" in line and line[0] not in "#;":
            key, _equals, value = line.partition("=")
            section.setdefault(key.strip(), []).append(value.strip())
    return found


def _matches(match: dict[str, list[str]], device: dict) -> tuple[bool, Optional[str]]:
    """(whether the [Match] section matches, the deciding key that is unknown here)."""
    unsure = None
    for key, values in match.items():
        words = " ".join(values).split()
        if not words:
            continue
        if key in ("MACAddress", "PermanentMACAddress"):
            fits = device["mac"] in {word.lower().replace("-", ":") for word in words}
        elif key in ("Path", "Driver", "Type"):
            fits = _globbed(device[key.lower()], words)
        elif key == "OriginalName":
            # The kernel's first name is not recorded anywhere: only a catch-all pattern is sure to match.
            fits = True
            if "*" not in words:
                unsure = unsure or "OriginalName"
        else:
            fits, unsure = True, unsure or key
        if not fits:
            return False, None
    return bool(match), unsure


def _globbed(value: str, words: list[str]) -> bool:
    if words[0].startswith("!"):
        words = [words[0][1:], *words[1:]]
        return not any(fnmatch.fnmatchcase(value, word) for word in words)
    return any(fnmatch.fnmatchcase(value, word) for word in words)


def references(tree: Tree, old: str, new: str, attachments: list[dict]) -> list[dict[str, Any]]:
    """Where the old name is used and the new one would not match: [{path, line, text}]."""
    name = re.compile(rf"(?<![\w-]){re.escape(old)}(?![\w-])")
    found = []
    for path in _files(tree):
        text = tree.read(path) or ""
        lines = text.splitlines()
        by_identity = path.startswith("/etc/netplan") and _netplan_identities(lines)
        for number, line in enumerate(lines, 1):
            words = line.split("#", 1)[0].strip()
            if not words or words.startswith((";", "!", "//", "id=", "NAME=")):
                continue
            if by_identity and words.split(":")[0] in by_identity:
                continue
            if path.endswith(".network") and words.startswith("Name="):
                patterns = words[len("Name=") :].split()
                if _globbed(old, patterns) and not _globbed(new, patterns):
                    found.append({"path": path, "line": number, "text": words})
            elif name.search(words):
                found.append({"path": path, "line": number, "text": words})
        if path.endswith(f"/ifcfg-{old}") and not any(entry["path"] == path for entry in found):
            found.append({"path": path, "line": 1, "text": "(the file's own name)"})
    for attachment in attachments:
        if attachment.get("master", "").split(".")[0] == old:
            text = f"master: {attachment['master']}"
            found.append({"path": f"NetworkAttachmentDefinition {attachment['name']}", "line": None, "text": text})
    return found


def _files(tree: Tree) -> Iterator[str]:
    for directory, endings in _REFERRERS:
        for name in tree.listdir(directory):
            if name.endswith(endings) and not name.endswith((".bak", "~", ".rpmsave", ".dpkg-old")):
                yield f"{directory}/{name}"
    for path in _REFERRING_FILES:
        if tree.exists(path):
            yield path


def _netplan_identities(lines: list[str]) -> set[str]:
    """Names that are only labels in a netplan file: blocks that find their interface by `match:`.

    Such a block survives a rename; with `set-name:` netplan even writes the .link file that keeps the name.
    """
    found = set()
    for number, line in enumerate(lines):
        block = re.match(r"^(\s+)([\w.-]+):\s*$", line)
        if not block:
            continue
        for following in lines[number + 1 :]:
            depth = len(following) - len(following.lstrip())
            if following.strip() and depth <= len(block.group(1)):
                break
            if following.strip().startswith("match:"):
                found.update((block.group(2), "set-name"))
    return found
