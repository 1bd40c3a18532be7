"""Unit files and daemon-reload: both or neither; units start only after a reload."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Callable

from .change import Change, Plan, Refused, failed
from .files import apply_file, plan_file, plan_removal, restorer, under

SYSTEM = "/etc/systemd/system"
# For such scripts: an IPoIB child shares folder and address with its parent; one by netlink shows only its index.
IS_CHILD = """is_child() {
    [ -e "$1/parent" ] && return
    [ "$(cat "$1/type" 2>/dev/null)" = 32 ] && [ "$(cat "$1/ifindex")" != "$(cat "$1/iflink")" ]
}
"""
# [Service] settings of a script that works on NICs through /sys, the only writable path. No PrivateNetwork=: the script
# would not see the NICs, and the kernel refuses to change the RDMA netns mode while a second namespace exists.
NIC_SANDBOX = """ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
DevicePolicy=closed
ProtectProc=invisible
ProcSubset=pid
ProtectControlGroups=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
CapabilityBoundingSet=CAP_NET_ADMIN
AmbientCapabilities=
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictRealtime=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
KeyringMode=private
UMask=0077
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM
IPAddressDeny=any
"""


def shown(run: Callable, properties: Iterable[str], *units: str) -> list[dict[str, str]]:
    """{property: value} of each unit, as systemctl shows them; empty if it fails. units: may contain options."""
    code, out, _error = run(["systemctl", "show", f"--property={','.join(properties)}", *units])
    blocks = out.split("\n\n") if code == 0 else []
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]


def running(root: str) -> bool:
    """Whether systemd is running: sd_booted(3) checks the same directory."""
    return not root.rstrip("/") and os.path.isdir("/run/systemd/system")


def started_at(shown: dict[str, str]) -> float:
    """Start time of a unit's main process, in seconds since the epoch by the current clock.

    shown: output of systemctl show, with ExecMainStartTimestampMonotonic (microseconds since the boot).
    """
    return time.time() - time.monotonic() + int(shown.get("ExecMainStartTimestampMonotonic") or 0) / 1e6


def enabled(unit: str) -> tuple[str, str]:
    """(path, target) of the link that `systemctl enable` would create."""
    folder, _slash, name = unit.rpartition("/")
    return f"{folder}/multi-user.target.wants/{name}", f"../{name}"


def plan_unit(made: Plan, facts: dict, unit: str, text: str, needed: bool) -> None:
    """The unit and its link. A module reads the links; with facts only, the unit file implies its link."""
    link, target = enabled(unit)
    is_enabled = unit in facts.get("enabled", facts["owned_files"])
    if needed:
        plan_file(made, facts, unit, text)
        if not is_enabled:
            made.change(link, "link", "", target)
        return
    if is_enabled:
        made.change(link, "unlink", target, "")
    plan_removal(made, facts, unit)


def apply_units(
    root: str,
    changes: list[Change],
    run: Callable,
    act: Callable[[Change], None] | None = None,
    starting: bool = False,
    live: bool | None = None,
) -> list[Change]:
    """Apply the changes in order, then run daemon-reload; returns the changes.

    No file shows whether systemd has read its units since they changed. So if the reload, or a change before it,
    fails, the unit files are rolled back: the next run sees them as wrong and repeats both. Everything else remains
    and is reported as done, because it is compared with the node itself. A killed run rolls nothing back, so
    `starting` reloads before a unit is started even when no file changed.

    act: how a change is applied; by default files and links only.
    """
    act = act or (lambda change: apply_file(root, change))
    done, undo = [], []
    try:
        for change in changes:
            try:
                if _read_by_systemd(change):
                    undo.append(restorer(under(root, change.object)))
                act(change)
            except OSError as error:
                raise Refused([failed(change, error)]) from error
            done.append(change)
        if (undo or starting) and (running(root) if live is None else live):
            systemctl(run, "systemd", "daemon-reload")
    except BaseException as error:
        for restore in reversed(undo):
            restore()
        if isinstance(error, Refused):
            error.done = [change for change in done if not _read_by_systemd(change)]
        raise
    return done


def _read_by_systemd(change: Change) -> bool:
    return change.object.startswith(f"{SYSTEM}/")


def systemctl(run: Callable, obj: str, *words: str) -> None:
    must(run, obj, ["systemctl", *words])


def must(run: Callable, obj: str, argv: list[str]) -> None:
    """Run a command; raise Refused about obj if it fails."""
    code, out, error = run(argv)
    if code:
        raise Refused.because(
            obj,
            f"{' '.join(argv)} to succeed",
            f"exit status {code}: {' '.join((error or out).split())[:300]}",
            "fix what it reports (journalctl -b, systemctl status; systemctl is-system-running shows whether systemd "
            "responds) and run again",
        )
