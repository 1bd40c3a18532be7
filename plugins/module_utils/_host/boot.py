"""The kernel that boots next, and whether it has what it needs: its file, an initramfs image, modules.

Reads what GRUB reads: grub.cfg with its menus, grubenv, and the entries below /boot/loader/entries. On a node without
GRUB the newest kernel of /boot counts.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple, Optional

from .._core.change import Finding, as_dict
from ..hca.paths import RECORDS
from ..hca.tree import Tree

_GRUB = ("/boot/grub", "/boot/grub2")
_ENTRIES = "/boot/loader/entries"
# A boot loader's paths are relative to its partition, which is mounted at one of these or is the root itself.
_MOUNTS = ("", "/boot", "/boot/efi", "/efi")
_MENU = re.compile(r"""(menuentry|submenu)\s+(?:'([^']*)'|"([^"]*)")(.*)\{$""")
_ID = re.compile(r"""(?:\$menuentry_id_option|--id)\s+['"]?([^'"\s{]+)""")
_DEFAULT = re.compile(r'^\s*set default="([^"]*)"', re.MULTILINE)


class Entry(NamedTuple):
    """An entry of a boot menu, or a menu inside it, which has `entries`."""

    names: tuple[str, ...]
    kernel: Optional[str] = None
    images: tuple[str, ...] = ()
    version: Optional[str] = None
    entries: Optional[list] = None


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
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    record = record if isinstance(record, dict) else {}
    return {"left_boot": str(record.get("left_boot") or ""), "ready": record.get("ready") is True}


def judge(tree: Tree) -> tuple[list[Finding], list[str]]:
    """(what the kernel that boots next lacks, what could not be read)."""
    tree = tree.snapshot()
    entry, source = _next(tree)
    if entry is None or not entry.kernel:
        return [], [f"which kernel boots next, and whether it has an image and modules, is not known: {source}"]
    version = entry.version or _version(entry.kernel)
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


def _next(tree: Tree) -> tuple[Optional[Entry], str]:
    """(the entry that boots next, the file that says so); (None, why) if that is unknown."""
    for folder in _GRUB:
        text = tree.read(f"{folder}/grub.cfg")
        if text is None:
            continue
        entries = _menu(text)
        if re.search(r"^\s*blscfg\b", text, re.MULTILINE):
            entries = [*_loader_entries(tree), *entries]
        wanted = _default(text, tree.read(f"{folder}/grubenv") or "")
        entry = _chosen(entries, wanted)
        if entry is None:
            return None, f"{folder}/grub.cfg has no entry that could be read"
        return (
            entry,
            f"{folder}/grub.cfg" if entry.kernel else f"the default entry of {folder}/grub.cfg starts no Linux",
        )
    kernels = sorted(
        (name for name in tree.listdir("/boot") if name.startswith("vmlinuz-") and not name.endswith(".old")),
        key=_order,
    )
    if not kernels:
        return None, "there is neither grub.cfg nor a kernel in /boot"
    version = kernels[-1].partition("-")[2]
    names = (f"initrd.img-{version}", f"initramfs-{version}.img", f"initrd-{version}")
    images = tuple(f"/boot/{name}" for name in names if name in tree.listdir("/boot"))
    return Entry((), f"/boot/{kernels[-1]}", images, version), "the newest in /boot, without a grub.cfg"


def _menu(text: str) -> list[Entry]:
    """The entries of grub.cfg; those of a submenu are its `entries`."""
    menus: list[list[Entry]] = [[]]
    open_blocks: list[tuple[str, tuple[str, ...]]] = []
    kernel, images = None, []
    for line in map(str.strip, text.splitlines()):
        matched = _MENU.match(line)
        words = line.split()
        if matched:
            marked = _ID.search(matched[4])
            names = (matched[2] or matched[3] or "", *([marked[1]] if marked else []))
            open_blocks.append((matched[1], names))
            if matched[1] == "submenu":
                menus.append([])
            kernel, images = None, []
        elif line.endswith("{"):
            open_blocks.append(("other", ()))
        elif line == "}" and open_blocks:
            kind, names = open_blocks.pop()
            if kind == "menuentry":
                menus[-1].append(Entry(names, kernel, tuple(images)))
            elif kind == "submenu":
                inside = menus.pop()
                menus[-1].append(Entry(names, entries=inside))
        elif len(words) > 1 and words[0] in ("linux", "linux16", "linuxefi"):
            kernel = kernel or words[1]
        elif words and words[0] in ("initrd", "initrd16", "initrdefi"):
            images += [word for word in words[1:] if word not in images]
    return menus[0]


def _loader_entries(tree: Tree) -> list[Entry]:
    """The files below /boot/loader/entries, newest version first, as blscfg lists them."""
    entries = []
    for name in sorted(tree.listdir(_ENTRIES), key=_order, reverse=True):
        if not name.endswith(".conf"):
            continue
        said: dict[str, list[str]] = {}
        for line in (tree.read(f"{_ENTRIES}/{name}") or "").splitlines():
            words = line.split()
            if words and not words[0].startswith("#"):
                said.setdefault(words[0], []).extend(words[1:])
        # tuned's $tuned_initrd and the like: variables of grubenv, usually empty.
        images = tuple(word for word in said.get("initrd", ()) if not word.startswith("$"))
        kernel, version = (next(iter(said.get(key, ())), None) for key in ("linux", "version"))
        title = " ".join(said.get("title", ()))
        entries.append(Entry((name[: -len(".conf")], title), kernel, images, version))
    return entries


def _default(text: str, environment: str) -> str:
    """The default entry: an index, an identifier or a title; for submenus one each, separated by >."""
    saved = dict(line.split("=", 1) for line in environment.splitlines() if "=" in line)
    if "next_entry" in text and saved.get("next_entry"):
        return saved["next_entry"]
    said = [value for value in _DEFAULT.findall(text) if "next_entry" not in value]
    wanted = said[0] if said else "0"
    return re.sub(r"\$\{?saved_entry\}?", lambda _match: saved.get("saved_entry", ""), wanted) or "0"


def _chosen(entries: list[Entry], wanted: str) -> Optional[Entry]:
    """Like GRUB: if nothing matches, the first entry boots, also within a submenu."""
    first, _more, rest = wanted.partition(">")
    named = next((entry for entry in entries if first in entry.names or wanted in entry.names), None)
    if named is None and first.isdecimal() and int(first) < len(entries):
        named = entries[int(first)]
    if named is None:
        named, rest = next(iter(entries), None), ""
    return _chosen(named.entries, rest or "0") if named is not None and named.entries is not None else named


def _version(kernel: str) -> Optional[str]:
    return kernel.rpartition("/")[2].partition("-")[2] or None


def _there(tree: Tree, path: str) -> bool:
    places = [f"{mount}{path}" for mount in _MOUNTS]
    # On a Btrfs subvolume the loader's path begins with the subvolume's name.
    places.append(f"/boot/{path.rpartition('/')[2]}")
    return any(_size(tree, place) for place in places)


def _size(tree: Tree, path: str) -> int:
    status = tree.stat(path)
    return 0 if status is None else status.st_size


def _order(name: str) -> list[tuple[int, int, str]]:
    """Versions in the order of their numbers; a part with letters comes before one with digits."""
    parts = re.findall(r"\d+|[A-Za-z]+", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
