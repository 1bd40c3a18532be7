"""Attachments of the user, or one per rail, as NetworkAttachmentDefinitions, address pools and node files.

Pure. No two nodes ever hand out the same address: host-local keeps its leases on the node, so each node gets its
own block. One NetworkAttachmentDefinition cannot hold a block per node; then its spec is empty and Multus reads the
configuration of the same name from a file of the node (confDir, Kubernetes Network Custom Resource Definition De-facto
Standard, 4.1.1).
"""

import itertools
import json
import re
from collections.abc import Sequence

from ...module_utils._cni import address_pool, nad_lint
from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding
from ...module_utils._device_plugin import config as plugin_config
from ...module_utils._device_plugin import dra
from ...module_utils._kube import pods
from .._core.addresses import netaddr
from .._core.addresses import network as as_network

CNI_VERSION = "0.3.1"
# Prefix of our files that Multus reads.
OURS = "gpufabric-rdma-"
RESOURCE_ANNOTATION = "k8s.v1.cni.cncf.io/resourceName"
# For people and tools: the class whose claims provide the HCA of this network.
CLASS_ANNOTATION = f"{dra.DRIVER}/device-class"
TYPES = ("macvlan", "host-device", "ipoib", "sriov", "ib-sriov")
OF_VFS = ("sriov", "ib-sriov")  # they use a VF from a device plugin
# The component that installs a type or an IPAM that is not one of the reference plugins.
COMPONENT_OF = {
    "ipoib": "ipoib-cni",
    "sriov": "sriov-cni",
    "ib-sriov": "ib-sriov-cni",
    "whereabouts": "whereabouts",
    "nv-ipam": "nv-ipam",
}
# Options and the types that support them; other combinations are refused, not dropped.
_ALLOWED = {
    "master": ("macvlan", "host-device", "ipoib"),
    "rail": ("macvlan", "host-device", "ipoib"),
    "pci": ("host-device",),
    "mode": ("macvlan",),
    "mtu": ("macvlan",),
    "vlan": ("sriov",),
    "link_state": OF_VFS,
}
_ALLOWED_IPAM = {
    "subnet": ("host-local", "whereabouts", "nv-ipam"),
    "range_start": ("host-local", "whereabouts"),
    "range_end": ("host-local", "whereabouts"),
    "exclude": ("host-local", "whereabouts", "nv-ipam"),
    "gateway": ("host-local", "whereabouts", "nv-ipam", "static"),
    "addresses": ("static",),
    "pool": ("nv-ipam",),
    "per_node_block_size": ("host-local", "nv-ipam"),
}
_OF_POOL = ("subnet", "per_node_block_size", "gateway", "exclude")
# What it is, and whether it has a prefix, if that matters.
_ADDRESSES = {
    **dict.fromkeys(("range_start", "range_end", "gateway"), ("an address without a prefix", False)),
    **dict.fromkeys(("subnet", "exclude"), ("an address or network", None)),
    "addresses": ("an address with its prefix", True),
}
_INSTEAD = {
    "mtu": "such an interface has the MTU of its device: set it there (rail_links_settings)",
    "vlan": "create the VLAN interface on the nodes and set it as master",
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


# --- what is wanted ---------------------------------------------------------------------------------------------------


def rail_attachments(variables: dict, nodes: list[dict], resources=None) -> tuple[list[dict], list[Finding], list[str]]:
    """One attachment per rail: (attachments, problems, notes). resources: device_plugin_resources of the play.

    A rail that every node serves over DRA has a class instead of a resource: rail0 is the network of class rail-0.
    """
    findings, notes, made = [], [], []
    indices = sorted({rail["index"] for node in nodes for rail in node["rails"]})
    if not indices:
        seen = f"none on {core_text.names([node['host'] for node in nodes]) or 'any node'}"
        step = "see what discovery says about their HCAs (playbooks/discover.yml), or list them in discovery_rails"
        return [], [Finding("networks_rails", "nodes with rails", seen, step, "networks:rails")], []
    supernet, prefix = variables["networks_rails_supernet"], variables["networks_rails_prefix"]
    subnets, refused = rail_subnets(supernet, prefix, indices)
    findings += refused
    for index in indices:
        layers = {rail["link_layer"] for node in nodes for rail in node["rails"] if rail["index"] == index}
        if "InfiniBand" in layers and "ipoib-cni" not in variables["networks_components"]:
            notes.append(
                f"rail {index} is InfiniBand: verbs need no interface, so it gets no attachment; for IP over it add "
                "ipoib-cni to networks_components"
            )
            continue
        made.append(
            {
                "name": f"rail{index}",
                "type": "ipoib" if "InfiniBand" in layers else "macvlan",
                "rail": index,
                "namespaces": variables["networks_namespaces"],
                "ipam": variables["networks_ipam"],
                "subnet": subnets.get(index),
                "resource_name": _rail_resource(index, variables["networks_rails_resource"], resources, nodes),
            }
        )
        if index in {one for node in nodes for one in node.get("dra_rails") or ()}:
            made[-1]["device_class"] = dra.class_of(index)
        if made[-1]["type"] == "macvlan" and variables["networks_mtu"]:
            made[-1]["mtu"] = variables["networks_mtu"]
    return made, findings, notes


def _rail_resource(index: int, named: str, resources, nodes: list[dict]) -> str | None:
    """None for a rail with a class of its own, or if a user's list has several items, but none with its interface."""
    if named != "auto":
        return named.replace("%d", str(index)) or None
    having = [node for node in nodes if index in {rail["index"] for rail in node["rails"]}]
    if all(index in (node.get("dra_rails") or ()) for node in having):
        return None
    items = nad_lint.dicts(resources)
    if not items:
        return pods.own_resource(index)
    netdevs = {rail["netdev"] for node in having for rail in node["rails"] if rail["index"] == index}
    for item in items:
        if netdevs & set(plugin_config.interfaces(item)):
            return plugin_config.full_name(item)
    return plugin_config.full_name(items[0]) if len(items) == 1 else None


def rail_subnets(supernet: str, prefix: int, indices) -> tuple[dict, list[Finding]]:
    """{rail index: subnet}, one after the other in supernet, so that a rail's subnet does not depend on the others."""
    network = as_network(supernet)
    if network is None:
        step = "give a network such as 10.56.0.0/16"
        return {}, [Finding("networks_rails_supernet", "a network", repr(supernet), step, "networks:supernet")]
    found, findings, network = {}, [], network.cidr
    bits = 32 if network.version == 4 else 128
    there = 2 ** (prefix - network.prefixlen) if network.prefixlen <= prefix <= bits else 0
    for index in indices:
        if index >= there:
            step = f"use a larger networks_rails_supernet or another networks_rails_prefix, up to {bits}"
            seen = f"{supernet} holds {core_text.count(there, 'network')} of /{prefix}"
            findings.append(Finding(f"rail {index}", "a separate subnet", seen, step, "networks:supernet"))
            break
        first = network.first + index * 2 ** (bits - prefix)
        found[index] = f"{netaddr.IPAddress(first, network.version)}/{prefix}"
    return found, findings


def _normal(item: dict, variables: dict) -> dict:
    given = {key: value for key, value in item.items() if value is not None}
    given.setdefault("namespaces", variables["networks_namespaces"])
    given["ipam"] = given.get("ipam") or variables["networks_ipam"]
    return given


def check(attachments: list[dict], variables: dict) -> list[Finding]:
    """Problems of the attachments themselves, regardless of the nodes."""
    found, seen_names, pools = [], {}, {}
    for item in attachments:
        obj = f"attachment {item['name']}"
        if not _NAME.fullmatch(item["name"]) or len(item["name"]) > 63:
            step = "lower-case letters, digits and - only"
            found.append(Finding(obj, "a valid Kubernetes name", repr(item["name"]), step, "networks:name"))
        for space in item["namespaces"]:
            if not _NAME.fullmatch(str(space)):
                step = "list each namespace by itself"
                found.append(Finding(obj, "the name of a namespace", repr(space), step, "networks:name"))
        if item["name"] in seen_names:
            step = "rename one of them: the plugins track addresses by this name, across namespaces"
            found.append(Finding(obj, "one attachment with this name", "two of them", step, "networks:name"))
        seen_names[item["name"]] = item
        found += _options(obj, item, item["type"], _ALLOWED, "type")
        found += _options(obj, item, item["ipam"], _ALLOWED_IPAM, "IPAM")
        found += _required(obj, item)
        if item["ipam"] == "nv-ipam" and item.get("subnet"):
            pool, made = item.get("pool") or item["name"], [item.get(key) for key in _OF_POOL]
            if pools.setdefault(pool, made) != made:
                step = "give each its own pool; of those that share one, let one attachment set its options"
                found.append(Finding(obj, f"one IPPool {pool}", "two with different options", step, "networks:pool"))
        component = [COMPONENT_OF.get(item["type"]), COMPONENT_OF.get(item["ipam"])]
        for name in filter(None, component):
            if name not in variables["networks_components"] and not variables["networks_components_external"]:
                wanted = f"{name}, which this attachment needs on every node"
                step = f"add {name} to networks_components; if something else installs it, set "
                step += "networks_components_external: true"
                seen = f"networks_components: {core_text.listing(variables['networks_components']) or 'empty'}"
                found.append(Finding(obj, wanted, seen, step, f"networks:component:{name}"))
    return found


def _options(obj: str, item: dict, kind: str, table: dict, what: str) -> list[Finding]:
    return [
        Finding(
            obj,
            f"no {option} with {what} {kind}: it is for {', '.join(kinds)}",
            f"{option}: {item[option]!r}",
            _INSTEAD.get(option, f"leave it out, or use another {what}"),
            f"networks:option:{option}",
        )
        for option, kinds in table.items()
        if item.get(option) not in (None, []) and kind not in kinds
    ]


def _required(obj: str, item: dict) -> list[Finding]:
    found = []
    places = [key for key in ("master", "rail", "pci") if item.get(key) is not None]
    kind, ipam = item["type"], item["ipam"]
    if kind in ("macvlan", "ipoib") and len(places) != 1:
        step = "set the interface (master) or the rail whose interface it is (rail)"
        found.append(Finding(obj, "one of master and rail", ", ".join(places) or "neither", step, "networks:master"))
    if kind == "host-device" and len(places) != 1 and not item.get("resource_name"):
        step = "set one of them; without any, resource_name has to hand out PCI addresses"
        found.append(
            Finding(obj, "one of master, rail and pci", ", ".join(places) or "none of them", step, "networks:master")
        )
    if kind in OF_VFS and not item.get("resource_name"):
        step = "set resource_name to PREFIX/NAME of networks_sriov_resources"
        found.append(Finding(obj, "the resource that hands out VFs", "no resource_name", step, "networks:resource"))
    if ipam in ("host-local", "whereabouts") and not item.get("subnet"):
        found.append(Finding(obj, f"a subnet for {ipam}", "none", "set subnet", "networks:subnet"))
    if ipam == "nv-ipam" and not (item.get("subnet") or item.get("pool")):
        step = "set subnet, or pool for one that exists"
        found.append(Finding(obj, "a subnet or a pool for nv-ipam", "neither", step, "networks:subnet"))
    for option, (form, prefixed) in _ADDRESSES.items():
        given = item.get(option) or []
        for value in given if isinstance(given, list) else [given]:
            if as_network(value) is None or prefixed not in (None, "/" in str(value)):
                step = "write it as 192.0.2.0/24 or 192.0.2.1"
                found.append(Finding(obj, f"{form} in {option}", repr(value), step, "networks:address"))
    return found


# --- addresses --------------------------------------------------------------------------------------------------------


def pool_of(item: dict, size: int | None = None, taken=()) -> address_pool.Pool:
    """The addresses of an attachment. taken: those that hosts hold."""
    outside = [str(one) for one in [*(item.get("exclude") or []), *taken]]
    given = (item["subnet"], item.get("range_start"), item.get("range_end"), item.get("gateway"), outside, size)
    return address_pool.make(*given, reserving=item.get("ipam") == "host-local")


def node_ranges(item: dict, size: int, index: int, taken=()) -> list[tuple[str, str]]:
    """The (start, end) ranges of one node: `size` addresses after those of the nodes before it, gaps skipped."""
    pool = pool_of(item, size, taken)
    return [(str(address(pool, low)), str(address(pool, high))) for low, high in pool.ranges(index)]


def address(pool: address_pool.Pool, number: int):
    return netaddr.IPAddress(number, pool.network.version)


def _ipam(item: dict, ranges=None, taken=()) -> dict:
    kind = item["ipam"]
    if kind == "none":
        return {}
    gateway = {"gateway": item["gateway"]} if item.get("gateway") else {}
    if kind == "host-local":
        subnet = str(netaddr.IPNetwork(item["subnet"]).cidr)
        made = [{"subnet": subnet, "rangeStart": low, "rangeEnd": high, **gateway} for low, high in ranges]
        return {"type": "host-local", "ranges": [made]}
    if kind == "static":
        addresses = [{"address": address, **gateway} for address in item.get("addresses") or []]
        return {"type": "static", **({"addresses": addresses} if addresses else {})}
    if kind == "nv-ipam":
        return {"type": "nv-ipam", "poolName": item.get("pool") or item["name"], "poolType": "ippool"}
    bounds = {key: item[key] for key in ("range_start", "range_end") if item.get(key)}
    made = {"type": "whereabouts", "range": item["subnet"], **bounds, **gateway}
    # whereabouts does not keep the gateway back.
    kept = [*(item.get("exclude") or []), *taken, *gateway.values()]
    outside = list(dict.fromkeys(str(netaddr.IPNetwork(value)) for value in kept))
    if outside:
        # whereabouts takes networks, so a single address gets the full prefix length.
        made["exclude"] = outside
    return made


def config(item: dict, master, ranges=None, taken=()) -> dict:
    """The CNI configuration of an attachment on a node. taken: addresses that hosts hold on the same wire."""
    made: dict = {"cniVersion": CNI_VERSION, "name": item["name"], "type": item["type"]}
    if item["type"] == "macvlan":
        made.update(master=master, mode=item.get("mode") or "bridge")
        if item.get("mtu"):
            made["mtu"] = item["mtu"]
    elif item["type"] == "ipoib":
        made["master"] = master
    elif item["type"] == "host-device":
        if item.get("pci") or master:
            one = item.get("pci") or master
            made["pciBusID" if ":" in one else "device"] = one
    else:
        made.update({key: item[key] for key in ("vlan", "link_state") if item.get(key)})
    if item["ipam"] == "static" and not item.get("addresses"):
        # Each pod then sets its own, as "ips" in its networks annotation.
        made["capabilities"] = {"ips": True}
    made["ipam"] = _ipam(item, ranges, taken)
    if not item.get("source_route"):
        return made
    return {**{key: made.pop(key) for key in ("cniVersion", "name")}, "plugins": [made, {"type": "sbr"}]}


# --- objects and files ------------------------------------------------------------------------------------------------


def wanted(variables: dict, nodes: list[dict], resources=None) -> tuple[list[dict], list[Finding], list[str]]:
    """The user's attachments and those of the rails, with defaults filled in: (attachments, problems, notes)."""
    attachments = [_normal(item, variables) for item in variables["networks_attachments"]]
    findings: list[Finding] = []
    notes: list[str] = []
    of_rails = variables["networks_rails"]
    if of_rails is None:  # Over Ethernet, pods have no GID without a network of the rail.
        layers = {rail["link_layer"] for node in nodes for rail in node["rails"]}
        of_rails = "Ethernet" in layers and (variables["networks_in_claims"] or not variables["networks_attachments"])
    if of_rails:
        rails, findings, notes = rail_attachments(variables, nodes, resources)
        attachments += [_normal(item, variables) for item in rails]
    for item in attachments:
        if item["ipam"] == "auto":
            item["ipam"] = _default_ipam(variables, item)
    return attachments, findings, notes


def plan(variables: dict, nodes: list[dict], hosts: Sequence[str] = (), resources=None) -> dict:
    """Everything the role renders.

    variables: the networks_* of the play. nodes, in the order that numbers their address blocks: host, number, rails
    (index, netdev, link_layer), netdevs {name: {addresses}}. hosts: the names of all nodes; if some of them are not
    among nodes (not in this run, or failed in it), `complete` is false, and objects made from the rest would be wrong
    for them. Returns attachments, networks (what the linter reads), objects, files {host: {network name:
    text}}, problems and notes.
    """
    away = [host for host in hosts if host not in {node["host"] for node in nodes}]
    total = len(nodes) + len(away)
    attachments, findings, notes = wanted(variables, nodes, resources)
    findings += check(attachments, variables)
    of_rails = [item for item in attachments if item["name"] == f"rail{item.get('rail')}"]
    if variables["networks_in_claims"] and nodes and not of_rails:
        step = "set networks_rails: true, or networks_in_claims: false"
        wish = "attachments rail0 and so on, which come with claims"
        findings.append(Finding("variable networks_in_claims", wish, "none", step, "networks:claims"))
    notes += _one_subnet(attachments)
    made = {
        "attachments": attachments,
        "networks": [],
        "objects": [],
        "files": {node["host"]: {} for node in nodes},
        "findings": findings,
        "notes": notes,
        "complete": not away,
    }
    if away:
        made["notes"].append(
            f"this run sees {len(nodes)} of {total} nodes, without {core_text.names(away)}: it updates files of the "
            "nodes but no objects of the cluster; run again with all nodes to update the objects"
        )
    if findings:
        return made
    for item in attachments:
        _render(item, variables, nodes, total, made, resources)
    made["objects"] = _namespaces(attachments) + made["objects"]
    made["notes"] += nad_lint.notes(made["networks"])
    return made


def _one_subnet(attachments: list[dict]) -> list[str]:
    """Attachments of several NICs in one subnet: a pod with both sends through one of them."""
    placed = [
        (item, subnet, item.get("rail", item.get("master")))
        for item in attachments
        if not item.get("source_route") and (subnet := as_network(item.get("subnet"))) is not None
    ]
    return [
        f"attachments {first[0]['name']} and {second[0]['name']} share a subnet: a pod with both sends through one of "
        "them; give each a subnet, or set source_route: true on them"
        for first, second in itertools.combinations(placed, 2)
        if first[2] != second[2] and (first[1] in second[1] or second[1] in first[1])
    ]


def checked(variables: dict, nodes: list[dict], hosts: Sequence[str], resources, cidrs: tuple) -> dict:
    """The plan, with sriov_config and all problems of its networks on these nodes. cidrs: (networks of pods,
    networks of services).
    """
    made = plan(variables, nodes, hosts, resources)
    made["sriov_config"], refused = sriov_config(variables["networks_sriov_resources"], nodes)
    device = [f"{item['prefix']}/{item['name']}" for item in variables["networks_sriov_resources"]]
    cluster = {
        "pod_cidrs": cidrs[0],
        "service_cidrs": cidrs[1],
        "shared_resources": shared_resources(resources, nodes),
        "device_resources": device + variables["networks_known_resources"],
        "pods_per_node": variables["networks_pods_per_node"],
        "forbidden_masters_allowed": variables["networks_default_route_masters"],
    }
    made["findings"] += refused + nad_lint.lint(made["networks"], nodes, cluster)
    return made


def node_files(wanted: dict[str, str], there: dict[str, str], directory: str) -> tuple[dict, list[Finding]]:
    """({files: [{path, content}], absent: [path]} of one node, networks that a foreign file has too).

    wanted: {network name: text}; there: {file name: text} of what Multus reads in the directory. JSON has no comments,
    so a prefix of the file name marks ours.
    """
    others = {nad_lint.network_name(text): name for name, text in there.items() if not name.startswith(OURS)}
    findings = [
        Finding(
            f"network {name}",
            "one file with this name in its configuration",
            f"{directory}/{others[name]}, which is not ours, has it too; Multus uses the first",
            f"remove {directory}/{others[name]}, or rename the attachment",
        )
        for name in sorted(wanted)
        if name in others
    ]
    # Multus recognizes a chain by the end of its file's name.
    names = {
        f"{OURS}{name}.conf{'list' if 'plugins' in json.loads(text) else ''}": text
        for name, text in sorted(wanted.items())
    }
    left = [name for name in sorted(there) if name.startswith(OURS) and name not in names]
    files = [{"path": f"{directory}/{name}", "content": text} for name, text in names.items()]
    return {"files": files, "absent": [f"{directory}/{name}" for name in left]}, findings


def _namespaces(attachments: list[dict]) -> list[dict]:
    """Namespaces that a new cluster lacks; never deleted with the attachment."""
    names = dict.fromkeys(name for item in attachments for name in item["namespaces"])
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        for name in names
        if name not in ("default", "kube-system", "kube-public")
    ]


