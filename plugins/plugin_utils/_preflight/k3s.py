"""k3s across all hosts: the problems, and the decision for each node.

Pure; runs on the controller, where netaddr is. A node has the form {host, state (what node_facts read, or None),
failure, variables (typed, without the prefix k3s_), facts (of hca_facts, or empty), servers (names of all hosts of
k3s_servers in order, also those that this run leaves out), guessed_from (without that group: the nodes, the first
being the server; else empty), first_addresses (the inventory's data of a guessed server), server_addresses {host
of servers: (k3s_node_ip, ansible_host)} if servers share an address}. A server outside of the run has the same form:
all servers of the inventory count for decisions about the cluster.
"""

import re
import statistics
from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding, at
from ...module_utils._driver import packages
from ...module_utils._k3s import config as k3s
from ...module_utils._k3s.plan import of_role, stale
from .._bundle import folder as bundle_folder
from .._core.addresses import address as as_address
from .._core.addresses import inside, netaddr
from .._core.addresses import network as as_network
from . import host as host_rules

# k3s does not start with flannel-backend none in it (k3s#9570).
BROKEN_VERSIONS = {"v1.28.6+k3s1": "v1.28.7+k3s1 or newer", "v1.29.1+k3s1": "v1.29.2+k3s1 or newer"}
# Duplicate rules pile up with these (k3s#3117), so k3s brings its own.
_ODD_IPTABLES = ([1, 8, 0], [1, 8, 4])
# Seconds that a node's clock may be off, and more for each node, because nodes are read one after the other.
_CLOCK_LIMIT, _CLOCK_READING = 600, 5
_PORTS = {"server": (6443, 10250), "agent": (10250,)}
_ETCD_PORTS = (2379, 2380)
NAME, SILENT, MACHINE, QUORUM = "k3s:node-name", "k3s:silent-servers", "k3s:machine", "k3s:quorum"
_VARIABLE = "correct it where it is set (inventory, group_vars or -e)"
_LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def decide(
    nodes: list[dict],
    bundle: dict | None,
    folder: str,
    changing_version: bool = False,
    now: float | None = None,
    inventory: Iterable[str] = (),
    outside: Sequence[dict] = (),
) -> dict:
    """{findings: of all hosts (see at), notes: [...], nodes: {host: decision}}. now: by the controller's clock;
    inventory: all hosts of the cluster; outside: servers that this run leaves out.
    """
    found: list[dict] = []
    notes: list[str] = []
    here = {node["host"] for node in nodes}
    everyone = [*nodes, *outside]

    def report(host: str, *findings: Finding) -> None:
        found.extend(at(host if host in here else ", ".join(sorted(here)), findings))

    _cluster(nodes, report)
    _silent(everyone, report, notes)
    _one_cluster(everyone, report)
    _first_server(nodes, everyone, report)
    readable = [node for node in nodes if node["state"]]
    if now is not None:
        _clocks(readable, now, report, notes)
    for node in [node for node in nodes if not node["state"]]:
        seen = node["failure"] or "no answer"
        report(node["host"], Finding("node", "a node that can be read", seen, "fix the cause"))
    decisions = {node["host"]: _decision(node, everyone) for node in readable}
    elsewhere = {node["host"]: _decision(node, everyone) for node in outside if node["state"]}
    for node in readable:
        _variables(node, decisions[node["host"]], report)
        _addresses(node, decisions[node["host"]], report, notes)
        _ownership(node, decisions[node["host"]], report, notes)
        _bundled(node, decisions[node["host"]], bundle, folder, changing_version, report)
    own = {host: (each["name"], bool(each["node_name"])) for host, each in {**elsewhere, **decisions}.items()}
    for host, finding in names(own, {*inventory, *here}):
        if host in here:
            report(host, finding)
    _node_ips(decisions, elsewhere, report)
    _agree(decisions, elsewhere, report)
    _skew(decisions, elsewhere, report)
    _shared_address(readable, decisions, report)
    return {"findings": found, "notes": notes, "nodes": decisions}


# --- the cluster as a whole -------------------------------------------------------------------------------------------


def _cluster(nodes, report) -> None:
    for group in {tuple(node["servers"]): node for node in nodes}.values():
        names = group["servers"]
        if not names:
            wanted, seen = "a server for the agents to join", "the group is empty"
            step = "add a host to k3s_servers, or remove the group: the first node is then the server"
            report(group["host"], Finding("group k3s_servers", wanted, seen, step))
        elif len(names) % 2 == 0:
            wanted, seen = "an odd number of servers: 1, 3, 5", f"{len(names)}: {', '.join(names)}"
            step = "add or remove one; etcd with an even number survives no more failures than with one fewer"
            report(names[0], Finding("group k3s_servers", wanted, seen, step))


