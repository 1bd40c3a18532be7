# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which connections each node needs from its peers, and what a firewall in their way amounts to.

PRIVATE to the collection. Pure; runs on the controller. Every port comes from the role that uses it. A hardware HCA
moves RDMA past the kernel, so no firewall of the node sees it; a software one (soft-RoCE) sends UDP through it.
"""

from __future__ import annotations

import functools

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding
from .._core.addresses import netaddr
from . import pod_network

API, KUBELET, ETCD, ROCE = 6443, 10250, (2379, 2380), 4791
VRRP = "vrrp"
BRIDGE, ALL_PORTS, PODS = "cni0", (1, 65535), "pods "
OPTION = "node_firewall"
# What opens with each tool, and where it is from.
COLLECTIONS = {"ufw": "community.general", "firewalld": "ansible.posix"}
# Two tests (rping, ib_write_bw) run on each rail of a server, each at a port of its own.
_TESTS = 2


# --- what is needed ---------------------------------------------------------------------------------------------------


def plan(nodes: list[dict]) -> dict:
    """{host: needs}, as the module firewall_info takes them; none for a node on which nothing is in the way.

    nodes: host, address (how the inventory reaches it), firewall (what firewall_info returned, or None), facts (of
    hca_facts, or None), member (of the cluster), server (of it), variables (typed, with their full names).
    """
    known = [_known(node) for node in nodes if node.get("firewall")]
    return {
        node["host"]: _needs(node, [other for other in known if other is not node]) if _may_drop(node) else []
        for node in known
    }


def _may_drop(node: dict) -> bool:
    """Whether the node filters, or has rules of ours: the others are not asked a second time."""
    return bool(node["firewall"]["filters"] or node["firewall"]["recorded"])


def _known(node: dict) -> dict:
    """The node with its addresses: on its own network, on the pod network's interface, and on each rail."""
    variables, firewall = node["variables"], node["firewall"]
    own = variables["k3s_node_ip"] or firewall["address"] or _literal(node["address"])
    pods = _usable(firewall["addresses"].get(variables["flannel_interface"]) or [])
    carrying = next((text.partition("/")[0] for text in pods if ":" not in text), None)
    rails = _rails(node)
    by_index = {rail["index"]: rail["reached"] for rail in reversed(rails)}
    addresses = {own, *(address for rail in rails for address in rail["reached"].values())}
    as_peer = {address: {"host": node["host"], "address": address} for address in addresses if address}
    return {
        **node,
        "own": own,
        "pods": carrying or own,
        "rails": rails,
        # What each pair of nodes asks: {rail: {network: address}}, {address: the peer as needs have it}.
        "by_index": by_index,
        "as_peer": as_peer,
    }


def _literal(text: str) -> str | None:
    try:
        return str(netaddr.IPAddress(text))
    except (ValueError, netaddr.AddrFormatError):
        return None


def _usable(addresses) -> list[str]:
    if not isinstance(addresses, list):
        return []
    ips = {text: netaddr.IPNetwork(text).ip for text in addresses}
    return [text for text, ip in ips.items() if not (ip.is_link_local() or ip.is_loopback())]


def _rails(node: dict) -> list[dict]:
    """Each rail with netdev, addresses, and whether its HCA's packets go through the kernel."""
    facts = node["facts"] or {"hcas": [], "rails": []}
    hcas = {hca["name"]: hca for hca in facts["hcas"]}
    found = []
    for rail in facts["rails"]:
        hca = hcas.get(rail["hca"])
        if hca is None:
            continue
        netdev = next((one for one in hca["netdevs"] if one["name"] == rail["netdev"]), None)
        gids = [gid for port in hca["ports"] if isinstance(port["gids"], list) for gid in port["gids"]]
        addresses = _usable(netdev["addresses"]) if netdev else []
        reached: dict = {}
        for text in addresses:
            reached.setdefault(_network(text), text.partition("/")[0])
        found.append(
            {
                "index": rail["index"],
                "addresses": addresses,
                "reached": reached,  # {network: the address to reach the rail at from there}
                "soft_roce": hca["kind"] != "pci" and any(gid["type"] == "RoCE v2" for gid in gids),
            }
        )
    return found


