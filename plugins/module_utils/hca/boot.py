"""The kernel that boots next, and the initramfs images: copies of modules and modprobe.d, used before our files.

Reads what GRUB reads: grub.cfg with its menus, grubenv, and the entries below /boot/loader/entries. On a node without
GRUB the newest kernel of /boot counts.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

from .tree import Tree

_GRUB = ("/boot/grub", "/boot/grub2")
_ENTRIES = "/boot/loader/entries"
_MENU = re.compile(r"""(menuentry|submenu)\s+(?:'([^']*)'|"([^"]*)")(.*)\{$""")
_ID = re.compile(r"""(?:\$menuentry_id_option|--id)\s+['"]?([^'"\s{]+)""")
_DEFAULT = re.compile(r'^\s*set default="([^"]*)"', re.MULTILINE)
# (generator, its paths)
_GENERATORS = (
    ("update-initramfs", ("/usr/sbin/update-initramfs", "/sbin/update-initramfs")),
    ("dracut", ("/usr/bin/dracut", "/usr/sbin/dracut", "/sbin/dracut")),
)
_IMAGE = re.compile(r"^(?:initrd\.img-(?P<debian>.+)|initramfs-(?P<dracut>.+)\.img|initrd-(?P<suse>.+))$")
# Leftovers of interrupted runs (Debian, dracut), and the kdump and rescue images, which no RDMA node boots from.
_OTHER = re.compile(r"\.(?:bak|old|dpkg-bak|new|dpkg-new)$|kdump|rescue")


class Entry(NamedTuple):
    """An entry of a boot menu, or a menu inside it, which has `entries`."""

    names: tuple[str, ...]
    kernel: Optional[str] = None
    images: tuple[str, ...] = ()
    version: Optional[str] = None
    entries: Optional[list] = None

    @property
    def release(self) -> Optional[str]:
        return self.version or (self.kernel or "").rpartition("/")[2].partition("-")[2] or None


def images(tree: Tree) -> dict[str, Any]:
    """{generator: update-initramfs|dracut|None, images: [{path, kernel, mtime: seconds since the epoch}]}."""
    tree = tree.snapshot()
    found = []
    for name in tree.listdir("/boot"):
        match = _IMAGE.match(name)
        if match and not _OTHER.search(name):
            path = f"/boot/{name}"
            mtime, kernel = tree.mtime(path), next(filter(None, match.groups()))
            # That of a removed kernel cannot be built again: dracut fails over it.
            if mtime is not None and tree.isdir(f"/lib/modules/{kernel}"):
                found.append({"path": path, "kernel": kernel, "mtime": mtime})
    generator = next((name for name, places in _GENERATORS if any(tree.exists(place) for place in places)), None)
    return {"generator": generator, "images": found}


def following(tree: Tree) -> tuple[Optional[Entry], str]:
    """(the entry that boots next, the file that says so); (None, why) if that is unknown."""
    for folder in _GRUB:
        path = f"{folder}/grub.cfg"
        text = tree.read(path)
        if text is None:
            continue
        entries = _menu(text)
        if re.search(r"^\s*blscfg\b", text, re.MULTILINE):
            entries = [*_loader_entries(tree), *entries]
        wanted = _default(text, tree.read(f"{folder}/grubenv") or "")
        entry = _chosen(entries, wanted)
        if entry is None:
            return None, f"{path} has no entry that could be read"
        return entry, path if entry.kernel else f"the default entry of {path} starts no Linux"
    kernels = [name for name in tree.listdir("/boot") if name.startswith("vmlinuz-") and not name.endswith(".old")]
    kernels.sort(key=order)
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
    for name in sorted(tree.listdir(_ENTRIES), key=order, reverse=True):
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


def order(name: str) -> list[tuple[int, int, str]]:
    """Versions in the order of their numbers; a part with letters comes before one with digits."""
    parts = re.findall(r"\d+|[A-Za-z]+", name)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]