def _clocks(readable: list[dict], now: float, report, notes: list[str]) -> None:
    """Nodes whose time differs from that of the others and the controller."""
    ahead = {node["host"]: node["state"]["clock"] - now for node in readable if node["state"].get("clock")}
    clocks, limit = [0.0, *ahead.values()], _CLOCK_LIMIT + _CLOCK_READING * len(readable)
    # The time that most agree on; if two nodes differ, the controller's, which then counts twice.
    usual = statistics.median([*clocks, 0.0] if len(clocks) % 2 == 0 else clocks)
    for host, seconds in ahead.items():
        if abs(seconds - usual) > limit:
            wanted = f"the time of the other nodes and the controller, within {limit // 60} minutes: "
            wanted += "certificates of one node must be valid on all"
            step = "set the wrong clock (timedatectl set-ntp true, or chrony) and run again"
            report(host, Finding("clock", wanted, f"{_apart(seconds - usual)} them", step))
    if abs(usual) > limit:
        notes.append(f"the controller's clock is {_apart(-usual)} that of the nodes, which agree: set it")


def _apart(seconds: float) -> str:
    return f"{abs(seconds) / 3600:.1f} hours {'ahead of' if seconds > 0 else 'behind'}"


def _silent(everyone: list[dict], report, notes: list[str]) -> None:
    """A server that does not answer may be in another cluster, unless a majority is in this one."""
    servers = everyone[0]["servers"]
    known = {node["host"]: node for node in everyone if node["state"]}
    silent = [host for host in servers if host not in known]
    members = [host for host in servers if host in known and known[host]["state"]["cluster"]]
    if silent and 2 * len(members) > len(servers):
        notes.append(f"decided without {', '.join(silent)}, which did not answer: {', '.join(members)} are a majority")
    elif silent:
        reasons = {node["host"]: node["failure"] for node in everyone}
        told = [f"{host} ({reasons.get(host) or 'no answer'})" for host in silent]
        seen = f"no answer from {', '.join(told)}; in the cluster: {', '.join(members) or 'none'}"
        step = "let the controller reach them, or take those that are gone for good out of k3s_servers, and run again"
        wanted = f"answers from more than half of the {len(servers)} servers that they are in the cluster"
        report(servers[0], Finding("servers of the inventory", wanted, seen, step, SILENT))


def _one_cluster(everyone: list[dict], report) -> None:
    servers = everyone[0]["servers"]
    states = {node["host"]: node["state"] or {} for node in everyone if node["host"] in servers}
    known = {host: state["ca"] for host, state in states.items() if state.get("ca")}
    if len(set(known.values())) > 1:
        seen = "; ".join(f"{host}: {digest[:12]}" for host, digest in known.items())
        step = "leave the servers of one cluster in the group, and take the others off theirs with playbooks/reset.yml"
        wanted = "servers of one cluster, with one CA (/var/lib/rancher/k3s/server/tls/server-ca.crt, SHA-256)"
        report(servers[0], Finding("group k3s_servers", wanted, seen, step, "k3s:second-cluster"))
    for node in [node for node in everyone if known and node["host"] not in servers and node["state"]]:
        ca, joined = node["state"].get("ca"), node["state"]["server_url"]
        if ca and joined and ca not in known.values() and joined != _url(node, everyone):
            step = "leave it out; to move it, drain it, run playbooks/reset.yml on it, then run again"
            seen = f"it joined {joined}, a cluster with another CA"
            report(node["host"], Finding("cluster", f"none, or that of {servers[0]}", seen, step, "k3s:second-cluster"))


def _first_server(nodes: list[dict], everyone: list[dict], report) -> None:
    """If the first server is not certain, a run could create a second cluster or change the wrong one."""
    first, group = (nodes[0]["servers"] or [None])[0], nodes[0]["guessed_from"]
    known = {node["host"]: node["state"] for node in everyone if node["state"]}
    if first not in known:
        return
    own = known[first]
    others = [host for host, seen in known.items() if host != first and seen["cluster"]]
    if not group:
        if others and not own["cluster"]:
            seen = f"{first} has no datastore and would start a second cluster next to {', '.join(others)}"
            step = f"put a server of that cluster first in k3s_servers, and {first} after it"
            wanted = "a first server that holds the cluster's datastore"
            report(first, Finding("group k3s_servers", wanted, seen, step, "k3s:second-cluster"))
        joins = [node["host"] for node in nodes if not node["variables"]["server_url"]]
        if joins and not others and not own["cluster"] and first not in {node["host"] for node in nodes}:
            seen = f"{first}, the first server, is in no cluster, and not in this run"
            step = f"run with {first} too: put it into the group of the nodes, or into --limit"
            report(first, Finding("group k3s_servers", "a cluster to join", seen, step, "k3s:no-cluster"))
        return
    missing = []
    if own["cluster"]:
        addresses = {*nodes[0]["first_addresses"], *(row["address"].partition("/")[0] for row in own["addresses"])}
        others += [node["host"] for node in nodes if node["state"] and _elsewhere(node, addresses)]
    else:
        missing = [host for host in group if host not in {node["host"] for node in nodes}]
        others = [host for host, seen in known.items() if seen["cluster"] or seen["joined"]]
    doubts = [f"not in this run: {', '.join(missing)}"] if missing else []
    doubts += [f"already in a cluster: {', '.join(others)}"] if others else []
    if doubts:
        wanted = "the first server by name, unless all nodes are in this run and none is in a cluster"
        would = f"no such group, so the first node, {first}, would be the server; {'; '.join(doubts)}"
        step = "put the cluster's server into group k3s_servers; for a new cluster run again without --limit, and take "
        step += "nodes off an old one with playbooks/reset.yml first"
        report(first, Finding("group k3s_servers", wanted, would, step))


