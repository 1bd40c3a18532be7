# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page: one self-contained HTML file that loads nothing from the network and runs only its own few lines.

PRIVATE to the collection. Pure: the same document gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from . import drawing, heat, judge, style
from .judge import BAD, OK, OPEN
from .markup import Markup, count, icon, join, table, tag

# With more nodes than this, even failed ones start folded: the fixes above list their failures.
_OPEN_AT_MOST = 4
_WORDS = {OK: "passed", OPEN: "open", BAD: "needs attention"}
_PORT_HEADER = ("HCA/port", "Rail", "State", "Rate", "Netdev", "GPU", "Model", "PCI", "PCIe link", "NUMA", "Firmware")


def page(document: dict, title: str = "RDMA report") -> str:
    """HTML of a results document that `document.findings` accepts."""
    judged = judge.nodes(document)
    anchors = {node["host"]: node["anchor"] for node in judged}
    sections = [
        ("fix", "What to fix", _fixes(judged)),
        ("nodes", "Nodes", _nodes(judged)),
        ("bandwidth", "Bandwidth", _bandwidth(document.get("matrix"), anchors)),
        ("drift", "Drift", _drift(document.get("drift"), anchors)),
    ]
    body = [
        tag("a", "Skip to the report", href="#main", class_="skip"),
        Markup(style.SPRITE),
        tag("header", tag("div", tag("h1", title), _when(document), class_="bar")),
        tag(
            "main",
            _summary(judged, document),
            tag("nav", [tag("a", name, href=f"#{key}") for key, name, _content in sections], aria_label="Sections"),
            [tag("section", tag("h2", name, id=key), content, aria_labelledby=key) for key, name, content in sections],
            id="main",
        ),
        tag("footer", tag("p", "Written by gpufabric.rdma from ", document["schema"], ". This file loads nothing.")),
        tag("p", id="said", role="status", class_="vh"),
        tag("script", Markup(style.SCRIPT)),
    ]
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="color-scheme", content="light dark"),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("title", f"{title}: {judge.headline(judged)[1]}"),
        tag("style", Markup(style.STYLE)),
    ]
    return f"<!DOCTYPE html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def policy() -> str:
    """Content security policy: the one style sheet and the one script of this page, and nothing else."""
    style_hash, script_hash = (_hash(text) for text in (style.STYLE, style.SCRIPT))
    return (
        f"default-src 'none'; style-src '{style_hash}'; script-src '{script_hash}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _when(document: dict) -> Markup:
    return tag(
        "p", "Verified ", tag("time", document["at"].replace("T", " ").replace("Z", " UTC"), datetime=document["at"])
    )


# --- summary ---------------------------------------------------------------------------------------------------------


def _summary(judged: list[dict], document: dict) -> Markup:
    level, sentence = judge.headline(judged)
    tiles = [_node_tile(judged), _check_tile(judged), _rail_tile(judged)]
    tiles.append(_tile("Bandwidth", *judge.bandwidth(document.get("matrix"))))
    tiles.append(_tile("Drift", *judge.drift(document.get("drift"))))
    by_name = sorted(judged, key=lambda node: judge.natural(node["host"]))
    return tag(
        "section",
        tag("h2", icon(level), " ", sentence, id="summary", class_=level),
        tag("ul", tiles, class_="tiles"),
        tag("h3", "Nodes at a glance", class_="vh"),
        tag("ul", [_mark(node) for node in by_name], class_="marks") if len(judged) > 1 else None,
        aria_labelledby="summary",
        class_="summary",
    )


def _tile(title: str, level: str, figure: str, explanation: str) -> Markup:
    return tag(
        "li", tag("h3", icon(level), " ", title), tag("p", figure, class_="figure"), tag("p", explanation), class_=level
    )


def _node_tile(judged: list[dict]) -> Markup:
    counts = {level: sum(node["level"] == level for node in judged) for level in judge.LEVELS}
    explanation = f"nodes passed; {counts[BAD]} need attention, {counts[OPEN]} open"
    return _tile("Nodes", judge.headline(judged)[0], f"{counts[OK]} of {len(judged)}", explanation)


def _check_tile(judged: list[dict]) -> Markup:
    total = judge.tally([item for node in judged for item in node["checks"]])
    needed = total["passed"] + total["failed"] + total["not_verified"]
    level = BAD if total["failed"] else OPEN if total["not_verified"] or not total["passed"] else OK
    explanation = f"checks passed; {total['failed']} failed, {total['not_verified']} not verified"
    if total["unused"]:
        explanation += f" ({total['unused']} unused left out)"
    return _tile("Checks", level, f"{total['passed']} of {needed}", explanation)


def _rail_tile(judged: list[dict]) -> Markup:
    rails = sum(len(node["rails"]) for node in judged)
    active = sum(node["active"] for node in judged)
    unread = sum(node["facts"] is None for node in judged)
    level = BAD if active < rails else OPEN if unread or not rails else OK
    rest = f"; {count(unread, 'node')} not read" if unread else ""
    return _tile("Rails", level, f"{active} of {rails}", f"rail ports ACTIVE{rest}")


def _mark(node: dict) -> Markup:
    said = ", ".join(note for _level, note in node["notes"]) or _WORDS[OK]
    content = [icon(node["level"]), " ", node["host"], tag("span", f": {said}", class_="vh")]
    return tag("li", tag("a", content, href=f"#{node['anchor']}", class_=node["level"]))


# --- what to fix -----------------------------------------------------------------------------------------------------


def _fixes(judged: list[dict]) -> list:
    failed, unproven = judge.failures(judged), judge.failures(judged, "not_verified")
    parts: list[Any] = []
    if failed:
        parts.append(tag("ol", [_card(entry, BAD) for entry in failed], class_="cards"))
    elif any(node["tally"]["passed"] for node in judged):
        parts.append(tag("p", icon(OK), " No check failed.", class_=OK))
    else:
        parts.append(tag("p", icon(OPEN), " No check was made, so nothing is proven.", class_=OPEN))
    if unproven:
        title = f"Not verified: {count(sum(node['tally']['not_verified'] for node in judged), 'check')}"
        cards = tag("ol", [_card(entry, OPEN) for entry in unproven], class_="cards")
        parts.append(
            tag("details", tag("summary", tag("h3", icon(OPEN), " ", title)), cards, class_="matters", open=not failed)
        )
    waiting = [node for node in judged if node["reboot_reasons"]]
    if waiting:
        rows = [
            (_links([node]), tag("ul", [tag("li", reason) for reason in node["reboot_reasons"]])) for node in waiting
        ]
        parts.append(table("Reboots that wait for consent", ("Node", "Why"), rows))
    return parts


def _card(entry: dict, level: str) -> Markup:
    heading = [
        icon(level),
        " ",
        entry["title"],
        tag("code", entry["failure"]) if entry["failure"] else None,
        tag("span", count(len(entry["hosts"]), "node"), class_="tally"),
    ]
    step = tag("div", tag("h4", "Fix"), tag("p", entry["next_step"], class_="step"), class_="fix")
    items = [tag("li", row["object"], ": ", row["seen"], " (", _links(row["hosts"]), ")") for row in entry["follows"]]
    return tag(
        "li",
        tag("h3", heading),
        _occurrences(entry),
        step if entry["next_step"] else None,
        [tag("h4", "Follows from it"), tag("ul", items, class_="follows")] if items else None,
        class_=level,
    )


def _occurrences(entry: dict) -> Markup:
    rows = [(row["object"], row["wanted"], row["seen"], _links(row["hosts"])) for row in entry["rows"]]
    if len(rows) == 1:
        pairs = zip(("Wanted", "Seen", "On"), rows[0][1:])
        return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs])
    caption = tag("span", f"What was wanted and seen: {entry['title']}", class_="vh")
    return table(caption, ("Object", "Wanted", "Seen", "On"), rows)


