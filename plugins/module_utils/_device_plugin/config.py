"""config.json of the device plugin, built from the role's variables and a node's rails.

Pure; runs on the controller.
"""

from __future__ import annotations

import fnmatch
import json

RAILS = "rails"
PLUGIN, DRA, BOTH = "device-plugin", "dra", "both"
# The number in users' manifests of the Go plugin; its own default is silently 0.
COUNT = 63
WANTED = "rails, or a list of mappings as in configList"
NAME = "hca_shared_devices_{index}"


def document(made: list[dict], interval: int) -> str:
    return json.dumps({"periodicUpdateInterval": interval, "configList": made}, indent=2) + "\n"


def entries(resources, rails: list[dict] | None, api: str = PLUGIN, dra_rails=()) -> list[dict]:
    """The configList.

    resources: `rails`, or the list, used unchanged. rails: those of the node's facts, each with index, netdev and pci.
    api: the API that the plugin serves; with both, the entries of dra_rails state that they are DRA's. ValueError
    describes problems.
    """
    if not is_known(resources):
        raise ValueError(f"wanted {WANTED}, seen {short(resources)}")
    if resources != RAILS:
        return resources
    if not rails:
        raise ValueError(
            "wanted one rail or more in the node's facts, seen none; list the resources, or set discovery_rails"
        )
    made = [_entry(rail) for rail in rails]
    for rail, entry in zip(rails, made):
        if api == BOTH and rail["index"] in dra_rails:
            entry["api"] = DRA
        if api_of(entry, api) == DRA:
            # The number from the facts, which may come from named rails; the plugin would count itself.
            entry["rail"] = rail["index"]
    return made


def is_known(resources) -> bool:
    """Whether it is rails or a list; the list's content is left to the plugin's check-config."""
    if resources == RAILS:
        return True
    return isinstance(resources, list) and bool(resources) and all(isinstance(item, dict) for item in resources)


def names(resources: list[dict]) -> list[str]:
    """The resource names of a configList; the plugin's keys are case-insensitive."""
    found = [keys(item).get("resourcename") for item in resources]
    return [name for name in found if isinstance(name, str)]


def full_name(entry: dict) -> str:
    """The resource as pods name it."""
    given = keys(entry)
    return f"{given.get('resourceprefix') or 'rdma'}/{given.get('resourcename')}"


def api_of(entry: dict, api: str) -> str:
    """The API by which the plugin serves an entry; api: its mode."""
    return (keys(entry).get("api") or PLUGIN) if api == BOTH else api


def matching(entry: dict, facts: dict) -> list[str]:
    """Names of a node's HCAs that an entry selects: OR inside a list, AND between lists. Partitions are not checked."""
    own = keys(entry)
    given, extra = _selectors(entry), _lists(own.get("extraselectors"))
    found = []
    for hca in facts.get("hcas") or []:
        pci, netdevs = hca.get("pci") or {}, hca.get("netdevs") or []
        names = {netdev["name"] for netdev in netdevs}
        have = {
            "vendors": {pci.get("vendor")},
            "deviceids": {pci.get("device")},
            "drivers": {pci.get("driver")},
            "ifnames": names,
            "linktypes": {netdev.get("type") for netdev in netdevs},
        }
        further = {
            "rdmadevices": {hca["name"]},
            "pciaddresses": {pci.get("address")},
            "ifnames": names,
            "numanodes": {pci.get("numa_node")},
        }
        good = bool(pci or own.get("softwaredevices"))
        good &= all(any(one in wanted for one in have.get(name, ())) for name, wanted in given.items() if wanted)
        good &= all(_fits(further[name], wanted) for name, wanted in extra.items() if wanted and name in further)
        found += [hca["name"]] if good else []
    return found


def _fits(values: set, wanted: list) -> bool:
    return any(
        fnmatch.fnmatchcase(value, one) if isinstance(one, str) and isinstance(value, str) else value == one
        for value in values
        for one in wanted
    )


def keys(item: dict) -> dict:
    """With keys in lower case, because the plugin accepts any case."""
    return {str(key).lower(): value for key, value in item.items()}


def interfaces(entry: dict) -> list[str]:
    return [name for name in _selectors(entry).get("ifnames", ()) if isinstance(name, str)]


def _selectors(entry: dict) -> dict[str, list]:
    own = keys(entry)
    given = _lists(own.get("selectors"))
    return given if any(given.values()) else _lists({"ifnames": own.get("devices")})


def _lists(given) -> dict[str, list]:
    """Selectors by key in lower case; anything but a mapping of lists is left to the plugin's check-config."""
    known = keys(given) if isinstance(given, dict) else {}
    return {key: value for key, value in known.items() if isinstance(value, list)}


def sets_links_up(resources: list[dict]) -> bool:
    """Whether an entry leaves linkUp at its default, true, which needs CAP_NET_ADMIN."""
    return any(keys(item).get("linkup") is not False for item in resources)


def _entry(rail: dict) -> dict:
    entry = {"resourceName": NAME.format(index=rail["index"]), "rdmaHcaMax": COUNT}
    if rail["netdev"]:
        entry["selectors"] = {"ifNames": [rail["netdev"]]}
    elif rail["pci"]:
        entry["extraSelectors"] = {"pciAddresses": [rail["pci"]]}
    else:
        entry["extraSelectors"] = {"rdmaDevices": [rail["hca"]]}
    if not rail["pci"]:
        entry["softwareDevices"] = True
    # rail_links and the operating system set interfaces up.
    entry["linkUp"] = False
    # The kubelet aligns GPUs and rails to NUMA nodes by these hints (k3s_topology_manager_policy).
    entry["topology"] = "auto"
    return entry


def short(value) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