def _elsewhere(node: dict, addresses: set[str]) -> bool:
    """Whether a node joined a server at another address that is not known to be the same server."""
    seen, typed = node["state"], node["variables"]
    joined = seen["joined"] and seen["server_url"]
    told = typed["server_url"] or typed.get("api_address")
    return bool(joined) and not told and urlsplit(joined).hostname not in addresses


def _decision(node: dict, nodes: list[dict]) -> dict:
    typed, seen = node["variables"], node["state"]
    role = "server" if node["host"] in node["servers"] else "agent"
    service = seen["services"][k3s.SERVICES[role]]
    node_ip = typed["node_ip"] or _default_address(seen)
    decided = {
        "host": node["host"],
        "role": role,
        "first": node["host"] == (node["servers"] or [None])[0],
        "servers": len(node["servers"]),
        "node_ip": node_ip,
        "node_name": typed["node_name"],
        "name": node["name"],
        "server_url": _url(node, nodes),
        "labels": labels(node.get("facts") or {}, typed),
        "taints": [*([k3s.STARTUP_TAINT] if typed["startup_taint"] else []), *typed["node_taints"]],
        "kubelet_args": k3s.kubelet_args(typed),
        "selinux": seen["selinux"] == "enforcing" if typed["selinux"] is None else typed["selinux"],
        "bundled_bin": _ODD_IPTABLES[0] <= (seen["iptables"] or []) <= _ODD_IPTABLES[1],
        # A starting k3s already holds its ports.
        "running": service["active"] or service["starting"],
        # Files newer than its start: a run was cut off between copying and restarting.
        "stale": stale(seen),
        "token_present": seen["token"]["present"],
        "version": seen["version"],
        "variables": typed,
        "shared": _share(node, node_ip, nodes) if role == "server" and typed.get("api_address") else None,
    }
    meta = {"name": decided["name"], "labels": decided["labels"]}
    object_of_cluster = {"apiVersion": "v1", "kind": "Node", "metadata": meta}
    return {**decided, "options": k3s.files(decided), "object": object_of_cluster}


def _default_address(seen: dict) -> str | None:
    """The address of the interface with the default route, if there is exactly one."""
    netdevs = {route["netdev"] for route in seen["routes"] if route["destination"] == "0.0.0.0/0"}
    found = [entry["address"].partition("/")[0] for entry in seen["addresses"] if entry["netdev"] in netdevs]
    return found[0] if len(found) == 1 else None


def _url(node: dict, nodes: list[dict]) -> str | None:
    """Where to join: k3s_server_url, else the address that the servers share, else the first server's address, else the
    server the node has joined already."""
    if node["variables"]["server_url"]:
        return node["variables"]["server_url"]
    if node["variables"].get("api_address"):
        return f"https://{node['variables']['api_address']}:6443"
    first = next((other for other in nodes if other["host"] in node["servers"][:1] and other["state"]), None)
    if first:
        address = first["variables"]["node_ip"] or _default_address(first["state"])
        return f"https://{address}:6443" if address else None
    return node["state"]["server_url"]


def labels(facts: dict, typed: dict) -> dict[str, str]:
    """The labels for scheduling pods with an HCA, and those set by the user.

    With NFD in the cluster, only NFD sets the first two, by a NodeFeatureRule.
    """
    found: dict[str, str] = {}
    hcas = facts.get("hcas") or []
    if typed["node_labels_automatic"] and hcas:
        if not typed["node_features_by_nfd"]:
            found["feature.node.kubernetes.io/rdma.capable"] = "true"
            if any((hca.get("pci") or {}).get("vendor") in ("15b3", "0x15b3") for hca in hcas):
                found["feature.node.kubernetes.io/pci-15b3.present"] = "true"
        layers = {str(port["link_layer"]) for hca in hcas for port in hca["ports"]}
        # An invalid label value, such as the reason why it is unknown, would keep the kubelet from starting.
        layers = sorted(layer for layer in layers if _LABEL.fullmatch(layer))
        if layers:
            found["rdma.gpufabric.io/link-layer"] = "-".join(layers)
        found["rdma.gpufabric.io/rails"] = str(len(facts.get("rails") or []))
        driver = (facts.get("driver") or {}).get("loaded") or {}
        if driver.get("flavor") and _LABEL.fullmatch(str(driver["flavor"])):
            found["rdma.gpufabric.io/driver"] = str(driver["flavor"])
    return {**found, **{str(name): str(value) for name, value in typed["node_labels"].items()}}


