"""The config of the shared device plugin as device_plugin_resources, and what its selectors match on nodes; that of the
SR-IOV device plugin and SriovNetworkNodePolicies as networks_sriov and networks_sriov_resources. Pure.
"""

from ...module_utils._core import text
from ...module_utils._device_plugin import config
from .networks import DEVICE_PREFIX, RESOURCE, as_mapping
from .page import LEFT_OUT, NOTHING, TAKEN, UNKNOWN, WRONG, Page, short

API = "sriovnetwork.openshift.io/v1"
KINDS = ("SriovNetwork", "SriovIBNetwork")
NODE_POLICY = "SriovNetworkNodePolicy"
_ADDRESSES = ("pciAddresses", "rootDevices", "pfNames")
_NETDEVICE = "netdevice"
_NOT_TAKEN = {
    "deviceType": "functions stay with the network driver",
    "isRdma": "resources of the role are always RDMA",
    "mtu": "set it on the interface (rail_links_settings)",
    "linkType": "firmware settings stay with the operator",
    "eSwitchMode": "the role does not change the mode of the card",
    "externallyManaged": "networks_sriov leaves the functions to who makes their VFs",
    "priority": "each function is listed once",
    "nodeSelector": "networks_sriov is set for each host or group of the inventory",
    **dict.fromkeys(("bridge", "excludeTopology", "needVhostNet", "vdpaType"), "no such option"),
}
# Selectors of the SR-IOV device plugin besides addresses and models.
_NOT_SELECTED = {
    "isRdma": _NOT_TAKEN["isRdma"],
    "drivers": _NOT_TAKEN["deviceType"],
    **dict.fromkeys(("linkTypes", "auxTypes", "ddpProfiles", "pKeys", "acpiIndexes"), "the rails choose the functions"),
}
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
    if not isinstance(name, str) or not RESOURCE.fullmatch(name):
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
    if not isinstance(given, dict) or not isinstance(devices or [], list) or not any(given.values()):
        page.refuse((*path, "selectors"), "lists of names", short(given), f"name {text.listing(_SELECTORS)}")
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
    if any(kept["selectors"].values()):
        _say_matches(page, (*path, "selectors"), kept["selectors"], resource, nodes)
    else:
        page.refuse((*path, "selectors"), "a selector", short(given), f"name {text.listing(_SELECTORS)}")


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


def sriov_resources(page: Page, path: tuple, nodes: list[dict], variables: dict) -> None:
    """config.json of the SR-IOV network device plugin: each resource, by the rails of its addresses."""
    found = as_mapping(page, path, "a resource")
    if found is None:
        return
    listed = found.get("resourceList")
    if not isinstance(listed, list) or not listed:
        page.refuse(path, "a resourceList with entries", short(found), "list the resources in resourceList")
        return
    for number, entry in enumerate(listed):
        where = (*path, "resourceList", number)
        if not isinstance(entry, dict) or not RESOURCE.fullmatch(str(entry.get("resourceName") or "")):
            page.refuse(where, "an entry with resourceName", short(entry), "name the resource, without its prefix")
            continue
        if str(entry.get("deviceType") or _NETDEVICE).lower() != _NETDEVICE:
            step = "leave the entry out: the role offers functions of the network driver"
            page.refuse(where, "deviceType netDevice", short(entry["deviceType"]), step)
            continue
        given = entry.get("selectors") or {}
        each = given if isinstance(given, list) else [given]
        values = [one.get(name) or [] for one in each if isinstance(one, dict) for name in _ADDRESSES]
        if not all(isinstance(one, dict) for one in each) or not all(isinstance(value, list) for value in values):
            page.refuse((*where, "selectors"), "a mapping of lists, or several", short(given), "correct its type")
            continue
        addresses = {name: [one for part in each for one in part.get(name) or []] for name in _ADDRESSES}
        page.leave(where, dict.fromkeys(("excludeTopology", "additionalInfo"), "no such option"))
        for place in [(*where, "selectors"), *((*where, "selectors", one) for one in range(len(each)))]:
            page.leave(place, {key: why for key, why in _NOT_SELECTED.items() if page.get(*place, key) is not True})
        prefix = str(entry.get("resourcePrefix") or DEVICE_PREFIX.rstrip("/"))
        _resource(page, where, (prefix, entry["resourceName"]), addresses, nodes, variables)


