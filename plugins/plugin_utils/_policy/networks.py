"""Networks of Network Operator (kinds: TYPES) and nv-ipam's IPPools, as attachments. Pure."""

import json
import re

from ...module_utils._cni import address_pool
from ...module_utils._core import text
from .._core.addresses import netaddr, network
from .._preflight import networks
from .page import LEFT_OUT, NOTHING, TAKEN, WRONG, Page, dotted, line, short

TYPES = {
    "MacvlanNetwork": "macvlan",
    "IPoIBNetwork": "ipoib",
    "HostDeviceNetwork": "host-device",
    "SriovNetwork": "sriov",
    "SriovIBNetwork": "ib-sriov",
}
# The operator prefixes a HostDeviceNetwork's resource with this (pkg/state/state_hostdevice_network.go).
DEVICE_PREFIX = "nvidia.com/"
# What stands behind the prefix of a resource (api/v1alpha1/validator/hostdevicenetwork_webhook.go).
RESOURCE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)?[A-Za-z0-9]")
_IPAM = ("spec", "ipam")
_OF_FUNCTIONS = {
    "metaPlugins": "an attachment is one plugin: pods get RDMA devices with the resource (rdma), the MTU is the "
    "interface's (tuning)",
    **dict.fromkeys(("spoofChk", "trust", "minTxRate", "maxTxRate", "vlanQoS", "vlanProto"), "set it on the function"),
    **dict.fromkeys(("capabilities", "logFile", "logLevel", "vlan"), "an attachment has no such option"),
}
_OF_POOL = {
    "defaultGateway": "the default route of a pod stays on eth0",
    "nodeSelector": "every node gets a block; groups of the inventory choose the nodes",
    "routes": "role networks sets no routes through a second network",
    "perNodeExclusions": "an attachment excludes addresses (exclude), not positions in a block",
}
_OF_WHEREABOUTS = dict.fromkeys(
    ("datastore", "kubernetes", "log_file", "log_level", "etcd_host", "enable_overlapping_ranges"),
    "role networks writes whereabouts' own file on the nodes",
)


def as_mapping(page: Page, path: tuple, what: str):
    """Replace a JSON string by the mapping in it; a mapping instead of a string is reported as wrong."""
    value = page.get(*path)
    if isinstance(value, dict):
        why = f"the field is a JSON string; the API server refuses a map: {what} was never created"
        became = "the same entries, below"
        page.lines.append(line(page.source, page.object, dotted(path), WRONG, "a YAML map", became, why))
        return value
    try:
        found = json.loads(value)
    except (TypeError, ValueError) as error:
        found, seen = None, f"{short(value, 60)}: {error}"
    else:
        seen = short(value, 60)
    if not isinstance(found, dict):
        page.refuse(path, "a string that holds a JSON object", seen, "correct the JSON there")
        return None
    page.put(path, found)
    return found


# --- pools ------------------------------------------------------------------------------------------------------------


def pool(page: Page) -> dict:
    """{subnet, per_node_block_size, gateway, exclude} of an IPPool, as options of an attachment."""
    made: dict = {}
    subnet, size = page.get("spec", "subnet"), page.get("spec", "perNodeBlockSize")
    if network(subnet) is None:
        page.refuse(("spec", "subnet"), "a network", short(subnet), "write it as 192.0.2.0/24")
    else:
        made["subnet"] = subnet
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        step = "set how many addresses each node gets"
        page.refuse(("spec", "perNodeBlockSize"), "a number from 1", short(size), step)
    else:
        made["per_node_block_size"] = size
    if page.has("spec", "gateway"):
        made["gateway"] = page.get("spec", "gateway")
    if page.has("spec", "exclusions"):
        made["exclude"] = _exclusions(page)
    return made


