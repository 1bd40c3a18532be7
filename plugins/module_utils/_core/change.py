"""A module's plan and how it is applied.

A planner turns facts and options into a Plan; `changed`, `changes` and `diff` of the result all come from that one
Plan, so check mode and a real run cannot disagree.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Callable, NamedTuple

from .text import clean, runnable, sentence


class Change(NamedTuple):
    object: str
    action: str
    before: str
    after: str


class Finding(NamedTuple):
    """A problem that an operator has to fix. id: its entry in the catalogue, if it has one.

    Module results hold it as `as_dict()`; _core.text turns it into a sentence for printing.
    """

    object: str
    wanted: str
    seen: str
    next_step: str
    id: str = ""


def at(host: str, findings: Iterable[Finding]) -> list[dict]:
    """One host's findings as mappings, for a list that covers several hosts."""
    return [{"host": host, **as_dict(finding)} for finding in findings]


def as_dict(finding: Finding) -> dict[str, str]:
    """A finding as a mapping for a result; Ansible prints the result if it is a failure."""
    return {fact: clean(runnable(text)) for fact, text in finding._asdict().items()}


@dataclass
class Plan:
    """What a module decided. Findings stop the run; the other lists are only reported.

    stale_images: initramfs images without what the changes write.
    """

    changes: list[Change] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    reboot_reasons: list[str] = field(default_factory=list)
    not_applied: list[str] = field(default_factory=list)
    not_verified: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stale_images: list[str] = field(default_factory=list)

    def change(self, obj: str, action: str, before: str, after: str) -> None:
        self.changes.append(Change(obj, action, before, after))

    def finding(self, obj: str, wanted: str, seen: str, next_step: str) -> None:
        self.findings.append(Finding(obj, wanted, seen, next_step))


class Refused(Exception):
    """The wanted state was not reached: why, and what had changed by then."""

    def __init__(self, findings: list[Finding], done: list[Change] | None = None):
        super().__init__("\n".join(map(sentence, findings)))
        self.findings = findings
        self.done = done or []

    @classmethod
    def because(cls, obj: str, wanted: str, seen: str, next_step: str) -> Refused:
        return cls([Finding(obj, wanted, seen, next_step)])


class Interrupted(Exception):
    """An unexpected error, its cause, after changes had begun. done: the known changes."""

    def __init__(self, done: list[Change]):
        super().__init__("something may have been changed before it")
        self.done = done


def kernel_out_of_reach(facts: dict, root: str = "/") -> str | None:
    """Why this kernel must not be touched, or None if it may."""
    if root.rstrip("/"):
        return f"{root} is a tree of files, not the running system"
    container = (facts.get("node") or {}).get("container")
    return f"the node is a {container} container and shares its host's kernel" if container else None


def settle(
    read: Callable[[], dict],
    plan: Callable[[dict], Plan],
    apply: Callable[[list[Change]], Iterable[Change]],
    check_mode: bool,
) -> tuple[Plan, list[Change]]:
    """Decide, act, read back. Returns the last plan and the changes that were (or would be) made.

    Acting can reveal more to do (a port is known to be InfiniBand only once its driver is loaded), so it plans again
    until the plan is empty; a change that comes up twice did not stick, which is an error.
    """
    decided = plan(read())
    if decided.findings:
        raise Refused(decided.findings)
    if check_mode:
        return decided, list(decided.changes)
    done: list[Change] = []
    while decided.changes:
        before, stale = len(done), decided.stale_images
        with keeping(done):
            _act(decided.changes, apply, done)
            decided = plan(read())
            decided.stale_images = sorted({*stale, *decided.stale_images})
            kept = {(change.object, change.action) for change in done}
            lost = [_not_kept(change) for change in decided.changes if (change.object, change.action) in kept]
            if lost or decided.findings:
                raise Refused(lost + decided.findings)
        if len(done) == before:
            break
    return decided, done


def _act(changes: list[Change], apply: Callable[[list[Change]], Iterable[Change]], done: list[Change]) -> None:
    before = len(done)
    try:
        for change in apply(changes):
            done.append(change)
    except OSError as error:
        raise Refused([failed(changes[min(len(done) - before, len(changes) - 1)], error)]) from error


@contextlib.contextmanager
def keeping(done: list[Change]):
    """Any error inside reports the changes made by then."""
    try:
        yield
    except Refused as refused:
        raise Refused(refused.findings, done + refused.done) from refused
    except Exception as error:
        raise Interrupted(done) from error