def _needs(node: dict, others: list[dict]) -> list[dict]:
    found = []
    peers = [other for other in others if other["member"]]
    if node["member"] and node["own"]:
        found += _of_cluster(node, peers)
        found += _of_pods(node)
    found += _of_tests(node, others)
    return [need for need in found if need["peers"]]


def _need(
    node: dict, what: str, protocol: str, ports: tuple[int, int], peers: list[dict], to: str | None, **more
) -> dict:
    """A need of the node; with the rules that open it where a tool runs that has rules."""
    text = str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"
    sources = _sources(tuple(peer["address"] for peer in peers)) if node["firewall"]["tool"] else []
    rules = [{"kind": "port", "source": source, "protocol": protocol, "ports": text} for source in sources]
    need = {
        "id": f"{text}/{protocol}",
        "what": what,
        "hook": "input",
        "protocol": protocol,
        "ports": list(ports),
        "peers": peers,
        "to": to,
        "iif": None,
        "oif": None,
        "rules": rules,
        "later": False,
    }
    return {**need, **more}


def _without_ports(need: dict) -> dict:
    rules = [{"kind": "protocol", "source": rule["source"], "protocol": need["protocol"]} for rule in need["rules"]]
    return {**need, "id": need["protocol"], "rules": rules}


@functools.lru_cache(maxsize=256)
def _sources(addresses: tuple[str, ...]) -> list[str]:
    """The peers' addresses as networks: neighbours joined, and not one address more."""
    networks = netaddr.cidr_merge([netaddr.IPNetwork(address).cidr for address in addresses])
    return [str(network).removesuffix("/32" if network.version == 4 else "/128") for network in networks]


def _peers(nodes: list[dict], address: str = "own") -> list[dict]:
    return [{"host": node["host"], "address": node[address]} for node in nodes if node[address]]


def _of_cluster(node: dict, peers: list[dict]) -> list[dict]:
    variables = node["variables"]
    found = []
    if node["server"]:
        clients = [{"host": text, "address": text} for text in variables["node_firewall_api_clients"]]
        found.append(_need(node, "API server of k3s", "tcp", (API, API), [*_peers(peers), *clients], node["own"]))
        servers = _peers([other for other in peers if other["server"]])
        found.append(_need(node, "etcd of the k3s servers", "tcp", ETCD, servers, node["own"]))
        if variables["k3s_api_address"]:
            what = f"k3s_api_address {variables['k3s_api_address']}, which the servers share"
            found.append(_without_ports(_need(node, what, VRRP, (0, 0), servers, node["own"])))
    found.append(_need(node, "kubelet", "tcp", (KUBELET, KUBELET), _peers(peers), node["own"]))
    backend = variables["flannel_backend"]
    port = pod_network.PORTS[backend]
    if port:
        what = f"pods of other nodes (flannel_backend {backend})"
        found.append(_need(node, what, "udp", (port, port), _peers(peers, "pods"), node["pods"]))
    return found


def _of_pods(node: dict) -> list[dict]:
    """Pods are trusted as k3s documents it: pods and services by their networks."""
    variables = node["variables"]
    pods, services = variables["k3s_cluster_cidr"], variables["k3s_service_cidr"]
    trust = [{"kind": "trust", "source": text} for text in (*pods.split(","), *services.split(",")) if ":" not in text]
    first = netaddr.IPNetwork(pods.split(",")[0])
    peer = [{"host": f"{PODS}{first}", "address": str(first[2])}]
    more = {"rules": trust, "iif": BRIDGE}
    found = [_need(node, "kubelet, from pods of the node", "tcp", (KUBELET, KUBELET), peer, node["own"], **more)]
    if node["server"]:
        found.append(
            _need(node, "API server of k3s, from pods of the node", "tcp", (API, API), peer, node["own"], **more)
        )
    link = pod_network.LINKS.get(variables["flannel_backend"])
    for protocol in ("tcp", "udp"):
        for way, iif, oif in (("to", BRIDGE, link), ("from", link, BRIDGE)):
            what = f"traffic of pods {way} other nodes"
            more = {"hook": "forward", "iif": iif, "oif": oif, "rules": trust[:1], "later": True}
            found.append(_need(node, what, protocol, ALL_PORTS, peer, str(first[3]), **more))
    return [{**need, "id": f"pods:{need['id']}" + (f":{need['oif']}" if need["oif"] else "")} for need in found]


