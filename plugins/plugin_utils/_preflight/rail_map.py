"""Rail maps: nodes of one product have the same map, and a node's map does not change unnoticed.

Pure. Rails from discovery_rails are the operator's choice and are not compared.
"""

import json
import re
from collections import Counter

from ...module_utils._cni import nad_lint
from ...module_utils._core.change import Finding
from ...module_utils._core.text import count, json_object, listing
from ...module_utils._device_plugin import config
from .host import admitted, counted

_RESOURCE = re.compile(config.NAME.format(index=r"(\d{1,3})"))
_NOBODY = ("hca", "none")
_NETWORK = re.compile(r"gpufabric-rdma-rail(\d{1,3})\.conf")
# A node's answer is shown as part of a variable: only names of interfaces and HCAs, and addresses.
_NAME = re.compile(r"[\w.:@-]{1,64}", re.ASCII)


def of_node(facts: dict, variables: dict) -> dict | None:
    """The basis for comparing nodes; None if rails are named, or will only come with the driver.

    product: the same on identical nodes: the machine and its GPUs with their places; without GPUs, its kinds of cards.
    rails: {number: PCI address}. lacks: {number: why it is empty}. hcas: how many. stated: discovery_expected_hcas.
    named: the rails as discovery_rails would name them.
    """
    coming = [card for card in facts["cards_without_rdma"] if card.get("driver") in (None, "mlx4_core", "mlx5_core")]
    if variables["discovery_rails"] or (coming and not any(hca["kind"] == "pci" for hca in facts["hcas"])):
        return None
    gpus = [f"{gpu['model']} at {gpu['address']}" for gpu in facts.get("gpus") or ()]
    models = {hca["pci"]["model"] for hca in facts["hcas"] if hca["pci"]}
    node = facts["node"]
    return {
        "product": [node.get("product"), node.get("architecture"), *(gpus or sorted(models))],
        "rails": {rail["index"]: rail["pci"] for rail in facts["rails"] if rail["pci"]},
        "lacks": {row["index"]: row["reason"] for row in facts.get("not_rails") or () if row["index"] is not None},
        "hcas": sum(hca["kind"] == "pci" for hca in counted(facts, variables)),
        "stated": variables["discovery_expected_hcas"],
        "named": json.dumps(_items(facts)),
    }


def differing(maps: dict[str, dict | None]) -> dict[str, Finding]:
    """{host: how its rails differ from those of identical nodes}.

    A node that lacks a rail of another one is reported; one with different rails only if most nodes agree. A lack that
    the host's discovery_expected_hcas states is known.
    """
    groups: dict[tuple, dict[str, dict]] = {}
    for host, own in maps.items():
        if own:
            groups.setdefault(tuple(own["product"]), {})[host] = own
    found = {}
    for alike in groups.values():
        numbers = Counter(tuple(sorted(own["rails"].items())) for own in alike.values())
        usual = max(numbers, key=lambda rails: (numbers[rails], len(rails)))
        wanted = dict(usual)
        whole = max(own["hcas"] for own in alike.values() if own["rails"] == wanted)
        like = [host for host, own in alike.items() if own["rails"] == wanted]
        for host, own in alike.items():
            lacking = sorted(wanted.keys() - own["rails"].keys())
            other = [index for index, address in own["rails"].items() if wanted.get(index) != address]
            known = own["stated"] == own["hcas"] < whole
            if (other and 2 * len(like) > len(alike)) or (lacking and not other and not known):
                found[host] = _differs(own, wanted, [*lacking, *other], like, own["hcas"] < whole and not other)
    return found


def _differs(own: dict, wanted: dict, places: list[int], like: list[str], dead: bool) -> Finding:
    known = f"discovery_expected_hcas: {own['hcas']}" if dead else f"discovery_rails: {own['named']}"
    reasons = [f"rail {index}: {own['lacks'][index]}" for index in places if index in own["lacks"]]
    return Finding(
        "rails",
        f"those of {count(len(like), 'node')} like it, such as {like[0]}: {_words(wanted, places)}",
        "; ".join([_words(own["rails"], places), *reasons]),
        f"repair it (discover shows its not_rails); to accept it, set for this host {known}",
    )


def _words(rails: dict, places: list[int]) -> str:
    return listing([f"rail {index} {rails.get(index) or 'empty'}" for index in sorted(places)])


