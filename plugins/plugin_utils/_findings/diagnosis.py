"""Trace failed checks back to the one failure of the catalogue that explains them.

Pure.

For each host, take the failures whose signs its checks show and drop those that another one explains. The first of the
rest, in the order of the catalogue, is the root. What the root explains is listed beneath it. Unexplained failures are
listed separately: an unrelated second fault is not called a consequence.
"""

import fnmatch
import functools
import re
from typing import NamedTuple

from ...module_utils._core import text as core_text
from . import catalogue as findings_catalogue
from .checks import FAILED, NOT_VERIFIED

# Rails and HCAs that a check is about: a fault on one rail explains nothing on another.
_NAMES = {
    "rail": re.compile(r"\brail ?(\d+)|hca_shared_devices_(\d+)"),
    "hca": re.compile(
        r"\bport ([^\s/]+)/\d|:(?:verbs|ibstat|gid|registration):(\S+)|, ([^\s/,]+)/\d+ |\d: \S+ (\S+) -> \S+ (\S+)"
    ),
}
# Checks of one node that need another: "A mlx5_0 -> B mlx5_0", "pod on A -> B".
_PEER = re.compile(r" -> (\S+)")
# Findings in objects of the cluster are listed with its first host and apply to all hosts.
_EVERYWHERE = ("nad:*", "policy:*", "plugin:config", "namespace:*", "pod:tests")


class _Found(NamedTuple):
    """A failure that a host's checks show. everywhere: in an object of the cluster, so it applies to every host."""

    failure: findings_catalogue.Failure
    host: str
    shown: list
    everywhere: bool
    about: dict


def diagnose(by_host: dict, catalogue=findings_catalogue.CATALOGUE) -> tuple[dict, dict]:
    """(checks, verdicts). by_host: {host: [check]}.

    checks: the same, where failed (or not verified) ones may have `failure` (id of the catalogue), `root` (true on the
    check that shows the root) and `consequence_of` (id of what explains it).
    verdicts: {host: {root, on, title, cause, evidence, fix, level, shown, consequences, besides}} for each host with a
    failed check that the catalogue explains: root is an id, on the host that shows it; the last three are checks.
    """
    checks = {host: [dict(item) for item in items] for host, items in by_host.items()}
    found = [one for failure in catalogue for host, items in checks.items() for one in _shown(failure, host, items)]
    causes = _unexplained(found)
    # A root may be another host's, so all are found before the first verdict.
    on = core_text.grouped((one.host, one) for one in found)
    explained = {host: _name_all(host, items, on.get(host, []), causes) for host, items in checks.items()}
    roots = {host: [*causes.get(host, []), *explained[host]] for host in checks}
    return checks, {host: _verdict(found[0], host, checks[host]) for host, found in roots.items() if found}


@functools.cache
def _is(identity: str, patterns: tuple) -> bool:
    return any(fnmatch.fnmatchcase(identity, pattern) for pattern in patterns)


def _shows(item: dict, failure: findings_catalogue.Failure) -> bool:
    seen = f"{item['object']}: {item['seen']}"
    return any(
        (item["status"] == FAILED or (sign.hint and item["status"] == NOT_VERIFIED))
        and _is(item["id"], (sign.check,))
        and re.search(sign.text, seen)
        for sign in failure.shown_by
    )


def _shown(failure: findings_catalogue.Failure, host: str, items: list[dict]):
    """The failure on a host, if it occurred; a mere hint counts only if it explains a failed check."""
    shown = [item for item in items if _shows(item, failure)]
    if shown:
        one = _Found(failure, host, shown, any(_is(item["id"], _EVERYWHERE) for item in shown), _about(shown))
        if any(item["status"] == FAILED for item in shown) or any(_explains(one, item) for item in items):
            yield one


def _about(items) -> dict[str, set]:
    """{rail: numbers, hca: names} that checks mention."""
    texts = [_names(f"{item['id']} {item['object']} {item['seen']}") for item in items]
    return {kind: set().union(*(one[kind] for one in texts)) for kind in _NAMES}