def names(own: dict[str, tuple[str, bool]], inventory: Iterable[str]) -> list[tuple[str, Finding]]:
    """(host, problem with its name in the cluster). own: {host: (name, whether it comes from k3s_node_name)}.

    Two nodes with one name are one Node. A node chooses its own host name: with another host's name it would get that
    host's pods and devices.
    """
    owners = core_text.grouped((name.lower(), host) for host, (name, _given) in own.items())
    listed = core_text.grouped((name.lower(), host) for host in inventory for name in (host, host.partition(".")[0]))
    found, step = [], "set k3s_node_name of this host, or its host name (hostnamectl set-hostname)"
    for host, (name, given) in own.items():
        if not host_rules.NODE_NAME.fullmatch(name):
            found.append((host, Finding("name of the node", host_rules.NODE_NAME_WANTED, repr(name), step, NAME)))
        others = {*owners[name.lower()], *(() if given else listed.get(name.lower(), ()))} - {host}
        if others:
            wanted = "a name for each node that no other host of the cluster has"
            seen = f"also that of {', '.join(sorted(others))}"
            found.append((host, Finding(f"node name {name}", wanted, seen, step, NAME)))
    return found


def machines(own: dict[str, tuple[str, str]], registered: dict[str, str]) -> list[tuple[str, Finding]]:
    """(host, finding) if the cluster has a Node of that name from another machine, whose place it would take.

    own: {host: (name, system UUID)}. registered: {name of a Node: its system UUID}. Deleting the Node is the consent:
    before that, k3s itself refuses the name to a second machine.
    """
    found = []
    for host, (name, uuid) in own.items():
        there = registered.get(name.lower())
        # A kubelet always reports one; a Node without it was made by someone else, such as an administrator.
        if there and there.lower() != uuid.lower():
            seen = f"system UUID {uuid or 'unknown'}, and the Node's is {there}"
            step = (
                f"if this machine replaces that one, delete its Node (kubectl delete node {name.lower()}) and run "
                "again; otherwise set k3s_node_name of this host"
            )
            found.append((host, Finding(f"node name {name}", "the machine that registered it", seen, step, MACHINE)))
    return found


def _node_ips(decisions: dict, elsewhere: dict, report) -> None:
    owners = core_text.grouped((decided["node_ip"], host) for host, decided in {**decisions, **elsewhere}.items())
    for address, hosts in owners.items():
        for host in [host for host in hosts if host in decisions] if address and len(hosts) > 1 else ():
            wanted, seen = "a different address for each node", f"the same on {', '.join(hosts)}"
            step = "set k3s_node_ip of each node to its address in the management network"
            report(host, Finding(f"node-ip {address}", wanted, seen, step))


# --- the address that servers share -----------------------------------------------------------------------------------


def _share(server: dict, node_ip: str | None, nodes: list[dict]) -> dict:
    """What a server needs to share the address, with the servers whose own address is unknown."""
    typed = server["variables"]
    own = _own_network(server["state"], node_ip)
    here = {node["host"]: node for node in nodes if node["state"]}
    peers = {host: _peer(here, server, host, own) for host in server["servers"] if host != server["host"]}
    return {
        "address": typed["api_address"],
        "interface": typed.get("api_interface") or (own[0] if own else None),
        "node_ip": node_ip,
        "peers": sorted(peer for peer in peers.values() if peer),
        "unknown": [host for host, peer in peers.items() if not peer],
    }


def _peer(here: dict, server: dict, other: str, own) -> str | None:
    """The own address of another server: as read from it, else from the inventory."""
    if other in here:
        return here[other]["variables"]["node_ip"] or _default_address(here[other]["state"])
    given, reached = server["server_addresses"][other]
    return given or (reached if own and inside(reached, own[1]) else None)


def _own_network(seen: dict, node_ip: str | None):
    for row in seen["addresses"]:
        if row["address"].partition("/")[0] == node_ip:
            return row["netdev"], netaddr.IPNetwork(row["address"])
    return None


def _shared_address(nodes: list[dict], decisions: dict, report) -> None:
    """k3s_api_address: the same for all nodes, free, and in the servers' own network."""
    values = {node["variables"].get("api_address") or "" for node in nodes}
    if not any(values):
        return
    name = f"k3s_api_address {max(values)}"
    if len(values) > 1:
        seen = ", ".join(sorted(f"{node['host']}: {node['variables'].get('api_address') or 'none'}" for node in nodes))
        step = "set it once, for the group of all nodes"
        report(nodes[0]["host"], Finding(name, "the same address for all nodes", seen, step))
        return
    wanted = as_address(values.pop())
    if wanted is None or wanted.version != 4:
        report(nodes[0]["host"], Finding(name, "an IPv4 address, such as 192.0.2.5", name.split()[1], _VARIABLE))
        return
    holder = any(node["state"].get("shared_address") == str(wanted) for node in nodes)
    for node in nodes:
        decided = decisions[node["host"]]
        own = [f"{row['address']} ({row['netdev']})" for row in node["state"]["addresses"]]
        if any(row["address"].partition("/")[0] == str(wanted) for row in node["state"]["addresses"]):
            seen = f"this node's own: {', '.join(own)}"
            report(node["host"], Finding(name, "an address that no node has itself", seen, _VARIABLE))
        given = node["variables"]["server_url"]
        if given and urlsplit(given).hostname != str(wanted):
            step = "set only one of the two: nodes join at k3s_api_address"
            report(node["host"], Finding("k3s_server_url", f"https://{wanted}:6443, or not set", given, step))
        if decided["role"] == "server":
            report(node["host"], *_serves(node, decided, wanted, name))
            answers = (node["state"].get("shared") or {}).get("answers")
            if answers and not holder:
                seen = f"a machine with the link address {answers} answers there"
                report(node["host"], Finding(name, "a free address", seen, "take another one, or free it"))


