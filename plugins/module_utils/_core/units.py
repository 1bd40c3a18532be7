# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit files and their reload, together or not at all; starts only after a reload.

PRIVATE to the collection.
"""

from __future__ import annotations

import os
import time
from typing import Callable

from .change import Change, Refused, failed
from .files import apply_file, restorer, under

SYSTEM = "/etc/systemd/system"


def running(root: str) -> bool:
    """Whether there is a systemd to tell: sd_booted(3) looks for the same directory."""
    return not root.rstrip("/") and os.path.isdir("/run/systemd/system")


def begun(shown: dict[str, str]) -> float:
    """When the main process of a unit was started, in seconds since the epoch by the clock of now.

    shown: what systemctl show says, with ExecMainStartTimestampMonotonic (microseconds since the boot).
    """
    return time.time() - time.monotonic() + int(shown.get("ExecMainStartTimestampMonotonic") or 0) / 1e6


def apply_units(
    root: str,
    changes: list[Change],
    run: Callable,
    act: Callable[[Change], None] | None = None,
    starting: bool = False,
    live: bool | None = None,
) -> list[Change]:
    """Carry out the changes in their order, then have systemd read its files; returns the changes.

    No file tells whether systemd has read its units since they changed. So when the reload, or a change before it,
    fails, systemd's files go back to what they were: the next run then sees them as wrong and does both again. All else
    stays, and is told as done, for it is compared with the node itself. A run that is killed in between puts nothing
    back; therefore `starting` has systemd read its files before a unit is started even where none was changed.

    act: how a change is carried out; files and links only, where it is not given.
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
    """Run a command; Refused, about obj, when it fails."""
    code, out, error = run(argv)
    if code:
        raise Refused.because(
            obj,
            f"{' '.join(argv)} to succeed",
            f"exit status {code}: {' '.join((error or out).split())[:300]}",
            "settle what it names (journalctl -b, systemctl status; systemctl is-system-running tells whether the "
            "service manager answers) and run again",
        )