def _resource(page: Page, where: tuple, name: tuple, addresses: dict, nodes: list[dict], variables: dict) -> None:
    """Whole functions if an address is that of a rail itself, else the VFs below it."""
    chosen = {str(one).partition("#")[0].lower() for given in addresses.values() for one in given}
    known = list(_rails(nodes))
    rails = sorted({rail["index"] for rail, function in known if chosen & _names(rail, function)})
    whole = {str(one).lower() for one in addresses["pciAddresses"]} & {str(rail.get("pci")) for rail, _pci in known}
    if known and not chosen:
        whole = not any(function.get("virtfns") for _rail, function in known)
    item = {"name": name[1], "prefix": name[0], "functions": "pfs" if whole else "vfs"}
    if rails:
        item["rails"] = rails
    listed = variables.setdefault("networks_sriov_resources", [])
    same = next((other for other in listed if {**other, "rails": rails} == {**item, "rails": rails}), None)
    for other in listed:
        shared = sorted(set(rails) & set(other.get("rails") or []))
        if shared and other is not same:
            seen = f"{other['prefix']}/{other['name']} and {'/'.join(name)} of rails {shared}"
            page.refuse(where, "one resource for the functions of a rail", seen, "keep one of them, without #ranges")
    if same is None:
        listed.append(item)
    elif rails:
        same["rails"] = sorted({*rails, *(same.get("rails") or [])})
    became = f"networks_sriov_resources: {'/'.join(name)}, {item['functions']} of rails {rails or 'all'}"
    if chosen and not rails:
        why = "no rail of the nodes that were read has these addresses: set rails, or run it with -e policy_hosts=GROUP"
        page.say(where, WRONG, became, why)
    else:
        page.say(where, TAKEN, became, "" if chosen else "its selectors list models, so it covers every rail")


def _rails(nodes: list[dict]):
    """(rail, PCI function of its HCA) of all nodes."""
    for node in nodes:
        known = {hca["pci"].get("address"): hca["pci"] for hca in node["facts"].get("hcas") or [] if hca.get("pci")}
        yield from ((rail, known.get(rail.get("pci"), {})) for rail in node["facts"].get("rails") or [])


def _names(rail: dict, function: dict) -> set[str]:
    """What selects a rail's function or the VFs below it."""
    return {str(one).lower() for one in (rail.get("pci"), rail.get("netdev"), *(function.get("virtfns") or [])) if one}


def functions(page: Page, nodes: list[dict], variables: dict) -> None:
    """A SriovNetworkNodePolicy: the physical functions, their number of VFs, and the VFs' resource."""
    path = ("spec", "nicSelector")
    chosen = page.get(*path) if isinstance(page.get(*path), dict) else {}
    functions_of = _functions(chosen, nodes)
    count, resource = page.get("spec", "numVfs"), page.get("spec", "resourceName")
    if not functions_of:
        step = "set rootDevices, or let nodes be read: ansible-playbook -i INVENTORY gpufabric.rdma.import_policy "
        seen = f"{short(chosen)}, which no rail of the nodes that were read fits" if nodes else short(chosen)
        page.refuse(path, "physical functions", seen, f"{step}-e policy_hosts=gpu_nodes")
    name = str(resource or "").removeprefix(DEVICE_PREFIX)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or not RESOURCE.fullmatch(name):
        seen = f"numVfs {short(count)}, resourceName {short(resource)}"
        page.refuse(("spec",), "numVfs and resourceName", seen, "set both; a resource without another prefix")
        return
    outside = page.get("spec", "externallyManaged") is True
    listed = [] if outside else variables.setdefault("networks_sriov", [])
    numbers = {item["pci"]: item["vfs"] for item in listed}
    for pci in functions_of:
        if numbers.get(pci, count) != count:
            seen, step = f"{numbers[pci]} and {count} of {pci}", "import the policies of each kind of node separately"
            page.refuse(("spec", "numVfs"), "one number of VFs for a function", seen, step)
    listed += [{"pci": pci, "vfs": count} for pci in functions_of if pci not in numbers]
    became = NOTHING if outside else f"networks_sriov: {count} VFs of {text.listing(functions_of) or 'none'}"
    page.say(("spec", "numVfs"), LEFT_OUT if outside else TAKEN, became)
    prefix = DEVICE_PREFIX.rstrip("/")
    addresses = {"pciAddresses": [], "rootDevices": functions_of}
    _resource(page, ("spec", "resourceName"), (prefix, name), addresses, nodes, variables)
    if functions_of:
        page.say(path, TAKEN, f"networks_sriov{'_resources' * outside}: {text.listing(functions_of)}")
    page.leave(("spec",), _NOT_TAKEN)


def _functions(chosen: dict, nodes: list[dict]) -> list[str]:
    """PCI addresses of the rails that fit all selectors, and rootDevices that are no rail of the nodes."""
    lists = [chosen.get(key) or [] for key in _ADDRESSES[1:]]
    if not all(isinstance(given, list) for given in lists) or not {*chosen} <= {*_ADDRESSES[1:], "vendor", "deviceID"}:
        return []
    roots, names = ([str(one).partition("#")[0] for one in given] for given in lists)
    wanted = (roots, names, *([str(chosen[key])] if chosen.get(key) else [] for key in ("vendor", "deviceID")))
    rails = [
        (rail.get("pci"), rail.get("netdev"), function.get("vendor"), function.get("device"))
        for rail, function in _rails(nodes)
    ]
    fits = [
        rail[0] for rail in rails if any(wanted) and all(not given or own in given for own, given in zip(rail, wanted))
    ]
    others = [root for root in roots if not names and root not in {rail[0] for rail in rails}]
    return list(dict.fromkeys(address for address in (*fits, *others) if address))
