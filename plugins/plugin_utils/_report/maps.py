"""The GPU-NIC map of a node: a tree per NUMA node, from the PCI host bridge to GPUs and HCAs with their rails. Pure."""

from collections.abc import Sequence
from typing import Any, Optional

from ...module_utils._core.text import count, grouped
from ...module_utils.hca import pcie_path
from ...module_utils.hca.text import natural
from .._core.rails import is_active, rail_states

_PCI, _UNNAMED, _SOFTWARE = 0, 1, 2
VIRTUAL = ("vf", "sf")
# How traffic between a rail's HCA and its GPU goes.
_WAYS = {
    pcie_path.DIRECT: "direct",
    pcie_path.ROOT_COMPLEX: "through the root complex",
    pcie_path.TRANSLATED: "translated by the IOMMU",
    pcie_path.TRANSLATED_ONLY: "direct if translated by ATS",
}


def maps(facts: dict, claims: Sequence[dict] = ()) -> list[dict]:
    """[{name, tree}], one per NUMA node. A tree is a list of {label, below} and of leaves: {kind, name, model, detail,
    warn, lines}. claims: on the node's HCAs, as in the results document.
    """
    groups = grouped((_group(leaf), leaf) for leaf in _leaves(facts, claims))
    return [{"name": _name(*group), "tree": _tree(groups[group])} for group in sorted(groups)]


def _group(leaf: dict) -> tuple:
    if leaf["function"] is None:
        return (_SOFTWARE, 0)
    node = leaf["function"].get("numa_node")
    return (_UNNAMED, 0) if node is None or node < 0 else (_PCI, node)


def _name(kind: int, number: int) -> str:
    names = {_UNNAMED: "NUMA node not reported by the firmware", _SOFTWARE: "Software HCAs, on no PCI device"}
    return names.get(kind, f"NUMA node {number}")


def gpu_names(facts: dict) -> dict[str, str]:
    return {gpu["address"]: f"GPU {gpu.get('index', '?')}" for gpu in facts.get("gpus") or []}


def _leaves(facts: dict, claims: Sequence[dict]) -> list[dict]:
    names = gpu_names(facts)
    ways = {path["rail"]: _WAYS.get(path["verdict"]) for path in (facts.get("pcie") or {}).get("paths") or []}
    rails = [{**rail, "way": ways.get(rail["index"])} for rail, _port in rail_states(facts)]
    hcas = facts.get("hcas") or []
    leaves = [
        _leaf(
            "gpu",
            gpu,
            names[gpu["address"]],
            lines=[
                {
                    "title": f"rail {rail['index']}",
                    "distance": rail.get("distance"),
                    "to": rail["hca"],
                    "way": rail["way"],
                    "state": None,
                }
                for rail in rails
                if rail.get("gpu") == gpu["address"]
            ],
        )
        for gpu in facts.get("gpus") or []
    ]
    # Virtual and sub-functions share the line of their card, however many there are.
    leaves += [_hca(hca, hcas, rails, names, claims) for hca in hcas if hca.get("function") not in VIRTUAL]
    cards = facts.get("cards_without_rdma") or []
    return leaves + [_leaf("none", card, "no RDMA device", warn="no driver took this card") for card in cards]


def _leaf(kind: str, function: Optional[dict], name: str, **more: Any) -> dict:
    return {
        "kind": kind,
        "function": function,
        "name": name,
        "model": (function or {}).get("model"),
        "detail": function["address"] if function else "no PCI device",
        "warn": None,
        "lines": [],
        **more,
    }


def _hca(hca: dict, hcas: list[dict], rails: list[dict], names: dict, claims: Sequence[dict]) -> dict:
    function = hca.get("pci")
    able = slow_link(function)
    held = {claim["claim"] for claim in claims if claim["hca"] == hca["name"]}
    below = sum(_is_below(other, function) for other in hcas if function)
    detail = [
        function["address"] if function else "no PCI device",
        link_speed(function),
        f"+{below} VF/SF" if below else None,
        count(len(held), "claim") if held else None,
    ]
    of_port = {rail["port"]: rail for rail in rails if rail["hca"] == hca["name"]}
    return _leaf(
        "nic",
        function,
        hca["name"],
        model=(function or {}).get("model") or hca.get("kind"),
        detail=", ".join(part for part in detail if part),
        warn=f"the slot can do {able}" if able else None,
        lines=[_line(hca, port, of_port.get(port["number"]), names) for port in hca["ports"]],
    )


def _is_below(hca: dict, card: dict) -> bool:
    function = hca.get("pci") or {}
    own = function.get("address") if hca.get("function") == "sf" else function.get("physfn")
    return own == card["address"]


def link_speed(function: Optional[dict]) -> Optional[str]:
    link = (function or {}).get("link") or {}
    return f"{link['speed_gts']:g} GT/s x{link.get('width') or '?'}" if link.get("speed_gts") else None


def slow_link(function: Optional[dict]) -> Optional[str]:
    """The full speed of a PCIe link that runs slower; None if it runs at full speed, or if unknown."""
    link = (function or {}).get("link") or {}
    pairs = [(link.get(key), link.get(f"max_{key}")) for key in ("speed_gts", "width")]
    if any(now and able and now < able for now, able in pairs):
        return f"{link.get('max_speed_gts') or 0:g} GT/s x{link.get('max_width')}"
    return None


def _line(hca: dict, port: dict, rail: Optional[dict], names: dict) -> dict:
    nearest = hca.get("nearest_gpus") or []
    near = rail or ({"gpu": nearest[0]["address"], **nearest[0]} if len(nearest) == 1 else {})
    title = f"rail {rail['index']}" if rail else "no rail"
    rate = f"{port['rate_gbps']:g} Gb/s" if port.get("rate_gbps") else None
    return {
        "title": f"port {port['number']}, {title}" if len(hca["ports"]) > 1 else title,
        "distance": near.get("distance"),
        "to": names.get(near.get("gpu"), near.get("gpu")),
        "way": near.get("way"),
        "level": "ok" if is_active(port) else "bad" if rail else "off",
        "state": " ".join(part for part in (port.get("state") or "?", rate, port.get("netdev")) if part),
    }


def _tree(leaves: list[dict]) -> list:
    root: dict[tuple, Any] = {}
    for leaf in leaves:
        *bridges, own = _path(leaf)
        place = root
        for name in bridges:
            place = place.setdefault((name, "bridge"), {})
        place.setdefault((own, "leaf"), []).append(leaf)
    return _items(root, 0)


def _path(leaf: dict) -> list[str]:
    if leaf["function"] is None:
        return [leaf["name"]]
    return list(leaf["function"].get("path") or []) or ["?", leaf["function"]["address"]]


def _items(branch: dict, depth: int) -> list:
    """What is on a bridge, in order. Bridges with a single thing below get no label."""
    items: list = []
    for (name, kind), inner in sorted(branch.items(), key=lambda item: natural(item[0][0])):
        last = name
        while kind == "bridge" and [below for _name, below in inner] == ["bridge"]:
            (((last, _kind), inner),) = inner.items()
        if kind == "leaf":
            items += inner
        elif depth and len(inner) == 1:
            items += _items(inner, depth)
        else:
            items.append({"label": _label(name, last, depth), "below": _items(inner, depth + 1)})
    return items


def _label(name: str, last: str, depth: int) -> str:
    if name == "?":
        return "place in the PCI tree unknown"
    if depth:
        return f"bridge {last}"
    return name if last == name else f"{name}, bridge {last}"