def _of_tests(node: dict, others: list[dict]) -> list[dict]:
    variables, rails = node["variables"], node["rails"]
    software = [rail for rail in rails if rail["soft_roce"]]
    members = [other for other in others if other["member"]] if node["member"] else []
    by_all = _reached(node, others, rails, handshake=True)
    by_members = _reached(node, members, rails, handshake=True) if software else {}
    wanted = []  # (what, first port, how many, who reaches the rails)
    if variables["verification_fabric"]:
        wanted.append(("tests of verify on the rails", variables["verification_port"], _TESTS * len(rails), by_all))
    if variables["matrix_host"]:
        count = (2 if variables["matrix_cuda"] else 1) * len(rails) * len(others)
        wanted.append(("tests of matrix on the rails", variables["matrix_port"], count, by_all))
    # soft-RoCE does no verbs in a pod's own network: its test pods listen in the node's.
    if software and variables["verification_pods"] is not False:
        # On a hardware rail the pods with networks of their own are tested too, and take from the same ports.
        count = _TESTS * (2 * len(rails) - len(software))
        wanted.append(("tests of verify between pods", variables["verification_pod_port"], count, by_members))
    if software and variables["matrix_pods"] is not False:
        count = len(rails) * len(members)
        wanted.append(("tests of matrix between pods", variables["matrix_pod_port"], count, by_members))
    found: dict[str, dict] = {}
    for what, first, count, reached in wanted:
        needs = _at_each(node, (what, "tcp", (first, first + count - 1)), reached) if count else []
        # matrix takes the same ports on the host and between pods, one after the other.
        found.update({need["id"]: need for need in needs if need["id"] not in found})
    soft = _reached(node, others, software, handshake=False)
    roce = _at_each(node, ("soft-RoCE on the rails", "udp", (ROCE, ROCE)), soft)
    return [*found.values(), *roce]


def _at_each(node: dict, wanted: tuple, reached: dict[str, list[dict]]) -> list[dict]:
    """One need (what, protocol, ports) for each address of the node that peers reach."""
    made = [_need(node, *wanted, peers, to) for to, peers in reached.items()]
    return [{**need, "id": f"{need['id']}:{need['to']}"} for need in made]


def _reached(node: dict, others: list[dict], rails: list[dict], handshake: bool) -> dict[str, list[dict]]:
    """{address of the node: the peers that reach its rails at it}.

    The tests exchange their queue pairs over TCP: on the rail where it has IPv4, else over the node's own address.
    """
    found: dict[str, dict[int, dict]] = {}
    for rail in rails:
        index = rail["index"]
        mine = [
            (_network(text), text.partition("/")[0]) for text in rail["addresses"] if not (handshake and ":" in text)
        ]
        for other in others:
            theirs = other["by_index"].get(index)
            if theirs is None:
                continue
            for network, at in mine:
                if network in theirs:
                    to, address = at, theirs[network]
                    break
            else:
                to, address = node["own"], other["own"]
                if not (handshake and to and address):
                    continue
            peer = other["as_peer"][address]
            found.setdefault(to, {})[id(peer)] = peer
    return {to: list(peers.values()) for to, peers in found.items()}


@functools.lru_cache(maxsize=65536)
def _network(address: str) -> str:
    """The network of an address, as text: it is looked up for each pair of nodes."""
    return str(netaddr.IPNetwork(address).cidr)


# --- what is in the way -----------------------------------------------------------------------------------------------


def findings(firewall: dict, mode: str, collections: dict) -> list[Finding]:
    """Why a run cannot start on a node. mode: node_firewall; collections: {name: whether the controller has it}.

    A rule that drops some ports of pods is the administrator's; one that drops them all is in the way.
    """
    blocked = [one for one in firewall["answers"] if one["state"] == "blocked" and not _partly(one)]
    if mode != "open":
        return [fault(firewall, one) for one in blocked]
    found = [fault(firewall, one) for one in blocked if not one["tool"]]
    for one in firewall["answers"]:
        if one["state"] == "unknown":
            found.append(unread(one))
    lacking = COLLECTIONS.get(firewall["tool"] or "")
    if lacking and (firewall["add"] or firewall["remove"]) and not collections[lacking]:
        wanted = f"the collection {lacking}, with which {OPTION}: open changes {firewall['tool']}"
        step = f"ansible-galaxy collection install {lacking}, or open the ports by hand and set {OPTION}: verify"
        found.append(Finding("controller", wanted, "that it is not installed", step))
    return found


