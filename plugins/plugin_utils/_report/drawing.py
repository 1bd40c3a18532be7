# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPU-NIC map of a node: one drawing a NUMA node, the PCI tree from the host bridge down, rails as brackets.

PRIVATE to the collection. Pure. A drawing has a title and a description; the table of ports beside it says the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from ...module_utils._core.text import clean, count
from .judge import is_active, natural, rail_states

WIDTH = 560
_INDENT, _LEFT, _BOX_END = 18, 10, 300
_LANE, _LANES = 10, 5
_LABEL_HEIGHT, _LEAF_HEIGHT, _GAP = 22, 40, 8
_CHARACTER = 6.6  # of 12 px text, on the safe side


def drawings(facts: dict, prefix: str, claims: Sequence[dict] = ()) -> list[dict]:
    """What map.svg.j2 draws of a node, a figure a NUMA node. prefix: what the ids in the drawings begin with. claims:
    on the node's HCAs, as in the results document.
    """
    groups: dict[tuple, list[dict]] = {}
    for leaf in _leaves(facts, claims):
        groups.setdefault(leaf["group"], []).append(leaf)
    return [_figure(group, groups[group], f"{prefix}-map-{number}") for number, group in enumerate(sorted(groups))]


def group_name(group: tuple) -> str:
    kind, number = group
    return {0: f"NUMA node {number}", 1: "NUMA node not named by the firmware", 2: "Software HCAs, on no PCI device"}[
        kind
    ]


def _group(function: Optional[dict]) -> tuple:
    if function is None:
        return (2, 0)
    node = function.get("numa_node")
    return (1, 0) if node is None or node < 0 else (0, node)


def _leaves(facts: dict, claims: Sequence[dict]) -> list[dict]:
    """GPUs, HCAs and cards without RDMA as {kind, group, path, address, name, detail, ports, ...}."""
    found = [
        {
            "kind": "gpu",
            "group": _group(gpu),
            "path": _path(gpu),
            "address": gpu["address"],
            "name": f"GPU {gpu.get('index', '?')}",
            "model": gpu.get("model") or "",
            "detail": gpu["address"],
            "warn": False,
            "lines": [],
        }
        for gpu in facts.get("gpus") or []
    ]
    names = {leaf["address"]: leaf["name"] for leaf in found}
    rails = {(rail["hca"], rail["port"]): rail for rail, _port in rail_states(facts)}
    hcas = facts.get("hcas") or []
    # Virtual and sub-functions stand in the line of their card, however many they are.
    for hca in hcas:
        if hca.get("function") not in ("vf", "sf"):
            held = {one["claim"] for one in claims if one["hca"] == hca["name"]}
            found.append(_hca(hca, hcas, rails, names, len(held)))
    found += [_card(card) for card in facts.get("cards_without_rdma") or []]
    return found


def _path(function: dict) -> list[str]:
    path = list(function.get("path") or [])
    return path or ["?", function["address"]]


def _hca(hca: dict, hcas: list[dict], rails: dict, names: dict, claims: int) -> dict:
    function = hca.get("pci")
    address = function["address"] if function else None
    below = [
        other
        for other in hcas
        if other is not hca
        and other.get("pci")
        and address in (other["pci"].get("physfn"), other["pci"]["address"] if other.get("function") == "sf" else None)
    ]
    detail = [address] if address else []
    link = (function or {}).get("link") or {}
    if link.get("speed_gts"):
        detail.append(f"{link['speed_gts']:g} GT/s x{link.get('width') or '?'}")
    if below:
        detail.append(f"+{len(below)} VF/SF")
    if claims:
        detail.append(count(claims, "claim"))
    return {
        "kind": "nic",
        "group": _group(function),
        "path": _path(function) if function else ["", hca["name"]],
        "address": address,
        "name": hca["name"],
        "model": (function or {}).get("model") or hca.get("kind") or "",
        "detail": "  ".join(detail) or "no PCI device",
        "warn": slow_link(function) is not None,
        "lines": [_port_line(hca, port, rails.get((hca["name"], port["number"])), names) for port in hca["ports"]],
    }


def slow_link(function: Optional[dict]) -> Optional[str]:
    """The full speed of a PCIe link that runs below it; None if it runs at it, or if unknown."""
    link = (function or {}).get("link") or {}
    pairs = [(link.get(key), link.get(f"max_{key}")) for key in ("speed_gts", "width")]
    if any(now and able and now < able for now, able in pairs):
        return f"{link.get('max_speed_gts') or 0:g} GT/s x{link.get('max_width')}"
    return None


