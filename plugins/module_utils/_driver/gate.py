"""The change gate: may this node's driver change, and by reload or by reboot?

Pure: facts, risks (_driver.risk.read) and answers in, one Decision out. Each finding blocks some ways; a way that none
blocks is open. A reload is preferred to a reboot. If no way is left, or the installation itself is blocked,
the gate refuses before anything on the node changes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from .._core.change import Finding
from .._core.text import count, listing
from ..hca.driver import stack
from ..hca.modprobe import said
from ..hca.text import is_unknown
from .risk import CONSUMERS, PEERMEM, STACK

NOTHING, RELOAD, REBOOT, REFUSE = "nothing", "reload", "reboot", "refuse"
INSTALL = "install"
EVERYTHING = (INSTALL, RELOAD, REBOOT)
ACTIVATION = (RELOAD, REBOOT)
# The ways that a finding blocks, by its id; all others rule out a reload. The options whose consent would open them.
_CLOSES = {
    **dict.fromkeys(("container", "cluster-operator", "operator-blacklist", "secure-boot", "name-change"), EVERYTHING),
    **dict.fromkeys(("blocked", "pods"), ACTIVATION),
    "next-kernel": (REBOOT,),
}
_CONSENTS = {"name-change": "rename_allowed", "pods": "drain_allowed"}
_LOGIN = re.compile(r"session-\w+\.scope|user@\d+\.service")  # more than the process: a user's whole session
_few = functools.partial(listing, most=4)


class Decision(NamedTuple):
    verdict: str
    summary: str
    findings: list[Finding]
    steps: list[str]
    consents: list[str]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "findings": [finding._asdict() for finding in self.findings]}


def decide(facts: dict, risk: dict, wanted: dict) -> Decision:
    """wanted: change (sentence about the planned installation or removal, or None), activation (auto|reload|reboot),
    signed (whether the new modules are signed with a key this kernel trusts; None: unknown),
    reload_allowed, drain_allowed, rename_allowed (true, false, null: unset).
    """
    needed = _needed(facts, wanted)
    if not needed and not wanted.get("change"):
        return Decision(NOTHING, _nothing(facts), [], [], [], _notes(facts, risk))
    findings = list(_findings(facts, risk, wanted))
    closed = {way for finding in findings for way in _closes(finding)}
    activation = wanted.get("activation") or "auto"
    ways = [way for way in ACTIVATION if activation in ("auto", way)]
    unset = {_CONSENTS[finding.id] for finding in findings if finding.id in _CONSENTS}
    consents = sorted(f"driver_{option}" for option in unset if wanted.get(option) is None)
    notes = _notes(facts, risk)
    if wanted.get("change") and INSTALL in closed:
        refusing = [finding for finding in findings if INSTALL in _closes(finding)]
        return Decision(REFUSE, _refusal(refusing), findings, [], consents, notes)
    if not needed:
        summary = f"{wanted['change']}; no module of the stack is in memory, so the next load uses the new ones."
        return Decision(NOTHING, summary, findings, [], [], notes)
    verdict = next((way for way in ways if way not in closed), REFUSE)
    if verdict == REFUSE:
        deciding = [finding for finding in findings if set(ways) & set(_closes(finding))]
        return Decision(REFUSE, _refusal(deciding), findings, [], consents, notes)
    # Consent for a way not taken is not needed.
    unasked = verdict == RELOAD and wanted.get("reload_allowed") is None
    consents = ["driver_reload_allowed"] if unasked else []
    summary = _summary(verdict, needed, findings)
    return Decision(verdict, summary, findings, _steps(verdict, risk, wanted), consents, notes)


def _needed(facts: dict, wanted: dict) -> Optional[str]:
    """Why the loaded driver must change; None if it need not."""
    driver = facts["driver"]
    if not driver["loaded"]["modules"]:
        return None
    if wanted.get("change"):
        return wanted["change"]
    if driver["agree"] is False:
        return f"the modules in memory are not those on disk ({stack(driver['loaded'])}, {stack(driver['on_disk'])})"
    return None


def _nothing(facts: dict) -> str:
    driver = facts["driver"]
    if not driver["loaded"]["modules"]:
        return "No module of the stack is in memory; the next load uses what is on disk."
    if is_unknown(driver["agree"]):
        return f"Whether memory and disk hold the same driver is {driver['agree']}."
    return f"Memory and disk hold the same driver: {stack(driver['loaded'])}."


def _refusal(findings: list[Finding]) -> str:
    objects = dict.fromkeys(finding.object for finding in findings)
    return f"The driver stays unchanged because of {_few(objects)}."


def _summary(verdict: str, needed: str, findings: list[Finding]) -> str:
    if verdict == RELOAD:
        return f"A driver reload is enough: {needed}."
    against = [finding.object for finding in findings if RELOAD in _closes(finding)]
    why = f"a reload is ruled out by {_few(dict.fromkeys(against))}" if against else "a reboot was asked for"
    return f"A reboot is needed: {needed}; {why}."


def _steps(verdict: str, risk: dict, wanted: dict) -> list[str]:
    """The steps of the change, for the plan shown to the operator."""
    steps = []
    drain = bool(risk["pods"]) and wanted.get("drain_allowed") is True
    if drain:
        steps.append("cordon and drain the Kubernetes node")
    if verdict == REBOOT:
        steps.append("reboot with the role reboot")
    else:
        peermem = [name for name in PEERMEM if name in risk["modules"]]
        kept = _kept(risk)
        if kept:
            steps.append(f"save {kept}")
        steps += [f"unload {name}" for name in peermem]
        steps.append("reload the driver")
        steps += [f"load {name}" for name in peermem]
        if kept:
            steps.append(f"restore {kept}")
    if drain:
        steps.append("uncordon the Kubernetes node")
    return steps


def _kept(risk: dict) -> str:
    parts = [f"MTU, state, addresses and routes of {_few(netdev['name'] for netdev in risk['netdevs'])}"]
    parts = parts if risk["netdevs"] else []
    parts += [f"{entry['enabled']} virtual functions of {entry['hca']}" for entry in risk["virtual_functions"]]
    return ", ".join(parts)


def _findings(facts: dict, risk: dict, wanted: dict) -> Iterator[Finding]:
    yield from _ownership(facts, risk)
    yield from _bootable(facts, risk, wanted)
    yield from _names(risk, wanted)
    yield from _workloads(risk, wanted)
    yield from _reachability(risk)
    yield from _users(risk, wanted)
    yield from _lost_by_reload(risk)
    if wanted.get("reload_allowed") is False:
        yield Finding(
            "driver_reload_allowed", "true for a reload", "false", "set it to true, or reboot", "reload-denied"
        )


def _closes(finding: Finding) -> tuple[str, ...]:
    return _CLOSES.get(finding.id, (RELOAD,))


def _ownership(facts: dict, risk: dict) -> Iterator[Finding]:
    container = facts["node"]["container"]
    if container:
        yield Finding(
            "kernel",
            "a machine with its own kernel",
            f"a {container} container, which shares its host's kernel",
            "run this on the container's host",
            "container",
        )
    for operator in risk["operators"]:
        if operator["pods"] or operator["traces"]:
            evidence = operator["pods"] or operator["traces"]
            left = f"; it left {_few(operator['blacklists'])}" if operator["blacklists"] else ""
            yield Finding(
                f"driver owned by the {operator['owner']}",
                "one owner of the driver: this role",
                f"{_few(evidence)}{left}",
                f"choose one owner: remove {operator['policy']} and run again, or keep it and set "
                "driver_flavor: verify here",
                "cluster-operator",
            )
        elif operator["blacklists"]:
            path = operator["blacklists"][0]
            yield Finding(
                path,
                "no file that keeps the driver from loading",
                f"left behind by the {operator['owner']}, whose driver container is gone",
                f"remove {path}, or restore the container: otherwise the HCAs come up without a driver",
                "operator-blacklist",
            )


def _bootable(facts: dict, risk: dict, wanted: dict) -> Iterator[Finding]:
    """What would keep the new modules from loading now or at the next boot."""
    left_behind = {path for operator in risk["operators"] for path in operator["blacklists"]}
    for name in ("mlx5_core", "mlx5_ib", "ib_core"):
        for block in (facts["modules"].get(name) or {}).get("blocked_by", []):
            if block["path"] not in left_behind:
                yield Finding(
                    f"module {name}",
                    "loadable",
                    said(block),
                    "remove that line: the module would not load after a reload or reboot",
                    "blocked",
                )
    secure = risk["secure_boot"]
    if secure["signatures_required"] and wanted.get("signed") is not True and not secure["dkms_key_enrolled"]:
        key = secure["dkms_key"]
        yield Finding(
            "Secure Boot",
            "modules signed with a key that the firmware trusts",
            f"{_lock(secure)}; {f'the DKMS key {key} is not enrolled' if key else 'DKMS has no signing key here'}",
            f"enrol the key (mokutil --import {key or '/var/lib/dkms/mok.pub'}, then confirm on the console at the "
            "next boot), choose signed modules (driver_flavor: ubuntu_archive or inbox), or disable Secure Boot",
            "secure-boot",
        )
    kernel = risk.get("next_kernel")
    if kernel and kernel["has_stack"] is False:
        yield Finding(
            f"kernel {kernel['release']}",
            "the driver built for the kernel of the next boot",
            f"none: {kernel['release']} would come up with the inbox driver",
            f"install its headers and build (dkms autoinstall -k {kernel['release']}), or make "
            f"{facts['node']['kernel']} the default boot kernel",
            "next-kernel",
        )


def _lock(secure: dict) -> str:
    if secure["enabled"] is True:
        return "enabled"
    return f"kernel lockdown {secure['lockdown']}" if secure["lockdown"] != "none" else "the kernel enforces signatures"


def _names(risk: dict, wanted: dict) -> Iterator[Finding]:
    """A node is lost if the interface of its management access changes its name."""
    if wanted.get("rename_allowed") is True:
        return
    for interface in risk["named"]:
        places = [f"{place['path']}:{place['line']}" for place in interface["places"]]
        yield Finding(
            f"interface {interface['netdev']}",
            "an interface that carries management configured by its MAC: another driver may show other port names",
            f"{_few(places)} {'has' if len(places) == 1 else 'have'} the name {interface['netdev']}",
            f"match {interface['mac']} there, or tie the name to it with a .link file, or set "
            "driver_rename_allowed: true if the node can be reached in another way",
            "name-change",
        )


def _workloads(risk: dict, wanted: dict) -> Iterator[Finding]:
    if not risk["pods"] or wanted.get("drain_allowed") is True:
        return
    names = [f"{pod['namespace']}/{pod['name']}" for pod in risk["pods"]]
    denied = wanted.get("drain_allowed") is False
    yield Finding(
        f"{len(names)} running {'pod' if len(names) == 1 else 'pods'}",
        "a drained node",
        _few(names),
        "drain the node yourself and run again"
        if denied
        else "set driver_drain_allowed: true (cordon and drain before, uncordon after), or drain the node yourself",
        "pods",
    )


def _reachability(risk: dict) -> Iterator[Finding]:
    for way in risk["management"]:
        over = way["netdev"] if way["via"] == way["netdev"] else f"{way['via']}, which is on top of {way['netdev']}"
        yield Finding(
            f"interface {way['netdev']}",
            "management access that does not use an HCA",
            f"{way['why']} uses {over}",
            "reboot instead: a reload removes the interface and with it the connection needed to restore it",
            "management-path",
        )
    for entry in risk["storage"]:
        yield Finding(
            f"{entry['mount']} on {entry['device']}",
            "storage that does not use the stack",
            entry["why"],
            "reboot instead" if entry["mount"] in ("/", "swap") else f"unmount {entry['mount']}, or reboot instead",
            "storage",
        )


def _users(risk: dict, wanted: dict) -> Iterator[Finding]:
    """Users of the modules: processes, other modules, and unexplained ones."""
    drained = wanted.get("drain_allowed") is True
    processes = [process for process in risk["processes"] if not (drained and process["pod"])]
    for process in processes:
        unit = f" of {process['unit']}" if process["unit"] else ""
        whole = process["unit"] if process["unit"] and not _LOGIN.match(process["unit"]) else "it"
        yield Finding(
            f"process {process['pid']} ({process['command']})",
            "no user of the RDMA devices",
            f"{process['command']}{unit} has {_few(process['devices'])} open",
            f"stop {whole} and run again, or reboot instead",
            "process",
        )
    yield from _modules(risk["modules"])
    if not processes:
        yield from _unexplained(risk["modules"])


def _modules(modules: dict) -> Iterator[Finding]:
    expected = {*STACK, *PEERMEM}
    for name in sorted(modules):
        if name in CONSUMERS:
            yield Finding(
                f"module {name}",
                "unloaded",
                f"{CONSUMERS[name]} is loaded and uses the stack, in use {count(modules[name]['refcount'], 'time')}",
                f"stop what uses it and unload it (modprobe -r {name}), or reboot instead",
                "consumer",
            )
        elif name in PEERMEM and modules[name]["refcount"] > len(modules[name]["holders"]):
            yield Finding(
                f"module {name}",
                "no GPU job that uses RDMA",
                f"in use {count(modules[name]['refcount'], 'time')}",
                "stop the GPU jobs of this node and run again, or reboot instead",
                "peermem-in-use",
            )
        elif name not in expected:
            yield Finding(
                f"module {name}",
                "no third-party module on the stack",
                f"it holds {_few(sorted(other for other in modules if name in modules[other]['holders']))}",
                f"unload it (modprobe -r {name}), or reboot instead; make sure it is rebuilt for the new stack",
                "third-party",
            )


def _unexplained(modules: dict) -> Iterator[Finding]:
    for name in STACK:
        module = modules.get(name)
        if module and module["refcount"] > len(module["holders"]):
            yield Finding(
                f"module {name}",
                "held by modules only",
                f"in use {count(module['refcount'], 'time')}, {len(module['holders'])} of them by modules; "
                "the rest is inside the kernel",
                "reboot instead",
                "unknown-user",
            )


def _lost_by_reload(risk: dict) -> Iterator[Finding]:
    """State that is lost with the driver and cannot be restored here."""
    for entry in risk["switched"]:
        yield Finding(
            f"embedded switch of {entry['hca']}",
            "nothing that only the running driver holds",
            _few(entry["evidence"]),
            "reboot instead: whatever sets switchdev mode, sub-functions and parameters at boot sets them again",
            "switchdev",
        )
    for entry in risk["virtual_functions"]:
        if entry["passed_through"]:
            yield Finding(
                f"virtual functions of {entry['hca']}",
                "none in a virtual machine",
                f"{_few(entry['passed_through'])} are passed through to a virtual machine",
                "stop the virtual machines and run again",
                "vf-passed-through",
            )
        if entry["settings"] is None:
            yield Finding(
                f"virtual functions of {entry['hca']}",
                "settings that can be read and restored",
                f"{entry['enabled']} enabled; this driver does not show their MACs and GUIDs in sysfs",
                "reboot instead; whatever creates the virtual functions at boot creates them again",
                "vf-settings",
            )
    for netdev in risk["netdevs"]:
        routes = [route["route"] for route in netdev["routes"] if route["words"] is None]
        if routes:
            yield Finding(
                f"interface {netdev['name']}",
                "routes that one command adds again",
                f"{_few(routes)} has more next hops, an encapsulation or metrics",
                "reboot instead: the node's own configuration sets them at boot",
                "routes",
            )
        above = sorted({netdev["master"], *netdev["upper"]} - {None})
        if above:
            yield Finding(
                f"interface {netdev['name']}",
                "no device on top of it",
                f"{_few(above)} is on top of it and would lose it for good",
                "reboot instead: bonds, bridges, VLANs and macvlans are set up again at boot",
                "upper-device",
            )


def _notes(facts: dict, risk: dict) -> list[str]:
    notes = []
    if is_unknown(risk["secure_boot"]["enabled"]):
        notes.append(f"Not verified: Secure Boot is {risk['secure_boot']['enabled']}.")
    if not risk["devlink"]:
        notes.append("Not verified: the mode of embedded switches and devlink parameters; devlink does not answer.")
    if not risk["routed"]:
        notes.append("Not verified: routes that a reload would lose; ip does not answer.")
    if is_unknown(facts["driver"]["agree"]) and facts["driver"]["loaded"]["modules"]:
        notes.append(f"Not verified: whether memory and disk agree is {facts['driver']['agree']}.")
    return notes