def shared_resources(given, nodes: list[dict]) -> list[str]:
    """Resources of the shared device plugin: those of the user's configList, else one per rail."""
    if nad_lint.dicts(given):
        return [plugin_config.full_name(item) for item in nad_lint.dicts(given)]
    return sorted({pods.own_resource(rail["index"]) for node in nodes for rail in node["rails"]})


def sriov_config(resources: list[dict], nodes: list[dict]) -> tuple[dict, list[Finding]]:
    """(config.json of the SR-IOV network device plugin, problems).

    One resource covers the VFs of its rails' physical functions, or those functions themselves. With isRdma the plugin
    hands out the RDMA character devices, too. The plugin skips a function that has VFs, so the two never mix.
    """
    entries, findings, names = [], [], set()
    for item in resources:
        name = f"{item['prefix']}/{item['name']}"
        obj = f"networks_sriov_resources {name}"
        if name in names:
            findings.append(Finding(obj, "one resource of this name", "two", "rename one of them", "networks:sriov"))
        names.add(name)
        wanted = item.get("rails") or sorted({rail["index"] for node in nodes for rail in node["rails"]})
        addresses = sorted(
            {rail["pci"] for node in nodes for rail in node["rails"] if rail["index"] in wanted and rail.get("pci")}
        )
        if not addresses:
            seen = f"rails {core_text.listing(map(str, wanted)) or 'none'} without a PCI function"
            step = "set rails of cards (software HCAs have no VFs)"
            findings.append(Finding(obj, "physical functions", seen, step, "networks:sriov"))
            continue
        key = "rootDevices" if item.get("functions", "vfs") == "vfs" else "pciAddresses"
        entries.append(
            {
                "resourcePrefix": item["prefix"],
                "resourceName": item["name"],
                "selectors": {key: addresses, "isRdma": True},
            }
        )
    return {"resourceList": entries}, findings


