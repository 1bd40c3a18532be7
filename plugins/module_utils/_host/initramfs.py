"""The initramfs images that hold an older copy of our modprobe.d file than the node.

Pure: facts and options in, Plan out. An image cannot be inspected without its decompressor, so age decides: an image
built after the file was written contains it. The rule needs no state from earlier runs, so an interrupted run can
resume.
"""

from __future__ import annotations

from .._core.change import Plan, kernel_out_of_reach
from ..hca import paths

GENERATORS = {
    "update-initramfs": ["update-initramfs", "-u", "-k", "{kernel}"],
    "dracut": ["dracut", "--force", "{image}", "{kernel}"],
}


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: sources ({path: mtime}), stale (images reported as stale, or in check mode about to become stale)."""
    made = Plan()
    known = set(wanted["stale"]) | set(_older(facts, wanted["sources"]))
    stale = [image["path"] for image in facts["initramfs"]["images"] if image["path"] in known]
    names = " and ".join(sorted(wanted["sources"]))
    for image in _within_reach(made, facts, stale, root):
        made.change(image, "rebuild", f"older than {names}", f"holds {names}")
    return made


def mark_stale(made: Plan, facts: dict, changed: bool, root: str) -> None:
    """Report the images that our modprobe.d file makes stale. changed: whether it is, or would be, written now."""
    owned = facts["owned_files"].get(paths.OWN_MODPROBE) or {}
    sources = {paths.OWN_MODPROBE: owned["mtime"]} if owned.get("mtime") is not None else {}
    stale = [image["path"] for image in facts["initramfs"]["images"]] if changed else _older(facts, sources)
    made.stale_images = _within_reach(made, facts, stale, root)


def command(generator: str, image: str, kernel: str) -> list[str]:
    return [part.format(image=image, kernel=kernel) for part in GENERATORS[generator]]


def _older(facts: dict, sources: dict) -> list[str]:
    """Images that are not newer than every source."""
    newest = max(sources.values(), default=None)
    return [image["path"] for image in facts["initramfs"]["images"] if newest is not None and image["mtime"] <= newest]


def _within_reach(made: Plan, facts: dict, stale: list[str], root: str) -> list[str]:
    """The stale images that can be rebuilt from here; notes why if none can."""
    if not stale:
        return []
    offline = kernel_out_of_reach(facts, root)
    if offline:
        made.not_verified.append(f"{', '.join(stale)} not refreshed: {offline}")
        return []
    if facts["initramfs"]["generator"] not in GENERATORS:
        made.notes.append(f"{', '.join(stale)} cannot be refreshed: the node has neither update-initramfs nor dracut")
        return []
    return stale