def _serves(node: dict, decided: dict, wanted, name: str) -> list[Finding]:
    """Whether this server can take the address: its network, its interface, keepalived."""
    found, seen = [], node["state"]
    own = _own_network(seen, decided["node_ip"])
    for option in ("cluster_cidr", "service_cidr"):
        if inside(wanted, as_network(node["variables"][option])):
            found.append(Finding(name, "an address outside the cluster's networks", f"in k3s_{option}", _VARIABLE))
    if own:
        netdev, network = own
        if wanted not in network or (
            network.prefixlen < 31 and wanted in (network.network, netaddr.IPAddress(network.last))
        ):
            wish = f"a host's address in {network.cidr}, the network of {netdev}, which has the node's own address"
            found.append(Finding(name, wish, str(wanted), _VARIABLE))
    if decided["shared"]["unknown"]:
        wish = "the own address of each server that shares it, even of those outside this run or out of reach"
        step = "set their k3s_node_ip in the inventory, or run again with all servers"
        found.append(Finding(name, wish, f"none of {core_text.names(decided['shared']['unknown'])}", step))
    interface = decided["shared"]["interface"]
    netdevs = {row["netdev"] for row in seen["addresses"]}
    if node["variables"].get("api_interface") and interface not in netdevs:
        wish = f"an interface with an address: {', '.join(sorted(netdevs))}"
        found.append(Finding("k3s_api_interface", wish, str(interface), _VARIABLE))
    rails = [rail.get("netdev") for rail in (node.get("facts") or {}).get("rails") or ()]
    if interface in [netdev for netdev in rails if netdev]:
        step = "set k3s_node_ip to the management network, or k3s_api_interface to an interface of it"
        found.append(Finding(name, "an interface of the management network", f"{interface}, a rail", step))
    program = seen.get("shared") or {}
    if program and not program["installed"] and program["offered"] is False:
        step = "add the distribution's package sources (a mirror, without the Internet), or install keepalived"
        found.append(Finding("package keepalived", "installed, or available", "neither", step))
    return found


def _agree(decisions: dict, elsewhere: dict, report) -> None:
    servers = [each for each in [*elsewhere.values(), *decisions.values()] if each["role"] == "server"]
    for decided in [each for each in servers[1:] if each["host"] in decisions]:
        mine, first = k3s.critical(decided["options"]), k3s.critical(servers[0]["options"])
        for name in sorted(set(mine) | set(first)):
            if mine.get(name) != first.get(name):
                wanted = f"{first.get(name)} as on {servers[0]['host']}: k3s refuses a server with another value"
                step = "set the variable for the group k3s_servers, not for one host"
                report(decided["host"], Finding(f"k3s option {name}", wanted, f"{mine.get(name)}", step))


# --- one node ---------------------------------------------------------------------------------------------------------


def _variables(node: dict, decided: dict, report) -> None:
    typed, host, role = node["variables"], node["host"], decided["role"]
    extra = typed["config_extra"]
    for name in sorted(set(extra) - (k3s.SERVER_KEYS if role == "server" else k3s.AGENT_KEYS)):
        where = "of a server" if name in k3s.SERVER_KEYS else "of k3s"
        seen = f"an option {where}" if name in k3s.SERVER_KEYS else "no option of k3s has this name"
        report(host, Finding(f"k3s_config_extra: {name}", f"an option of a k3s {role}", seen, _VARIABLE))
    owned = [(f"k3s_config_extra: {name}", k3s.OWNED[name]) for name in sorted(set(extra) & set(k3s.OWNED))]
    for name in sorted(set(typed["kubelet_args"]) & {"topology-manager-policy", "topology-manager-scope"}):
        owned.append((f"k3s_kubelet_args: {name}", f"k3s_{name.replace('-', '_')}"))
    for obj, variable in owned:
        report(host, Finding(obj, "an option without its own variable", "one that has a variable", f"use {variable}"))
    for name, value in typed["node_labels"].items():
        if not _LABEL.fullmatch(str(name)) or (str(value) and not _LABEL.fullmatch(str(value))):
            report(host, Finding("k3s_node_labels", "valid label names and values", f"{name}={value}", _VARIABLE))
    for taint in typed["node_taints"]:
        if not re.fullmatch(r"[^\s:=]+(=[^\s:=]*)?:(NoSchedule|PreferNoSchedule|NoExecute)", taint):
            wanted = "KEY[=VALUE]:NoSchedule|PreferNoSchedule|NoExecute"
            report(host, Finding("k3s_node_taints", wanted, taint, _VARIABLE))
    _networks(node, report)


