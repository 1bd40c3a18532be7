"""The settings that let an HCA's requests reach a GPU without the CPU: ACS, ATS, IOMMU, links and kernel options.

Sources: PCI Express Base Specification, 7.5 (capabilities), 7.7.11 (ACS), 10.5 (ATS); /sys/bus/pci/devices/*/config, of
which the kernel shows 64 bytes to users without CAP_SYS_ADMIN, and 256 if extended space is out of reach.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Collection
from typing import Any, NamedTuple, Optional

from . import paths, pci, pcie_path
from .text import is_unknown, unknown
from .topology import Topology, shared_places
from .tree import Tree

# Ports by their type in the PCI Express capability.
PORTS = {0: "endpoint", 1: "endpoint", 4: "root", 5: "upstream", 6: "downstream", 7: "bridge", 9: "integrated"}
_SPEEDS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_HEADER, _STANDARD = 64, 256
_EXPRESS, _ACS, _ATS = 0x10, 0x000D, 0x000F
_STEPS = 48  # as many entries as fit between the header and byte 256
_OPTIONS = ("PCI_P2PDMA", "INFINIBAND_ON_DEMAND_PAGING", "INFINIBAND_USER_MEM", "DMABUF_MOVE_NOTIFY")
_OPTION = re.compile(rf"^CONFIG_({'|'.join(_OPTIONS)})=([ym])$", re.MULTILINE)
_CONFIG_SIZE = 1 << 22
_LOADERS = ("update-grub", "grubby")  # these set a boot parameter on Debian and Ubuntu, and on EL
_DRIVERS = "/sys/bus/pci/drivers"
# In the features of an x86 processor: bit 31 of word 4, X86_FEATURE_HYPERVISOR.
_HYPERVISOR = ",009F"
# Product names (DMI) of virtual machines. A cloud may give its bare-metal machines the same one.
_GUEST = re.compile(
    r"^(Standard PC|KVM|RHEV|OpenStack|Virtual Machine|VMware|VirtualBox|HVM domU|Google Compute Engine|Bochs|BHYVE"
    r"|Droplet|[\w-]+\.\d*x?large$)"  # Amazon's, of which those of bare metal end with .metal
)


class Capabilities(NamedTuple):
    """places: {id: offset}. broken: why the list may be incomplete; missing ones are then unknown, not absent."""

    places: dict[int, int]
    broken: Optional[str] = None


def standard(data: Optional[bytes]) -> Capabilities:
    """The capabilities of the first 256 bytes."""
    if not data:
        return Capabilities({}, "its config file cannot be read")
    if len(data) < _HEADER or data[:2] == b"\xff\xff":
        return Capabilities({}, "the function does not answer")
    if not data[0x06] & 0x10:
        return Capabilities({})
    if len(data) == _HEADER:
        return Capabilities({}, "only the first 64 bytes of its config file are shown; reading it needs root")
    places: dict[int, int] = {}
    place = data[0x34] & 0xFC
    seen: set[int] = set()
    while place:
        if place in seen or len(seen) == _STEPS:
            return Capabilities(places, "its capability list is a loop")
        if place < _HEADER or place + 2 > min(len(data), _STANDARD):
            return Capabilities(places, "its capability list leads out of the config space")
        seen.add(place)
        places.setdefault(data[place], place)
        place = data[place + 1] & 0xFC
    return Capabilities(places)


def extended(data: bytes) -> Capabilities:
    """The capabilities from byte 256 on, of a PCI Express function."""
    if len(data) <= _STANDARD:
        return Capabilities({}, "its config file has 256 bytes: extended config space is out of reach")
    places: dict[int, int] = {}
    place = _STANDARD
    while place:
        if place in places.values():
            return Capabilities(places, "its extended capability list is a loop")
        if place < _STANDARD or place + 4 > len(data):
            return Capabilities(places, "its extended capability list leads out of the config space")
        header = _number(data, place, 4)
        if place == _STANDARD and header in (0, 0xFFFFFFFF):
            break
        if header == 0xFFFFFFFF:
            return Capabilities(places, "its extended capability list leads to bytes that do not answer")
        # An id may come twice (vendor-specific ones); the first counts, keys for the others detect loops.
        identity = header & 0xFFFF
        places[identity if identity not in places else -place] = place
        place = header >> 20 & 0xFFC
    return Capabilities(places)


def function(data: Optional[bytes]) -> dict[str, Any]:
    """{port, acs, ats, relaxed_ordering, max_read_request, max_payload, max_payload_supported, link} of config space.

    port: a value of PORTS, `conventional` without PCI Express. acs: {capability, control}, numbers; ats: whether it is
    enabled; None if the function has none. An unknown value says why.
    """
    plain = standard(data)
    place = plain.places.get(_EXPRESS)
    cut = place is not None and place + 0x14 > len(data or b"")
    if data is None or place is None or cut:
        missing = unknown("its config file is cut off") if cut else unknown(plain.broken) if plain.broken else None
        nothing = dict.fromkeys(
            ("relaxed_ordering", "max_read_request", "max_payload", "max_payload_supported", "link")
        )
        return {"port": missing or "conventional", "acs": missing, "ats": missing, **nothing}
    control = _number(data, place + 8, 2)
    able, status = _number(data, place + 0x0C, 4), _number(data, place + 0x12, 2)
    kind = _number(data, place + 2, 2) >> 4 & 0xF
    more = extended(data)
    return {
        "port": PORTS.get(kind) or unknown(f"port type {kind}"),
        "acs": _fields(data, more, _ACS, lambda at: _acs(data, at)),
        "ats": _fields(data, more, _ATS, lambda at: bool(_number(data, at + 6, 2) & 0x8000)),
        "relaxed_ordering": bool(control & 0x10),
        "max_read_request": 128 << (control >> 12 & 7),
        "max_payload": 128 << (control >> 5 & 7),
        "max_payload_supported": 128 << (_number(data, place + 4, 4) & 7),
        "link": {
            "speed_gts": _SPEEDS.get(status & 0xF),
            "width": status >> 4 & 0x3F,
            "max_speed_gts": _SPEEDS.get(able & 0xF),
            "max_width": able >> 4 & 0x3F,
        },
    }


def _fields(data: bytes, more: Capabilities, identity: int, read: Any) -> Any:
    place = more.places.get(identity)
    if place is None:
        return unknown(more.broken) if more.broken else None
    return read(place) if place + 8 <= len(data) else unknown("its config file is cut off")


def _number(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _acs(data: bytes, place: int) -> dict[str, int]:
    return {"capability": _number(data, place + 4, 2) & 0x7F, "control": _number(data, place + 6, 2) & 0x7F}


def reduced(data: bytes) -> bytes:
    """Config space with only what `function` reads: without serial numbers and BARs, for a capture."""
    plain, more = standard(data), extended(data)
    place = plain.places.get(_EXPRESS)
    if plain.broken or more.broken or place is None:
        return data[:_STANDARD]
    head = bytearray(_STANDARD)
    head[:0x10], head[0x34] = data[:0x10], _HEADER
    head[_HEADER : _HEADER + 0x3C] = data[place : place + 0x3C]
    head[_HEADER + 1] = 0
    kept = [(identity, more.places[identity]) for identity in (_ACS, _ATS) if identity in more.places]
    tail = bytearray(max(8 * len(kept), 4))
    for at, (identity, place) in enumerate(kept):
        follows = _STANDARD + 8 * (at + 1) if at + 1 < len(kept) else 0
        tail[8 * at : 8 * at + 4] = (identity | 1 << 16 | follows << 20).to_bytes(4, "little")
        tail[8 * at + 4 : 8 * at + 8] = data[place + 4 : place + 8]
    return bytes(head + tail)


def options(text: str) -> dict[str, str]:
    """The options of a kernel config that matter here, as {name without CONFIG_: y or m}."""
    return dict(_OPTION.findall(text))


def state(
    tree: Tree,
    rails: list[dict[str, Any]],
    gpus: list[dict[str, Any]],
    kernel: Optional[str],
    classes: Collection[str],
) -> dict[str, Any]:
    """{paths, functions, iommu, kernel_config, loader} of the pairs of a rail's HCA and its GPU.

    paths: [{rail, hca, gpu, function, meets, gpu_side, function_side, root_port, group_shared, and what
    `pcie_path.judge` says}]; the sides list the bridges below the place where the two meet, from the top.
    classes: `pci.classes`.
    """
    tree = tree.snapshot()
    where = Topology(tree)
    there = {gpu["address"] for gpu in gpus}
    found = [_path(where, rail) for rail in rails if rail["gpu"] in there and rail["pci"]]
    functions: dict[str, dict[str, Any]] = {}
    for path in found:
        ends = path["gpu"], path["function"]
        for address in (path["root_port"], path["meets"], *path["gpu_side"], *path["function_side"], *ends):
            if address in classes and address not in functions:
                functions[address] = _placed(tree, address)
    guest = _guest(tree)
    direct = any(path["data_direct"] for path in found)
    passed_on = _passed_on(tree, where) if found else set()
    for path in found:
        groups = {functions[path[key]]["iommu_group"] for key in ("gpu", "function") if path[key] in functions}
        path["group_shared"] = len(groups) == 1 and None not in groups
        path.update(pcie_path.judge(path, functions, guest, direct, path["root_port"] in passed_on))
    return {
        "paths": found,
        "functions": functions,
        "iommu": bool(tree.listdir("/sys/class/iommu")),
        "lockdown": lockdown(tree),
        "kernel_config": kernel_config(tree, kernel) if found else None,
        "loader": next((name for name in _LOADERS if tree.exists(f"/usr/sbin/{name}")), None),
    }


def lockdown(tree: Tree) -> Optional[str]:
    """The kernel's lockdown: none, integrity or confidentiality; None if it has no such file (kernel_lockdown(7))."""
    chosen = re.search(r"\[(\w+)\]", tree.read("/sys/kernel/security/lockdown") or "")
    return chosen and chosen.group(1)