def _default_ipam(variables: dict, item: dict) -> str:
    """nv-ipam if it is installed (a block per node), else whereabouts, else host-local with a block per node."""
    if not item.get("subnet"):
        return "nv-ipam" if item.get("pool") else "static" if item.get("addresses") else "none"
    for kind in ("nv-ipam", "whereabouts"):
        if kind in variables["networks_components"]:
            return kind
    return "host-local"


def masters(item: dict, nodes: list[dict]) -> dict:
    """{host: name of the interface, or None if the node has no such rail}; for host-device, which may have moved the
    interface into a pod, the address of its function."""
    if item.get("rail") is None:
        return {node["host"]: item.get("master") for node in nodes}
    rails = {node["host"]: {rail["index"]: rail for rail in node["rails"]}.get(item["rail"]) or {} for node in nodes}
    moves = item["type"] == "host-device"
    return {host: rail.get("netdev") or (rail.get("pci") if moves else None) for host, rail in rails.items()}


def _render(item: dict, variables: dict, nodes: list[dict], total: int, made: dict, resources) -> None:
    obj = f"attachment {item['name']}"
    by_host = masters(item, nodes)
    missing = [host for host, name in by_host.items() if item.get("rail") is not None and name is None]
    if missing:
        made["notes"].append(
            f"{obj}: {core_text.names(missing)} without an interface on rail {item['rail']}; pods there cannot attach"
        )
    serving = [node for node in nodes if node["host"] not in missing]
    names = {by_host[node["host"]] for node in serving}
    size = item.get("per_node_block_size") or variables["networks_pods_per_node"]
    split = item["ipam"] == "host-local"
    taken = _taken(item, serving, by_host)
    ranges = {}
    if item.get("subnet") and item["ipam"] in ("host-local", "nv-ipam", "whereabouts"):
        pool = pool_of(item, None if item["ipam"] == "whereabouts" else size, taken)
        unfit = _unfit(item, pool, serving, total)
        if unfit:
            made["findings"] += unfit
            return
        ranges = {node["host"]: node_ranges(item, size, node["number"], taken) for node in serving if split}
    note = _takes_away(item, by_host, resources, nodes)
    made["notes"] += [note] if note else []
    # A claim gets the network of a rail from the node's file.
    claimed = variables["networks_in_claims"] and item.get("rail") is not None
    per_node = len(names) > 1 or (split and total > 1) or claimed
    if split and not serving:
        return
    configs = {
        node["host"]: json.dumps(config(item, by_host[node["host"]], ranges.get(node["host"]), taken), indent=2)
        for node in serving
    }
    if not per_node:
        # The same on every node, so one does for all.
        text = next(iter(configs.values()), None)
        configs = {"": text or json.dumps(config(item, item.get("master"), taken=taken), indent=2)}
    for namespace in item["namespaces"]:
        made["objects"].append(_nad(item, namespace, None if per_node else configs[""]))
        made["networks"].append(
            {
                "namespace": namespace,
                "name": item["name"],
                "resource": item.get("resource_name"),
                "configs": configs,
                "per_node": per_node,
                "block_size": size if item["ipam"] in ("host-local", "nv-ipam") and not item.get("pool") else None,
                "subnet": item.get("subnet"),
            }
        )
    if per_node:
        for host, text in configs.items():
            made["files"][host][item["name"]] = text + "\n"
    if item["ipam"] == "nv-ipam" and item.get("subnet"):
        made["objects"].append(_pool(item, size, taken))
    if item["ipam"] == "whereabouts":
        made["notes"].append(f"{obj}: NVIDIA's Network Operator deprecated whereabouts in 25.4; nv-ipam replaces it")