def _exclusions(page: Page) -> list[str]:
    found: list[str] = []
    given = page.get("spec", "exclusions")
    for number, item in enumerate(given if isinstance(given, list) else [given] if given else []):
        try:
            first, last = (netaddr.IPAddress(item[key]) for key in ("startIP", "endIP"))
            if first > last:
                raise ValueError("netaddr takes them the other way round")
            ranges = netaddr.iprange_to_cidrs(first, last)
        except (netaddr.AddrFormatError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            path = ("spec", "exclusions", number)
            page.refuse(path, "startIP and endIP", short(item), "give both addresses, the lower one first")
            continue
        found += [short_network(one) for one in ranges]
    return found


def short_network(value) -> str:
    """A network as users write it, a single address without its prefix length."""
    one = netaddr.IPNetwork(value)
    return str(one.ip) if one.size == 1 else str(one.cidr)


def explain_pool(page: Page, made: dict, user: str | None, nodes: int) -> None:
    """Lines of a pool, once it is known which attachment draws from it."""
    if user is None:
        why = "no network of these files draws from it, and no variable sets a pool without one"
        page.say(("spec",), LEFT_OUT, why=why)
    else:
        where = f"networks_attachments, {user}"
        for field, option in (("subnet", "subnet"), ("gateway", "gateway"), ("exclusions", "exclude")):
            if page.has("spec", field):
                became = f"{where}: {option}: {short(made.get(option))}"
                page.say(("spec", field), TAKEN, became)
        _say_blocks(page, made, where, nodes)
    page.leave(("spec",), _OF_POOL)
    page.finish()


def _say_blocks(page: Page, made: dict, where: str, nodes: int) -> None:
    path, size, subnet = ("spec", "perNodeBlockSize"), made.get("per_node_block_size"), made.get("subnet")
    if not (size and subnet):
        return
    serves = address_pool.make(subnet, block=size).blocks
    why = f"{subnet} holds {text.count(serves, 'block')} of {size}: no more nodes than that"
    page.say(path, WRONG if max(nodes, 1) > serves else TAKEN, f"{where}: per_node_block_size: {size}", why)


# --- networks ---------------------------------------------------------------------------------------------------------


def attachment(page: Page, netdevs: dict) -> dict:
    """An item of networks_attachments. netdevs: {host: {interface: link layer, or None}} of nodes that were read."""
    kind = TYPES[page.content["kind"]]
    item: dict = {"name": page.name, "type": kind}
    field = ("spec", "networkNamespace")
    if not page.get(*field) and kind in networks.OF_VFS:
        page.cover(field)
        field = ("metadata", "namespace")
    namespace = page.get(*field) or "default"
    item["namespaces"] = [namespace]
    if page.has(*field):
        page.say(field, TAKEN, f"namespaces: [{namespace}]")
    if kind not in ("macvlan", "ipoib"):
        _resource(page, item)
    else:
        _master(page, item, netdevs)
    if page.has("spec", "mode"):
        item["mode"] = page.get("spec", "mode")
        page.say(("spec", "mode"), TAKEN, f"mode: {item['mode']}")
    if page.has("spec", "mtu"):
        _mtu(page, item)
    for field, option in (("vlan", "vlan"), ("linkState", "link_state")):
        if page.get("spec", field):
            _option(page, item, field, option, ("spec",))
    page.leave(("spec",), _OF_FUNCTIONS)
    _ipam(page, item)
    return item


def _resource(page: Page, item: dict) -> None:
    path, name = ("spec", "resourceName"), page.get("spec", "resourceName")
    plain = str(name).removeprefix(DEVICE_PREFIX)
    if not isinstance(name, str) or not RESOURCE.fullmatch(plain):
        step = "set the resource of the SR-IOV device plugin that hands out the functions, without another prefix"
        page.refuse(path, "a resource", short(name), step)
        return
    item["resource_name"] = full = DEVICE_PREFIX + plain
    why = "the operator prefixes nvidia.com/; a plugin has to serve it with PCI addresses, which the shared one cannot"
    page.say(path, TAKEN, f"resource_name: {full}", why)


def _master(page: Page, item: dict, netdevs: dict) -> None:
    path, name = ("spec", "master"), page.get("spec", "master")
    if not isinstance(name, str) or not name:
        step = "set the rail's interface; pods on the default-route interface cannot reach their own node"
        wanted = "an interface of the fabric"
        seen = short(name) if name else "none, which means that of the default route"
        page.refuse(path, wanted, seen, step)
        return
    item["master"] = name
    without = [host for host, known in netdevs.items() if name not in known]
    layers = {known[name] for known in netdevs.values() if name in known}
    wrong = {"macvlan": "InfiniBand", "ipoib": "Ethernet"}[item["type"]]
    if without:
        there = sorted({one for host in without for one in netdevs[host]})
        why = f"not on {text.names(without)}, which has {text.listing(there) or 'no such interface'}"
        page.say(path, WRONG, f"master: {name}, to be corrected", why)
    elif wrong in layers:
        why = f"it is {wrong} on the nodes that were read; role networks refuses {item['type']} there"
        page.say(path, WRONG, f"master: {name}, to be corrected", why)
    else:
        page.say(path, TAKEN, f"master: {name}")


def _mtu(page: Page, item: dict) -> None:
    mtu = page.get("spec", "mtu")
    if mtu:
        item["mtu"] = mtu
        page.say(("spec", "mtu"), TAKEN, f"mtu: {mtu}")
    else:
        page.say(("spec", "mtu"), TAKEN, NOTHING, "0 is the master's MTU, the same as not setting it")


# --- addresses --------------------------------------------------------------------------------------------------------


def _ipam(page: Page, item: dict) -> None:
    if not page.get(*_IPAM):
        item["ipam"] = "none"
        page.say(_IPAM, TAKEN, "ipam: none", "the pod's interface gets no address")
        return
    given = as_mapping(page, _IPAM, "the network")
    if given is None:
        return
    kind = str(given.get("type"))
    readers = {"nv-ipam": _nv_ipam, "whereabouts": _whereabouts, "host-local": _host_local, "static": _static}
    if kind not in readers:
        wanted = f"one of {', '.join(readers)}"
        step = "use nv-ipam if several nodes share the network"
        page.refuse((*_IPAM, "type"), wanted, short(kind), step)
        return
    item["ipam"] = kind
    readers[kind](page, item)
    page.leave(_IPAM, {"routes": _OF_POOL["routes"]})


def _option(page: Page, item: dict, field: str, option: str, path: tuple = _IPAM) -> None:
    if page.has(*path, field):
        item[option] = page.get(*path, field)
        page.say((*path, field), TAKEN, f"{option}: {short(item[option])}")


def _nv_ipam(page: Page, item: dict) -> None:
    page.say((*_IPAM, "type"), TAKEN, "ipam: nv-ipam")
    kind = page.get(*_IPAM, "poolType")
    if kind is not None:
        page.say((*_IPAM, "poolType"), TAKEN, why="ippool is what role networks creates")
    if str(kind or "ippool").lower() != "ippool":
        step = "make it an IPPool; role networks creates no other kind"
        page.refuse((*_IPAM, "poolType"), "ippool", short(kind), step)
    name = page.get(*_IPAM, "poolName") or page.name  # as nv-ipam does
    if not isinstance(name, str):
        page.refuse((*_IPAM, "poolName"), "the name of a pool", short(name), "give the name of the IPPool")
        return
    item["pool"] = name


def _whereabouts(page: Page, item: dict) -> None:
    why = "Network Operator deprecated whereabouts in 25.4; nv-ipam replaces it"
    page.say((*_IPAM, "type"), TAKEN, "ipam: whereabouts", why)
    where = _one_range(page, "ipRanges")
    if where is None:
        return
    for field in ("range", "range_start", "range_end", "exclude", "gateway"):
        _option(page, item, field, "subnet" if field == "range" else field, where if page.has(*where, field) else _IPAM)
    if isinstance(item.get("exclude"), list):
        item["exclude"] = [short_network(one) if network(one) else one for one in item["exclude"]]
    page.leave(_IPAM, _OF_WHEREABOUTS)
    _refuse_odd_subnet(page, item, (*where, "range"))


def _one_range(page: Page, field: str) -> tuple | None:
    """Where the range of an IPAM stands, below the field that lists ranges or beside it; None if there are several."""
    ranges = page.get(*_IPAM, field)
    if ranges is None:
        return _IPAM
    outer = ranges if isinstance(ranges, list) else [ranges]
    flat = [one for inner in outer for one in (inner if isinstance(inner, list) else [inner])]
    if len(flat) != 1 or not isinstance(flat[0], dict) or page.has(*_IPAM, "range"):
        page.refuse((*_IPAM, field), "one range", short(ranges), "create one network for each range")
        return None
    page.put((*_IPAM, field), flat[0])
    return (*_IPAM, field)


def _host_local(page: Page, item: dict) -> None:
    why = "each node keeps its own leases and would hand out the same addresses; role networks gives each node a block"
    page.say((*_IPAM, "type"), WRONG, "ipam: host-local, with a block for each node", why)
    where = _one_range(page, "ranges")
    if where is None:
        return
    options = {"subnet": "subnet", "rangeStart": "range_start", "rangeEnd": "range_end", "gateway": "gateway"}
    for field, option in options.items():
        _option(page, item, field, option, where)
    _refuse_odd_subnet(page, item, (*where, "subnet"))


def _static(page: Page, item: dict) -> None:
    each = "each pod sets its own in its networks annotation (ips)"
    shared = "every pod that attaches gets the same: one pod at a time"
    page.say((*_IPAM, "type"), TAKEN, "ipam: static", shared if page.get(*_IPAM, "addresses") else each)
    if not page.get(*_IPAM, "addresses"):
        return
    given = page.get(*_IPAM, "addresses")
    found = [one.get("address") if isinstance(one, dict) else None for one in given] if isinstance(given, list) else []
    if not found or not all(isinstance(one, str) for one in found):
        step = "give addresses with their prefix length"
        page.refuse((*_IPAM, "addresses"), "addresses", short(given), step)
        return
    item["addresses"] = found
    gateways = {str(one["gateway"]) for one in given if one.get("gateway")}
    if len(gateways) == 1:
        item["gateway"] = gateways.pop()
    page.say((*_IPAM, "addresses"), TAKEN, f"addresses: {short(found)}")


def _refuse_odd_subnet(page: Page, item: dict, path: tuple) -> None:
    if network(item.get("subnet")) is None:
        page.refuse(path, "a network", short(item.get("subnet")), "write it as 192.0.2.0/24")


def join(items: list[tuple], pools: dict) -> dict:
    """Gives each attachment (page, item) its pool's settings; returns {pool: attachment that owns it}."""
    owners: dict = {}
    for page, item in items:
        name = item.get("pool")
        if not name:
            continue
        path = ("spec", "ipam", "poolName")
        if len(name.split(",")) > 1 and set(name.split(",")) & set(pools):
            page.refuse(path, "one pool", name, "create one network for each pool")
        elif name not in pools:
            why = "no IPPool of this name is in the files: it must exist in the cluster"
            page.say(path, TAKEN, f"pool: {name}", why)
        elif name in owners:
            page.say(path, TAKEN, f"pool: {name}", f"{owners[name]} makes it")
        else:
            owners[name] = item["name"]
            item.update(pools[name])
            if name == item["name"]:
                del item["pool"]
            page.say(path, TAKEN, f"pool: {name}", "with the options of the IPPool, below")
    return owners


def components(items: list[dict]) -> list[str]:
    """What types and IPAMs need besides the reference plugins."""
    needed = [networks.COMPONENT_OF.get(name) for item in items for name in (item["type"], item.get("ipam"))]
    return list(dict.fromkeys(filter(None, needed)))
