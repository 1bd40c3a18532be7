"""Unload the HCA driver, load the one on disk, and restore the lost settings.

The gate found nothing using the driver; if a module is in use anyway, the reload stops and loads the unloaded modules
again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from .._core.change import Finding, Plan, Refused
from .._core.files import remove, set_attribute, under, write
from ..hca import paths
from ..hca.management import parent
from ..hca.netdevs import same_address
from ..hca.paths import RECORDS
from ..hca.text import integer
from ..hca.tree import Tree
from .risk import PEERMEM, STACK

# The settings that a reload loses, kept until all are restored.
RECORD = RECORDS["driver_reload"]
BOOT = "/proc/sys/kernel/random/boot_id"
Run = Callable[[list[str]], tuple[int, str, str]]
_OPENIBD = ("/etc/init.d/openibd", "/usr/lib/systemd/system/openibd.service", "/lib/systemd/system/openibd.service")


def plan(facts: dict, reloading: bool = True, outlived: Optional[str] = None, allowed: Optional[bool] = None) -> Plan:
    """One change if memory and disk differ, or if an earlier reload has not restored everything.

    reloading: whether the driver may be reloaded; otherwise settings are only restored, if that is allowed. outlived:
    why the record of an earlier reload no longer applies.
    """
    made, driver = Plan(), facts["driver"]
    name, before = "settings of HCA interfaces", "as an unfinished reload left them"
    if driver["agree"] is False and reloading:
        made.change("driver in memory", "reload", _describe(driver["loaded"]), _describe(driver["on_disk"]))
    elif "driver_reload" not in facts["unfinished"]:
        return made
    elif outlived:
        made.change(RECORD, "remove", outlived, "")
    elif allowed:
        made.change(name, "restore", before, "as before it")
    elif allowed is None:
        step = f"see {RECORD} on the node; true restores MTU, addresses and virtual functions, false leaves them"
        made.finding("driver_reload_allowed", "true or false", f"not set, and {name} {before}", step)
    else:
        made.notes.append(f"{name} stay {before}: driver_reload_allowed is false")
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
        back = [name for name in PEERMEM if name in names]
        for name in back:
            _must(run(["modprobe", "--remove", name]), f"module {name}", "unloaded")
        _must(run(["systemctl", "restart", "openibd.service"]), "openibd.service", "restarted")
    else:
        taken: list[str] = []
        for name in names:
            if not tree.isdir(f"{paths.MODULE}/{name}"):
                continue  # removed together with its user
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
    _load(run, back)


def _load(run: Run, names) -> None:
    for name in (name for name in names if name != "mlx_compat"):
        # The new stack may lack modules of the old one.
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


def restoration(tree: Tree, saved: dict[str, Any], present: dict[str, Optional[str]]) -> list[list[str]]:
    """What undoes the differences from before: words of a command, or the path of a sysfs file and its value.

    present: {MAC: the interface's current name, None while it is missing}.
    """
    commands = []
    for entry in saved["virtual_functions"]:
        device = f"{paths.PCI}/{entry['address']}"
        if not _same_card(tree, entry):
            continue
        if integer(tree.read(f"{device}/sriov_numvfs")) != entry["enabled"]:
            commands.append([f"{device}/sriov_numvfs", str(entry["enabled"])])
        for number, settings in enumerate(entry["settings"] or []):
            for name, value in settings.items():
                path = f"{device}/sriov/{number}/{name}"
                if tree.read(path) != value:
                    commands.append([path, value])
    for netdev in saved["netdevs"]:
        name = present.get(netdev["mac"])
        if name is None:
            continue
        base = f"{paths.NET}/{name}"
        if netdev.get("mode") not in (None, tree.read(f"{base}/mode")):
            commands.append([f"{base}/mode", netdev["mode"]])  # of IPoIB; connected mode allows the larger MTU
        if netdev["mtu"] and integer(tree.read(f"{base}/mtu")) != netdev["mtu"]:
            commands.append(["ip", "link", "set", "dev", name, "mtu", str(netdev["mtu"])])
        if netdev["up"] and not (integer(tree.read(f"{base}/flags")) or 0) & 0x1:
            commands.append(["ip", "link", "set", "dev", name, "up"])
        for address in netdev["addresses"]:
            if not address.startswith("fe80:"):  # the kernel creates link-local ones itself
                commands.append(["ip", "address", "replace", address, "dev", name])
        commands += [["ip", *route["words"], "dev", name] for route in netdev.get("routes") or ()]
    return commands


def _macs(tree: Tree, function: dict) -> list[str]:
    device = f"{paths.PCI}/{function['address']}/net"
    return sorted(filter(None, (tree.read(f"{device}/{name}/address") for name in tree.listdir(device))))


def _same_card(tree: Tree, function: dict) -> bool:
    """Whether the function has one of its former interfaces; True if it had none."""
    there, macs = _macs(tree, function), function.get("macs") or []
    return not (there and macs) or any(same_address(own, mac) for own in there for mac in macs)


def outlived(tree: Tree) -> Optional[str]:
    """Why a record is obsolete: a boot sets everything up from the node's own configuration."""
    try:
        boot = json.loads(tree.read(RECORD) or "")["boot"]
    except KeyError:
        boot = None
    except (ValueError, TypeError):
        return None  # damaged, which saved() reports
    return None if boot == tree.read(BOOT) else "of another boot"


def saved(tree: Tree) -> Optional[dict[str, Any]]:
    """What an earlier reload recorded but has not restored yet."""
    text = tree.read(RECORD)
    if text is None:
        return None
    try:
        record = json.loads(text)
        kept = {name: list(record[name]) for name in ("netdevs", "virtual_functions")}
        return {**kept, "modules": list(record.get("modules", ()))}
    except (ValueError, KeyError, TypeError):
        step = "restore MTU, addresses and virtual functions by hand, remove the file and run again"
        raise Refused.because(RECORD, "the settings to restore after a reload", "a damaged file", step) from None


def save(tree: Tree, root: str, restore: dict[str, Any]) -> dict[str, Any]:
    """Record what to restore, with its boot and cards.

    The record of an earlier reload of this boot has the original settings and takes precedence.
    """
    before = (None if outlived(tree) else saved(tree)) or {"netdevs": [], "virtual_functions": [], "modules": []}
    both: dict[str, Any] = {"boot": tree.read(BOOT), "modules": before["modules"] or loaded(tree)}
    for kind, key in (("netdevs", "mac"), ("virtual_functions", "address")):
        known = {entry[key] for entry in before[kind]}
        both[kind] = before[kind] + [entry for entry in restore[kind] if entry[key] not in known]
    both["virtual_functions"] = [{"macs": _macs(tree, entry), **entry} for entry in both["virtual_functions"]]
    write(under(root, RECORD), json.dumps(both, indent=1) + "\n", 0o600)
    return both


def restore(
    tree: Tree, root: str, kept: dict[str, Any], timeout: float, run: Run, stopped: Sequence[Finding] = ()
) -> None:
    """Restore everything possible, then report the rest; the record goes when nothing is left.

    stopped: why the reload ended early. Its modules are loaded again, but their interfaces have lost the settings.
    """
    # A run that was killed in between left modules unloaded.
    there = loaded(tree)
    _load(run, [name for name in (*reversed(STACK), *PEERMEM) if name in kept["modules"] and name not in there])
    # Virtual functions first: their interfaces are among the awaited ones.
    failed = _carry_out(restoration(tree, {**kept, "netdevs": []}, {}), root, run)
    present = wait_for(tree, [netdev["mac"] for netdev in kept["netdevs"] if netdev["mac"]], timeout)
    failed += _carry_out(restoration(tree, {**kept, "virtual_functions": []}, present), root, run)
    missing = [netdev["name"] for netdev in kept["netdevs"] if not present.get(netdev["mac"])]
    if missing:
        step = (
            "look at the kernel's reason (dmesg | tail), and run again once they are there: the node keeps their "
            "settings until it boots"
        )
        failed.append(
            Finding(f"interfaces {', '.join(missing)}", f"back within {timeout} s of the reload", "missing", step)
        )
    if not failed:
        remove(under(root, RECORD))
    if failed or stopped:
        raise Refused([*stopped, *failed])


def _carry_out(commands: list[list[str]], root: str, run: Run) -> list[Finding]:
    failed = []
    for command in commands:
        sysfs = command[0].startswith("/")
        try:
            if sysfs:
                set_attribute(under(root, command[0]), command[1])
                continue
            code, _out, error = run(command)
        except OSError as refused:
            code, error = 1, refused.strerror or str(refused)
        if code:
            obj, wanted = (command[0], f"set to {command[1]}") if sysfs else (" ".join(command), "restored")
            step = "fix the cause and run again: the node keeps the settings to restore"
            failed.append(Finding(obj, wanted, error.strip() or f"exit status {code}", step))
    return failed


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
        base = f"{paths.NET}/{name}"
        own = tree.readlink(f"{base}/device") and not parent(tree, name)
        if own and same_address(tree.read(f"{base}/address"), mac):
            return name
    return None
