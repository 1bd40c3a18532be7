"""The page's summary: state of each node, headline, failures grouped by their fix.

Pure. Levels, best first: ok, open (nothing failed, but something is unproven or pending), bad.
"""

from collections import Counter
from typing import Any

from ...module_utils._core.text import count
from ...module_utils.hca.text import natural
from .._core.rails import is_active, rail_states
from .._findings.checks import counted, tally

VERDICTS = ("ok", "outlier", "not_verified")
OK, OPEN, BAD = LEVELS = ("ok", "open", "bad")
DRIFT_LEVEL = {"converged": OK, "drift": OPEN, "reboot_pending": OPEN, "unsafe": BAD, "unreachable": BAD}


def worst(levels) -> str:
    return max(levels, key=LEVELS.index, default=OK)


def nodes(document: dict) -> list[dict]:
    """Each node with what the page says about it, worst first, then by name.

    {host, anchor, facts, checks, tally, level, notes, drift, slow, rails, active, reboot_reasons}; anchor is an id
    without text from the node.
    """
    drift = {item["host"]: item for item in (document.get("drift") or {}).get("hosts", [])}
    slow = suspects((document.get("matrix") or {}).get("tests", []))
    judged = [_node(node, drift.get(node["host"]), slow.get(node["host"], [])) for node in document["nodes"]]
    judged.sort(key=lambda node: natural(node["host"]))
    for number, node in enumerate(judged, 1):
        node["anchor"] = f"node-{number}"
    return sorted(judged, key=lambda node: -LEVELS.index(node["level"]))


def suspects(tests: list[dict]) -> dict[str, list[dict]]:
    """{host: the outliers it is suspected of}: of a slow pair the end with more outliers on that rail, both if equal.

    Otherwise one slow port would incriminate each of its peers.
    """
    outliers = [test for test in tests if test["verdict"] == "outlier"]
    ends = Counter((host, test["rail"]) for test in outliers for host in sorted({test["from"], test["to"]}))
    accused: dict[str, list[dict]] = {}
    for test in outliers:
        seen = {host: ends[host, test["rail"]] for host in (test["from"], test["to"])}
        for host, number in seen.items():
            if number == max(seen.values()):
                accused.setdefault(host, []).append(test)
    return accused


def _node(node: dict, drift: Any, slow: list[dict]) -> dict:
    counts, facts = tally(node["checks"]), node["facts"] or {}
    reboot = node.get("reboot_reasons") or []
    notes = []
    if counts["failed"]:
        notes.append((BAD, f"{counts['failed']} failed"))
    if drift and drift["verdict"] != "converged":
        notes.append((DRIFT_LEVEL[drift["verdict"]], drift["verdict"].replace("_", " ")))
    if slow:
        notes.append((BAD, count(len(slow), "slow path")))
    if counts["not_verified"]:
        notes.append((OPEN, f"{counts['not_verified']} not verified"))
    elif not counts["passed"] and not counts["failed"]:
        notes.append((OPEN, "nothing verified"))
    if reboot and not (drift and drift["verdict"] == "reboot_pending"):
        notes.append((OPEN, "reboot pending"))
    rails = rail_states(facts)
    return {
        "host": node["host"],
        "facts": node["facts"],
        "checks": node["checks"],
        "tally": counts,
        "level": worst(level for level, _note in notes),
        "notes": notes,
        "drift": drift,
        "slow": slow,
        "rails": rails,
        "active": sum(is_active(port) for _rail, port in rails),
        "reboot_reasons": reboot,
        "claims": node.get("claims") or [],
    }


def headline(judged: list[dict]) -> tuple[str, str]:
    """(level, sentence): the answer to the question whether all is well."""
    total = len(judged)
    bad = sum(node["level"] == BAD for node in judged)
    undecided = sum(node["level"] == OPEN for node in judged)
    if not total:
        return OPEN, "No node was checked"
    if bad:
        return BAD, f"{bad} of {count(total, 'node')} {'needs' if bad == 1 else 'need'} attention"
    if undecided:
        verb = "has" if undecided == 1 else "have"
        return OPEN, f"Nothing failed; {undecided} of {count(total, 'node')} {verb} something open"
    return OK, "The node passed every check" if total == 1 else f"All {total} nodes passed every check"


