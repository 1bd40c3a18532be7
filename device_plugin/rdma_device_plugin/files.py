# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Small files that are replaced as a whole: a reader, or a crash, sees the old one or the new one."""

from __future__ import annotations

import os


def replace(path: str, data: bytes, mode: int) -> None:
    """Write, sync, rename, sync the directory. OSError leaves the old file and no unfinished one."""
    # Runtimes read *.json and *.yaml only; this suffix hides the unfinished file from them.
    unfinished = f"{path}.new"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as made:
            made.write(data)
            made.flush()
            os.fchmod(made.fileno(), mode)
            os.fsync(made.fileno())
        os.rename(unfinished, path)
    except OSError:
        remove(unfinished)
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove(path: str) -> bool:
    """False when there was none."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True
