"""Values in the firmware of HCAs against those that a user states: read, written once, judged by the values in use.

`read` asks mstconfig, and devlink for a version that waits in flash; `plan` is pure. A key has three values: the
default, the current one that the firmware runs with, and the next one in flash. No source says which reset a key needs.
So a value is written and recorded once, and one reboot is requested: a value that is then not in use is a finding,
without a second attempt.

Source: mlxconfig/mlxcfg_ui.cpp of mstflint 4.21 and 4.31, for output and input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from .._core.change import Change, Plan, Refused, kernel_out_of_reach
from .._core.files import plan_text, recorded
from .._core.programs import found
from .._core.text import listing
from ..hca import Tree, paths, pci

ALL = "all"
WANTED = "a mapping of all, or of PCI addresses in quotes, to mappings of keys such as ATS_ENABLED to values"
MODE = 0o600
RESET = "from a reset on whose level is unknown: one reboot is tried, and values still not in use need a power cycle"
_PROGRAMS = ("mstconfig", "mlxconfig")
_KEY = re.compile(r"[A-Z][A-Za-z0-9_]{0,63}(\[[0-9]{1,4}\])?")
_VALUE = re.compile(r"[A-Za-z0-9_.+:-]{1,64}")
_COLUMNS = {"default": "Default", "current": "Current", "next": "Next Boot"}
# A star marks a next value that is not the default or not current; RO a value that cannot be set.
_ROW = re.compile(r"[* ](RO)?\s+([A-Z]\S*)\s+(\S.*)")
# In 4.21 a value of 16 characters touches the next one.
_STATE = re.compile(r"[^\s()]+\([0-9]+\)|\S+")
_NUMBER = re.compile(r"(?:.*\()?([0-9]+)\)?")
_ERROR = re.compile(r"^-E- *(.+)$", re.MULTILINE)
_OBJECT = "firmware of "
_BEFORE = f"{paths.OWN_FIRMWARE}/before.json"


class Value(NamedTuple):
    """A key of an HCA. wanted: as written. tried: the boot in which this value was written; None if never."""

    key: str
    wanted: str
    tried: str | None
    default: str | None
    current: str | None
    next: str

    @property
    def taken(self) -> bool:
        return same(self.wanted, self.next)

    @property
    def used(self) -> bool | None:
        """None if the firmware does not report the current value."""
        return None if self.current is None else same(self.wanted, self.current)

    @property
    def told(self) -> str:
        states = (f"{name} {getattr(self, name) or 'not reported'}" for name in _COLUMNS)
        return f"{self.key} {', '.join(states)}"


def malformed(stated: Any) -> bool:
    """Whether the option is not as WANTED. YAML reads an address without quotes as a number."""
    return not isinstance(stated, Mapping) or not all(
        isinstance(place, str)
        and (place == ALL or pci.ADDRESS.match(pci.full(place)))
        and isinstance(values, Mapping)
        and all(isinstance(value, (bool, int, str)) for value in values.values())
        and all(_KEY.fullmatch(str(key)) and _VALUE.fullmatch(value) for key, value in _written(values).items())
        for place, values in stated.items()
    )


def _written(values: Mapping) -> dict[str, str]:
    return {str(key): str(int(value)) if isinstance(value, bool) else str(value) for key, value in values.items()}


def same(wanted: str, seen: str) -> bool:
    """By the number in brackets; a name by the text before it."""
    if not re.fullmatch(r"[0-9]+|0[xX][0-9a-fA-F]+", wanted):
        return seen.partition("(")[0].lower() == wanted.lower()
    number = _NUMBER.fullmatch(seen)
    return number is not None and int(number[1]) == (int(wanted) if wanted.isdecimal() else int(wanted, 16))


def chosen(facts: dict, stated: Mapping, made: Plan) -> dict[str, dict[str, str]]:
    """{PCI address: {key: value}} of this node. `all` is the first function of each HCA without management."""
    hcas = [hca for hca in facts["hcas"] if hca["pci"]]
    mine = [hca["pci"] for hca in hcas if hca["pci"]["vendor"] == pci.MELLANOX and not hca["pci"]["physfn"]]
    able = [*dict.fromkeys(function["address"] for function in mine)]  # a sub-function has its PF's address
    there = able + [card["address"] for card in facts["cards_without_rdma"]]
    named = {pci.full(place): _written(values) for place, values in stated.items() if place != ALL}
    for address in sorted(named.keys() - {*there}):
        seen = f"no such function; those here: {listing(sorted(there)) or 'none'}"
        step = "correct the address in fabric_firmware, or set it only for the hosts that have it"
        made.finding(f"{_OBJECT}{address}", "a physical function with NVIDIA firmware", seen, step)
    values = {address: {**_written(stated.get(ALL, {})), **own} for address, own in named.items() if address in there}
    slots = {pci.slot(address) for address in named}
    for address in sorted(able, key=pci.order) if ALL in stated else ():
        slot = pci.slot(address)
        beside = [hca for hca in hcas if pci.slot(hca["pci"]["address"]) == slot]
        uses = [netdev for hca in beside for netdev in hca["netdevs"]]
        uses = [f"{netdev['name']} carries {netdev['management']}" for netdev in uses if netdev["management"]]
        if slot not in slots and uses:
            made.not_applied.append(f"{_OBJECT}{address}: {uses[0]}; only its address in fabric_firmware includes it")
        elif slot not in slots:
            values[address] = _written(stated[ALL])
        slots.add(slot)
    return values


# --- reading a node ---------------------------------------------------------------------------------------------------


def read(tree: Tree, run: Callable, facts: dict, stated: Mapping) -> dict:
    """{program, hcas: {address: {values: {key: {default, current, next, read_only}}, errors: {key: text}}}, before,
    tried, stored: {address: version}}.
    """
    asked = {} if malformed(stated) else chosen(facts, stated, Plan())
    path, devlink = program(), found("devlink")
    return {
        "program": path,
        "hcas": {address: _answer(run, [path, "-d", address], list(keys)) for address, keys in asked.items() if path},
        "before": recorded(tree, _BEFORE),
        "tried": {address: recorded(tree, _record(address)) for address in asked},
        "stored": {address: _stored(run, devlink, address) for address in asked if devlink},
    }


def program() -> str | None:
    return next((path for path in map(found, _PROGRAMS) if path), None)


def _stored(run: Callable, devlink: str, address: str) -> str | None:
    """The version in flash, if it is not the running one; None also if devlink does not tell."""
    handle = f"pci/{address}"
    try:
        versions = json.loads(run([devlink, "-j", "dev", "info", handle])[1])["info"][handle]["versions"]
        running, stored = (versions[state]["fw.version"] for state in ("running", "stored"))
    except (ValueError, KeyError, TypeError):
        return None
    return None if stored == running else stored


def _record(address: str) -> str:
    return f"{paths.OWN_FIRMWARE}/{address}.json"


def _answer(run: Callable, argv: list[str], keys: list[str]) -> dict:
    """An unknown key fails the query of all keys: then each one is queried separately."""
    code, out, error = run([*argv, "-e", "q", *keys])
    values = parsed(out, keys) if code == 0 else {}
    if len(values) == len(keys):
        return {"values": values, "errors": {}}
    why = _why(code, out, error) if code else "not in the answer of mstconfig"
    if len(keys) == 1 or "open the device" in why:
        return {"values": {}, "errors": dict.fromkeys(keys, why)}
    answers = [_answer(run, argv, [key]) for key in keys]
    return {part: {key: row for each in answers for key, row in each[part].items()} for part in ("values", "errors")}


def _why(code: int, out: str, error: str) -> str:
    return "; ".join(_ERROR.findall(f"{out}\n{error}")) or " ".join(error.split())[:300] or f"exit status {code}"


def parsed(text: str, keys: list[str]) -> dict[str, dict]:
    """What mstconfig -e q prints for these keys; None for a column that the firmware does not have."""
    columns: list[str] = []
    values = {}
    for line in text.splitlines():
        if line.startswith("Configurations:"):
            columns = [name for name, title in _COLUMNS.items() if title in line]
        row = _ROW.fullmatch(line)
        states = _STATE.findall(row[3]) if row else []
        if row and row[2] in keys and columns and len(states) == len(columns):
            known = {name: state for name, state in zip(columns, states) if state != "N/A"}
            values[row[2]] = {**dict.fromkeys(_COLUMNS), **known, "read_only": bool(row[1])}
    return {key: state for key, state in values.items() if state["next"]}


# --- planning ---------------------------------------------------------------------------------------------------------


def plan(facts: dict, stated: Mapping, allowed: bool | None, root: str, made: Plan) -> None:
    """Adds to the plan. facts: with `firmware` (see read) if requested. allowed: None fails if a value differs, False
    leaves it.
    """
    if not stated:
        return
    if malformed(stated):
        made.finding("option firmware", WANTED, repr(stated)[:200], "correct it")
        return
    offline = kernel_out_of_reach(facts, root)
    if offline:
        made.not_verified.append(f"fabric_firmware: {offline}")
        return
    answer, boot = facts.get("firmware"), str(facts["node"]["boot_id"])
    if answer is None:
        return
    wanted = chosen(facts, stated, made)
    if wanted and not answer["program"]:
        step = "on the node: apt install mstflint, or dnf install mstflint; then run again"
        _say(made, allowed, "program mstconfig", ("installed, to read firmware with", "not there"), step)
        return
    before = {address: dict(kept) for address, kept in answer["before"].items()}
    writes = Plan()
    for address, keys in wanted.items():
        stored = answer["stored"].get(address)
        if stored:
            made.notes.append(f"{_OBJECT}{address}: version {stored} waits in flash, and a reset may also activate it")
        values = _values(answer, address, keys, allowed, made)
        unset = [value for value in values if not value.taken and value.tried is None]
        _judge(address, values, boot, allowed, made)
        # A next value that something else wrote also gets its one reboot.
        first = unset + [value for value in values if value.taken and value.used is False and value.tried is None]
        for value in unset:
            before.setdefault(address, {}).setdefault(value.key, value.next)
        tried = answer["tried"].get(address, {})
        record = {value.key: {"value": value.wanted, "boot_id": boot} for value in first}
        _keep(writes, _record(address), tried, {**tried, **record})
        for value in unset:
            writes.change(f"{_OBJECT}{address} {value.key}", "set", value.next, value.wanted)
    if allowed:
        _keep(made, _BEFORE, answer["before"], before)
        made.changes += writes.changes


def answered(facts: dict, stated: Mapping) -> dict[str, list[Value]]:
    """{object: values} of the HCAs' answers, if they were asked."""
    answer = facts.get("firmware") or {}
    hcas = chosen(facts, stated, Plan()) if answer.get("program") else {}
    return {f"{_OBJECT}{address}": _values(answer, address, keys, False, Plan()) for address, keys in hcas.items()}


