# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit files and their reload, together or not at all.

PRIVATE to the collection.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Callable

from .change import Change, Refused
from .files import apply_file, under, write


def running(root: str) -> bool:
    """Whether there is a systemd to tell: sd_booted(3) looks for the same directory."""
    return not root.rstrip("/") and os.path.isdir("/run/systemd/system")


def begun(shown: dict[str, str]) -> float:
    """When the main process of a unit was started, in seconds since the epoch by the clock of now.

    shown: what systemctl show says, with ExecMainStartTimestampMonotonic (microseconds since the boot).
    """
    return time.time() - time.monotonic() + int(shown.get("ExecMainStartTimestampMonotonic") or 0) / 1e6


def reload_or_undo(root: str, changes: list[Change], run: Callable, live: bool | None = None) -> Iterable[Change]:
    """Write the files and have systemd read them.

    No file tells whether systemd has read its units since they changed. So when the reload fails the files go back to
    what they were: the next run then sees them as missing and does both again.
    """
    done: list[Change] = []
    try:
        for change in changes:
            _apply(root, change)
            done.append(change)
        if done and (running(root) if live is None else live):
            code, out, error = run(["systemctl", "daemon-reload"])
            if code:
                raise Refused.because(
                    "systemd",
                    f"{', '.join(change.object for change in done)} read by systemctl daemon-reload",
                    f"exit status {code}: {(error or out).strip()}",
                    "see that the service manager answers (systemctl is-system-running) and run again; the files were "
                    "put back as they were",
                )
    except BaseException:
        for change in reversed(done):
            _undo(root, change)
        raise
    yield from done


def _apply(root: str, change: Change) -> None:
    path = under(root, change.object)
    if change.action == "link":
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        if os.path.lexists(path):
            os.unlink(path)
        os.symlink(change.after, path)
    elif change.action == "unlink":
        os.unlink(path)
    else:
        apply_file(root, change)


def _undo(root: str, change: Change) -> None:
    path = under(root, change.object)
    if change.action == "unlink":
        os.symlink(change.before, path)
    elif change.action == "link" or not change.before:
        os.unlink(path)
    elif change.action == "mode":
        os.chmod(path, int(change.before, 8))
    else:
        write(path, change.before)