def failed(change: Change, error: OSError) -> Finding:
    """A change that the system rejected."""
    return Finding(
        change.object,
        f"{change.action} {_short(change.after)}",
        error.strerror or str(error),
        "fix the cause (permissions, full or read-only file system, a value the kernel refuses) and run again",
    )


def _not_kept(change: Change) -> Finding:
    return Finding(
        change.object,
        _short(change.after),
        f"{_short(change.before)} again after the change",
        "find out what reverts it (another configuration tool, a boot script, a kernel limit) and run again",
    )


def _short(text: str) -> str:
    lines = text.strip().splitlines() or ["nothing"]
    return lines[0] if len(lines) == 1 else f"{len(lines)} lines"


def result(plan: Plan, changes: list[Change]) -> dict:
    """The keys every changing module of the collection returns."""
    return {
        "changed": bool(changes),
        "changes": [change._asdict() for change in changes],
        "diff": diff(changes),
        "reboot_reasons": plan.reboot_reasons,
        "findings": [as_dict(finding) for finding in plan.findings],
        "not_applied": plan.not_applied,
        "not_verified": plan.not_verified,
        "notes": plan.notes,
    }


def warn(module, texts: Iterable[str]) -> None:
    """Warnings of an AnsibleModule, cleaned."""
    # Ansible prints identical warnings of several nodes once: the node's name keeps them apart.
    node = os.uname().nodename
    for text in texts:
        module.warn(clean(f"{node}: {text}"))


def converge(module, read, plan, apply, more=None, quiet=False, check_mode=None, **known) -> None:
    """End an AnsibleModule as settle() does.

    more: further keys of the result, from the last plan and the changes; it may add notes to the plan.
    quiet: no warning about what is skipped, not verified or notable. check_mode: that of the module, or true if nothing
    may change for another reason. known: keys of the result that a failure also has.
    """
    check_mode = module.check_mode if check_mode is None else check_mode
    with reported(module, **known):
        decided, changes = settle(read, plan, apply, check_mode)
        with contextlib.nullcontext() if check_mode or not changes else keeping(changes):
            further = more(decided, changes) if more else {}
        if not quiet:
            warn(module, [*decided.not_applied, *decided.not_verified, *decided.notes])
        module.exit_json(**known, **further, **result(decided, changes))


@contextlib.contextmanager
def reported(module, **more):
    """End an AnsibleModule whose work raises, with a result for it and `more`.

    fail_json finds the traceback itself, shows it if ANSIBLE_DISPLAY_TRACEBACK says so, and hides secrets.
    """
    try:
        yield
    except Refused as refused:
        module.fail_json(**more, **failure(refused))
    except Exception as error:  # noqa: BLE001 - it handles any error
        module.fail_json(**more, **unforeseen(f"module {module._name}", error))


def failure(refused: Refused) -> dict:
    """Arguments of fail_json for a Refused."""
    return {
        "msg": str(refused),
        "findings": [as_dict(finding) for finding in refused.findings],
        **{key: value for key, value in result(Plan(), refused.done).items() if key in ("changed", "changes", "diff")},
    }


def unforeseen(obj: str, error: Exception) -> dict:
    """Arguments of fail_json for an unexpected error."""
    begun = isinstance(error, Interrupted)
    cause = error.__cause__ if begun else error
    place = traceback.extract_tb(cause.__traceback__)[-1]
    text = " ".join(str(cause).split())[:300]
    seen = f"{type(cause).__name__}{': ' if text else ''}{text} ({os.path.basename(place.filename)}:{place.lineno})"
    refused = Refused.because(
        obj,
        "a result, or a refusal with its reason",
        f"{seen}; {error}" if begun else seen,
        "report it with the output of ANSIBLE_DISPLAY_TRACEBACK=error: it is a bug in the collection",
    )
    refused.done = error.done if begun else []
    return {**failure(refused), "changed": begun}


def diff(changes: list[Change]) -> list[dict]:
    """One entry for each change, in the format of Ansible's --diff."""
    return [
        {
            "before_header": f"{change.object} ({change.action})",
            "after_header": f"{change.object} ({change.action})",
            "before": _text(change.before),
            "after": _text(change.after),
        }
        for change in changes
    ]


def _text(value: str) -> str:
    value = clean(value)  # Ansible prints it unchanged
    return value if not value or value.endswith("\n") else value + "\n"