def _networks(node: dict, report) -> None:
    """Pod and service networks against each other and against what the node already routes (K10)."""
    typed, host, seen = node["variables"], node["host"], node["state"]
    nets = {}
    for name in ("cluster_cidr", "service_cidr"):
        net = as_network(typed[name])
        if net is not None:
            nets[f"k3s_{name}"] = net
        else:
            report(host, Finding(f"k3s_{name}", "a network such as 10.42.0.0/16", str(typed[name]), _VARIABLE))
    if len(nets) == 2:
        pods, services = nets["k3s_cluster_cidr"], nets["k3s_service_cidr"]
        if pods in services or services in pods:
            report(host, _overlap("k3s_cluster_cidr", pods, f"k3s_service_cidr {services}"))
        if typed["cluster_dns"] and not inside(typed["cluster_dns"], services):
            report(host, Finding("k3s_cluster_dns", f"an address in {services}", typed["cluster_dns"], _VARIABLE))
    for name, net in nets.items():
        # A node of a running cluster routes the cluster's own networks.
        for other, netdev in () if seen["joined"] or seen["cluster"] else _taken(seen):
            if other.prefixlen and (other in net or net in other):
                report(host, _overlap(name, net, f"{other} on {netdev}"))


# Interfaces of a pod network; their routes are not foreign.
_OWN_INTERFACES = ("cni", "flannel", "kube-", "veth")


def _taken(seen: dict) -> Iterable[tuple]:
    """(network, interface) of the node's addresses and routes, each once, but for a pod network that already runs."""
    rows = [(entry["netdev"], entry["address"]) for entry in seen["addresses"]]
    rows += [(route["netdev"], route["destination"]) for route in seen["routes"]]
    others = [(netaddr.IPNetwork(text).cidr, name) for name, text in rows if not name.startswith(_OWN_INTERFACES)]
    return dict.fromkeys((network, name) for network, name in others if name != "lo")


def _overlap(name: str, net, other: str) -> Finding:
    step = f"set {name} to a network that is not routed anywhere on this site"
    return Finding(f"{name} {net}", "networks that do not overlap", f"overlaps with {other}", step)


def _addresses(node: dict, decided: dict, report, notes: list[str]) -> None:
    seen, host = node["state"], node["host"]
    own = [f"{entry['address'].partition('/')[0]} ({entry['netdev']})" for entry in seen["addresses"]]
    if not decided["node_ip"]:
        told = f"no single default route to derive it from; addresses: {', '.join(own) or 'none'}"
        step = "set k3s_node_ip of this host to its address in the management network"
        report(host, Finding("node-ip", "one IPv4 address that identifies the node", told, step))
    elif decided["node_ip"] not in {entry["address"].partition("/")[0] for entry in seen["addresses"]}:
        obj, told = f"node-ip {decided['node_ip']}", f"addresses: {', '.join(own)}"
        report(host, Finding(obj, "an IPv4 address of this node", told, _VARIABLE))
    if not any(route["destination"] == "0.0.0.0/0" for route in seen["routes"]):
        notes.append(
            f"{host}: there is no default route; k3s releases need one even with node-ip set, because service "
            "addresses are routed through it: add one, on a dummy interface if necessary"
        )
    if not (decided["first"] or decided["server_url"]):
        step = "run with the first host of k3s_servers in --limit, or set k3s_server_url"
        report(host, Finding("k3s_server_url", "the server to join", "no server of this run reports its address", step))
    if not any(service["active"] or service["starting"] for service in seen["services"].values()):
        of_etcd = _ETCD_PORTS if decided["servers"] > 1 and decided["role"] == "server" else ()
        taken = sorted({*_PORTS[decided["role"]], *of_etcd} & set(seen["listening"]))
        if taken:
            obj, step = f"TCP port {', '.join(map(str, taken))}", "see which program it is (ss -ltnp); stop or move it"
            report(host, Finding(obj, "free for k3s", "something listens on it", step))


def _ownership(node: dict, decided: dict, report, notes: list[str]) -> None:
    seen, host = node["state"], node["host"]
    foreign = [f"{name} is on the node" for name in seen["others"]]
    foreign += [f"{path} is not ours" for path in seen["foreign_files"]]
    if foreign and node["variables"]["takeover_allowed"] is True:
        notes.append(f"{host}: taken over because k3s_takeover_allowed is true: {'; '.join(foreign)}")
    elif foreign:
        step = "leave the host out, remove that cluster with its own tools first, or set k3s_takeover_allowed: true"
        report(host, Finding("cluster", "no cluster, or one that this collection set up", "; ".join(foreign), step))
    if not node["guessed_from"]:
        report(host, *of_role(decided["role"], seen["services"], seen["cluster"]))
    for path, options in (seen.get("drop_ins") or {}).items():
        owned = {name: k3s.OWNED[name] for name in options if k3s.OWNED.get(name, "").startswith(("k3s_", "nothing"))}
        if owned:
            wanted = "no option that has a variable: k3s uses the value of its last file"
            step = f"take it out of the file; instead use {'; '.join(owned.values())}"
            report(host, Finding(path, wanted, core_text.listing(owned), step))
        else:
            notes.append(f"{host}: {path} is not ours; k3s reads it too")
    report(host, *(Finding(**finding) for finding in seen.get("namespaces") or []))
    joined = seen["server_url"] if seen["joined"] and decided["role"] == "agent" else None
    if joined and decided["server_url"] not in (None, joined):
        notes.append(
            f"{host}: joined {joined}, will use {decided['server_url']}: the token must belong to that cluster"
        )


