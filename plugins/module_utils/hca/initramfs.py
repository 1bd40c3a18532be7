"""The initramfs images and their generator: copies of modules and modprobe.d, used before the files we write."""

from __future__ import annotations

import re
from typing import Any

from .tree import Tree

# (directory, name of an image, generator's name, its paths)
_GENERATORS = (
    ("update-initramfs", ("/usr/sbin/update-initramfs", "/sbin/update-initramfs")),
    ("dracut", ("/usr/bin/dracut", "/usr/sbin/dracut", "/sbin/dracut")),
)
_IMAGE = re.compile(r"^(?:initrd\.img-(?P<debian>.+)|initramfs-(?P<dracut>.+)\.img|initrd-(?P<suse>.+))$")
# Leftovers of interrupted runs (Debian, dracut), and the kdump and rescue images, which no RDMA node boots from.
_OTHER = re.compile(r"\.(?:bak|old|dpkg-bak|new|dpkg-new)$|kdump|rescue")


def state(tree: Tree) -> dict[str, Any]:
    """{generator: update-initramfs|dracut|None, images: [{path, kernel, mtime: seconds since the epoch}]}."""
    tree = tree.snapshot()
    found = []
    for name in tree.listdir("/boot"):
        match = _IMAGE.match(name)
        if match and not _OTHER.search(name):
            path = f"/boot/{name}"
            mtime = tree.mtime(path)
            if mtime is not None:
                found.append({"path": path, "kernel": next(filter(None, match.groups())), "mtime": mtime})
    generator = next((name for name, places in _GENERATORS if any(tree.exists(place) for place in places)), None)
    return {"generator": generator, "images": found}