def _links(nodes: list[dict]) -> Markup:
    return join(
        [
            [" " if place else None, tag("a", node["host"], href=f"#{node['anchor']}")]
            for place, node in enumerate(nodes)
        ]
    )


# --- nodes -----------------------------------------------------------------------------------------------------------


def _nodes(judged: list[dict]) -> list:
    failing = sum(node["level"] == BAD for node in judged)
    legend = tag(
        "p",
        "Each map is the node's PCI tree, from the host bridge down. A bracket joins a rail's HCA with its GPU: ",
        [[tag("span", tag("b", far), f" {words}", class_=f"key {far}"), " "] for far, words in _DISTANCES],
        icon(OPEN),
        " in a box means no RDMA device, or a PCIe link below its full speed.",
        class_="legend",
    )
    every = len(judged) <= _OPEN_AT_MOST
    return [
        legend,
        [_node(node, every or (node["level"] == BAD and failing <= _OPEN_AT_MOST)) for node in judged],
    ]


_DISTANCES = (
    ("PIX", "below one PCIe switch"),
    ("PXB", "several bridges apart"),
    ("PHB", "below one host bridge"),
    ("NODE", "in one NUMA node"),
    ("SYS", "across NUMA nodes"),
)


def _node(node: dict, opened: bool) -> Markup:
    facts, counts = node["facts"], node["tally"]
    notes = [tag("span", icon(level), " ", note, class_=f"note {level}") for level, note in node["notes"]]
    heading = tag(
        "summary",
        tag("h3", icon(node["level"]), " ", node["host"], class_=node["level"]),
        _rail_strip(node),
        tag("span", f"{counts['passed']} passed", class_="count"),
        tag("span", notes or tag("span", icon(OK), " passed", class_=f"note {OK}"), class_="notes"),
    )
    content: list[Any] = [_facts(node), _failed(node)]
    if facts is not None:
        content += [tag("div", drawing.drawings(facts, node["anchor"]), class_="maps"), _ports(facts), _left_out(facts)]
    content.append(_passed(node))
    matters = node["level"] != OK
    class_ = f"node {node['level']}{' matters' if matters else ''}"
    return tag("details", heading, tag("div", content, class_="inside"), id=node["anchor"], class_=class_, open=opened)