def _values(answer: dict, address: str, keys: dict[str, str], allowed: bool | None, made: Plan) -> list[Value]:
    """The HCA's answers; reports the missing ones."""
    there, tried, values = answer["hcas"][address], answer["tried"].get(address, {}), []
    for key, wanted in keys.items():
        state = there["values"].get(key)
        why = "" if state else there["errors"].get(key, "no answer")
        if state and state["next"].startswith("Array["):
            why = f"{key} is {state['next']}; an element is {key}[N]"
        elif state and state["read_only"] and not same(wanted, state["next"]):
            why = f"{key} is {state['next']} and read-only"
        if why:
            step = f"{answer['program']} -d {address} q lists the keys; take {key} out of fabric_firmware here"
            _say(made, allowed, f"{_OBJECT}{address}", (f"a value of {key}", why), step)
            continue
        attempt = tried.get(key) or {}
        boot = attempt.get("boot_id") if attempt.get("value") == wanted else None
        values.append(Value(key, wanted, boot, *(state[name] for name in _COLUMNS)))
    return values


def _judge(address: str, values: list[Value], boot: str, allowed: bool | None, made: Plan) -> None:
    """Problems with the values of an HCA, and whether a reboot should bring them into use."""
    obj = f"{_OBJECT}{address}"
    unset = [value for value in values if not value.taken and value.tried is None]
    if unset and not allowed:
        step = f"set fabric_firmware_allowed: true to write it, which takes effect {RESET}; or false to leave it"
        _say(made, allowed, obj, (_listed(unset), _told(unset)), step)
    refused = [value for value in values if not value.taken and value.tried is not None]
    if refused:
        step = f"state a value that the firmware keeps; rm {_record(address)} on the node allows one more try"
        _say(made, allowed, obj, (f"{_listed(refused)}, which was written", _told(refused)), step)
    left = [value for value in values if value.taken and value.used is False and value.tried not in (None, boot)]
    if left:
        seen = f"{_told(left)}; the node has been rebooted since that was written"
        step = "power-cycle the node, and run again"
        _say(made, allowed, obj, (f"{_listed(left)} in use", seen), step)
    due = [value for value in values if value.used is not True and value not in refused + left]
    due = [value for value in due if value.used is False or value.tried == boot or not value.taken]
    if due and allowed:
        made.reboot_reasons.append(f"The {obj} runs with {_listed(due)} only {RESET}.")
    elif due and not unset:
        made.notes.append(f"the {obj} runs with {_listed(due)} only {RESET}")
    made.not_verified += [
        f"{obj}: {value.key} is {value.next} for the next boot, and the firmware does not report its current value"
        for value in values
        if value.taken and value.used is None
    ]