def _taken(item: dict, serving: list[dict], by_host: dict) -> list[str]:
    """Addresses of the subnet that hosts have on the interfaces below the attachment."""
    if not item.get("subnet"):
        return []
    network = netaddr.IPNetwork(item["subnet"])
    held = [
        netaddr.IPNetwork(address).ip
        for node in serving
        for address in (node["netdevs"].get(by_host[node["host"]] or "") or {}).get("addresses") or []
    ]
    return [str(ip) for ip in held if ip in network]


def _unfit(item: dict, pool: address_pool.Pool, serving: list[dict], total: int) -> list[Finding]:
    """What keeps pods of a node from an address; nv-ipam and whereabouts number nodes in order of arrival."""
    own = item["ipam"] == "host-local"
    numbers = {node["host"]: node["number"] if own else number for number, node in enumerate(serving)}
    if not own and total > len(serving):
        numbers["the last node"] = total - 1
    return address_pool.judge(f"attachment {item['name']}", pool, numbers, "networks")


def _takes_away(item: dict, by_host: dict, resources, nodes: list[dict]) -> str | None:
    """The effect of host-device on a shared resource that is selected by the interface's name."""
    if item["type"] != "host-device":
        return None
    named = {name for name in by_host.values() if name}
    named |= {rail["netdev"] for node in nodes for rail in node["rails"] if item.get("pci") in (rail["pci"],)}
    of_rails = {pods.own_resource(rail["index"]) for node in nodes for rail in node["rails"] if rail["netdev"] in named}
    selected = of_rails if not nad_lint.dicts(resources) else set()
    for entry in nad_lint.dicts(resources):
        if named & set(plugin_config.interfaces(entry)):
            selected.add(plugin_config.full_name(entry))
    if not selected:
        return None
    return (
        f"attachment {item['name']}: host-device moves {core_text.listing(sorted(named))} into the first pod that "
        f"attaches; {core_text.listing(sorted(selected))} selects its HCA by that name and offers nothing from then "
        "on: select it by extraSelectors.pciAddresses in device_plugin_resources, or use macvlan"
    )


def _nad(item: dict, namespace: str, text) -> dict:
    metadata: dict = {"name": item["name"], "namespace": namespace}
    annotations = {RESOURCE_ANNOTATION: item.get("resource_name"), CLASS_ANNOTATION: item.get("device_class")}
    if any(annotations.values()):
        metadata["annotations"] = {key: value for key, value in annotations.items() if value}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": metadata,
        # Multus reads an empty one from the node. Without it, a spec that had one turns null in Kubernetes 1.37.
        "spec": {"config": text or ""},
    }


def _pool(item: dict, size: int, taken: list[str]) -> dict:
    spec: dict = {"subnet": item["subnet"], "perNodeBlockSize": size}
    if item.get("gateway"):
        spec["gateway"] = item["gateway"]
    pool = pool_of({**item, "gateway": None}, size, taken)
    if pool.outside:
        spec["exclusions"] = [
            {"startIP": str(address(pool, low)), "endIP": str(address(pool, high))} for low, high in pool.outside
        ]
    return {
        "apiVersion": "nv-ipam.nvidia.com/v1alpha1",
        "kind": "IPPool",
        "metadata": {"name": item.get("pool") or item["name"], "namespace": "kube-system"},
        "spec": spec,
    }