def _rail_strip(node: dict) -> Markup:
    if node["facts"] is None:
        return tag("span", "not read", class_="strip")
    if not node["rails"]:
        return tag("span", "no rails", class_="strip")
    boxes = [tag("i", class_="on" if judge.is_active(port) else "dn") for _rail, port in node["rails"]]
    return tag(
        "span", tag("span", boxes, aria_hidden="true"), f" {node['active']}/{len(node['rails'])} rails", class_="strip"
    )


def _facts(node: dict) -> Markup:
    facts = node["facts"]
    if facts is None:
        return tag("p", icon(OPEN), " This node could not be read, so there is no map; its checks below say why.")
    machine, loaded = facts.get("node") or {}, (facts.get("driver") or {}).get("loaded") or {}
    direct = facts.get("gpudirect") or {}
    pairs = (
        ("System", (machine.get("os") or {}).get("pretty_name")),
        ("Kernel", " ".join(part for part in (machine.get("kernel"), machine.get("architecture")) if part)),
        ("Driver loaded", " ".join(part for part in (loaded.get("flavor"), loaded.get("version")) if part)),
        ("RDMA netns", (facts.get("subsystem") or {}).get("netns_mode")),
        ("GPUDirect", direct.get("mode")),
        ("GPUs", len(facts["gpus"]) if "gpus" in facts else None),
        ("HCAs", len(facts["hcas"]) if "hcas" in facts else None),
    )
    return tag(
        "dl",
        [
            tag("div", tag("dt", name), tag("dd", "not known" if value in (None, "") else value))
            for name, value in pairs
        ],
    )


def _ports(facts: dict) -> Markup:
    rails = {(rail["hca"], rail["port"]): rail for rail, _found in judge.rail_states(facts)}
    names = {gpu["address"]: f"GPU {gpu.get('index', '?')}" for gpu in facts.get("gpus") or []}
    rows, virtual = [], 0
    for hca in facts.get("hcas") or []:
        if hca.get("function") in ("vf", "sf"):
            virtual += 1
            continue
        rows += [_port(hca, port, rails.get((hca["name"], port["number"])), names) for port in hca["ports"]]
    rows += [_bare(card) for card in facts.get("cards_without_rdma") or []]
    if not rows:
        return tag("p", icon(OPEN), " No HCA port was found on this node.")
    caption = "HCAs and ports" + (f"; {count(virtual, 'virtual or sub-function')} not listed" if virtual else "")
    return table(caption, _PORT_HEADER, rows, "ports")


def _port(hca: dict, port: dict, rail: Any, names: dict) -> tuple:
    function = hca.get("pci") or {}
    link, able = function.get("link") or {}, drawing.slow_link(hca.get("pci"))
    level = OK if judge.is_active(port) else BAD if rail else "off"
    nearest = [rail] if rail and rail.get("gpu") else hca.get("nearest_gpus") or []
    gpus = [
        (names.get(address, address), near.get("distance"))
        for near in nearest
        for address in [near.get("gpu") or near.get("address")]
    ]
    state = f"{port.get('state') or '?'} {port.get('phys_state') or ''}".strip()
    speed = f"{link['speed_gts']:g} GT/s x{link.get('width') or '?'}" if link.get("speed_gts") else "-"
    return (
        f"{hca['name']}/{port['number']}",
        rail["index"] if rail else "-",
        tag("span", icon(level), " ", state, class_=level),
        port.get("rate_text") or (f"{port['rate_gbps']:g} Gb/s" if port.get("rate_gbps") else "-"),
        port.get("netdev") or "-",
        ", ".join(f"{name} {far or ''}".strip() for name, far in gpus) or "-",
        function.get("model") or hca.get("kind") or "-",
        function.get("address") or "-",
        tag("span", icon(OPEN), f" {speed} of {able}", class_=OPEN) if able else speed,
        function.get("numa_node", "-") if function.get("numa_node", -1) not in (None, -1) else "-",
        hca.get("firmware") or "-",
    )


