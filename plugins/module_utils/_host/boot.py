"""Whether the kernel that boots next has what it needs: its file, an initramfs image, modules."""

from __future__ import annotations

from typing import Optional

from .._core.change import Finding, as_dict
from .._core.text import json_object
from ..hca import boot
from ..hca.paths import RECORDS
from ..hca.tree import Tree

# A boot loader's paths are relative to its partition, which is mounted at one of these or is the root itself.
_MOUNTS = ("", "/boot", "/boot/efi", "/efi")


def gate(tree: Tree, cluster: dict) -> dict:
    """The state before a reboot, as node_facts returns it. cluster: the node's membership in one."""
    findings, unknown = judge(tree)
    return {
        "findings": [as_dict(finding) for finding in findings],
        "not_verified": unknown,
        "cluster": cluster,
        "left": _record(tree),
        "boot_id": tree.read("/proc/sys/kernel/random/boot_id") or "",
    }


def _record(tree: Tree) -> Optional[dict]:
    """The record from before a reboot; a truncated file only proves that there was one."""
    text = tree.read(RECORDS["reboot"])
    if text is None:
        return None
    record = json_object(text)
    return {"left_boot": str(record.get("left_boot") or ""), "ready": record.get("ready") is True}


def judge(tree: Tree) -> tuple[list[Finding], list[str]]:
    """(what the kernel that boots next lacks, what could not be read)."""
    tree = tree.snapshot()
    entry, source = boot.following(tree)
    if entry is None or not entry.kernel:
        return [], [f"which kernel boots next, and whether it has an image and modules, is not known: {source}"]
    version = entry.release
    lacking = [f"{path} is missing or empty" for path in (entry.kernel, *entry.images) if not _there(tree, path)]
    if not entry.images:
        lacking.append("the entry has no image")
    modules = [f"{lib}/modules/{version}/modules.dep" for lib in ("/lib", "/usr/lib")]
    if version and not any(_size(tree, path) for path in modules):
        lacking.append(f"{modules[0]} is missing or empty")
    unknown = [] if version else [f"modules of {entry.kernel}: its version is not known"]
    if not lacking:
        return [], unknown
    step = (
        f"build the image (update-initramfs -c -k {version}, or dracut --force and its path), or install the kernel's "
        "packages again, make room in /boot first if it is full, or choose another kernel as the default; then run "
        "again"
    )
    obj = f"kernel {version or entry.kernel}, which boots next ({source})"
    return [Finding(obj, "itself, an initramfs image and modules", "; ".join(lacking), step)], unknown


def _there(tree: Tree, path: str) -> bool:
    places = [f"{mount}{path}" for mount in _MOUNTS]
    # On a Btrfs subvolume the loader's path begins with the subvolume's name.
    places.append(f"/boot/{path.rpartition('/')[2]}")
    return any(_size(tree, place) for place in places)


def _size(tree: Tree, path: str) -> int:
    status = tree.stat(path)
    return 0 if status is None else status.st_size