def _partly(one: dict) -> bool:
    return one["hook"] == "forward" and not one["every"]


def fault(firewall: dict, one: dict) -> Finding:
    """One thing that a firewall drops: which ports, from whom, by what, and how it is opened."""
    whose = f"{one['tool']} drops it" if one["tool"] else "dropped"
    return Finding(
        f"firewall: {_opening(one)}",
        f"{one['what']}: open for {_named(one['peers'])}",
        f"{whose}: {one['by']}",
        _step(firewall, one),
        f"firewall:{one['id']}",
    )


def unread(one: dict) -> Finding:
    return Finding(
        f"firewall: {_opening(one)}",
        f"{one['what']}: open for {_named(one['peers'])}",
        f"unknown: {one['by']}",
        f"see the rule on the node, or set {OPTION}: verify, which reports it as not verified",
        f"firewall:{one['id']}",
    )


def _opening(one: dict) -> str:
    return "VRRP (IP protocol 112)" if one["protocol"] == VRRP else f"{one['ports']}/{one['protocol']}"


def _named(peers: list[dict]) -> str:
    return core_text.listing((_name(**peer) for peer in peers), 6)


def _name(host: str, address: str) -> str:
    return host if host == address or host.startswith(PODS) else f"{host} ({address})"


def _step(firewall: dict, one: dict) -> str:
    if not one["tool"]:
        if one["remove"]:
            return f"{one['remove']}; remove it where it is loaded from, too"
        if firewall["tool"] == "ufw" and one["protocol"] == VRRP:
            rules = ", ".join(f"-A ufw-before-input -p vrrp -s {peer['address']} -j ACCEPT" for peer in one["peers"])
            return f"ufw can name VRRP from 0.36.2 on; before, add to /etc/ufw/before.rules: {rules}; then ufw reload"
        return "accept it in the chain named here, where its rules are loaded from (nftables.conf, iptables-persistent)"
    commands = [command(rule) for rule in firewall["add"] if _for(rule, one)]
    return f"set {OPTION}: open, or on the node: {'; '.join(commands[:6]) or 'open it with ' + one['tool']}"


def _for(rule: dict, one: dict) -> bool:
    if rule["kind"] == "protocol":
        return rule["protocol"] == one["protocol"]
    if rule["kind"] != "port":
        return one["id"].startswith("pods:") and (rule["kind"] == "route") <= (one["hook"] == "forward")
    return rule["protocol"] == one["protocol"] and one["id"].startswith(f"{rule['ports']}/")


def command(rule: dict) -> str:
    """What a person types to have the rule: with firewalld now and at boot, without a reload."""
    source = rule["source"]
    if rule["tool"] == "firewalld":
        rich = rule["kind"] in ("port", "protocol")
        what = f"--add-rich-rule='{rich_rule(rule)}'" if rich else f"--add-source={source}"
        options = f"--zone={rule['zone']} {what}"
        return f"firewall-cmd {options} && firewall-cmd --permanent {options}"
    if rule["kind"] == "port":
        return f"ufw allow proto {rule['protocol']} from {source} to any port {rule['ports'].replace('-', ':')}"
    if rule["kind"] == "protocol":
        return f"ufw allow proto {rule['protocol']} from {source}"
    return f"ufw {'route ' if rule['kind'] == 'route' else ''}allow from {source}"


def rich_rule(rule: dict) -> str:
    family = "ipv6" if ":" in rule["source"] else "ipv4"
    if rule["kind"] == "protocol":
        what = f'protocol value="{rule["protocol"]}"'
    else:
        what = f'port port="{rule["ports"]}" protocol="{rule["protocol"]}"'
    return f'rule family="{family}" source address="{rule["source"]}" {what} accept'