def _placed(tree: Tree, address: str) -> dict[str, Any]:
    """The result of `function`, with the function's id and IOMMU group."""
    base = f"{paths.PCI}/{address}"
    group = tree.target(f"{base}/iommu_group")
    return {
        "id": pci.kind(tree, address),
        **function(tree.read_bytes(f"{base}/config")),
        "iommu_group": group,
        "iommu_type": tree.read(f"/sys/kernel/iommu_groups/{group}/type") if group else None,
    }


def _path(where: Topology, rail: dict[str, Any]) -> dict[str, Any]:
    """Where a rail's function and its GPU meet. With Data Direct the path of that function counts."""
    address = rail["data_direct"] or rail["pci"]
    left, right = where.chain(rail["gpu"]), () if is_unknown(address) else where.chain(address)
    shared = shared_places(left, right)
    return {
        "rail": rail["index"],
        "hca": rail["hca"],
        "gpu": rail["gpu"],
        "function": address,
        "data_direct": rail["data_direct"] is not None,
        "meets": left[shared - 1] if shared > 1 else None,
        "root_port": left[1] if len(left) > 2 else None,
        "gpu_side": list(left[max(shared, 1) : -1]),
        "function_side": list(right[max(shared, 1) : -1]),
    }


def _passed_on(tree: Tree, where: Topology) -> set[str]:
    """Root ports above functions that are given to virtual machines or to user space."""
    drivers = [name for name in tree.listdir(_DRIVERS) if pci.passes_on(name)]
    given = [name for driver in drivers for name in tree.listdir(f"{_DRIVERS}/{driver}") if pci.ADDRESS.match(name)]
    return {chain[1] for chain in map(where.chain, given) if len(chain) > 2}


def _guest(tree: Tree) -> bool:
    """Whether this is a virtual machine: its bridges are not the host's. Only x86 processors say it themselves."""
    processor = tree.read("/sys/devices/system/cpu/modalias") or ""
    if "type:x86" in processor:
        return _HYPERVISOR in processor
    return bool(_GUEST.match(tree.read("/sys/class/dmi/id/product_name") or ""))


def kernel_config(tree: Tree, kernel: Optional[str]) -> Any:
    """{option without CONFIG_: whether it is on}; a string with the reason if unknown."""
    text = tree.read(f"/boot/config-{kernel}")
    if not text:
        unpacker = zlib.decompressobj(31)
        with contextlib.suppress(zlib.error):
            packed = tree.read_bytes("/proc/config.gz") or b""
            text = unpacker.decompress(packed, _CONFIG_SIZE).decode("ascii", "replace")
        text = text if unpacker.eof else None
    if not text:
        return unknown(f"neither /boot/config-{kernel} nor /proc/config.gz can be read")
    on = options(text)
    return {option: option in on for option in _OPTIONS}