def _bundled(node: dict, decided: dict, bundle: dict | None, folder: str, changing_version: bool, report) -> None:
    """What the node needs from the bundle, and whether this run may install it."""
    seen, host, typed = node["state"], node["host"], node["variables"]
    decided["files"], decided["packages"], decided["packages_command"] = [], [], []
    if bundle is None:
        return
    row = bundle_folder.file_for(bundle, "k3s", seen["architecture"])
    if row is None:
        report(host, bundle_folder.missing_file(bundle, "k3s", seen["architecture"], folder))
        return
    decided["bundle_version"] = row["version"]
    if typed["version"] and typed["version"] != row["version"]:
        step = "fill a bundle with it (playbooks/bundle.yml), or leave k3s_version empty to use the one in the bundle"
        report(host, Finding("k3s_version", typed["version"], f"the bundle {folder} holds {row['version']}", step))
    if row["version"] in BROKEN_VERSIONS:
        seen_text = f"{row['version']}, which does not start with flannel-backend none"
        report(host, Finding("k3s", BROKEN_VERSIONS[row["version"]], seen_text, "fill the bundle with another version"))
    accepted = str(decided["kubelet_args"].get("fail-cgroupv1")).lower() == "false"
    if seen.get("cgroup_v1") and (_parsed(row["version"]) or ())[:2] >= (1, 35) and not accepted:
        step = "boot with systemd.unified_cgroup_hierarchy=1, or set k3s_kubelet_args: {fail-cgroupv1: 'false'}"
        wanted = f"cgroup v2, without which the kubelet of {row['version']} does not start"
        report(host, Finding("/sys/fs/cgroup", wanted, "cgroup v1", step, "k3s:cgroup"))
    installed = seen["version"]
    if installed and not same_version(installed, row["version"]) and not changing_version:
        step = "change versions with playbooks/upgrade_k3s.yml, one node at a time"
        report(host, Finding("k3s", f"{row['version']} as in the bundle", f"{installed} installed", step))
    wanted = [_file(row, k3s.BINARY, "0755", typed)]
    for archive in bundle_folder.archives_for(bundle, seen["architecture"]):
        dest = f"{k3s.IMAGES}/{archive['path'].rpartition('/')[2]}"
        wanted.append({"src": archive["path"], "dest": dest, "mode": "0644", "sha256": archive["sha256"]})
    decided["files"] = [item for item in wanted if seen["sums"].get(item["dest"]) != item["sha256"]]
    if decided["selinux"] and seen["family"] == "rhel" and not seen["selinux_policy"]:
        name, architecture, distribution = "k3s-selinux", seen["architecture"], seen["distribution"]
        policy = bundle_folder.file_for(bundle, name, architecture, distribution)
        if policy is None:
            report(host, bundle_folder.missing_file(bundle, name, architecture, folder, distribution))
        else:
            decided["packages"] = [_file(policy, f"/var/cache/{policy['path'].rpartition('/')[2]}", "0644", typed)]
            command = packages.apart_command([decided["packages"][0]["dest"]])
            decided["packages_command"] = [*command, "--setopt=localpkg_gpgcheck=False"]


def _file(row: dict, dest: str, mode: str, typed: dict) -> dict:
    """A file for a node, with its address if the node fetches it itself."""
    source = {"url": row["url"]} if typed["downloads_on_nodes"] and "url" in row else {}
    return {"src": row["path"], "dest": dest, "mode": mode, "sha256": row["sha256"], **source}


def incomparable(decisions: dict) -> list[dict]:
    """Files that are not those of the lock, for a comparison by a controller that has not fetched them."""
    step = "run playbooks/site.yml here, which fetches and installs it"
    return [
        row
        for host, decided in decisions.items()
        for item in [*decided["files"], *decided["packages"]]
        if "url" not in item
        for row in at(host, [Finding(item["dest"], f"sha256 {item['sha256']}", "another or no file", step)])
    ]


def same_version(installed: str, wanted: str) -> bool:
    """The program's version may have a build suffix that the bundle's lacks (v1.35.8 and v1.35.8+double1)."""
    return wanted in (installed, installed.partition("+")[0])


def needed(decisions: dict, bundle: dict) -> list[dict]:
    """Rows of the bundle that a node will get from the controller: only those are read and checksummed."""
    items = [item for decided in decisions.values() for item in [*decided["files"], *decided["packages"]]]
    paths = {item["src"] for item in items if "url" not in item}
    rows = [*(bundle.get("files") or []), *(bundle.get("images") or [])]
    return [row for row in rows if row["path"] in paths]


# --- changing the version ---------------------------------------------------------------------------------------------

_VERSION = re.compile(r"v(\d+)\.(\d+)\.(\d+)(?:\+\w*?(\d+))?")