@functools.lru_cache(maxsize=4096)
def _names(text_of: str) -> dict[str, set]:
    return {
        kind: {part for match in pattern.finditer(text_of) for part in match.groups() if part}
        for kind, pattern in _NAMES.items()
    }


def _explains(one: _Found, item: dict) -> bool:
    """Whether a check fails because of a failure: both concern the same rail and HCA, or none."""
    if item["status"] != FAILED or not _is(item["id"], tuple(one.failure.leads_to)):
        return False
    about = _about([item])
    return all(not one.about[kind] or not about[kind] or one.about[kind] & about[kind] for kind in _NAMES)


def _by(host: str, item: dict, causes: dict, but: str = "") -> _Found | None:
    """The cause on the host, in objects of the cluster, or at the far end of a connection."""
    far = [one for peer in _PEER.findall(item["object"]) if peer != host for one in causes.get(peer, [])]
    known = [*causes.get(host, []), *(one for one in causes.get(None, []) if one.host != host), *far]
    return next((one for one in known if one.failure.id != but and _explains(one, item)), None)


def _unexplained(found: list[_Found]) -> dict:
    """{host, or None for all hosts: failures with signs that no earlier one of the catalogue explains}.

    found is in the catalogue's order.
    """
    causes: dict = {}
    for one in found:
        left = [item for item in one.shown if not _by(one.host, item, causes, but=one.failure.id)]
        if left:
            cause = one._replace(shown=left, about=_about(left))
            for place in [one.host, None] if one.everywhere else [one.host]:
                causes.setdefault(place, []).append(cause)
    return causes


def _among(item: dict, items: list[dict]) -> bool:
    """Identity, because two checks may be equal."""
    return any(item is one for one in items)


def _name_all(host: str, items: list[dict], found: list[_Found], causes: dict) -> list[_Found]:
    """Set failure, root and consequence_of on a host's checks; returns the failures that explain some of them.

    found: the failures that the host's own checks show.
    """
    beneath = []
    own = causes.get(host, [])
    for item in items:
        shown = next((one for one in own if _among(item, one.shown)), None)
        name = shown or next((one for one in found if _among(item, one.shown)), None)
        if name:
            item["failure"] = name.failure.id
        by = None if shown else _by(host, item, causes)
        if by:
            item["consequence_of"] = by.failure.id
            beneath.append(by)
    return beneath


def _verdict(root: _Found, host: str, items: list[dict]) -> dict:
    failure = root.failure
    shown = [item for item in root.shown if item["failure"] == failure.id]
    if root.host == host:
        for item in shown:
            item["root"] = True
    beneath = [item for item in items if item.get("consequence_of") == failure.id]
    marked = [id(item) for item in [*shown, *beneath]]
    return {
        "root": failure.id,
        "on": root.host,
        **{key: getattr(failure, key) for key in ("title", "cause", "evidence", "fix", "level")},
        "shown": shown,
        "consequences": beneath,
        "besides": [item for item in items if item["status"] == FAILED and id(item) not in marked],
    }


def text(verdicts: dict) -> str:
    """One block per root, with its consequences beneath it; hosts with the same verdict share it."""
    keyed = ((host, _lines(host, verdict)) for host, verdict in verdicts.items())
    return "\n".join(f"{core_text.names(hosts)}  {lines}" for hosts, lines in core_text.alike(keyed))


def _lines(host: str, verdict: dict) -> str:
    where = "" if verdict["on"] == host else f", seen on {verdict['on']}"
    lines = [f"{verdict['root']}: {verdict['title']}{where}"]
    lines += [core_text.wrapped("  seen       ", f"{item['object']}: {item['seen']}") for item in verdict["shown"]]
    lines += [core_text.wrapped(f"  {key:<11}", verdict[key]) for key in ("cause", "evidence", "fix")]
    for key, title in (("consequences", "beneath it"), ("besides", "besides")):
        if verdict[key]:
            lines.append(f"  {title}")
            for item in verdict[key]:
                name = f"{item['failure']}: " if item.get("failure") else ""
                lines.append(core_text.wrapped("    ", f"{name}{item['object']}: {item['seen']}", " " * 6))
    return "\n".join(lines)
