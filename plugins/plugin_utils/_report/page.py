"""The page: one self-contained HTML file that loads nothing from the network and runs only its own few lines.

Pure: the same document gives the same bytes. This module chooses the content, templates/ the form.
"""

import base64
import functools
import hashlib
import pathlib
import re
from typing import Any

import jinja2
from markupsafe import Markup

from ...module_utils._core.text import clean, count
from ...module_utils.hca.text import natural
from .._core.rails import is_active, rail_states
from .._findings.checks import NOT_VERIFIED, check, tally
from . import heat, judge, maps
from .judge import BAD, OK, OPEN

TEMPLATES = pathlib.Path(__file__).parent / "templates"
# With more nodes than this, even failed ones start collapsed: the fixes above list their failures.
_OPEN_AT_MOST = 4
_WORDS = {OK: "passed", OPEN: "open", BAD: "needs attention"}


def page(document: dict, title: str = "RDMA report") -> str:
    """The page; a node whose facts cannot be shown is one that was not read."""
    try:
        return _page(document, title)
    except Exception:
        nodes = [_readable(node, document) for node in document["nodes"]]
        if nodes == document["nodes"]:
            raise
        return _page({**document, "nodes": nodes}, title)


def _readable(node: dict, document: dict) -> dict:
    try:
        _page({**document, "nodes": [node], "drift": None, "matrix": None}, "")
    except Exception as error:  # noqa: BLE001 - any error is this node's
        wanted, step = "facts that can be shown", "check which host answers there"
        odd = check("node", "facts", NOT_VERIFIED, wanted, f"{type(error).__name__}: {str(error)[:200]}", step)
        return {**node, "facts": None, "checks": [*node["checks"], odd]}
    return node


def _page(document: dict, title: str) -> str:
    judged = judge.nodes(document)
    anchors = {node["host"]: node["anchor"] for node in judged}
    level, headline = judge.headline(judged)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            at=document["at"],
            schema=document["schema"],
            level=level,
            headline=headline,
            tiles=_tiles(judged, document),
            marks=[
                {**node, "said": ", ".join(note for _level, note in node["notes"]) or _WORDS[OK]}
                for node in sorted(judged, key=lambda node: natural(node["host"]))
            ],
            fixes=_fixes(judged),
            nodes=_nodes(judged),
            bandwidth=heat.section(document.get("matrix"), anchors),
            drift=_drift(document.get("drift"), anchors),
            policy=policy(),
            style=Markup(asset("page.css")),
            script=Markup(asset("page.js")),
        )
    )


def _shown(value: Any) -> Any:
    """The output for a value: nothing for None; markup from a template is already clean."""
    if value is None:
        return ""
    return value if hasattr(value, "__html__") or isinstance(value, jinja2.Undefined) else clean(value)


@functools.cache
def environment() -> jinja2.Environment:
    """Escapes each value and replaces characters that mislead; values are data, never templates themselves."""
    jinja = jinja2.Environment(
        # A line break in a template, with the blanks around it, is not part of the page.
        loader=jinja2.FunctionLoader(lambda name: re.sub(r"\s*\n\s*", "", asset(name))),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        auto_reload=False,
    )
    jinja.globals["count"] = count
    return jinja


