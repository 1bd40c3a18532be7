"""Problems in NetworkAttachmentDefinitions, checked against the nodes they are for.

Pure; standard library only. Most of these mistakes show up only when a pod hangs in ContainerCreating, or as lost
packets.
"""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import itertools
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from .._core import text as core_text
from .._core.change import Finding
from . import address_pool

# cniVersions that Multus can combine with Flannel's 0.3.1 delegate and that results can be converted to.
CNI_VERSIONS = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
# host-device and the other types to which Multus passes a PCI address as deviceID (multus-cni pkg/types/conf.go).
_BY_DEVICE = ("host-device", "sriov", "ib-sriov")
_ON_MASTER = ("macvlan", "ipvlan", "ipoib", "vlan")
# No interface serves both at a time.
_APART = (
    *(("ipvlan", "macvlan"), ("passthru", "macvlan"), ("passthru", "ipvlan"), ("host-device", "passthru")),
    *(("host-device", kind) for kind in _ON_MASTER),
)
# They create the interface; the others of a chain change it.
_MAIN = (*_BY_DEVICE, *_ON_MASTER, "bridge", "ptp", "dummy", "tap", "bond", "ovs")
# They need the result of one before them.
_LATER = ("bandwidth", "firewall", "portmap", "rdma", "sbr", "tuning", "vrf")
_IPAMS = ("dhcp", "host-local", "nv-ipam", "static", "whereabouts")
# By name without hyphens; the last two are no slips for vlan and macvlan.
_KNOWN = {name.replace("-", ""): name for name in (*_MAIN, *_LATER, *_IPAMS, "vxlan", "macvtap")}
# (plugin, option): what it accepts. sriov takes any other text for off.
_CHOICES = {
    ("macvlan", "mode"): ("bridge", "private", "vepa", "passthru"),
    ("ipvlan", "mode"): ("l2", "l3", "l3s"),
    **{(kind, "link_state"): ("auto", "enable", "disable") for kind in ("sriov", "ib-sriov")},
    **{("sriov", option): ("on", "off") for option in ("trust", "spoofchk")},
}
# (plugin, option that it ignores): what to do instead.
_UNREAD = {
    **dict.fromkeys(
        itertools.product(("macvlan", "ipvlan", "host-device", "ipoib"), ("vlan", "vlanId")),
        "make the VLAN's interface on the nodes, and name that one",
    ),
    **dict.fromkeys(itertools.product(("host-device", "ipoib"), ("mtu", "pkey")), "set it on the node's interface"),
    ("vlan", "vlan"): "call it vlanId; otherwise the VLAN is 0",
}
# Options of plugins and their IPAM by type: a plugin refuses the whole configuration if one has another.
_TYPED = {
    **dict.fromkeys(("exclude", "routes", "ranges", "ipRanges", "addresses"), (list, "list")),
    "capabilities": (dict, "mapping"),
    **dict.fromkeys(("pkey", "range", "subnet", "gateway", "node_slice_size", "poolName", "poolType"), (str, "text")),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
POOLS = ("IPPool", "CIDRPool")


def from_objects(items: Iterable[dict], files: dict | None = None) -> list[dict]:
    """The networks of NetworkAttachmentDefinitions (and of IPPools of nv-ipam) as the API server returns them.

    files: {host: {network name: configuration text}} for those with an empty spec, which Multus reads from the node.
    """
    networks = []
    # What kubectl prints is one object with items.
    items = [one for item in items for one in ([item] if item.get("items") is None else dicts(item["items"]))]
    there = [item for item in items if item.get("kind") in POOLS]
    pools = {(pool["kind"].lower(), pool["metadata"]["name"]): pool.get("spec") or {} for pool in there}
    for item in items:
        if item.get("kind") != "NetworkAttachmentDefinition":
            continue
        meta = item["metadata"]
        text = (item.get("spec") or {}).get("config") or None
        name = meta["name"]
        on_nodes = {host: known[name] for host, known in (files or {}).items() if name in known}
        networks.append(
            {
                "namespace": meta.get("namespace") or "default",
                "name": name,
                "resource": (meta.get("annotations") or {}).get("k8s.v1.cni.cncf.io/resourceName") or None,
                "configs": {"": text} if text else on_nodes,
                "per_node": text is None,
                "pools": pools,
                **_pool_of(text, pools),
            }
        )
    return networks


def files_by_name(nodes: Iterable[dict]) -> dict:
    """{host: {network name: text}} from the files of each node."""
    by_host: dict = {}
    for node in nodes:
        for text in (node.get("files") or {}).values():
            name = network_name(text)
            if name is not None:  # Multus skips such a file; a network that needs it is reported as without one
                by_host.setdefault(node["host"], {})[name] = text
    return by_host


def network_name(text: str) -> str | None:
    """The name of the network in a configuration file of a node; None if it has no text as name."""
    name = core_text.json_object(text).get("name")
    return name if isinstance(name, str) else None


def _pool_of(text, pools: dict) -> dict:
    """Subnet and block of the nv-ipam pool of a configuration, or None."""
    config = _whole(core_text.json_object(text))
    spec = next((pools[key] for key in pool_keys(config) if key in pools), {})
    size = spec.get("perNodeBlockSize")
    return {"block_size": size if isinstance(size, int) else None, "subnet": spec.get("subnet") or spec.get("cidr")}


def pool_keys(config: dict) -> list[tuple[str, str]]:
    """(kind, name) of nv-ipam's pools that a configuration draws from."""
    ipam = config["ipam"]
    if ipam.get("type") != "nv-ipam":
        return []
    names = str(ipam.get("poolName") or config.get("name") or "").split(",")
    return [(str(ipam.get("poolType") or "ippool").lower(), name.strip()) for name in names]


def _whole(config: dict) -> dict:
    """A configuration as one plugin: of a chain the one that creates the interface, with the whole chain attached."""
    chain = [_plain(plugin) for plugin in dicts(config.get("plugins")) or [config]]
    main = next((plugin for plugin in chain if plugin.get("type") in _MAIN), chain[0])
    ipam = next((plugin["ipam"] for plugin in chain if isinstance(plugin.get("ipam"), dict)), {})
    named = {"name": _plain(config).get("name"), "cniVersion": config.get("cniVersion")}
    beside = [key for key in ("type", "master", "mtu", "ipam") if key in config] if config.get("plugins") else []
    return {**main, "ipam": ipam, **named, _CHAIN: chain, _BESIDE: beside}


def _plain(config: dict) -> dict:
    """Without values of types that the plugins do not accept."""
    texts = ("type", "name", "master", "device", "pciBusID")
    return {key: value for key, value in config.items() if key not in texts or isinstance(value, str)}


def dicts(value) -> list[dict]:
    """The objects of a foreign list; empty if it is not a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def lint(networks: list[dict], nodes: list[dict], cluster: dict) -> list[Finding]:
    """All findings, one per problem.

    networks: namespace, name, resource (annotation or None), configs {host, or "" for all hosts: JSON text}, per_node,
    block_size (addresses a node gets, None when unknown), subnet, pools ({(kind, name): spec} of nv-ipam, where known).
    nodes: host, netdevs {name: {mtu, type, addresses, default_route, pci, port_of}}, routes [{destination, netdev}].
    cluster: pod_cidrs, service_cidrs, shared_resources and device_resources (names, None when unknown), pods_per_node,
    forbidden_masters_allowed (names of interfaces that may have the default route).
    """
    findings: list[Finding] = []
    parsed = []
    for network in networks:
        obj = f"NetworkAttachmentDefinition {network['namespace']}/{network['name']}"
        for host, config in _configs(network, obj, findings):
            specs = _specs(network, config) or [network]
            config[_SUBNETS] = [spec.get("subnet") or spec.get("cidr") for spec in specs]
            parsed.append((network, obj, host, config))
            findings += _form(network, obj, config)
            findings += _resource(network, obj, config, cluster)
            reached = [node for node in nodes if host in ("", node["host"])]
            for plugin in config[_CHAIN]:
                findings += _master(obj, plugin, reached, cluster)
            findings += _tuned(obj, config, reached)
            findings += _netns(obj, config, reached, cluster)
            findings += _addresses(obj, config, reached, cluster)
            findings += _pod_routes(network, obj, config, cluster)
            findings += _pools(network, obj, config, reached, cluster)
        if not network["per_node"]:
            findings += _host_local(network, obj, parsed, nodes)
        findings += _blocks(network, obj, parsed, cluster)
    findings += _among_each_other(parsed)
    findings += _same_name(parsed)
    findings += _same_block(parsed)
    findings += _same_interface(parsed, nodes)
    # A configuration that is the same on every node is reported once, not once per node.
    return list(dict.fromkeys(findings))


def notes(networks: list[dict]) -> list[str]:
    """What pods have to know of networks that are no fault."""
    found = []
    for network in networks:
        for config in (_whole(core_text.json_object(text)) for text in network["configs"].values()):
            ipam = config["ipam"]
            held = [str(one.get("address")) for one in dicts(ipam.get("addresses")) if ipam.get("type") == "static"]
            why = f"every pod that attaches gets {', '.join(held)}: one pod at a time" if held else ""
            if config.get("mode") == "passthru":
                why = "passthru takes the whole interface: one pod of a node at a time"
            if config.get("type") in ("macvlan", "ipvlan") and not ipam.get("type"):
                why = "without ipam pods get no address, and RoCE no GID but the link-local one"
            if ipam.get("type") == "dhcp":
                why = "addresses come from the DHCP daemon, which has to run on each node: /opt/cni/bin/dhcp daemon"
            found += [f"network {network['namespace']}/{network['name']}: {why}"] * bool(why)
    return list(dict.fromkeys(found))


def _configs(network: dict, obj: str, findings: list[Finding]):
    """(host, plugin configuration) of each readable text; the others become findings."""
    if not network["configs"] and network["per_node"]:
        step = "run the role networks, which writes /etc/cni/multus/net.d; or put a config into the spec"
        findings.append(Finding(obj, "a config, or a file on each node", "an empty spec and no file", step, "nad:file"))
    for host, text in network["configs"].items():
        where = f"{obj} on {host}" if host else obj
        try:
            config = json.loads(text)
            seen = type(config).__name__
        except (TypeError, ValueError, RecursionError) as error:
            config, seen = None, f"{error}"
        if isinstance(config, dict):
            yield host, _whole(config)
        else:
            step = 'write it as {"cniVersion": …}, one JSON object; in YAML as a block after |'
            findings.append(Finding(where, "a JSON object", seen, step, "nad:json"))


def _form(network: dict, obj: str, config: dict):
    name, version = config.get("name"), config.get("cniVersion")
    if name and not _NAME.fullmatch(name):
        step = "use letters, digits, . _ and -"
        yield Finding(obj, "a name that CNI accepts", f'"name": "{name}"', step, "nad:name")
    if not name:
        step = f'add "name": "{network["name"]}": Multus fills it in, other CNI tools do not, and leases depend on it'
        yield Finding(obj, "a name in the config", "none", step, "nad:name")
    elif network["per_node"] and name != network["name"]:
        step = "use the same name in both: Multus finds the file by it"
        yield Finding(obj, f'"name": "{network["name"]}"', f'"name": "{name}"', step, "nad:name")
    if version not in CNI_VERSIONS:
        step = 'set "cniVersion": "0.3.1", which matches the delegates of Flannel'
        yield Finding(obj, f"one of {', '.join(CNI_VERSIONS)}", f"cniVersion {version!r}", step, "nad:cniVersion")
    given = [plugin["ipam"] for plugin in config[_CHAIN] if plugin.get("ipam")]
    if not all(isinstance(ipam, dict) and ipam.get("type") for ipam in given):
        yield Finding(obj, "an object with a type as ipam", "another value", 'write it as {"type": …}', "nad:ipam")
    if not all(plugin.get("type") for plugin in config[_CHAIN]):
        yield Finding(obj, "the type of a CNI plugin", "none", "add one, such as macvlan", "nad:type")
    first = config[_CHAIN][0].get("type")
    if first in _LATER:
        step = "put it in plugins, behind the one that makes the interface"
        yield Finding(obj, "a plugin that makes an interface", f"{first} is first", step, "nad:chain")
    makers = [plugin["type"] for plugin in config[_CHAIN] if plugin.get("type") in _MAIN]
    if len(makers) > 1:
        step = "make a network of each: the second finds the interface's name taken"
        yield Finding(obj, "one plugin that makes the interface", core_text.listing(makers), step, "nad:chain")
    lost = [f"{key} beside plugins" for key in config[_BESIDE]]
    lost += [f"ipam of {one['type']}" for one in config[_CHAIN] if one.get("type") in _LATER and "ipam" in one]
    if lost:
        step = "move it into the plugin that makes the interface; nobody reads it elsewhere"
        yield Finding(obj, "options where they are read", core_text.listing(lost), step, "nad:chain")
    ipams = [ipam for ipam in given if isinstance(ipam, dict)]
    for part in (*config[_CHAIN], *ipams):
        yield from _values(obj, part)
    if "dhcp" in [ipam.get("type") for ipam in ipams] and config.get("type") in ("ipoib", "ib-sriov"):
        yield Finding(obj, f"another IPAM with {config['type']}", "dhcp", "use nv-ipam or whereabouts", "nad:ipam")
    able = any("ips" in str(plugin.get("capabilities")) for plugin in config[_CHAIN])
    if any(ipam.get("type") == "static" and not ipam.get("addresses") for ipam in ipams) and not able:
        step = 'add "capabilities": {"ips": true}, so that pods bring their own (ips in their annotation)'
        yield Finding(obj, "a static address", "no addresses, and none taken from pods", step, "nad:ipam")


def _values(obj: str, part: dict):
    """Names and values of a plugin, or its IPAM, that do not exist."""
    kind = part.get("type")
    plain = re.sub(r"[^a-z]|cni$", "", kind.lower()) if isinstance(kind, str) else ""
    near = [] if kind in _KNOWN.values() else difflib.get_close_matches(plain, _KNOWN, 1, 0.82)
    if near:
        yield Finding(obj, f"type {_KNOWN[near[0]]}", f"type {kind}", "correct the name of the plugin", "nad:type")
    for (name, key), known in _CHOICES.items():
        if kind == name and part.get(key) not in (None, "", *known):
            seen = f"{key} {json.dumps(part[key])}"
            yield Finding(obj, f"{key} {core_text.listing(known)}", seen, "use one of them", "nad:value")
    for (name, key), step in _UNREAD.items():
        if kind == name and part.get(key):
            yield Finding(obj, f"options that {kind} reads", f"{key} {json.dumps(part[key])}", step, "nad:value")
    if kind == "bridge" and part.get("bridge") in (None, "", "cni0"):
        step = "give it another name: its ports would be in the pod network"
        yield Finding(obj, "another bridge than that of Flannel", "cni0", step, "nad:taken")
    for key, most in (("mtu", 65535), ("vlan", 4094), ("vlanId", 4094)):
        value = part.get(key)
        if value is not None and not (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most):
            step = "write it without quotes: the plugin refuses a text, and any other number"
            yield Finding(obj, f"{key} from 0 to {most}", json.dumps(value), step, "nad:value")
    address = str(part.get("pciBusID") or "0000:00:00.0")
    if not re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address):
        step = "write it in lower case and with its domain: the plugin looks for a folder of this name"
        yield Finding(obj, "pciBusID as in /sys/bus/pci/devices", address, step, "nad:value")
    for key, (form, name) in _TYPED.items():
        if part.get(key) is not None and not isinstance(part[key], form):
            step = "the plugin refuses any other type"
            yield Finding(obj, f"{key} as a {name}", json.dumps(part[key]), step, "nad:value")


def _resource(network: dict, obj: str, config: dict, cluster: dict):
    resource, kind = network["resource"], config.get("type")
    shared, device = cluster.get("shared_resources"), cluster.get("device_resources")
    if resource is None and kind in ("sriov", "ib-sriov"):
        step = "add the annotation k8s.v1.cni.cncf.io/resourceName with a resource of the SR-IOV device plugin"
        yield Finding(obj, f"a resource that provides VFs for {kind}", "none", step, "nad:resource-missing")
    elif resource is None:
        if kind == "host-device" and not any(map(config.get, ("device", "hwaddr", "kernelpath", "pciBusID"))):
            step = "add device or pciBusID, or the annotation k8s.v1.cni.cncf.io/resourceName"
            yield Finding(obj, "the interface to move into the pod", "none", step, "nad:resource-missing")
    elif kind in _BY_DEVICE and shared is not None and resource in shared:
        step = "omit resourceName (pods request the resource themselves), or use one of the SR-IOV device plugin"
        seen = f"{resource} of a shared device plugin, whose IDs are 0, 1, 2 …: Multus passes them on as a PCI address"
        yield Finding(obj, f"PCI addresses as device IDs for {kind}", seen, step, "nad:resource-host-device")
    elif None not in (shared, device) and resource not in {*shared, *device}:
        seen = f"{resource}; served are {core_text.listing(sorted({*shared, *device})) or 'none'}"
        step = "correct the name, or make a device plugin serve it; a pod that requests it stays Pending"
        yield Finding(obj, "a resource that a device plugin serves", seen, step, "nad:resource-unknown")


# --- the interface below ---------------------------------------------------------------------------------------------


def master_of(config: dict, node: dict | None = None):
    """The interface below an attachment; by its PCI address only if the node reports which one has it."""
    if config.get("type") in _ON_MASTER:
        return None if config.get("linkInContainer") else config.get("master")
    if config.get("device") or not config.get("pciBusID") or node is None:
        return config.get("device")
    known = {**{netdev.get("pci"): name for name, netdev in node["netdevs"].items()}, **(node.get("pci") or {})}
    address = str(config["pciBusID"]).lower()
    return known.get(address if address.count(":") == 2 else f"0000:{address}")


def config_on(network, host: str) -> dict:
    """The configuration of a network on a host, as one plugin; without a type if there is none that can be read."""
    text = (network["configs"].get(host) or network["configs"].get("")) if network else None
    return _whole(core_text.json_object(text))


def type_and_master(network, host: str) -> tuple:
    """(type, master) of a network on a host; None if its configuration does not say."""
    main = config_on(network, host)
    return main.get("type"), master_of(main)


def _master(obj: str, config: dict, nodes: list[dict], cluster: dict):
    kind = config.get("type")
    if kind not in (*_ON_MASTER, "host-device") or config.get("linkInContainer") or not nodes:
        return
    by_host = {node["host"]: master_of(config, node) for node in nodes}
    if not any(by_host.values()):
        if kind in _ON_MASTER:
            step = "set the interface: without it the plugin uses the one with the default route"
            yield Finding(obj, "a master", "none", step, "nad:master-missing")
        return
    master = next(filter(None, by_host.values()), "")
    absent = [node["host"] for node in nodes if by_host[node["host"]] not in node["netdevs"]]
    if kind == "host-device":  # one that it has moved into a pod leaves a rail without an interface
        moved = [node["host"] for node in nodes if any(not rail.get("netdev") for rail in node.get("rails") or ())]
        absent = [host for host in absent if host not in moved]
    if absent:
        others = sorted({name for node in nodes for name in node["netdevs"] if name != "lo"})
        step = f"use one that each node has (found: {core_text.listing(others)}), or attach by rail"
        wanted, seen = f"interface {master} on each node", f"none on {core_text.names(absent)}"
        yield Finding(obj, wanted, seen, step, "nad:master-absent")
    for node in nodes:
        name = by_host[node["host"]]
        netdev = node["netdevs"].get(name)
        if netdev:
            yield from _netdev(obj, config, node["host"], name, netdev, cluster)


def _tuned(obj: str, config: dict, nodes: list[dict]):
    """The same interface limits an MTU that a later plugin of the chain sets."""
    later = [one["mtu"] for one in config[_CHAIN] if one.get("type") == "tuning" and isinstance(one.get("mtu"), int)]
    if not later or config.get("type") not in _ON_MASTER:
        return
    for node in nodes:
        master = master_of(config, node)
        if master in node["netdevs"]:
            yield from _mtu(obj, later[-1], node["host"], master, node["netdevs"][master])


def _netns(obj: str, config: dict, nodes: list[dict], cluster: dict):
    """Plugins that move RDMA devices into pods, which the kernel does only in the netns mode exclusive."""
    chain = [plugin for plugin in config[_CHAIN] if plugin.get("type")]
    movers = [one["type"] for one in chain if one["type"] == "rdma" or one.get("rdmaIsolation") is True]
    shared = [node["host"] for node in nodes if node.get("netns_mode") == "shared"]
    if movers and (shared or (cluster.get("shared_resources") and not any(n.get("netns_mode") for n in nodes))):
        what = "rdma" if "rdma" in movers else f"rdmaIsolation of {movers[0]}"
        seen = f"{what} in the chain; {core_text.names(shared) or 'the nodes'} run shared, as the shared plugin needs"
        step = "remove it from the chain: pods get the devices by the resource; or run nodes without shared resources "
        yield Finding(obj, "RDMA netns mode exclusive", seen, f"{step}exclusive (rdma_netns_mode)", "nad:netns-mode")


def _netdev(obj: str, config: dict, host: str, master: str, netdev: dict, cluster: dict):
    kind, own = config["type"], f"{master} of {host}"
    if kind in ("macvlan", "ipvlan", "vlan") and netdev["type"] == "infiniband":
        wanted, step = f"an Ethernet interface for {kind}", "use type ipoib, or no attachment: verbs over it need none"
        yield Finding(obj, wanted, f"{own} is InfiniBand", step, "nad:macvlan-infiniband")
    if kind == "ipoib" and netdev["type"] == "ether":
        yield Finding(obj, "an InfiniBand interface", f"{own} is Ethernet", "use type macvlan", "nad:ipoib-ethernet")
    if netdev["default_route"] and master not in (cluster.get("forbidden_masters_allowed") or ()):
        consequence = "leaves the node unreachable" if kind == "host-device" else "keeps pods from their own node"
        seen = f"{own} carries the default route; {kind} on it {consequence}"
        step = f"use a fabric NIC; to use this one anyway: networks_default_route_masters: [{master}]"
        yield Finding(obj, "an interface without the default route", seen, step, "nad:default-route")
    if kind in ("macvlan", "ipvlan", "host-device") and netdev.get("port_of"):
        seen, step = f"{own} is a port of {netdev['port_of']}", f"name {netdev['port_of']}"
        yield Finding(obj, "an interface that no bond or bridge has", seen, step, "nad:taken")
    if isinstance(config.get("mtu"), int):
        yield from _mtu(obj, config["mtu"], host, master, netdev)


def _mtu(obj: str, mtu: int, host: str, master: str, netdev: dict):
    if netdev["mtu"] and mtu > netdev["mtu"]:
        step = f"set it to {netdev['mtu']} or less, or raise that of {master} on the nodes (rail_links_settings)"
        seen = f"mtu {mtu}; {master} of {host} has {netdev['mtu']}"
        yield Finding(obj, "an MTU of at most that of the master", seen, step, "nad:mtu")


# --- addresses -------------------------------------------------------------------------------------------------------


# Key of the subnets of nv-ipam's pools in a parsed configuration; the configuration itself only has their names.
_SUBNETS = "subnets of the pools"
# Keys of all plugins of the chain that it is part of, and of what stands beside the list of them.
_CHAIN, _BESIDE = "chain", "beside"


class _Range(NamedTuple):
    """A range from the configuration of host-local or whereabouts: its values need not be valid addresses."""

    subnet: Any
    start: Any
    end: Any
    gateway: Any
    exclude: list = []


def _given_ranges(config: dict) -> list[_Range]:
    ipam = config["ipam"]
    kind = ipam.get("type")
    if kind == "whereabouts":
        listed = dicts(ipam.get("ipRanges"))
        # What stands beside the list holds for the range beside it only; one gateway, for ranges of its family.
        several = [*([ipam] if ipam.get("range") or not listed else ()), *listed]
        six = ":" in str(ipam.get("gateway"))
        return [
            _Range(
                *(given.get(key) for key in ("range", "range_start", "range_end")),
                ipam.get("gateway") if len(several) == 1 or six == (":" in str(given.get("range"))) else None,
                _list(given.get("exclude")),
            )
            for given in several
        ]
    if kind == "nv-ipam":
        return [_Range(given, None, None, None) for given in config.get(_SUBNETS) or () if given]
    if kind == "static":
        several = [(str(given.get("address")), given.get("gateway")) for given in dicts(ipam.get("addresses"))]
        return [
            _Range(text if "/" in text else f"{text} without a prefix", *[text.partition("/")[0]] * 2, gateway)
            for text, gateway in several
        ]
    if kind != "host-local":
        return []
    sets = [given for part in _list(ipam.get("ranges")) for given in dicts(part)] or [ipam]
    keys = ("subnet", "rangeStart", "rangeEnd", "gateway")
    return [_Range(*(given.get(key) for key in keys)) for given in sets]


def _list(value) -> list:
    return value if isinstance(value, list) else []


def ranges_of(config: dict) -> list[tuple]:
    """(network, first, last) of every range that a configuration's IPAM may assign, if it can be read."""
    return [pool[:3] for pool in _pools_of(config)]


def _pools_of(config: dict, reserving=False) -> list[address_pool.Pool]:
    kind = config["ipam"].get("type")
    return [pool for given in _given_ranges(config) for pool in _readable(given, "", kind, [], reserving)]


def _excluded(config: dict, address) -> bool:
    excluded = [text for given in _given_ranges(config) for text in given.exclude]
    return any(address.version == network.version and address in network for network in _networks(excluded))


def _networks(texts) -> list:
    networks = []
    for text in _list(texts):
        with contextlib.suppress(ValueError):
            networks.append(ipaddress.ip_network(str(text), strict=False))
    return networks


def _overlap(network, other) -> bool:
    return network.version == other.version and network.overlaps(other)


def _addresses(obj: str, config: dict, nodes: list[dict], cluster: dict):
    ranges = ranges_of(config)
    for network in dict.fromkeys(item[0] for item in ranges):
        for what, key in (("pod", "pod_cidrs"), ("service", "service_cidrs")):
            for other in _networks(cluster.get(key)):
                if _overlap(network, other):
                    step = "use another subnet: traffic to one of them would leave through the other's interface"
                    seen = f"{network} overlaps with the {what} network {other}"
                    yield Finding(obj, "a separate subnet", seen, step, f"nad:overlap-{what}")
        for node in nodes:
            yield from _routes(obj, config, network, node)
    if config["ipam"].get("type") == "nv-ipam":
        return  # the pool's exclusions cover the addresses of hosts
    for node in nodes:
        yield from _held(obj, config, ranges, node)
    gateway = config["ipam"].get("gateway") if config["ipam"].get("type") == "whereabouts" else None
    for address in [one.network_address for one in _networks([gateway])]:
        if _handed_out(config, ranges, address):
            step, seen = f"exclude {address}", f"whereabouts would assign the gateway {address} to a pod"
            yield Finding(obj, "addresses that nobody else has", seen, step, "nad:host-address")


def _routes(obj: str, config: dict, network, node: dict):
    """Routes of the host into the subnet through an interface other than the attachment's."""
    connected = [
        {"destination": address, "netdev": name}
        for name, netdev in node["netdevs"].items()
        for address in _list(netdev["addresses"])
    ]
    for route in [*node["routes"], *connected]:
        via = route["netdev"]
        for destination in _networks([route["destination"]]) if via != master_of(config) else ():
            if destination.prefixlen and _overlap(network, destination):
                seen = f"{network} overlaps with the route of {node['host']} to {destination} through {via}"
                step = f"use another subnet, or attach to {via} if that is the fabric"
                yield Finding(obj, "a subnet that hosts do not route elsewhere", seen, step, "nad:overlap-route")


def _handed_out(config: dict, ranges: list[tuple], address) -> bool:
    own = [span for span in ranges if span[0].version == address.version]
    return any(low <= int(address) <= high for _network, low, high in own) and not _excluded(config, address)


def _held(obj: str, config: dict, ranges: list[tuple], node: dict):
    """Addresses of hosts on the same link that the IPAM would assign again."""
    netdev = node["netdevs"].get(master_of(config) or "") or {}
    for address in [ipaddress.ip_interface(text).ip for text in _list(netdev.get("addresses"))]:
        if _handed_out(config, ranges, address):
            step = f"exclude {address}, or start the range after it"
            seen = f"{address} belongs to {node['host']} on {master_of(config)} and would be assigned to a pod"
            yield Finding(obj, "addresses that no host has", seen, step, "nad:host-address")


def _pod_routes(network: dict, obj: str, config: dict, cluster: dict):
    """Routes that divert the pod's own traffic, which sbr keeps in a separate table; and those without a way out."""
    specs, routes = _specs(network, config), _routes_given(network, config)
    subnets = [item[0] for item in ranges_of(config)]
    step = "correct it: the pod reaches a gateway only in its own subnet"
    for gateway in _networks([route["gw"] for route in routes if route.get("gw")]) if subnets else ():
        if not any(_overlap(gateway, subnet) for subnet in subnets):
            wanted, seen = f"a gateway in {core_text.listing(map(str, subnets))}", str(gateway.network_address)
            yield Finding(obj, wanted, f"a route through {seen}", step, "nad:route-gateway")
    if any(plugin.get("type") == "sbr" for plugin in config[_CHAIN]):
        return
    seen = [str(route.get("dst")) for route in routes if _is_default(route.get("dst"))]
    seen += ["defaultGateway of the pool"] * any(spec.get("defaultGateway") is True for spec in specs)
    seen += ["isDefaultGateway"] * any(plugin.get("isDefaultGateway") is True for plugin in config[_CHAIN])
    step = "remove it: the pod network has the default route; or put the plugin sbr after it, which keeps it apart"
    if seen:
        text = f"a second default route: {core_text.listing(seen)}"
        yield Finding(obj, "no default route besides that of the pod network", text, step, "nad:default-route-pod")
    own = _networks([*(cluster.get("pod_cidrs") or ()), *(cluster.get("service_cidrs") or ())])
    for destination in _networks([route.get("dst") for route in routes if not _is_default(route.get("dst"))]):
        taken = core_text.listing(str(other) for other in own if _overlap(destination, other))
        if taken:
            seen, step = f"a route to {destination}, which has {taken}", "route only what the fabric has"
            yield Finding(obj, "pods and services reached over eth0", seen, step, "nad:route-cluster")


def _specs(network: dict, config: dict) -> list[dict]:
    """The known pools of nv-ipam that a network draws from."""
    return [network["pools"][key] for key in pool_keys(config) if key in (network.get("pools") or {})]


def _routes_given(network: dict, config: dict) -> list[dict]:
    parts = (config["ipam"], *_specs(network, config))
    return [route for given in parts for route in dicts(given.get("routes"))]


def _is_default(destination) -> bool:
    """Includes the halves of the address space, which override a default route."""
    return any(network.prefixlen <= 1 for network in _networks([destination] if isinstance(destination, str) else []))


def _pools(network: dict, obj: str, config: dict, nodes: list[dict], cluster: dict):
    """Whether the pools of a network exist and are large enough for the nodes."""
    known = network.get("pools")
    for kind, name in pool_keys(config) if known is not None else ():
        if (kind, name) not in known:
            what = "CIDRPool" if kind == "cidrpool" else "IPPool"
            there = core_text.listing(sorted(other for sort, other in known if sort == kind)) or "none"
            step = f"create it, or correct poolName: k3s kubectl -n kube-system get {what.lower()}s.nv-ipam.nvidia.com"
            yield Finding(obj, f"{what} {name}", f"no {name}; there are {there}", step, "nad:pool-missing")
    if len(pool_keys(config)) > 2:
        step = "name one pool, or two: for IPv4 and IPv6"
        yield Finding(obj, "at most two pools", f"poolName {config['ipam'].get('poolName')}", step, "nad:pools")
    numbers = {node["host"]: number for number, node in enumerate(nodes)}
    specs = _specs(network, config)
    problems = [
        f"a route to {route.get('dst')}" + (f" through {route['gw']}" if route.get("gw") else "")
        for route in _routes_given(network, config)
        if not _is_route(route)
    ]
    problems += [
        "routes without a gateway of the pool"
        for spec in specs
        if spec.get("routes") and not spec.get("gateway") and spec.get("gatewayIndex") is None
    ]
    for given, size, chosen, within in _pool_options(config, specs):
        for pool in _readable(given, size, config["ipam"].get("type"), problems, within=within):
            pods = cluster.get("pods_per_node") if pool.block else None
            yield from address_pool.judge(obj, pool, {} if chosen else numbers, "nad", pods)
    step = "write networks as 192.0.2.0/24, addresses as 192.0.2.1"
    for problem in problems:
        yield Finding(obj, "addresses that the plugin can read", problem, step, "nad:address")


def _is_route(route: dict) -> bool:
    try:
        ipaddress.ip_address(route.get("gw") or "::")
        return bool(ipaddress.ip_network(route.get("dst"), strict=False)) and "/" in route["dst"]
    except (TypeError, ValueError):
        return False


def _pool_options(config: dict, specs: list[dict]) -> list[tuple]:
    """(range, block of a node, whether it is for some nodes only, what each block lacks) of the pools of a network.

    A static address is each pod's; host-local has a separate range on each node, so only its gateway is checked.
    """
    ipam = config["ipam"]
    slices, kind = str(ipam.get("node_slice_size") or "").lstrip("/"), ipam.get("type")
    own = kind in ("host-local", "static")
    pools = [(given, "" if own else slices, own, ()) for given in _given_ranges(config) if kind != "nv-ipam"]
    for spec in specs:
        outside = [f"{span.get('startIP')}-{span.get('endIP')}" for span in dicts(spec.get("exclusions"))]
        given = _Range(spec.get("subnet") or spec.get("cidr"), None, None, spec.get("gateway"), outside)
        size = spec.get("perNodeBlockSize") or str(spec.get("perNodeNetworkPrefix") or "") or None
        pools.append((given, size, bool(spec.get("nodeSelector")), _within(spec) if "cidr" in spec else ()))
    return pools


def _within(spec: dict) -> tuple:
    """(first, last) by index: what a CIDRPool keeps from the pods of each node, its gateway among them."""
    spans = [(span.get("startIndex"), span.get("endIndex")) for span in dicts(spec.get("perNodeExclusions"))]
    spans.append((spec.get("gatewayIndex"),) * 2)
    return tuple(span for span in spans if all(isinstance(index, int) for index in span))


def _readable(given: _Range, size, kind, problems: list[str], reserving=False, within=()) -> list[address_pool.Pool]:
    """A Pool; none for an invalid value, which is added to problems. A size given as text is a prefix."""
    try:
        if size is None or not isinstance(size, (int, str)):
            raise ValueError(f"a block of {size or 'no size'}")
        if kind == "host-local":
            ipaddress.ip_network(str(given.subnet))
        for excluded in given.exclude if kind == "whereabouts" else ():
            ipaddress.ip_network(str(excluded), strict=False)
        prefix = int(size) if size and isinstance(size, str) else None
        pool = address_pool.make(*given, whole=prefix is not None, reserving=reserving)
        if kind in ("host-local", "whereabouts") and pool.network.max_prefixlen - pool.network.prefixlen < 2:
            raise ValueError(f"{pool.network}, which is too small for {kind}")
        if prefix is not None and not pool.network.prefixlen <= prefix <= pool.network.max_prefixlen:
            raise ValueError(f"blocks of /{prefix} in {pool.network}")
        block = 2 ** (pool.network.max_prefixlen - prefix) if prefix is not None else size or None
        beyond = [last for first, last in within if block and not 0 <= first <= last < block]
        problems += [f"index {last} in blocks of {block}" for last in beyond]
        return [pool._replace(block=block, within=within if block and not beyond else ())]
    except (ValueError, TypeError) as error:
        problems.append(str(error) if given.subnet else "no range or subnet")
        return []


def _host_local(network: dict, obj: str, parsed: list, nodes: list[dict]):
    mine = [config for known, _obj, _host, config in parsed if known is network]
    if len(nodes) > 1 and any(config["ipam"].get("type") == "host-local" for config in mine):
        seen = f"host-local for {core_text.count(len(nodes), 'node')}: each assigns the same first address"
        step = "use nv-ipam or whereabouts, or let networks_attachments render it, which gives each node its own block"
        yield Finding(obj, "unique addresses", seen, step, "nad:host-local-nodes")


def _blocks(network: dict, obj: str, parsed: list, cluster: dict):
    expected, size, what = cluster.get("pods_per_node") or 0, network["block_size"], "block"
    for known, _obj, _host, config in parsed:
        pools = _pools_of(config, reserving=True) if known is network else []
        if pools and config["ipam"].get("type") == "host-local":
            there = sum(pool.free(None) for pool in pools)
            size, what = (there, "range") if size is None or there < size else (size, what)
    if size is not None and size < expected:
        seen = f"a {what} of {size} addresses per node"
        step = "enlarge per_node_block_size (and the subnet), or lower networks_pods_per_node if fewer pods attach"
        yield Finding(obj, f"addresses for {expected} pods per node", seen, step, "nad:block-size")


def _among_each_other(parsed: list) -> list[Finding]:
    """Two networks of different names whose subnets overlap: the same addresses are tracked twice."""
    subnets = dict.fromkeys(
        (obj, network["name"], span[0], _books(config, span[0]))
        for network, obj, _host, config in parsed
        for span in ranges_of(config)
    )
    step = "use separate subnets: a pod with both could not tell the links apart"
    return [
        Finding(
            obj, "a separate subnet", f"{mine} overlaps with {theirs} of {other.split()[1]}", step, "nad:overlap-nad"
        )
        for (obj, name, mine, books), (other, other_name, theirs, other_books) in itertools.combinations(subnets, 2)
        if name != other_name and _overlap(mine, theirs) and not (mine == theirs and books & other_books)
    ]


def _books(config: dict, subnet) -> frozenset:
    """The records that whereabouts or nv-ipam keep of a range for the whole cluster, so networks may share them."""
    ipam = config["ipam"]
    own = [(str(subnet), str(ipam.get("network_name") or ""))] if ipam.get("type") == "whereabouts" else ()
    return frozenset([*own, *pool_keys(config)])


def _same_name(parsed: list):
    """Networks that share one record of addresses although their ranges differ."""
    first: dict[tuple, tuple] = {}
    for _network, obj, host, config in parsed:
        ipam = config["ipam"]
        records = [("network_name", str(ipam.get("network_name") or ""))] if ipam.get("type") == "whereabouts" else []
        records += [("name", config.get("name"))] if ipam.get("type") == "host-local" else []
        for what, name in records if ranges_of(config) else ():
            other, known = first.setdefault((what, name, host), (obj, config))
            if name and other != obj and ranges_of(known) != ranges_of(config):
                seen = f'{other.partition(" ")[2]} and {obj.partition(" ")[2]} have {what} "{name}" and two ranges'
                step = "give each its own name, or both the same range"
                yield Finding(obj, "a record of addresses for each range", seen, step, "nad:same-name")


def _same_block(parsed: list):
    """Two nodes whose files assign the same addresses of one network."""
    by_name: dict[str, dict] = {}
    for network, obj, host, config in parsed:
        if not network["per_node"] or config["ipam"].get("type") != "host-local":
            continue
        for other_host, other_ranges in by_name.setdefault(obj, {}).items():
            clashes = [
                max(first, other_first)
                for net, first, last in ranges_of(config)
                for other_net, other_first, other_last in other_ranges
                if net.version == other_net.version and first <= other_last and other_first <= last
            ]
            if clashes:
                seen = f"{other_host} and {host} both hand out {ipaddress.ip_address(clashes[0])}"
                step = "run the role networks: it numbers the blocks; or set networks_node_number for these hosts"
                yield Finding(obj, "a separate block for each node", seen, step, "nad:block-clash")
        by_name[obj][host] = ranges_of(config)


def _same_interface(parsed: list, nodes: list[dict]):
    """Networks of which one keeps an interface from the other: macvlan and ipvlan, or host-device, which moves it."""
    users: dict[tuple, dict] = {}
    for _network, obj, host, config in parsed:
        for node in nodes:
            if host in ("", node["host"]):
                kind = "passthru" if config.get("mode") == "passthru" else config.get("type")
                users.setdefault((node["host"], master_of(config, node)), {})[kind] = obj
    for (host, master), by_kind in users.items():
        for kind, other in _APART if master else ():
            if kind in by_kind and other in by_kind:
                seen = f"{kind} of {by_kind[kind].partition(' ')[2]} and {other} on {master} of {host}"
                step = "use another interface for one of them, or the same type for both"
                yield Finding(by_kind[other], "an interface that no other network takes", seen, step, "nad:taken")
