"""Why a pod does not start: the component and its message, with cause and fix (catalogue.yml, messages). Pure."""

import re
from typing import NamedTuple

from .catalogue import DOCUMENT

UNKNOWN = "see: k3s kubectl describe pod"
# CNI plugins that call others: an error after their name comes from the plugin that they called.
_CALLERS = ("multus", "multus-shim")
_PLUGIN = re.compile(r'plugin type="([\w.-]+)"')


class Message(NamedTuple):
    component: str
    text: str
    cause: str
    fix: str
    pattern: re.Pattern


MESSAGES = tuple(
    Message(
        one["component"], text, cause, fix, re.compile(r"\S*?".join(map(re.escape, text.split("*"))), re.IGNORECASE)
    )
    for one in DOCUMENT["messages"]
    for texts, cause, fix in one["says"]
    for text in texts
)
_LOOK = {one["component"].lower(): one["look"] for one in DOCUMENT["messages"] if "look" in one}


def explain(reason: str) -> list[Message]:
    """What a text says: the innermost message, which its callers wrapped; for the scheduler, one per reason.

    Of several messages at one place the longest counts, because it is the most specific.
    """
    reason = reason.partition(" preemption: ")[0]
    spans = [(*found.span(), one) for one in MESSAGES if (found := one.pattern.search(reason))]
    own = [span for span in spans if not any(_hides(other, span) for other in spans)]
    ordered = [one for _start, _end, one in sorted(own, key=lambda span: span[:2])]
    if ordered and ordered[0].component == "scheduler":
        return [one for one in ordered if one.component == "scheduler"]
    # The kubelet repeats the scheduler's words when it refuses a pod itself.
    return [one for one in ordered if one.component != "scheduler"][-1:]


def _hides(other: tuple, span: tuple) -> bool:
    """Whether a message is more specific than another at its place: longer, or with fewer wildcards."""
    covers = other[0] <= span[0] and span[1] <= other[1]
    return covers and (other[1] - other[0], -other[2].text.count("*")) > (span[1] - span[0], -span[2].text.count("*"))


def next_step(reasons: list[str], otherwise: str = UNKNOWN) -> str:
    """Component, cause and fix of the latest known reason; for an unknown one, where to look."""
    for reason in reversed(reasons):
        told = [f"{one.component}: {one.cause}; {one.fix}" for one in explain(reason)]
        if told:
            return " | ".join(dict.fromkeys(told))
    named = _PLUGIN.findall(" ".join(reasons))
    name = next((name for name in reversed(named) if name not in _CALLERS), "Multus") if named else ""
    look = _LOOK.get(name.lower())
    return f"{otherwise}; {name} said it: {look}" if look else otherwise