def _port_line(hca: dict, port: dict, rail: Optional[dict], names: dict) -> dict:
    if rail:
        title = f"rail {rail['index']}"
        near = (rail.get("distance"), rail.get("gpu"))
    else:
        title = "no rail"
        nearest = hca.get("nearest_gpus") or []
        near = (nearest[0]["distance"], nearest[0]["address"]) if len(nearest) == 1 else (None, None)
    far, gpu = near
    rate = f"{port['rate_gbps']:g} Gb/s" if port.get("rate_gbps") else ""
    return {
        "rail": rail,
        "title": f"port {port['number']}, {title}" if len(hca["ports"]) > 1 else title,
        "distance": far,
        "gpu": gpu,
        "gpu_name": names.get(gpu, gpu),
        "active": is_active(port),
        "state": "  ".join(part for part in (port.get("state") or "?", rate, port.get("netdev") or "") if part),
    }


def _card(card: dict) -> dict:
    return {
        "kind": "none",
        "group": _group(card),
        "path": _path(card),
        "address": card["address"],
        "name": "no RDMA device",
        "model": card.get("model") or "",
        "detail": card["address"],
        "warn": True,
        "lines": [],
    }


# --- the tree --------------------------------------------------------------------------------------------------------


def _tree(leaves: list[dict]) -> dict:
    root: dict[str, Any] = {"below": {}, "leaves": []}
    for leaf in leaves:
        place = root
        for name in leaf["path"][:-1]:
            place = place["below"].setdefault(name, {"below": {}, "leaves": []})
        place["leaves"].append(leaf)
    return root


def _rows(tree: dict, depth: int, way: list[str]):
    """(depth, label or leaf) from the top down. Bridges with a single child get no row of their own."""
    items = [(natural(leaf["path"][-1]), leaf, None) for leaf in tree["leaves"]]
    items += [(natural(name), name, inner) for name, inner in tree["below"].items()]
    for _key, item, inner in sorted(items, key=lambda one: one[0]):
        if inner is None:
            yield depth, item
            continue
        name, last = item, item
        while not inner["leaves"] and len(inner["below"]) == 1:
            (last, inner), *_rest = inner["below"].items()
        if depth and len(inner["leaves"]) + len(inner["below"]) == 1:
            yield from _rows(inner, depth, [*way, last])
            continue
        yield depth, _label(name, last, depth)
        yield from _rows(inner, depth + 1, [*way, last])


def _label(name: str, last: str, depth: int) -> str:
    if name == "?":
        return "place in the PCI tree unknown"
    if depth:
        return f"bridge {last}"
    return name if last == name else f"{name}, bridge {last}"


def _flat(leaves: list[dict], group: tuple) -> list[tuple[int, Any]]:
    if group[0] == 2:
        return [(0, leaf) for leaf in leaves]
    return list(_rows(_tree(leaves), 0, []))


# --- the drawing -----------------------------------------------------------------------------------------------------


def _figure(group: tuple, leaves: list[dict], identity: str) -> dict:
    """{id, name, description, width, height, trunks, brackets, rows}; lengths in pixels from the top left."""
    places, height = [], _GAP
    for depth, item in _flat(leaves, group):
        tall = _LABEL_HEIGHT if isinstance(item, str) else _LEAF_HEIGHT * max(1, len(item["lines"]))
        if depth == 0 and places:
            height += _GAP
        places.append((depth, item, height, tall))
        height += tall
    brackets, beside = _brackets(places)
    return {
        "id": identity,
        "name": group_name(group),
        "description": _description(leaves),
        "width": WIDTH,
        "height": height + _GAP,
        "trunks": _trunks(places),
        "brackets": brackets,
        "rows": [
            _label_row(depth, item, top) if isinstance(item, str) else _box(depth, item, top, tall, beside)
            for depth, item, top, tall in places
        ],
    }


def _description(leaves: list[dict]) -> str:
    sentences = []
    for leaf in leaves:
        model = f" ({leaf['model']})" if leaf["model"] else ""
        lines = [f"{line['title']}{_reach(line)}, {line['state']}" for line in leaf["lines"]]
        sentences.append(
            f"{leaf['name']}{model} at {leaf['address'] or 'no PCI device'}: {'; '.join(lines)}".rstrip(": ")
        )
    return ". ".join(sentences) + "."