def _say(made: Plan, allowed: bool | None, obj: str, states: tuple[str, str], step: str) -> None:
    """A finding, which stops the run; with False only a note. states: wanted, seen."""
    if allowed is False:
        made.not_applied.append(f"{obj}: wanted {states[0]}, seen {states[1]}; fabric_firmware_allowed is false")
    else:
        made.finding(obj, *states, step)


def _listed(values: list[Value]) -> str:
    return ", ".join(f"{value.key}={value.wanted}" for value in values)


def _told(values: list[Value]) -> str:
    return "; ".join(value.told for value in values)


def _keep(made: Plan, path: str, seen: dict, wanted: dict) -> None:
    if seen != wanted:
        before = {"content": _text(seen), "mode": f"{MODE:04o}"} if seen else None
        plan_text(made, path, before, _text(wanted), f"{MODE:04o}")


def _text(record: dict) -> str:
    return json.dumps(record, indent=1, sort_keys=True) + "\n"


def is_about(change: Change) -> bool:
    return change.object.startswith((_OBJECT, paths.OWN_FIRMWARE))


def of_hca(change: Change) -> str | None:
    return change.object.split()[2] if change.object.startswith(_OBJECT) else None


def write(run: Callable, address: str, changes: list[Change]) -> None:
    """Write all values of an HCA at once; Refused with mstconfig's message."""
    values = [f"{change.object.split()[3]}={change.after}" for change in changes]
    code, out, error = run([program(), "-d", address, "-y", "set", *values])
    if code:
        step = f"state values that the firmware accepts; rm {_record(address)} on the node allows one more try"
        raise Refused.because(f"{_OBJECT}{address}", ", ".join(values), _why(code, out, error), step)