def _parsed(version: str | None) -> tuple | None:
    """(major, minor, patch, build) of v1.35.8+k3s1; None for anything else."""
    matched = _VERSION.fullmatch(version or "")
    return tuple(int(part or 0) for part in matched.groups()) if matched else None


def _skew(decisions: dict, elsewhere: dict, report) -> None:
    """The versions that this run installs against those of the other servers: no agent may be newer than one of them,
    and servers may be one minor apart."""
    for decided in decisions.values():
        new = _parsed(decided.get("bundle_version"))
        if new is None or same_version(decided["version"] or "", decided["bundle_version"]):
            continue
        least = new if decided["role"] == "agent" else (new[0], new[1] - 1)
        versions = {host: _parsed(other["version"]) for host, other in elsewhere.items()}
        behind = [host for host, version in versions.items() if version and version < least]
        if behind:
            seen = f"{decided['bundle_version']} in the bundle; on {', '.join(behind)}: "
            seen += elsewhere[behind[0]]["version"]
            wanted = "not newer than a server" if decided["role"] == "agent" else "one minor from the other servers"
            step = "upgrade these servers first (playbooks/upgrade_k3s.yml without --limit)"
            report(decided["host"], Finding(f"k3s {decided['role']}", wanted, seen, step, "k3s:version-skew"))


def upgrade(decisions: dict) -> list[dict]:
    """Problems of an upgrade: no k3s, a downgrade, a skipped minor, an agent newer than its servers."""
    servers = [decided for decided in decisions.values() if decided["role"] == "server"]
    return [row for host, decided in decisions.items() for row in at(host, _upgrade(decided, servers))]


def _upgrade(decided: dict, servers: list[dict]) -> list[Finding]:
    old, new = decided["version"], decided.get("bundle_version")
    if not old:
        step = f"leave it out (--limit '!{decided['host']}'), and install k3s later with playbooks/cluster.yml"
        return [Finding("k3s", "a version to upgrade", "none installed", step, "k3s:absent")]
    if not new or same_version(old, new):
        return []
    before, after = _parsed(old), _parsed(new)
    if before is None or after is None:
        seen = f"{(new if before else old)!r} is not a version of k3s such as v1.35.8+k3s1"
        return [Finding("k3s", "versions that can be compared", seen, "see the bundle")]
    rows = []
    if after < before:
        step = "use a bundle with the installed version or a newer one; a datastore cannot be downgraded"
        rows.append(Finding("k3s", f"{old} or newer", f"{new} in the bundle", step))
    elif after[:2] > (before[0], before[1] + 1):
        step = f"upgrade to v{before[0]}.{before[1] + 1} first, with a bundle of that version"
        rows.append(Finding("k3s", f"one minor at a time from {old}", f"{new} in the bundle", step))
    behind = [server["host"] for server in servers if (_parsed(server["version"]) or before) < before]
    if behind and decided["role"] == "agent":
        wanted = f"not newer than its servers ({', '.join(behind)})"
        rows.append(Finding("k3s agent", wanted, old, "upgrade the servers to its version first"))
    return rows


# --- a reset ----------------------------------------------------------------------------------------------------------


def reset(nodes: list[dict], outside: Sequence[dict]) -> list[dict]:
    """Problems of a reset of these nodes: servers that etcd needs. Resetting all servers at once is fine."""
    states = {node["host"]: node["state"] for node in [*nodes, *outside] if node["state"]}
    members = {host: seen["etcd"] for host, seen in states.items() if seen["cluster"] and seen.get("etcd")}
    going = [node["host"] for node in nodes if node["host"] in members]
    servers = nodes[0]["servers"] if nodes else []
    silent = [host for host in servers if host not in states]
    ids = {host: seen["itself"] for host, seen in members.items() if seen.get("itself")}
    views = [members[host] for host in servers if members.get(host, {}).get("leader")]
    known = {name for seen in views for name in (*seen["known"], *seen["active"])}
    stays = [host for host in members if host not in going]
    if not going or not (stays or silent or known - set(ids.values())):
        return []
    # etcd before 3.6 does not list its members: then the servers count.
    told = views and all(set(seen["active"]) <= set(seen["known"]) for seen in views)
    count = len(known) if told else max(len(known), len(members) + len(silent))
    active = {name for seen in views for name in seen["active"]}
    left = active - {ids[host] for host in going if host in ids}
    # A server that does not say which member it is may be any member that no server has claimed.
    spare = min(len([host for host in going if host not in ids]), len(active - set(ids.values())))
    majority = count // 2 + 1
    if len(left) - spare >= majority:
        return []
    named = f"; no answer from {', '.join(silent)}" if silent else ""
    wanted = f"{majority} of {count} members: without a majority the other servers lose the cluster"
    step = "bring the other servers back first, or take this one out of etcd (kubectl delete node NAME) and wait until "
    step += "they agree; to remove the cluster, run without --limit, which resets all servers at once"
    finding = Finding(f"etcd without {', '.join(going)}", wanted, f"{len(left) - spare}{named}", step, QUORUM)
    return [row for host in going for row in at(host, [finding])]
