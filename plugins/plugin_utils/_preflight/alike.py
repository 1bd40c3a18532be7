"""Nodes of one product have one rail map: a node that differs from most of its like is named, with what it lacks.

PRIVATE to the collection.
"""

from __future__ import annotations

from collections import Counter

from ...module_utils._core.text import listing


def rail_map(facts: dict) -> dict:
    """What nodes are compared by: {product: [...], rails: [[index, PCI address]]}, without software HCAs."""
    models = sorted({gpu["model"] for gpu in facts.get("gpus") or ()})
    node = facts["node"]
    return {
        "product": [node.get("product"), node.get("architecture"), *models],
        "rails": [[rail["index"], rail["pci"]] for rail in facts.get("rails") or () if rail["pci"]],
    }


def differing(maps: dict[str, dict]) -> dict[str, str]:
    """{host: how it differs} from the map of more than half of the hosts of its product. maps: {host: rail_map}."""
    groups: dict[tuple, dict[str, dict]] = {}
    for host, one in maps.items():
        groups.setdefault(tuple(one["product"]), {})[host] = dict(map(tuple, one["rails"]))
    found = {}
    for product, rails in groups.items():
        (usual, count), *_others = Counter(tuple(sorted(one.items())) for one in rails.values()).most_common(1)
        if count < 2 or 2 * count <= len(rails):
            continue
        for host, own in rails.items():
            wanted = dict(usual)
            lacking = [f"rail {index} ({wanted[index]})" for index in sorted(wanted.keys() - own.keys())]
            other = [
                f"rail {index} is {own[index]} instead of {wanted.get(index, 'none')}"
                for index in sorted(own)
                if own[index] != wanted.get(index)
            ]
            if lacking or other:
                parts = [f"lacks {listing(lacking)}"] if lacking else []
                found[host] = (
                    f"its rails differ from those of {count} nodes like it ({listing(filter(None, product))}): "
                    f"{'; '.join([*parts, *other])}. Next: see its not_rails, or name its rails in discovery_rails"
                )
    return found
