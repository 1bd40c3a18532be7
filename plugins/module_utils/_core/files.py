# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The small text files this collection owns on a node: planned from facts, written whole, never half.

PRIVATE to the collection.
"""

from __future__ import annotations

import hashlib
import os
import tempfile

from ..hca import Tree, paths
from .change import Change, Plan

MODE = f"{paths.MODE:04o}"
HEADER = paths.HEADER + "\n"


def with_times(facts: dict, tree: Tree) -> dict:
    """Add when each of our files was written: what an initramfs is compared with."""
    for path, owned in facts["owned_files"].items():
        owned["mtime"] = tree.mtime(path)
    return facts


def plan_file(plan: Plan, facts: dict, path: str, text: str) -> bool:
    """Add what brings the file to this text and mode 0644; True when its text would change."""
    owned = facts["owned_files"].get(path)
    if owned is None:
        plan.change(path, "write", "", text)
        return True
    if _same(owned["content"], text):
        if owned["mode"] != MODE:
            plan.change(path, "mode", owned["mode"], MODE)
        return False
    plan.change(path, "write", _ended(owned["content"]), text)
    return True


def plan_removal(plan: Plan, facts: dict, path: str) -> None:
    owned = facts["owned_files"].get(path)
    if owned is not None:
        plan.change(path, "remove", _ended(owned["content"]), "")


def with_directive(content: str, directive: str, line: str | None) -> str:
    """A modprobe.d file with its one line of this directive set, or taken out, and all other lines kept.

    Two roles share the file, so each may only touch its own line. It stays, header only, when the last line goes: its
    age is what tells that an initramfs still holds the old content.
    """
    lines = [kept for kept in content.splitlines() if kept.strip() and not kept.startswith("#")]
    lines = [kept for kept in lines if kept.split()[:2] != directive.split()]
    if line:
        lines.append(line)
    return HEADER + "".join(f"{kept}\n" for kept in sorted(lines))


def apply_file(root: str, change: Change) -> None:
    """Carry out one change that plan_file or plan_removal made."""
    path = under(root, change.object)
    if change.action == "remove":
        os.unlink(path)
    elif change.action == "mode":
        os.chmod(path, int(change.after, 8))
    else:
        write(path, change.after)


def write(path: str, text: str, mode: int = paths.MODE) -> None:
    """Replace the file in one step, so that a run cut short leaves the old text or the new one."""
    directory = os.path.dirname(path)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".gpufabric-", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def under(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _same(content: str, text: str) -> bool:
    return content.rstrip("\n") == text.rstrip("\n")


def _ended(content: str) -> str:
    return content if not content or content.endswith("\n") else content + "\n"