@functools.cache
def asset(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def policy() -> str:
    """Content security policy: the one style sheet and the one script of this page, and nothing else."""
    sums = (hashlib.sha256(asset(name).encode()).digest() for name in ("page.css", "page.js"))
    style_hash, script_hash = (f"sha256-{base64.b64encode(digest).decode()}" for digest in sums)
    return (
        f"default-src 'none'; style-src '{style_hash}'; script-src '{script_hash}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _status(level: str, text: str) -> dict:
    return {"level": level, "text": text}


def _tiles(judged: list[dict], document: dict) -> list[tuple]:
    """(title, level, figure, explanation) of each."""
    return [
        _node_tile(judged),
        _check_tile(judged),
        _rail_tile(judged),
        ("Bandwidth", *judge.bandwidth(document.get("matrix"))),
        ("Drift", *judge.drift(document.get("drift"))),
        *_cluster_tile(judged),
    ]


def _node_tile(judged: list[dict]) -> tuple:
    counts = {level: sum(node["level"] == level for node in judged) for level in judge.LEVELS}
    explanation = f"nodes passed; {counts[BAD]} need attention, {counts[OPEN]} open"
    return ("Nodes", judge.headline(judged)[0], f"{counts[OK]} of {len(judged)}", explanation)


def _check_tile(judged: list[dict]) -> tuple:
    total = tally([item for node in judged for item in node["checks"]])
    needed = total["passed"] + total["failed"] + total["not_verified"]
    level = BAD if total["failed"] else OPEN if total["not_verified"] or not total["passed"] else OK
    explanation = f"checks passed; {total['failed']} failed, {total['not_verified']} not verified"
    if total["unused"]:
        explanation += f" ({total['unused']} unused left out)"
    return ("Checks", level, f"{total['passed']} of {needed}", explanation)


def _rail_tile(judged: list[dict]) -> tuple:
    rails = sum(len(node["rails"]) for node in judged)
    active = sum(node["active"] for node in judged)
    unread = sum(node["facts"] is None for node in judged)
    level = BAD if active < rails else OPEN if unread or not rails else OK
    rest = f"; {count(unread, 'node')} not read" if unread else ""
    return ("Rails", level, f"{active} of {rails}", f"rail ports ACTIVE{rest}")


def _cluster_tile(judged: list[dict]) -> list[tuple]:
    """Says why the page has nothing about pods."""
    checks = [item for node in judged for item in node["checks"]]
    if not checks or any(item["id"].startswith("cluster:") for item in checks):
        return []
    return [("Cluster", OK, "no cluster layer", "these nodes were verified without k3s and pods")]


def _fixes(judged: list[dict]) -> dict:
    return {
        "failed": judge.failures(judged),
        "proven": any(node["tally"]["passed"] for node in judged),
        "unproven": judge.failures(judged, "not_verified"),
        "not_verified": sum(node["tally"]["not_verified"] for node in judged),
        "waiting": [node for node in judged if node["reboot_reasons"]],
    }


def _nodes(judged: list[dict]) -> list[dict]:
    failing = sum(node["level"] == BAD for node in judged)
    every = len(judged) <= _OPEN_AT_MOST
    return [_node(node, every or (node["level"] == BAD and failing <= _OPEN_AT_MOST)) for node in judged]


def _node(node: dict, opened: bool) -> dict:
    facts = node["facts"]
    shown = {
        **{key: node[key] for key in ("host", "anchor", "level", "notes", "tally", "active")},
        "opened": opened,
        "rails": [is_active(port) for _rail, port in node["rails"]],
        "slow": len(node["slow"]),
        "troubled": _troubled(node["checks"]),
        "passed": [
            (item["object"], item["seen"], item["status"])
            for item in node["checks"]
            if item["status"] in ("passed", "unused")
        ],
        "facts": None,
    }
    return shown if facts is None else {**shown, **_of_facts(facts, node["claims"])}


def _troubled(checks: list[dict]) -> list[tuple]:
    """Rows (status, objects, wanted, seen, next step); objects with the same of all else share one."""
    rows: dict[tuple, list] = {}
    for status, level, text in (("failed", BAD, "failed"), ("not_verified", OPEN, "not verified")):
        for item in checks:
            if item["status"] == status:
                key = (level, text, item["wanted"], item["seen"], item["next_step"])
                rows.setdefault(key, []).append(item["object"])
    return [(_status(*key[:2]), objects, *key[2:]) for key, objects in rows.items()]


def _of_facts(facts: dict, claims: list[dict]) -> dict:
    hcas, bare = facts.get("hcas") or [], facts.get("cards_without_rdma") or []
    return {
        "facts": _facts(facts),
        "maps": maps.maps(facts, claims),
        "ports": [*_ports(facts), *(_bare(card) for card in bare)],
        "virtual": sum(hca.get("function") in maps.VIRTUAL for hca in hcas),
        "bare": [(card["address"], card.get("reason") or "", card.get("next_step") or "") for card in bare],
        "excluded": [
            (_port_name(item), item["reason"]) for item in facts.get("not_rails") or [] if item.get("code") != "virtual"
        ],
    }


def _port_name(item: dict) -> str:
    """HCA and port of an entry of not_rails, else its PCI function, else the number that stays empty."""
    if item["hca"]:
        return f"{item['hca']}/{item['port']}" if item.get("port") else item["hca"]
    return item.get("pci") or f"rail {item['index']}"


def _facts(facts: dict) -> tuple:
    """(name, value) of a node's properties; None or empty if unknown."""
    machine, loaded = facts.get("node") or {}, (facts.get("driver") or {}).get("loaded") or {}
    return (
        ("System", (machine.get("os") or {}).get("pretty_name")),
        ("Kernel", " ".join(part for part in (machine.get("kernel"), machine.get("architecture")) if part)),
        ("Driver loaded", " ".join(part for part in (loaded.get("flavor"), loaded.get("version")) if part)),
        ("RDMA netns", (facts.get("subsystem") or {}).get("netns_mode")),
        ("GPUDirect", (facts.get("gpudirect") or {}).get("mode")),
        ("GPUs", len(facts["gpus"]) if "gpus" in facts else None),
        ("HCAs", len(facts["hcas"]) if "hcas" in facts else None),
    )


def _ports(facts: dict) -> list[tuple]:
    rails = {(rail["hca"], rail["port"]): rail for rail, _found in rail_states(facts)}
    names = maps.gpu_names(facts)
    return [
        _port(hca, port, rails.get((hca["name"], port["number"])), names)
        for hca in facts.get("hcas") or []
        if hca.get("function") not in maps.VIRTUAL
        for port in hca["ports"]
    ]


def _port(hca: dict, port: dict, rail: Any, names: dict) -> tuple:
    function = hca.get("pci") or {}
    able = maps.slow_link(function)
    level = OK if is_active(port) else BAD if rail else "off"
    nearest = [rail] if rail and rail.get("gpu") else hca.get("nearest_gpus") or []
    gpus = [
        (names.get(address, address), near.get("distance"))
        for near in nearest
        for address in [near.get("gpu") or near.get("address")]
    ]
    state = f"{port.get('state') or '?'} {port.get('phys_state') or ''}".strip()
    speed = maps.link_speed(function) or "-"
    return (
        f"{hca['name']}/{port['number']}",
        rail["index"] if rail else "-",
        _status(level, state),
        port.get("rate_text") or (f"{port['rate_gbps']:g} Gb/s" if port.get("rate_gbps") else "-"),
        port.get("netdev") or "-",
        ", ".join(f"{name} {far or ''}".strip() for name, far in gpus) or "-",
        function.get("model") or hca.get("kind") or "-",
        function.get("address") or "-",
        _status(OPEN, f"{speed} of {able}") if able else speed,
        function.get("numa_node", "-") if function.get("numa_node", -1) not in (None, -1) else "-",
        hca.get("firmware") or "-",
    )


def _bare(card: dict) -> tuple:
    numa = card.get("numa_node")
    return (
        card["address"],
        "-",
        _status(BAD, "no RDMA device"),
        "-",
        ", ".join(card.get("netdevs") or []) or "-",
        "-",
        card.get("model") or "-",
        card["address"],
        "-",
        "-" if numa in (None, -1) else numa,
        "-",
    )


def _drift(document: Any, anchors: dict[str, str]) -> dict:
    level, figure, explanation = judge.drift(document)
    if not document:
        return {"level": level, "said": f"Drift was {figure}: {explanation}.", "others": [], "differences": []}
    others = [host for host in document["hosts"] if host["verdict"] != "converged"]
    others.sort(key=lambda host: (-judge.LEVELS.index(judge.DRIFT_LEVEL[host["verdict"]]), natural(host["host"])))
    return {
        "level": level,
        "said": f"{figure} {explanation} (compared {document['at']})",
        "others": [
            {
                "host": host["host"],
                "anchor": anchors.get(host["host"]),
                "level": judge.DRIFT_LEVEL[host["verdict"]],
                "verdict": host["verdict"].replace("_", " "),
                "reasons": host.get("reasons"),
                "differences": len(host["differences"]),
            }
            for host in others
        ],
        "differences": [
            {**item, "hosts": [{"host": host, "anchor": anchors.get(host)} for host in item["hosts"]]}
            for item in judge.differences(document["hosts"])
        ],
    }