def moved(facts: dict, variables: dict, plugin_config: str | None, files: dict[str, str]) -> list[Finding]:
    """The rail map that the node's device plugin or networks use, if its interfaces have different numbers now.

    files: name and text of what Multus reads. A rail whose interface is gone keeps its number, so it is no finding;
    neither is a new rail.
    """
    found: list[Finding] = []
    if variables["discovery_rails"]:
        return found
    there = {name for hca in admitted(facts, variables) for name in _names(hca)}
    now = {rail["index"]: (rail["netdev"], rail["pci"], rail["hca"]) for rail in facts["rails"]}
    sources = {}
    if variables["device_plugin_resources"] == config.RAILS:
        sources["the device plugin"] = _of_plugin(plugin_config)
    if variables["networks_rails"] is not False:
        sources["networks"] = _of_networks(files)
    for who, before in sources.items():
        numbers = {name: index for index, (_key, name) in before.items()}
        gone = [index for index, (_key, name) in before.items() if name in there and name not in now.get(index, ())]
        taken = [index for index, names in now.items() if {numbers.get(name, index) for name in names} != {index}]
        if gone or taken:
            found.append(_moved(facts, who, before, now, len(counted(facts, variables))))
    return found


def _moved(facts: dict, who: str, before: dict, now: dict, hcas: int) -> Finding:
    old = [dict([before.get(index, _NOBODY)]) for index in range(max(before) + 1)]
    known = {name for hca in facts["hcas"] for name in _names(hca)}
    absent = f" and discovery_expected_hcas: {hcas}" if {name for _key, name in before.values()} - known else ""
    return Finding(
        "rails",
        f"those that {who} of this node uses: "
        + listing([f"rail {index} {before[index][1]}" for index in sorted(before)]),
        listing([f"rail {index} {now[index][0] or now[index][1] or now[index][2]}" for index in sorted(now)]) or "none",
        f"to keep the old numbers, set for this host discovery_rails: {json.dumps(old)}{absent}; to take the new ones, "
        f"discovery_rails: {json.dumps(_items(facts))}",
    )


def _items(facts: dict) -> list[dict]:
    """The rails as items of discovery_rails; an empty number has the address of its card."""
    ports = {hca["name"]: len(hca["ports"]) for hca in facts["hcas"]}
    rows = {row["index"]: row["pci"] for row in facts.get("not_rails") or () if row["index"] is not None}
    items = {index: {"pci": address} for index, address in rows.items() if _NAME.fullmatch(address or "")}
    for rail in facts["rails"]:
        key = next((key for key in ("pci", "netdev", "hca") if _NAME.fullmatch(rail[key] or "")), None)
        if key:
            port = {"port": int(rail["port"])} if ports.get(rail["hca"], 1) > 1 else {}
            items[rail["index"]] = {key: rail[key], **port}
    return [items.get(index, dict([_NOBODY])) for index in range(max(items, default=-1) + 1)]


def _names(hca: dict) -> list[str]:
    return [hca["name"], *([hca["pci"]["address"]] if hca["pci"] else []), *(dev["name"] for dev in hca["netdevs"])]


def _of_plugin(text: str | None) -> dict[int, tuple[str, str]]:
    """{number: (key of discovery_rails, value)} of the resources that this collection made from rails."""
    found = {}
    for entry in nad_lint.dicts(json_object(text).get("configList")):
        name = _RESOURCE.fullmatch(str(entry.get("resourceName")))
        selectors = [entry.get(key) for key in ("selectors", "extraSelectors")]
        chosen = {key: value for one in selectors if isinstance(one, dict) for key, value in one.items()}
        for selector, key in (("ifNames", "netdev"), ("pciAddresses", "pci"), ("rdmaDevices", "hca")):
            values = chosen.get(selector)
            if name and isinstance(values, list) and len(values) == 1 and _NAME.fullmatch(str(values[0])):
                found[int(name[1])] = (key, str(values[0]))
    return found


def _of_networks(files: dict[str, str]) -> dict[int, tuple[str, str]]:
    found = {}
    for name, text in files.items():
        matched = _NETWORK.fullmatch(name)
        master = json_object(text).get("master") if matched else None
        if _NAME.fullmatch(str(master or "")):
            found[int(matched[1])] = ("netdev", master)
    return found
