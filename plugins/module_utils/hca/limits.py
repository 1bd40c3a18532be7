"""How much memory each container service may lock: at its next start and in the running process.

Sources: unit files and drop-ins (systemd.exec(5), LimitMEMLOCK=), /proc/<pid>/limits, the unit's cgroup.procs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Optional

from . import modprobe, node, paths, units
from .text import unknown
from .tree import Tree

SERVICES = ("k3s", "k3s-agent", "containerd", "docker", "crio", "kubelet")
_SUFFIX = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50, "E": 1 << 60}
# cgroup version 2, and systemd's own hierarchy of version 1 and of the hybrid layout.
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
_MIB_8 = 8 << 20


def state(tree: Tree, services: Iterable[str] = SERVICES) -> dict[str, Any]:
    """{services: {name: {exists, active, main_pid, memlock, memlock_running, drop_ins: [paths]}}}.

    Limits are "infinity", a number of bytes (the soft limit), or `unknown: why`.
    """
    tree = tree.snapshot()
    default = _manager_default(tree)
    return {"services": {name: _service(tree, name, default) for name in services}}


def _service(tree: Tree, name: str, default: str | int) -> dict[str, Any]:
    unit = f"{name}.service"
    settings = units.settings(tree, unit, "Service")
    pid = main_pid(tree, unit, settings)
    return {
        "exists": units.fragment(tree, unit) is not None,
        "active": pid is not None,
        "main_pid": pid,
        "memlock": _effective(settings.get("LimitMEMLOCK", ()), default),
        "memlock_running": None if pid is None else running_limit(tree, pid),
        "drop_ins": units.drop_ins(tree, unit),
    }


def amount(value: str) -> Optional[str | int]:
    """The soft limit of a LimitMEMLOCK= value: "infinity" or bytes; None for what systemd skips."""
    soft = value.partition(":")[0].strip()
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([KMGTPEB]?)", soft)
    if match:
        return int(float(match.group(1)) * _SUFFIX[match.group(2)])
    return soft if soft == "infinity" else None


def _effective(values: Iterable[str], default: str | int) -> str | int:
    """The result of repeated LimitMEMLOCK= assignments: an empty one resets, and systemd skips invalid ones."""
    found: str | int = default
    for value in values:
        limit = amount(value)
        if limit is not None or not value.partition(":")[0].strip():
            found = default if limit is None else limit
    return found


def _manager_default(tree: Tree) -> str | int:
    """DefaultLimitMEMLOCK of system.conf and its drop-ins, else the value without any setting.

    That is 8 MiB since systemd 250, which sets it, and since Linux 5.16, from which PID 1 inherits it. Older releases
    of both give 64 KiB, and a container passes on its manager's limit.
    """
    main = [path for path in (f"{place}/systemd/system.conf" for place in paths.CONFIGURATION) if tree.exists(path)]
    assigned = [
        value
        for path in [*main[:1], *modprobe.effective_files(tree, "systemd/system.conf.d")]
        for key, value in units.assignments(tree.read(path) or "", "Manager")
        if key == "DefaultLimitMEMLOCK"
    ]
    release = re.match(r"(\d+)\.(\d+)", node.kernel(tree) or "")
    recent = release and (int(release.group(1)), int(release.group(2))) >= (5, 16) and not node.container(tree)
    why = "no unit file sets LimitMEMLOCK, so it is systemd's default: 8 MiB, or 64 KiB before release 250"
    return _effective(assigned, _MIB_8 if recent else unknown(why))


def main_pid(tree: Tree, unit: str, settings: dict[str, list[str]]) -> Optional[int]:
    """Main process of a running service; None if its control group has no process.

    A container runtime's group also holds the shims of its containers, and those outlive a restart. The main process is
    the one that PID 1 started under the name of ExecStart; of several, the youngest counts: older ones are leftovers.
    """
    if not settings and units.fragment(tree, unit) is None:
        return None
    named = tree.read(settings["PIDFile"][-1]) if (settings.get("PIDFile") or [""])[-1] else None
    pids = _pids(tree, unit, (settings.get("Slice") or ["system.slice"])[-1])
    if named and named.isdecimal() and int(named) in pids:
        return int(named)
    starts = [value for value in settings.get("ExecStart", []) if value.strip("-+!@:| ")]
    # k3s re-executes itself as `k3s-server`; /proc/<pid>/comm holds 15 characters.
    program = starts[-1].lstrip("-+!@:|").split()[0].rpartition("/")[2][:15] if starts else ""
    candidates = []
    for pid in pids:
        parent, started = _parent_and_start(tree, pid)
        if parent == 1:
            named = bool(program) and (tree.read(f"/proc/{pid}/comm") or "").startswith(program)
            candidates.append((named, started, pid))
    return max(candidates)[2] if candidates else next(iter(pids), None)


def _slice_path(name: str) -> str:
    """`a-b.slice` lies below `a.slice`, systemd.slice(5)."""
    parts = name.rpartition(".")[0].split("-")
    return "/".join("-".join(parts[: count + 1]) + ".slice" for count in range(len(parts)))


def _pids(tree: Tree, unit: str, slice_name: str) -> list[int]:
    for base in _CGROUPS:
        group = f"{base}/{_slice_path(slice_name)}/{unit}"
        names = tree.listdir(group)
        text = tree.read(f"{group}/cgroup.procs") or ""
        # With delegation the processes may sit one level below (systemd's DelegateSubgroup, k3s's own evacuation).
        for name in () if text else names:
            text += "\n" + (tree.read(f"{group}/{name}/cgroup.procs") or "")
        if text.strip():
            return sorted({int(word) for word in text.split() if word.isdecimal()})
    return []


def _parent_and_start(tree: Tree, pid: int) -> tuple[Optional[int], int]:
    """(parent, start time in clock ticks since boot): fields 4 and 22 of proc(5)'s stat."""
    after = (tree.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    if len(after) < 20 or not (after[1].isdecimal() and after[19].isdecimal()):
        return None, 0
    return int(after[1]), int(after[19])


def running_limit(tree: Tree, pid: int) -> str | int:
    """Soft RLIMIT_MEMLOCK of a process: "infinity", bytes, or `unknown: why`."""
    soft = re.search(r"^Max locked memory +(unlimited|\d+) ", tree.read(f"/proc/{pid}/limits") or "", re.MULTILINE)
    if soft is None:
        return unknown(f"/proc/{pid}/limits is not readable")
    return "infinity" if soft[1] == "unlimited" else int(soft[1])
