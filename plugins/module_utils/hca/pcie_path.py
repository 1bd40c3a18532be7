"""Whether requests of an HCA reach its GPU without the CPU, and the ACS settings for that on this topology.

Pure. A switch turns peer traffic round where the two paths meet, unless a downstream-facing port on the way up sends it
to the root complex: RR does so for requests, CR for completions, EC by its vector. The rules by topology are those
of rdma-core's rdma_topo (v64 and later). There is no rule "ACS off": it ends the isolation between devices.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

from . import paths
from .text import is_unknown

# By position: bit 0 is SV. A mask has their digits from right to left, x for a bit that stays unchanged.
BITS = ("SV", "TB", "RR", "CR", "UF", "EC", "DT")
SV, TB, RR, CR, UF, EC, DT = (1 << place for place in range(len(BITS)))
REDIRECT = RR | CR | EC

DIRECT, ROOT_COMPLEX, TRANSLATED = "direct", "root-complex", "translated"
TRANSLATED_ONLY, UNKNOWN = "direct-translated-only", "unknown"
# Bits that Linux sets while an IOMMU is in use, so a boot parameter need not repeat them.
KERNEL_DEFAULT = "xx111x1"
_OFF = "xx000x0"
_DIRECT_TRANSLATED = "1x111x1"
_NO_REDIRECT = "xxx00xx"  # the effect of disable_acs_redir, besides EC

_PARAMETER = re.compile(r"pci=(?:config_acs|disable_acs_redir)=[0-9a-fx@:.;/]+")
_NICS = ("15b3:1021", "15b3:1023", "15b3:1025", "15b3:a2dc")
_SWITCHES = ("15b3:197b", "15b3:197c", "15b3:1979")
_GRACE = ("10de:22b1", "10de:22b2", "10de:22b8")


class Rule(NamedTuple):
    """masks: {bridge: wanted mask}. turns: {bridge: bits that would send this path's traffic on}."""

    topology: str
    masks: dict[str, str]
    turns: dict[str, int]


class Setting(NamedTuple):
    """masks: the settings after the boot. parameter: of the kernel, None if `reason` says why there is none."""

    masks: dict[str, str]
    parameter: Optional[str]
    reason: Optional[str] = None


def judge(
    path: dict[str, Any], functions: dict[str, dict[str, Any]], guest: bool, data_direct: bool, virtual: bool
) -> dict[str, Any]:
    """{topology, verdict, bridge, bits, reason, masks} of a path from `pcie.state`.

    guest: this is a virtual machine. data_direct: the node has Data Direct functions. virtual: functions below the
    root port are given to virtual machines or user space.
    """
    if is_unknown(path["function"]):
        return _says("unsupported", UNKNOWN, path["function"][len("unknown: ") :])
    if guest:
        return _says("guest", UNKNOWN, "a virtual machine sees emulated bridges, not those of its host")
    way = [path["function"], path["gpu"]]
    way += [path["meets"], path["root_port"], *_ports(path)] if path["meets"] else []
    gone = next((address for address in way if address not in functions), None)
    if gone:
        return _says("unsupported", UNKNOWN, f"{gone} is not on PCI")
    if path["meets"] is None:
        return _at_the_cpu(path, functions)
    kinds = {address: functions[address]["port"] for address in (path["meets"], *_ports(path))}
    unread = next((address for address, kind in kinds.items() if is_unknown(kind)), None)
    if unread:
        return _says("unsupported", UNKNOWN, f"{unread}: {kinds[unread][len('unknown: ') :]}", bridge=unread)
    if kinds[path["meets"]] != "upstream" or not path["gpu_side"] or not path["function_side"]:
        why = f"they meet at {path['meets']}, a port of kind {kinds[path['meets']]}, which is no switch"
        return _says("unsupported", UNKNOWN, why, bridge=path["meets"])
    ports = [port for port in _ports(path) if kinds[port] in ("root", "downstream")]
    rule = _rule(path, functions, ports, data_direct, virtual)
    return _turned(path, functions, rule, functions[path["function"]]["ats"])


def _ports(path: dict[str, Any]) -> list[str]:
    return [*path["function_side"], *path["gpu_side"]]


def _says(topology: str, verdict: str, reason: str, bridge: Optional[str] = None, bits: int = 0) -> dict[str, Any]:
    said = {"topology": topology, "verdict": verdict, "bridge": bridge, "bits": names(bits), "reason": reason}
    return {**said, "masks": {}}


def names(bits: int) -> list[str]:
    return [name for place, name in enumerate(BITS) if bits >> place & 1]


def _at_the_cpu(path: dict[str, Any], functions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    if not path["gpu_side"] or not path["function_side"]:
        return _says("root-complex", UNKNOWN, "one of them is right below a host bridge, which shows no port")
    topology = "root-complex" if path["gpu_side"][1:] else "root-port"
    verdict, how = _through(functions[path["function"]])
    return _says(topology, verdict, f"they share no switch, so the way is by the CPU, {how}")


def _through(function: dict[str, Any]) -> tuple[str, str]:
    """The root complex' treatment of a function's requests, by its IOMMU domain."""
    kind = function["iommu_type"]
    if function["iommu_group"] is None:
        return ROOT_COMPLEX, "without IOMMU"
    if kind is None:
        return ROOT_COMPLEX, "and whether its IOMMU translates cannot be read"
    return (ROOT_COMPLEX if kind == "identity" else TRANSLATED), f"IOMMU type {kind}"


def _rule(
    path: dict[str, Any], functions: dict[str, dict[str, Any]], ports: list[str], data_direct: bool, virtual: bool
) -> Rule:
    """The rule of a path with a switch; the first that matches wins.

    turns: with Data Direct the two ports of the shared switch, as in rdma_topo. Elsewhere each port counts with RR, CR
    and EC, as in the kernel's pci_p2pdma, which is on the safe side.
    """
    kind = {address: functions[address]["id"] for address in (path["meets"], path["root_port"], path["function"])}
    mine, its = path["function_side"][0], path["gpu_side"][0]
    shared = kind[path["meets"]] in _SWITCHES
    every = dict.fromkeys(ports, REDIRECT)
    ats = functions[path["function"]]["ats"]
    if virtual:
        # Isolation stays; only translated requests may pass.
        return Rule("virtual", {mine: _DIRECT_TRANSLATED} if isinstance(ats, bool) else {}, every)
    if path["data_direct"]:
        if not shared or kind[path["root_port"]] not in _GRACE:
            return Rule("unsupported", {}, every)
        masks = {mine: "xx110x1", its: "xx101x1", path["root_port"]: "xx111x0"}
        return Rule("data-direct", masks, {mine: RR | EC, its: CR | EC})
    if data_direct or is_unknown(ats):
        return Rule("unsupported", {}, every)
    # A ConnectX has the capability only if its firmware is set up for virtual machines.
    if ats is True or (ats is False and kind[path["function"]] in _NICS):
        return Rule("virtual", {mine: _DIRECT_TRANSLATED}, every)
    inline = shared and kind[path["function"]] in _NICS and len(path["gpu_side"]) > 1
    off = [*ports, path["root_port"]] if inline else ports
    return Rule("inline" if inline else "switch", {port: _OFF for port in off if port}, every)


def _turned(path: dict[str, Any], functions: dict[str, dict[str, Any]], rule: Rule, ats: Any) -> dict[str, Any]:
    said: dict[str, Any]
    unread = next((port for port in rule.turns if is_unknown(functions[port]["acs"])), None)
    if unread:
        why = functions[unread]["acs"][len("unknown: ") :]
        return _says(rule.topology, UNKNOWN, f"ACS of {unread}: {why}", bridge=unread)
    on = {port: control(functions[port]) for port in rule.turns}
    redirects = {port: on[port] & bits for port, bits in rule.turns.items() if on[port] & bits}
    blocks = next((port for port in rule.turns if on[port] & TB), None)
    if blocks and ats is True:
        why = f"{blocks} rejects translated requests (TB), and ATS of {path['function']} is on"
        said = _says(rule.topology, UNKNOWN, why, blocks, TB)
    elif not redirects:
        said = _says(rule.topology, DIRECT, f"they turn round at {path['meets']}, nothing redirects them")
    else:
        port, bits = next(iter(redirects.items()))
        verdict, how = _through(functions[path["function"]])
        why = f"{port} sends them on to the root complex ({' '.join(names(bits))}), {how}"
        asked = [other for other in redirects if other in path["function_side"]]
        if asked and all(on[other] & DT for other in (asked if rule.topology == "virtual" else redirects)):
            if ats is True:
                verdict, why = TRANSLATED_ONLY, f"{port} lets only translated requests through (DT), and ATS is on"
            elif is_unknown(ats):
                verdict, why = UNKNOWN, f"ATS of {path['function']}: {ats[len('unknown: ') :]}"
        said = _says(rule.topology, verdict, why, port, bits)
    # A port without ACS redirects nothing and has nothing to set.
    return {**said, "masks": {at: mask for at, mask in rule.masks.items() if _has_acs(functions.get(at))}}


def control(function: dict[str, Any]) -> int:
    """The ACS bits that are on; a port without ACS redirects nothing."""
    return function["acs"]["control"] if isinstance(function["acs"], dict) else 0


def _has_acs(function: Optional[dict[str, Any]]) -> bool:
    return isinstance((function or {}).get("acs"), dict)


def differs(mask: str, function: Optional[dict[str, Any]]) -> list[str]:
    """The bits of a function that differ from its mask; a bit that it cannot have need not be on."""
    if function is None or not _has_acs(function):
        return ["ACS"]
    acs = function["acs"]
    digits = dict(zip(BITS, reversed(mask)))
    wrong = []
    for place, name in enumerate(BITS):
        on, able = acs["control"] >> place & 1, acs["capability"] >> place & 1
        if digits.get(name) == str(1 - on) and (on or able):
            wrong.append(name)
    return wrong


def against_rule(path: dict[str, Any], functions: dict[str, dict[str, Any]]) -> bool:
    """Whether a path goes through the root complex because a bridge is set wrong for its topology."""
    bridge = path["bridge"]
    if path["verdict"] not in (ROOT_COMPLEX, TRANSLATED) or bridge not in path["masks"]:
        return False
    return "EC" in path["bits"] or bool(differs(path["masks"][bridge], functions.get(bridge)))


def persisted(owned_files: dict[str, dict[str, str]]) -> Optional[str]:
    """The boot parameter that the collection has set on this node."""
    for path in (paths.OWN_ACS_GRUB, paths.OWN_ACS_RECORD):
        said = _PARAMETER.search((owned_files.get(path) or {}).get("content") or "")
        if said:
            return said[0]
    return None


def booted(cmdline: Optional[str]) -> list[str]:
    """The parameters of the running kernel that set ACS."""
    return _PARAMETER.findall(cmdline or "")


def parsed(parameter: str) -> dict[str, str]:
    """{bridge: mask} of a parameter from `setting`."""
    name, _equals, value = parameter[len("pci=") :].partition("=")
    if name != "config_acs":
        return dict.fromkeys(value.split(";"), _NO_REDIRECT)
    return {port: mask for mask, port in (item.split("@", 1) for item in value.split(";") if "@" in item)}


def unlike(parameter: str, functions: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """{bridge: bits that differ from the parameter} of the bridges that differ."""
    found = {port: differs(mask, functions.get(port)) for port, mask in parsed(parameter).items()}
    return {port: wrong for port, wrong in found.items() if wrong}


# --- the boot parameter ----------------------------------------------------------------------------------------------

_REDIR = (4, 19)
_CONFIG = (6, 11)
# "PCI/ACS: Fix 'pci=config_acs=' parameter": before it, the kernel accepts one device and drops all others. The stable
# releases that followed its queue of 2025-04-08; NVIDIA's guides use several devices with its kernels from 6.14 on.
_FIXED = {(6, 12): 23, (6, 13): 11, (6, 14): 2}
_MAINLINE = (6, 15)


def setting(found: dict[str, Any], kernel: Optional[str]) -> Setting:
    """The kernel setting for all paths of a node. found: as `pcie.state` returns it."""
    masks: dict[str, str] = {}
    for path in found["paths"]:
        for port, mask in path["masks"].items():
            if masks.setdefault(port, mask) != mask:
                return Setting({}, None, f"two paths want {port} as {masks[port]} and as {mask}")
    # With an IOMMU in use the kernel sets these itself.
    masks = {port: mask for port, mask in sorted(masks.items()) if mask != KERNEL_DEFAULT or not found["iommu"]}
    if not masks:
        return Setting({}, None, "no path of this node wants ACS to be other than it is by default")
    release = tuple(int(part) for part in re.findall(r"\d{1,9}", kernel or "")[:3])
    several = len(masks) == 1 or _fixed(release, kernel or "")
    if release >= _CONFIG and several:
        return Setting(masks, f"pci=config_acs={';'.join(f'{mask}@{port}' for port, mask in masks.items())}")
    clears = all(mask[-3] == mask[-4] == "0" for mask in masks.values())
    if clears and release >= _REDIR and (release < _CONFIG or several):
        return Setting(dict.fromkeys(masks, _NO_REDIRECT), f"pci=disable_acs_redir={';'.join(masks)}")
    why = "takes only one device in pci=config_acs=" if release >= _CONFIG else "has no pci=config_acs="
    return Setting(masks, None, f"kernel {kernel} {why}: set ACS in the firmware, or boot 6.15 or newer")


def _fixed(release: tuple[int, ...], kernel: str) -> bool:
    if release[:2] >= _MAINLINE or (release[:2] >= (6, 14) and "-nvidia" in kernel):
        return True
    return len(release) > 2 and release[2] >= _FIXED.get(release[:2], 1 << 16)
