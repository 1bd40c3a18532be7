"""config.json of the shared device plugin, as device_plugin_resources, and what its selectors match on nodes. Pure."""

from ...module_utils._core import text
from ...module_utils._device_plugin import config
from .networks import as_mapping
from .page import LEFT_OUT, TAKEN, UNKNOWN, WRONG, Page, short

_ENTRY_KEYS = {key.lower(): key for key in ("resourceName", "resourcePrefix", "rdmaHcaMax", "devices", "selectors")}
_SELECTORS = ("vendors", "deviceIDs", "drivers", "ifNames", "linkTypes")


def read(page: Page, path: tuple, nodes: list[dict], variables: dict) -> None:
    if "device_plugin_resources" in variables:
        page.refuse(path, "one configuration of the plugin", "a second one", "remove one of them")
    found = as_mapping(page, path, "a resource")
    if found is None:
        return
    keys = {str(key).lower(): key for key in found}
    interval = keys.get("periodicupdateinterval")
    if interval is not None:
        variables["device_plugin_interval_seconds"] = found[interval]
        page.say((*path, interval), TAKEN, f"device_plugin_interval_seconds: {short(found[interval])}")
    listed = found.get(keys.get("configlist"))
    if not isinstance(listed, list) or not listed:
        page.refuse(path, "a configList with entries", short(listed), "list the resources in configList")
        return
    entries = [_entry(page, (*path, keys["configlist"], number), entry, nodes) for number, entry in enumerate(listed)]
    variables["device_plugin_resources"] = [entry for entry in entries if entry]
    names = [entry["resourceName"] for entry in entries if entry]
    for name in sorted({name for name in names if names.count(name) > 1}):
        page.refuse(path, "one entry for each resource", f"{name} twice", "rename one")


def _entry(page: Page, path: tuple, entry, nodes: list[dict]) -> dict | None:
    name = config.keys(entry).get("resourcename") if isinstance(entry, dict) else None
    if not name or not isinstance(name, str) or "/" in name:
        step = "give each entry a resourceName; what stands before a / is its resourcePrefix"
        page.refuse(path, "an entry with resourceName", short(entry), step)
        return None
    kept = {_ENTRY_KEYS[str(key).lower()]: value for key, value in entry.items() if str(key).lower() in _ENTRY_KEYS}
    resource = f"{kept.get('resourcePrefix') or 'rdma'}/{name}"
    for key in entry:
        if str(key).lower() in ("resourcename", "resourceprefix"):
            page.say((*path, key), TAKEN, f"device_plugin_resources: {resource}")
        elif str(key).lower() not in _ENTRY_KEYS:
            page.say((*path, key), UNKNOWN, why="the shared device plugin knows no such key")
    _count(page, path, entry, kept)
    _selectors(page, path, entry, kept, resource, nodes)
    return kept


def _count(page: Page, path: tuple, entry: dict, kept: dict) -> None:
    count = kept.get("rdmaHcaMax")
    key = next((key for key in entry if str(key).lower() == "rdmahcamax"), "rdmaHcaMax")
    if count is None:
        kept["rdmaHcaMax"] = config.COUNT
        why = "without it the Go plugin serves 0, silently"
        page.say((*path, key), WRONG, f"rdmaHcaMax: {config.COUNT}", why, was="not set")
    elif isinstance(count, bool) or not isinstance(count, int) or count < 1:
        step = "set the number of units that pods may request"
        page.refuse((*path, key), "a number from 1", short(count), step)
    else:
        why = "how many units are advertised; it limits nothing on the HCA"
        page.say((*path, key), TAKEN, f"rdmaHcaMax: {count}", why)


def _selectors(page: Page, path: tuple, entry: dict, kept: dict, resource: str, nodes: list[dict]) -> None:
    devices = kept.pop("devices", None)
    if devices and not kept.get("selectors"):
        kept["selectors"] = {"ifNames": devices}
        page.say((*path, "devices"), WRONG, f"selectors: ifNames: {short(devices)}", "devices is deprecated")
    elif devices:
        page.say((*path, "devices"), LEFT_OUT, why="selectors win if both are set")
    given = kept.get("selectors")
    if not isinstance(given, dict) or not given:
        page.refuse((*path, "selectors"), "selectors", short(given), f"name {text.listing(_SELECTORS)}")
        return
    if "selectors" not in entry:
        return
    known = {name.lower(): name for name in _SELECTORS}
    kept["selectors"] = {known[key.lower()]: value for key, value in given.items() if str(key).lower() in known}
    for key, value in given.items():
        if str(key).lower() not in known:
            page.say((*path, "selectors", key), UNKNOWN, why="the shared device plugin knows no such selector")
        elif not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            step = "write it as a list of strings"
            page.refuse((*path, "selectors", key), "a list", short(value), step)
            kept["selectors"].pop(known[str(key).lower()])
    _say_matches(page, (*path, "selectors"), kept["selectors"], resource, nodes)


def _say_matches(page: Page, path: tuple, selectors: dict, resource: str, nodes: list[dict]) -> None:
    became = f"device_plugin_resources: {resource}: {short(selectors)}"
    chosen = {"selectors": selectors}
    without = {node["host"]: node["facts"] for node in nodes if not config.matching(chosen, node["facts"])}
    if without:
        there = sorted({name for facts in without.values() for name in netdevs(facts)})
        why = f"matches nothing on {text.names(without)}: 0 would be allocatable and pods stay Pending. "
        why += f"Interfaces there: {text.listing(there) or 'none'}"
        page.say(path, WRONG, f"{became}, to be corrected", why)
        return
    most = max((len(config.matching(chosen, node["facts"])) for node in nodes), default=0)
    if most > 1 or len(selectors.get("ifNames") or []) > 1:
        many = f"{most} HCAs" if most else "all that match"
        why = f"one pool of {many}: a pod gets the files of each, but a network uses only one; "
        page.say(path, TAKEN, became, f"{why}device_plugin_resources: rails makes a resource for each")
    elif not selectors.get("ifNames"):
        why = "no interface is set, so the pool includes HCAs with management traffic"
        page.say(path, TAKEN, became, why)
    else:
        page.say(path, TAKEN, became)


def netdevs(facts: dict) -> dict:
    layers = {"ether": "Ethernet", "infiniband": "InfiniBand"}
    return {
        netdev["name"]: layers.get(netdev.get("type"))
        for hca in facts.get("hcas") or []
        for netdev in hca.get("netdevs") or []
    }
