"""Text for people: findings with their four facts, tables, lists, all without control sequences. Pure."""

from __future__ import annotations

import itertools
import json
import re
import textwrap

WIDTH = 120
# Placeholder for the inventory of the run, which only the controller knows.
INVENTORY = "INVENTORY"
# Width of the longest label and two spaces.
_LABEL = 11
# Characters that a terminal, log or page acts on instead of showing: C0 and C1 controls (every escape sequence starts
# with one), lone surrogates, bidi controls and zero-width characters (one name can look like another), line separators.
_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)
# A command stays on one line, so that it can be copied.
_COMMAND, _GLUE = re.compile(rf"ansible-playbook (?:-i {INVENTORY} )?gpufabric\.rdma\.\w+"), "\ue000"
_PLAYBOOK = re.compile(r"\bplaybooks/([a-z0-9_]+)\.yml")


def clean(text: object) -> str:
    """The text with unprintable or misleading characters replaced by U+FFFD. Newlines and tabs stay."""
    return _UNFIT.sub("\ufffd", str(text))


def runnable(text: object) -> str:
    """The text with playbook files as commands that run them from the installed collection."""
    return _PLAYBOOK.sub(rf"ansible-playbook -i {INVENTORY} gpufabric.rdma.\1", str(text))


def in_a_line(text: object) -> str:
    """clean() for a single line: a newline in it would forge another line."""
    return clean(text).replace("\n", "\ufffd")


def yaml_value(value, **options) -> str:
    """A value as JSON that every YAML parser reads back unchanged.

    JSON escapes characters beyond U+FFFF as surrogate pairs, which YAML does not have, and leaves some characters that
    YAML reads as line breaks.
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    return _UNFIT.sub(lambda bad: bad[0] if bad[0] > "\uffff" else f"\\u{ord(bad[0]):04x}", text)


def json_object(text: str | None) -> dict:
    """The JSON object in a text; empty for anything else."""
    try:
        document = json.loads(text or "")
    except (TypeError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def sentence(finding) -> str:
    """A Finding on one line, for the message of a failed task."""
    step = runnable(finding.next_step)
    return clean(f"{finding.object}: wanted {finding.wanted}, seen {finding.seen}. Next step: {step}")


def four_facts(findings) -> str:
    """Findings as blocks of object, wanted, seen, next step; hosts with the same finding share one block.

    A finding is a mapping with host, object, wanted, seen and next_step, and optionally failure, its catalogue id.
    """
    groups: dict[tuple, list[str]] = {}
    for finding in findings:
        key = tuple(clean(finding[fact]) for fact in ("object", "wanted", "seen", "next_step"))
        key += (finding.get("failure") or "",)
        hosts = groups.setdefault(key, [])
        if finding["host"] not in hosts:
            hosts.append(finding["host"])
    return "\n".join(_block(hosts, *facts) for facts, hosts in groups.items())


def _block(hosts, obj, wanted, seen, next_step, failure) -> str:
    lines = [f"{names(hosts)}  {obj}"]
    for label, text in (("wanted", wanted), ("seen", seen), ("next step", next_step), ("failure", failure)):
        if text:
            lines.append(wrapped(f"  {label:<{_LABEL}}", text))
    return "\n".join(lines)


def wrapped(lead: str, text: str, indent: str | None = None) -> str:
    """Text after a lead, further lines indented (by the width of the lead unless `indent` is given)."""
    indent = " " * len(lead) if indent is None else indent
    text = _COMMAND.sub(lambda command: command[0].replace(" ", _GLUE), runnable(clean(text)))
    first, *rest = text.splitlines() or [""]
    fill = textwrap.TextWrapper(WIDTH, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent)
    fill.initial_indent = lead
    lines = [fill.fill(first) or lead]
    fill.initial_indent = indent
    return "\n".join(lines + [fill.fill(line) for line in rest]).replace(_GLUE, " ")


def names(hosts, most: int = 6) -> str:
    """Host names on one line; a long list is cut and ends with the number of the rest."""
    hosts = list(hosts)
    if len(hosts) <= most:
        return ", ".join(hosts)
    return f"{', '.join(hosts[: most - 1])} and {len(hosts) - most + 1} more"


def of_nodes(hosts) -> str:
    """The heading of a row for these hosts: the name of one, the number and names of several."""
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)} nodes ({names(hosts)})"


def table(header, rows) -> str:
    """Columns as wide as their widest cell; the last one is not padded."""
    rows = [[in_a_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in [list(header), *rows]
    )


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def alike(items):
    """(hosts, value) for each distinct value of (host, value) pairs, in order of first appearance."""
    found: list[tuple[list, object]] = []
    for host, value in items:
        for hosts, known in found:
            if known == value:
                hosts.append(host)
                break
        else:
            found.append(([host], value))
    return found


def grouped(pairs) -> dict:
    """{key: its values in order} of (key, value) pairs."""
    found: dict = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def reason(message) -> str:
    """The message of an unreachable node on one line, without the colon that ssh leaves when it gives no cause."""
    return " ".join(str(message or "").split()).rstrip(": ") or "no reason given"


def listing(items, most: int = 12) -> str:
    """Existing items, for a `seen`: all of them, or the first ones and the number of the rest."""
    items = list(items)
    shown = ", ".join(itertools.islice(items, most))
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def quantity(text) -> int:
    """A Kubernetes quantity such as 1k or 512Mi; 0 for other text."""
    matched = re.fullmatch(r"(\d+)(?:([kMGT])|([KMGT])i)?", str(text))
    if not matched:
        return 0
    number, decimal, binary = matched.groups()
    return int(number) * (1000 ** "_kMGT".index(decimal or "_")) * (1024 ** "_KMGT".index(binary or "_"))


def unreadable(error: OSError) -> str:
    """A module's message about a file of the node that it must read but cannot."""
    return f"{error.filename}: wanted a readable file, seen {error.strerror}. Next step: make it readable"