def _reach(line: dict) -> str:
    return f", {line['distance']} to {line['gpu_name']}" if line["distance"] else ""


def _x(depth: int) -> int:
    return _LEFT + depth * _INDENT


def _middle(item: Any, top: int) -> float:
    return top + (_LABEL_HEIGHT if isinstance(item, str) else _LEAF_HEIGHT) / 2


def _trunks(places: list) -> str:
    """The path of the tree's lines: down from each label, and across to each thing right below it."""
    drawn = []
    for number, (depth, item, top, _tall) in enumerate(places):
        if not isinstance(item, str):
            continue
        below = []
        for inner_depth, inner, inner_top, _inner_tall in places[number + 1 :]:
            if inner_depth <= depth:
                break
            if inner_depth == depth + 1:
                below.append(_middle(inner, inner_top))
        x = _x(depth) + 5
        if below:
            drawn.append(f"M{x} {top + _LABEL_HEIGHT - 3:g}V{below[-1]:g}")
            drawn += [f"M{x} {y:g}H{_x(depth + 1)}" for y in below]
    return "".join(drawn)


def _brackets(places: list) -> tuple[list[dict], int]:
    """One for each rail whose GPU is in this drawing, those that would overlap in lanes of their own; and where
    there is room for text beside them."""
    gpus = {item["address"]: top for _d, item, top, _t in places if not isinstance(item, str) and item["kind"] == "gpu"}
    spans = []
    for _depth, item, top, _tall in places:
        if isinstance(item, str):
            continue
        for number, line in enumerate(item["lines"]):
            if line["rail"] and line["gpu"] in gpus:
                ends = sorted((gpus[line["gpu"]] + _LEAF_HEIGHT / 2, top + (number + 0.5) * _LEAF_HEIGHT))
                spans.append((ends, line["distance"]))
    lanes: list[list] = []
    drawn = []
    for ends, far in sorted(spans, key=lambda span: span[0][1] - span[0][0]):
        lane = next(
            (n for n, taken in enumerate(lanes) if all(ends[1] < a or b < ends[0] for a, b in taken)), len(lanes)
        )
        lanes += [[]] if lane == len(lanes) else []
        lanes[lane].append(ends)
        x = _BOX_END + _LANE + min(lane, _LANES - 1) * 6
        drawn.append({"path": f"M{_BOX_END} {ends[0]:g}H{x}V{ends[1]:g}H{_BOX_END}", "far": far})
    return drawn, _BOX_END + 14 + (_LANE + min(len(lanes), _LANES) * 6 if lanes else 0)


def _label_row(depth: int, text: str, top: int) -> dict:
    return {"text": _cut(text, WIDTH - _x(depth)), "x": _x(depth), "y": top + 14}


def _box(depth: int, leaf: dict, top: int, tall: int, beside: int) -> dict:
    """A box as {x, top, width, height, kind, name, model, detail, warn, lines}; lines stand beside it."""
    x = _x(depth)
    room = _BOX_END - x - 16
    name = _cut(leaf["name"], room)
    return {
        "x": x,
        "top": top,
        "width": _BOX_END - x,
        "height": tall - 6,
        "kind": leaf["kind"],
        "name": name,
        "model": _cut(leaf["model"], room - (len(name) + 1) * (_CHARACTER + 0.8)),
        "detail": _cut(leaf["detail"], room - 12),
        "warn": leaf["warn"],
        "lines": [_line(line, beside, top + number * _LEAF_HEIGHT) for number, line in enumerate(leaf["lines"])],
    }


def _line(line: dict, x: int, top: int) -> dict:
    room = WIDTH - x
    reach = f"{line['distance']} to {line['gpu_name']}" if line["distance"] else ""
    title = _cut(line["title"], room)
    return {
        "x": x,
        "top": top,
        "title": title,
        "reach": _cut(reach, room - len(title) * 8),
        "level": "ok" if line["active"] else "bad" if line["rail"] else "off",
        "state": _cut(line["state"], room - 16),
    }


def _cut(text: str, room: float) -> str:
    """The text, cut to a width in pixels."""
    able = max(int(room / _CHARACTER), 0)
    shown = clean(text)
    return shown if len(shown) <= able else f"{shown[: max(able - 1, 0)]}…" if able > 1 else ""
