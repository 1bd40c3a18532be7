"""GPU-initiated RDMA: options of the NVIDIA driver, gdrdrv and nvidia_peermem, and which ways work with them.

Sources: DeepEP's third-party README (options), libgdsync's README and CVE-2015-5053 (PeerMappingOverride), GDRCopy
(gdrdrv), awsome-distributed-ai#1241 (NCCL GIN without it), ucx#10995 (nvidia_peermem), modprobe.d(5).
"""

from __future__ import annotations

import os
import re
from typing import Any, Optional

from . import modprobe, modules, paths, pci
from .text import integer
from .tree import Tree

PARAMS = "/proc/driver/nvidia/params"
NODE = "/dev/gdrdrv"
# Debian's packages give the module's file another name.
_NAMES = ("nvidia", "nvidia_current")
_STREAM, _DWORDS, PEER_KEY = "NVreg_EnableStreamMemOPs", "NVreg_RegistryDwords", "PeerMappingOverride"
OPTIONS = (_STREAM, _DWORDS)

PEER_MAPPING, STREAM_MEMORY, GDRDRV, PEERMEM = "peer-mapping", "stream-memory", "gdrdrv", "peermem"
# What each way needs. NVSHMEM and DeepEP 1 use ibgda, NVSHMEM also ibgda-cpu; NCCL GIN by proxy and DeepEP 2 use gin;
# NCCL GIN and UCX use gdaki.
WAYS = {
    "ibgda": (PEER_MAPPING, STREAM_MEMORY),
    "ibgda-cpu": (GDRDRV,),
    "gin": (GDRDRV,),
    "gdaki": (PEER_MAPPING, PEERMEM),
}
# Why a need is not met. REBOOT: set for the next load of the driver. IGNORED: set before this boot, without effect.
ABSENT, REBOOT, IGNORED, STRAY, OVERRIDDEN, UNKNOWN, NO_NODE, MODE = (
    "absent", "reboot", "ignored", "stray", "overridden", "unknown", "no-node", "mode",
)  # fmt: skip


def state(tree: Tree, gpus: list[dict[str, Any]], lines: list[modprobe.Line]) -> Optional[dict[str, Any]]:
    """None without an NVIDIA GPU; else loaded, running and configured ({option: value}), foreign_dwords, overridden,
    stray (lines of modprobe.d that set these options and are not options of nvidia), gdrdrv, peermem, and ways.

    lines: statements of modprobe.d, weakest first.
    """
    if not any(gpu["vendor"] == pci.NVIDIA for gpu in gpus):
        return None
    settings = {option: _settings(lines, option) for option in OPTIONS}
    foreign = {
        option: [(line, value) for line, value in found if line.path != paths.OWN_MODPROBE]
        for option, found in settings.items()
    }
    params = tree.read(PARAMS)
    facts: dict[str, Any] = {
        "loaded": modules.loaded(tree, "nvidia"),
        "running": None if params is None else _running(params),
        "configured": {option: found[-1][1] if found else None for option, found in settings.items()},
        # Foreign settings, which our line keeps.
        "foreign_dwords": foreign[_DWORDS][-1][1] if foreign[_DWORDS] else "",
        "overridden": [
            line.as_fact()
            for option, found in foreign.items()
            for line, value in found
            if _after_ours(line) and not _good(option, value)
        ],
        "stray": [
            line.as_fact()
            for line in lines
            if any(option in line.text for option in OPTIONS)
            and not (line.words[0] == "options" and modprobe.canonical(line.words[1]) in _NAMES)
        ],
        "written_before_boot": foreign != settings and _written_before_boot(tree),
        "gdrdrv": _gdrdrv(tree),
        "peermem": modules.loaded(tree, "nvidia_peermem"),
    }
    return {**facts, "ways": judge(facts)}


def _settings(lines: list[modprobe.Line], option: str) -> list[tuple[modprobe.Line, str]]:
    """For all names of the module, in the order of the lines."""
    found = [pair for name in _NAMES for pair in modprobe.options(lines, name, option)]
    return sorted(found, key=lambda pair: lines.index(pair[0]))


def _after_ours(line: modprobe.Line) -> bool:
    own = os.path.basename(paths.OWN_MODPROBE)
    return line.path == modprobe.CMDLINE or os.path.basename(line.path) > own


def _written_before_boot(tree: Tree) -> bool:
    """Whether our file is older than this boot: a second reboot would change nothing."""
    written = tree.mtime(paths.OWN_MODPROBE)
    found = re.search(r"^btime (\d+)", tree.read("/proc/stat") or "", re.MULTILINE) if written else None
    booted = integer(found[1]) if found else None
    return booted is not None and written < booted


def _running(text: str) -> dict[str, str]:
    """The options as loaded: lines such as `EnableStreamMemOPs: 1` and `RegistryDwords: "PeerMappingOverride=1;"`."""
    found = dict(line.partition(":")[::2] for line in text.splitlines())
    return {option: found.get(option.partition("_")[2], "").strip().strip('"') for option in OPTIONS}


def _gdrdrv(tree: Tree) -> dict[str, Any]:
    mode = tree.mode(NODE)
    return {
        "loaded": modules.loaded(tree, "gdrdrv"),
        "version": tree.read(f"{paths.MODULE}/gdrdrv/version"),
        "node": None if mode is None else f"{mode:04o}",
    }


def dwords(text: str) -> dict[str, str]:
    """`A=1;B=2;` as a mapping."""
    return dict(part.strip().partition("=")[::2] for part in text.split(";") if part.strip())


def judge(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{way: {works: true, false or null if unknown, missing: [{need, why}]}}. Pure."""
    whys = {
        PEER_MAPPING: _option(facts, _DWORDS),
        STREAM_MEMORY: _option(facts, _STREAM),
        GDRDRV: _device(facts["gdrdrv"]),
        PEERMEM: None if facts["peermem"] else ABSENT,
    }
    found = {}
    for way, needs in WAYS.items():
        missing = [{"need": need, "why": whys[need]} for need in needs if whys[need]]
        unknown = bool(missing) and all(each["why"] == UNKNOWN for each in missing)
        found[way] = {"works": None if unknown else not missing, "missing": missing}
    return found


def _good(option: str, value: Optional[str]) -> bool:
    return integer(dwords(value or "").get(PEER_KEY) if option == _DWORDS else value) == 1


def _option(facts: dict[str, Any], option: str) -> Optional[str]:
    """Why an option is wrong; None if it is right."""
    running, configured = facts["running"], facts["configured"][option]
    if running is not None and _good(option, running[option]):
        return None
    if running is None and facts["loaded"]:
        return UNKNOWN
    if _good(option, configured):
        return IGNORED if facts["loaded"] and facts["written_before_boot"] else REBOOT
    if configured is not None and facts["overridden"]:
        return OVERRIDDEN
    return STRAY if any(option in line["text"] for line in facts["stray"]) else ABSENT


def _device(gdrdrv: dict[str, Any]) -> Optional[str]:
    """A pod's user needs the device node with read and write permission."""
    if not gdrdrv["loaded"]:
        return ABSENT
    if gdrdrv["node"] is None:
        return NO_NODE
    return None if int(gdrdrv["node"], 8) & 0o006 == 0o006 else MODE
