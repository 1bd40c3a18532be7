# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unload the HCA driver, load the one on disk, and restore what was lost with it.

PRIVATE to the collection. The gate found nothing using the driver; a module in use anyway ends the reload, and what
was unloaded by then is loaded again.
"""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple, Optional

from .._core.change import Plan, Refused
from ..hca import paths
from ..hca.text import integer
from ..hca.tree import Tree
from .risk import PEERMEM, STACK

Run = Callable[[list[str]], tuple[int, str, str]]
_OPENIBD = ("/etc/init.d/openibd", "/usr/lib/systemd/system/openibd.service", "/lib/systemd/system/openibd.service")


class Command(NamedTuple):
    """Restores one setting: a command, or a value for a sysfs file."""

    argv: list[str]
    path: Optional[str] = None
    text: Optional[str] = None


def plan(facts: dict) -> Plan:
    """One change when memory and disk differ."""
    made, driver = Plan(), facts["driver"]
    if driver["agree"] is False:
        made.change("driver in memory", "reload", _describe(driver["loaded"]), _describe(driver["on_disk"]))
    return made


def _describe(part: dict) -> str:
    version = f" {part['version']}" if part["version"] else ""
    return f"{part['flavor']}{version}, mlx5_core {part['srcversion'] or 'without srcversion'}"


def loaded(tree: Tree) -> list[str]:
    """Modules to unload, in order."""
    return [name for name in (*PEERMEM, *STACK) if tree.isdir(f"{paths.MODULE}/{name}")]


def reload(tree: Tree, run: Run) -> None:
    names = loaded(tree)
    if any(tree.exists(path) for path in _OPENIBD):
        for name in PEERMEM:
            if name in names:
                _must(run(["modprobe", "--remove", name]), f"module {name}", "unloaded")
        _must(run(["systemctl", "restart", "openibd.service"]), "openibd.service", "restarted")
        back = [name for name in PEERMEM if name in names]
    else:
        taken: list[str] = []
        for name in names:
            if not tree.isdir(f"{paths.MODULE}/{name}"):
                continue  # was removed together with its user
            code, _out, error = run(["modprobe", "--remove", name])
            if code:
                _load(run, reversed(taken))
                raise Refused.because(
                    f"module {name}",
                    "unloaded",
                    error.strip() or f"exit status {code}",
                    "stop what holds it, or reboot instead (driver_activation: reboot); the modules are loaded again",
                )
            taken.append(name)
        back = list(reversed(names))
    _load(run, [name for name in back if name != "mlx_compat"])


def _load(run: Run, names) -> None:
    for name in names:
        # Not every stack has every module of the one before it.
        code, _out, error = run(["modprobe", name])
        if code and "not found" not in error:
            raise Refused.because(f"module {name}", "loaded", error.strip(), "check the kernel's reason (dmesg | tail)")


def _must(answer: tuple[int, str, str], what: str, wanted: str) -> None:
    code, out, error = answer
    if code:
        raise Refused.because(
            what,
            wanted,
            (error or out).strip()[-500:] or f"exit status {code}",
            "fix what it reports, or reboot instead (driver_activation: reboot)",
        )


def restoration(tree: Tree, saved: dict[str, Any], found: dict[str, Optional[str]]) -> list[Command]:
    """What differs from before. found: {MAC: the interface's current name, None while it is missing}."""
    commands = []
    for entry in saved["virtual_functions"]:
        device = f"{paths.PCI}/{entry['address']}"
        if integer(tree.read(f"{device}/sriov_numvfs")) != entry["enabled"]:
            commands.append(Command([], f"{device}/sriov_numvfs", str(entry["enabled"])))
        for number, settings in enumerate(entry["settings"] or []):
            for name, value in settings.items():
                path = f"{device}/sriov/{number}/{name}"
                if tree.read(path) != value:
                    commands.append(Command([], path, value))
    for netdev in saved["netdevs"]:
        name = found.get(netdev["mac"])
        if name is None:
            continue
        base = f"{paths.NET}/{name}"
        if netdev["mtu"] and integer(tree.read(f"{base}/mtu")) != netdev["mtu"]:
            commands.append(Command(["ip", "link", "set", "dev", name, "mtu", str(netdev["mtu"])]))
        if netdev["up"] and not (integer(tree.read(f"{base}/flags")) or 0) & 0x1:
            commands.append(Command(["ip", "link", "set", "dev", name, "up"]))
        for address in netdev["addresses"]:
            if not address.startswith("fe80:"):  # the kernel creates link-local ones itself
                commands.append(Command(["ip", "address", "replace", address, "dev", name]))
    return commands


def wait_for(tree: Tree, macs: list[str], seconds: float, sleep: Callable[[float], None] = time.sleep) -> dict:
    """{MAC: name} once the interfaces are back and their names have settled; None for those still missing.

    Names are read twice: udev renames an interface shortly after it appears.
    """
    deadline = time.monotonic() + seconds
    before: dict[str, Optional[str]] = {}
    while True:
        now = {mac: _named(tree, mac) for mac in macs}
        if (now == before and all(now.values())) or time.monotonic() > deadline:
            return now
        before = now
        sleep(1)


def _named(tree: Tree, mac: str) -> Optional[str]:
    for name in tree.listdir(paths.NET):
        if tree.readlink(f"{paths.NET}/{name}/device") and tree.read(f"{paths.NET}/{name}/address") == mac:
            return name
    return None
