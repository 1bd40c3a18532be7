# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which initramfs images hold an older copy of our modprobe.d file than the node does.

PRIVATE to the collection. Pure: facts and options in, Plan out. An image cannot be looked into without its
decompressor, so age decides: an image built after the file was written holds it. The rule needs no memory of earlier
runs, which makes a run that failed half-way resumable.
"""

from __future__ import annotations

from ._change import Plan, kernel_out_of_reach
from .hca import paths

GENERATORS = {
    "update-initramfs": ["update-initramfs", "-u", "-k", "{kernel}"],
    "dracut": ["dracut", "--force", "{image}", "{kernel}"],
}


def plan(facts: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: sources ({path: mtime}), sources_changed (they were, or in check mode would be, written in this run)."""
    made = Plan()
    stale = stale_images(facts, wanted["sources"], wanted["sources_changed"])
    if not stale:
        return made
    generator = facts["initramfs"]["generator"]
    if generator not in GENERATORS:
        made.notes.append(f"{', '.join(stale)} cannot be refreshed: no update-initramfs and no dracut on the node")
        return made
    offline = kernel_out_of_reach(facts, root)
    if offline:
        made.not_verified.append(f"{', '.join(stale)} not refreshed: {offline}")
        return made
    names = " and ".join(sorted(wanted["sources"]))
    for image in stale:
        made.change(image, "rebuild", f"older than {names}", f"holds {names}")
    return made


def stale_images(facts: dict, sources: dict, sources_changed: bool = False) -> list[str]:
    """Images that are not newer than every source; all of them when a source changes in this run."""
    newest = float("inf") if sources_changed else max(sources.values(), default=None)
    if newest is None:
        return []
    return [image["path"] for image in _images(facts) if image["mtime"] <= newest]


def owned_sources(facts: dict) -> dict:
    """The files of ours that an initramfs carries, with their times."""
    owned = facts["owned_files"].get(paths.OWN_MODPROBE)
    return {paths.OWN_MODPROBE: owned["mtime"]} if owned and owned.get("mtime") is not None else {}


def command(generator: str, image: str, kernel: str) -> list[str]:
    return [part.format(image=image, kernel=kernel) for part in GENERATORS[generator]]


def _images(facts: dict) -> list[dict]:
    # A rescue image belongs to no installed kernel and is never rebuilt by its distribution either.
    return [image for image in facts["initramfs"]["images"] if image["kernel"] and "rescue" not in image["kernel"]]
