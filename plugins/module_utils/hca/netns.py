"""The RDMA subsystem's network namespace mode: running, at boot, other settings of it, and existing namespaces.

Sources: /sys/module/ib_core/parameters/netns_mode (Y shared, N exclusive; follows `rdma system set netns`), modprobe.d,
the kernel command line, /proc/*/ns/net and the nsfs mounts of /proc/1/mountinfo.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from . import modprobe, paths, units
from .text import unknown
from .tree import Tree

SHARED, EXCLUSIVE = "shared", "exclusive"
# kstrtobool(): what the kernel accepts as a boolean module parameter.
_MODES = {SHARED: ("y", "t", "1", "on"), EXCLUSIVE: ("n", "f", "0", "of")}
# Short-lived units, started by D-Bus or a timer, with a private network namespace (PrivateNetwork=yes).
SHORT_LIVED = (
    "systemd-hostnamed.service",
    "systemd-localed.service",
    "systemd-timedated.service",
    "fstrim.service",
    "e2scrub_all.service",
    "logrotate.service",
    "man-db.service",
    "dpkg-db-backup.service",
)


def mode_of(text: str) -> Optional[str]:
    """`netns_mode=` value as shared or exclusive; None for a value that the kernel rejects."""
    return next((mode for mode, beginnings in _MODES.items() if text.strip().lower().startswith(beginnings)), None)


def running(tree: Tree) -> str:
    """The kernel's present mode, shared or exclusive, or why it is unknown."""
    value = tree.read(f"{paths.MODULE}/ib_core/parameters/netns_mode")
    if value is not None:
        return mode_of(value) or unknown(f"the kernel reports {value!r}")
    if not tree.isdir(f"{paths.MODULE}/ib_core"):
        return unknown("ib_core is not loaded")
    return unknown("ib_core has no parameter netns_mode (a kernel before 5.2)")


def sources(lines: list[modprobe.Line]) -> list[dict[str, Any]]:
    """Everything that sets the mode at boot, weakest first: [{path, line, text, mode, ours, wins}]."""
    found = [
        {
            **line.as_fact(),
            "mode": mode_of(value),
            "ours": line.path == paths.OWN_MODPROBE,
            "wins": False,
        }
        for line, value in modprobe.options(lines, "ib_core", "netns_mode")
    ]
    if found:
        found[-1]["wins"] = True
    return found


def state(tree: Tree, lines: list[modprobe.Line]) -> dict[str, Any]:
    """The fact `subsystem`."""
    tree = tree.snapshot()
    found = sources(lines)
    return {
        "ib_core_loaded": tree.isdir(f"{paths.MODULE}/ib_core"),
        "netns_mode": running(tree),
        "persisted_netns_mode": found[-1]["mode"] if found else None,
        "netns_sources": found,
        "foreign_owners": sorted({source["path"] for source in found if not source["ours"]}),
        "namespaces": namespaces(tree),
    }


def namespaces(tree: Tree) -> list[dict[str, Any]] | str:
    """Network namespaces other than init's: [{inode, owners: [{pid, command, unit, transient}], name}].

    Of several processes of one unit (or, outside units, of one name) only the one with the lowest pid is shown. A
    namespace without a process is held by a mount (`ip netns add`, a container runtime); its name is the mount point.
    A string if init's own namespace cannot be read, which needs root.
    """
    tree = tree.snapshot()
    pids = sorted(int(name) for name in tree.listdir("/proc") if name.isdecimal())
    own = _inode(tree.readlink("/proc/1/ns/net") or tree.readlink("/proc/self/ns/net"))
    if own is None:
        return unknown("/proc/1/ns/net is not readable (root only)")
    found: dict[int, dict[str, Any]] = {}
    for pid in pids:
        inode = _inode(tree.readlink(f"/proc/{pid}/ns/net"))
        if inode is None or inode == own:
            continue
        owners = found.setdefault(inode, {"inode": inode, "owners": [], "name": None})["owners"]
        unit = unit_of(tree, pid)
        command = tree.read(f"/proc/{pid}/comm")
        if not any((owner["unit"] or owner["command"]) == (unit or command) for owner in owners):
            owners.append({"pid": pid, "command": command, "unit": unit, "transient": is_transient(tree, unit)})
    for inode, name in _mounted(tree):
        if inode != own:
            found.setdefault(inode, {"inode": inode, "owners": [], "name": None})["name"] = name
    return [found[inode] for inode in sorted(found)]


def _inode(link: Optional[str]) -> Optional[int]:
    """`net:[4026531840]` as 4026531840."""
    number = link[5:-1] if link and link.startswith("net:[") and link.endswith("]") else ""
    return int(number) if number.isdecimal() else None


def _mounted(tree: Tree) -> Iterator[tuple[int, str]]:
    """(inode, mount point) of namespaces held by a mount; the root field of an nsfs mount is `net:[inode]`."""
    for line in (tree.read("/proc/1/mountinfo") or tree.read("/proc/self/mountinfo") or "").splitlines():
        part = line.split()
        inode = _inode(part[3]) if len(part) > 4 else None
        if inode is not None:
            yield inode, part[4]


def unit_of(tree: Tree, pid: int) -> Optional[str]:
    """The systemd unit that a process belongs to, from /proc/<pid>/cgroup (version 2, or systemd's version 1 tree)."""
    found = None
    for line in (tree.read(f"/proc/{pid}/cgroup") or "").splitlines():
        _number, controllers, path = ([*line.split(":", 2), "", ""])[:3]
        if controllers in ("", "name=systemd"):
            parts = [part for part in path.split("/") if part.endswith((".service", ".scope"))]
            found = parts[-1] if parts else found
    return found


def is_transient(tree: Tree, unit: Optional[str]) -> bool:
    """Whether a unit holds its namespace only briefly: a known one, or a oneshot with PrivateNetwork."""
    if not unit or not unit.endswith(".service"):
        return False
    if unit in SHORT_LIVED or units.template(unit) in ("e2scrub@.service",):
        return True
    settings = units.settings(tree, unit, "Service")
    private = (settings.get("PrivateNetwork") or ["no"])[-1].lower() in ("1", "yes", "true", "on", "y", "t")
    return private and (settings.get("Type") or ["simple"])[-1] == "oneshot"