def bandwidth(matrix: Any) -> tuple[str, str, str]:
    """(level, figure, explanation) of a matrix document, or of its absence."""
    tests = (matrix or {}).get("tests", [])
    counts = counted(VERDICTS, [test["verdict"] for test in tests])
    if not tests:
        return OPEN, "not measured", "no measurement is part of this report"
    measured = counts["ok"] + counts["outlier"]
    rest = f"; {counts['not_verified']} not verified" if counts["not_verified"] else ""
    if not measured:
        return OPEN, "not verified", f"none of {count(len(tests), 'measurement')} could be made"
    level = BAD if counts["outlier"] else OPEN if rest else OK
    explanation = f"{counts['outlier']} outliers" if counts["outlier"] != 1 else "1 outlier"
    return level, f"{counts['ok']} of {measured}", f"measurements as expected; {explanation}{rest}"


def drift(document: Any) -> tuple[str, str, str]:
    if not document:
        return OPEN, "not compared", "no drift check is part of this report"
    hosts = document["hosts"]
    same = sum(host["verdict"] == "converged" for host in hosts)
    level = worst([DRIFT_LEVEL[document["verdict"]], *(DRIFT_LEVEL[host["verdict"]] for host in hosts)])
    differences = sum(len(host["differences"]) for host in hosts)
    return level, f"{same} of {len(hosts)}", f"nodes as described; {count(differences, 'difference')}"


def failures(judged: list[dict], status: str = "failed") -> list[dict]:
    """One entry per fix: {title, failure, next_step, hosts, rows: [{hosts, objects, wanted, seen}], follows: [row]}.

    Checks of all nodes with the same failure (its id in the catalogue, else the id of the check) and the same next step
    are one entry. Consequences of a failure on the same node are listed only under it. Roots come first, then what
    affects most nodes.
    """
    chosen = [(node, item) for node in judged for item in node["checks"] if item["status"] == status]
    roots = {
        (node["host"], item["failure"])
        for node, item in chosen
        if item.get("failure") and not item.get("consequence_of")
    }
    groups: dict[tuple, dict] = {}
    following = []
    for node, item in chosen:
        cause = item.get("consequence_of")
        if cause and (node["host"], cause) in roots:
            following.append((node, item))
            continue
        key = (item.get("failure"), item["next_step"], "" if item["next_step"] else item["id"])
        group = groups.setdefault(key, {"failure": item.get("failure"), "root": False, "members": [], "follows": []})
        group["root"] = group["root"] or bool(item.get("root"))
        group["members"].append((node, item))
    for node, item in following:
        for group in groups.values():
            if group["failure"] == item["consequence_of"] and any(node is other for other, _item in group["members"]):
                group["follows"].append((node, item))
                break
    entries = [_entry(key, group) for key, group in groups.items()]
    return sorted(entries, key=lambda entry: (not entry["root"], -len(entry["hosts"])))


def _entry(key: tuple, group: dict) -> dict:
    rows = _alike(group["members"])
    objects = list(dict.fromkeys(name for row in rows for name in row["objects"]))
    shown = objects[0] if len(objects) == 1 else f"{objects[0]} and {len(objects) - 1} more"
    if objects == ["node"]:
        shown = "node that could not be read"
    return {
        "title": shown,
        "failure": group["failure"],
        "root": group["root"],
        "next_step": key[1],
        "hosts": list({node["host"]: node for row in rows for node in row["hosts"]}.values()),
        "rows": rows,
        "follows": _alike(group["follows"]),
    }


def _alike(members: list[tuple[dict, dict]]) -> list[dict]:
    """Rows that say each thing once: objects of which the same was seen on the same nodes share one."""
    nodes_of: dict[tuple, list[dict]] = {}
    for node, item in members:
        nodes = nodes_of.setdefault((item["object"], item["wanted"], item["seen"]), [])
        if node not in nodes:
            nodes.append(node)
    rows: dict[tuple, dict] = {}
    for (name, wanted, seen), nodes in nodes_of.items():
        key = (wanted, seen, *(node["host"] for node in nodes))
        row = rows.setdefault(key, {"hosts": nodes, "objects": [], "wanted": wanted, "seen": seen})
        row["objects"].append(name)
    return list(rows.values())


def differences(hosts: list[dict]) -> list[dict]:
    """Drift grouped like failures: [{hosts, role, object, wanted, seen}], the most common first."""
    hosts_of: dict[tuple, list[str]] = {}
    for host in sorted(hosts, key=lambda host: natural(host["host"])):
        for item in host["differences"]:
            key = (item.get("role") or "", item["object"], item["wanted"], item["seen"])
            hosts_of.setdefault(key, []).append(host["host"])
    rows = [dict(zip(("role", "object", "wanted", "seen"), key), hosts=names) for key, names in hosts_of.items()]
    return sorted(rows, key=lambda row: -len(row["hosts"]))