def _bare(card: dict) -> tuple:
    state = tag("span", icon(BAD), " no RDMA device", class_=BAD)
    numa = card.get("numa_node")
    return (
        card["address"],
        "-",
        state,
        "-",
        ", ".join(card.get("netdevs") or []) or "-",
        "-",
        card.get("model") or "-",
        card["address"],
        "-",
        "-" if numa in (None, -1) else numa,
        "-",
    )


def _left_out(facts: dict) -> list:
    found = []
    bare = facts.get("cards_without_rdma") or []
    if bare:
        rows = [(card["address"], card.get("reason") or "", card.get("next_step") or "") for card in bare]
        found.append(table("Cards without an RDMA device", ("PCI address", "Why", "Next step"), rows))
    excluded = [item for item in facts.get("rails_excluded") or [] if not item["reason"].startswith("It is a virtual")]
    if excluded:
        rows = [(item["hca"] or "a named rail", item["reason"]) for item in excluded]
        found.append(table("No rail", ("HCA", "Why"), rows))
    return found


def _failed(node: dict) -> list:
    parts: list[Any] = []
    troubled = [item for status in ("failed", "not_verified") for item in node["checks"] if item["status"] == status]
    if troubled:
        rows = [(_state(item), item["object"], item["wanted"], item["seen"], item["next_step"]) for item in troubled]
        parts.append(
            table("Checks that failed or were not verified", ("Result", "Object", "Wanted", "Seen", "Next step"), rows)
        )
    if node["slow"]:
        parts.append(
            tag(
                "p",
                icon(BAD),
                f" {count(len(node['slow']), 'slow path')}: see ",
                tag("a", "Bandwidth", href="#bandwidth"),
                ".",
                class_=BAD,
            )
        )
    return parts


def _passed(node: dict) -> Any:
    rest = [item for item in node["checks"] if item["status"] in ("passed", "unused")]
    if not rest:
        return None
    unused = f", {node['tally']['unused']} unused" if node["tally"]["unused"] else ""
    rows = [(item["object"], item["seen"], item["status"]) for item in rest]
    content = table("Checks that passed or are unused", ("Object", "Seen", "Result"), rows)
    return tag("details", tag("summary", f"{node['tally']['passed']} passed{unused}"), content)


def _state(item: dict) -> Markup:
    level, word = (BAD, "failed") if item["status"] == "failed" else (OPEN, "not verified")
    return tag("span", icon(level), " ", word, class_=level)


# --- bandwidth and drift ---------------------------------------------------------------------------------------------


def _bandwidth(matrix: Any, anchors: dict[str, str]) -> list:
    level, figure, explanation = judge.bandwidth(matrix)
    said = f"{figure} {explanation}" if matrix and matrix["tests"] else f"Bandwidth was {figure}: {explanation}."
    first = tag("p", icon(level), " ", said, f" (measured {matrix['at']})" if matrix else None, class_=level)
    return [first, heat.section(matrix, anchors) if matrix and matrix["tests"] else None]


def _drift(document: Any, anchors: dict[str, str]) -> list:
    level, figure, explanation = judge.drift(document)
    if not document:
        return [tag("p", icon(level), f" Drift was {figure}: {explanation}.", class_=level)]

    def linked(hosts):
        links = [tag("a", host, href=f"#{anchors[host]}") if host in anchors else host for host in hosts]
        return join([[" " if place else None, link] for place, link in enumerate(links)])

    parts: list[Any] = [tag("p", icon(level), f" {figure} {explanation} (compared {document['at']})", class_=level)]
    others = [host for host in document["hosts"] if host["verdict"] != "converged"]
    others.sort(key=lambda host: (-judge.LEVELS.index(judge.drift_level(host["verdict"])), judge.natural(host["host"])))
    if others:
        rows = [
            (
                linked([host["host"]]),
                tag(
                    "span",
                    icon(judge.drift_level(host["verdict"])),
                    " ",
                    host["verdict"].replace("_", " "),
                    class_=judge.drift_level(host["verdict"]),
                ),
                tag("ul", [tag("li", reason) for reason in host.get("reasons") or []])
                if host.get("reasons")
                else count(len(host["differences"]), "difference"),
            )
            for host in others
        ]
        parts.append(table("Nodes that are not as described", ("Node", "Verdict", "Why"), rows))
    rows = [
        (item["object"], item["role"], item["wanted"], item["seen"], linked(item["hosts"]))
        for item in judge.differences(document["hosts"])
    ]
    if rows:
        parts.append(table("Differences", ("Object", "Role", "Wanted", "Seen", "On"), rows))
    return parts
