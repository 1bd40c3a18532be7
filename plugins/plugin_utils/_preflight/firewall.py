"""The ports that each node needs open for its peers: the probes between nodes, their answers, and the rules.

Pure. Every port comes from the role that uses it. A hardware HCA bypasses the kernel, so no firewall of the node
sees its RDMA; a software one (soft-RoCE) sends UDP through it.
"""

import functools

from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding
from .._core.addresses import address as as_address
from .._core.addresses import for_peers, netaddr
from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, check
from . import pod_network

API, KUBELET, ETCD, ROCE = 6443, 10250, (2379, 2380), 4791
VRRP = "vrrp"
OPTION = "node_firewall"
PODS = "firewall:pods"
# What opens ports with each tool, and its collection.
COLLECTIONS = {"ufw": "community.general", "firewalld": "ansible.posix"}
# Two tests (rping, ib_write_bw) run on each rail of a server, each on its own port.
_TESTS = 2


def plan(nodes: list[dict], partial: bool = False) -> dict:
    """{host: {listen, ask, add, remove, record, results}}.

    nodes: host, address (how the inventory reaches it), firewall (what firewall_info returned, or None), facts (of
    hca_facts, or None), member (of the cluster), server (of it), variables (typed, with their full names),
    listening and told (what fabric_tests returned, once it ran). partial: some nodes are missing.
    """
    known = [_known(node) for node in nodes if node.get("firewall")]
    members = [node for node in known if node["member"] and node["own"]]
    made = {node["host"]: {"listen": [], "ask": [], "results": [], **_opening(node, known, partial)} for node in known}
    answers = [one for node in known for one in node.get("told", {}).get("answers", ())]
    told = core_text.grouped(((one["host"], one["id"]), one) for one in answers)
    for number, node in enumerate(members):
        # Every node probes each server; in the ring the previous node probes each node.
        askers = members if node["server"] else [members[number - 1]]
        mine = made[node["host"]]
        for need in _of_cluster(node, [one for one in askers if one is not node]):
            if need["protocol"] != VRRP:
                _question(made, node, need, {one["host"]: one for one in askers})
                mine["results"].append(_result(node, need, told.get((node["host"], need["id"]), []), mine["add"]))
        mine["results"] += _of_pods(node)
    return made


# --- what is needed ---------------------------------------------------------------------------------------------------


def _known(node: dict) -> dict:
    """The node with its addresses: on its own network, on the pod network's interface, and on each rail."""
    variables, firewall = node["variables"], node["firewall"]
    own = variables["k3s_node_ip"] or _own(firewall) or _literal(node["address"])
    pods = for_peers(firewall["addresses"].get(variables["flannel_interface"]) or [])
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
        # Looked up for each pair of nodes: {rail: {network: address}}, {address: the peer as needs have it}.
        "by_index": by_index,
        "as_peer": as_peer,
    }


def _own(firewall: dict) -> str | None:
    """The address that the node reports, if an interface has it, because it goes into its peers' rules."""
    there = {text.partition("/")[0] for texts in firewall["addresses"].values() for text in for_peers(texts)}
    return firewall["address"] if firewall["address"] in there else None


def _literal(text: str) -> str | None:
    address = as_address(text)
    return None if address is None else str(address)


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
        addresses = for_peers(netdev["addresses"]) if netdev else []
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


def _need(node: dict, what: str, protocol: str, ports: tuple[int, int], peers: list[dict], to: str | None) -> dict:
    text = str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"
    name = protocol if protocol == VRRP else f"{text}/{protocol}"
    return {"id": name, "what": what, "protocol": protocol, "ports": list(ports), "peers": peers, "to": to}


@functools.lru_cache(maxsize=256)
def _sources(addresses: tuple[str, ...]) -> list[str]:
    """The peers' addresses as networks: neighbours joined, without any other address."""
    networks = netaddr.cidr_merge([_cidr(address) for address in addresses])
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
            found.append(_need(node, what, VRRP, (0, 0), servers, node["own"]))
    found.append(_need(node, "kubelet", "tcp", (KUBELET, KUBELET), _peers(peers), node["own"]))
    backend = variables["flannel_backend"]
    port = pod_network.PORTS[backend]
    if port:
        what = f"pods of other nodes (flannel_backend {backend})"
        found.append(_need(node, what, "udp", (port, port), _peers(peers, "pods"), node["pods"]))
    return [need for need in found if need["peers"]]


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
        # On a hardware rail the pods with their own networks are tested too, on the same range of ports.
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
    """{address of the node: the peers that reach its rails there}.

    The tests exchange their queue pairs over TCP: on the rail if it has IPv4, else over the node's own address.
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
    return str(_cidr(address))


@functools.lru_cache(maxsize=65536)
def _cidr(address: str):
    """Cached, because each pair of nodes asks for it."""
    return netaddr.IPNetwork(address).cidr


# --- probes between nodes ---------------------------------------------------------------------------------------------


def _question(made: dict, node: dict, need: dict, askers: dict[str, dict]) -> None:
    """Listen on free ports, and probe. Behind the kernel's own port for pods the pod network answers."""
    bound = node["firewall"]["bound"][need["protocol"]]
    behind = _link(node) if need["protocol"] == "udp" else None
    for port in range(need["ports"][0], need["ports"][1] + 1):
        one = {"protocol": need["protocol"], "address": need["to"], "port": port}
        if port not in bound:
            made[node["host"]]["listen"].append(one)
        elif need["protocol"] == "udp":
            one = {**one, "protocol": "ping", "address": behind}
        for peer in need["peers"]:
            asker = askers.get(peer["host"])
            # If one of the two has no pod network yet, nothing can probe it; nor can clients of the API server.
            if asker and (one["protocol"] != "ping" or (behind and _link(asker))):
                made[asker["host"]]["ask"].append({**one, "id": need["id"], "host": node["host"], "peer": peer})


def _link(node: dict) -> str | None:
    name = pod_network.LINKS.get(node["variables"]["flannel_backend"])
    texts = for_peers(node["firewall"]["addresses"].get(name) or [])
    return texts[0].partition("/")[0] if texts else None


# --- what opens them --------------------------------------------------------------------------------------------------


def _opening(node: dict, known: list[dict], partial: bool) -> dict:
    """add: missing rules of the node's tool; remove: our rules that nothing needs any longer; record: our rules
    afterwards. A foreign rule is never ours. With partial, no rule is removed.
    """
    recorded = node["firewall"]["recorded"]
    tool = node["firewall"]["tool"]
    if tool not in COLLECTIONS or node["variables"][OPTION] != "open":
        return {"add": [], "remove": [], "record": recorded}
    others = [other for other in known if other is not node]
    wanted = {_key(rule): rule for rule in _rules(node, others)}
    there = {tuple(rule) for rule in node["firewall"]["rules"]}
    add = [rule for name, rule in wanted.items() if name not in there]
    lost = [rule for rule in recorded if (rule.get("tool"), _key(rule)) not in {(tool, name) for name in wanted}]
    remove = [] if partial else lost
    ours = {_key(rule): rule for rule in [*(rule for rule in recorded if rule not in remove), *add]}
    return {"add": add, "remove": remove, "record": list(ours.values())}


def _key(rule: dict) -> tuple:
    return tuple(str(rule.get(part) or "") for part in ("kind", "source", "protocol", "ports", "zone"))


def _rules(node: dict, others: list[dict]) -> list[dict]:
    """The ports that k3s documents for its nodes, and the tests' ports: pods and services by their networks, peers by
    their addresses.
    """
    tool, found = node["firewall"]["tool"], []
    needs = _of_tests(node, others)
    if node["member"] and node["own"]:
        needs = [*_of_cluster(node, [other for other in others if other["member"]]), *needs]
        found += _trust(node)
    for need in needs:
        for source in _sources(tuple(peer["address"] for peer in need["peers"])):
            rule = {"tool": tool, "kind": "port", "source": source, "protocol": need["protocol"]}
            rule |= {"kind": "protocol"} if need["protocol"] == VRRP else {"ports": need["id"].partition("/")[0]}
            if need["protocol"] == VRRP and not node["firewall"]["names_vrrp"]:
                continue
            found.append({**rule, "zone": _zone(node["firewall"], source)} if tool == "firewalld" else rule)
    return found


def _trust(node: dict) -> list[dict]:
    """Pods and services by their networks, and pods through the node, as k3s documents it."""
    tool, pods = node["firewall"]["tool"], node["variables"]["k3s_cluster_cidr"].split(",")
    zone = {"zone": "trusted"} if tool == "firewalld" else {}
    texts = [text for text in (*pods, *node["variables"]["k3s_service_cidr"].split(",")) if ":" not in text]
    through = [{"tool": tool, "kind": "route", "source": pods[0]}] if tool == "ufw" else []
    return [*({"tool": tool, "kind": "trust", "source": text, **zone} for text in texts), *through]


def _zone(firewall: dict, source: str) -> str:
    """A zone bound to the source comes before that of the interface, as in firewalld."""
    network = netaddr.IPNetwork(source)
    for name, zone in firewall["zones"].items():
        for text in zone["sources"]:
            if _literal(text.partition("/")[0]) and network in netaddr.IPNetwork(text):
                return name
    texts = {text: netdev for netdev, some in firewall["addresses"].items() for text in some}
    netdev = next((texts[text] for text in texts if network in netaddr.IPNetwork(text)), firewall["netdev"])
    for name, zone in firewall["zones"].items():
        if netdev in zone["interfaces"]:
            return name
    return firewall["default_zone"]


# --- what an answer means ---------------------------------------------------------------------------------------------


def _result(node: dict, need: dict, told: list[dict], add: list[dict]) -> dict:
    """One need as a check; not verified if nothing could probe it."""
    asked = {one["peer"]["host"]: one for one in told}
    listening = node.get("listening", {})
    deaf = [why for name, why in listening.get("deaf", {}).items() if name.endswith(f"/{need['protocol']}")]
    deaf += [listening["msg"]] if "deaf" not in listening and "msg" in listening else []
    failed = [one for one in told if one["state"] != "answered"]
    peers = core_text.listing((_name(one["peer"]) for one in asked.values()), 6) or "its peers"
    named = (f"firewall:{need['id']}", f"firewall: {need['id']}")
    wanted = f"{need['what']}: open for {peers}"
    if told and not failed:
        return check(*named, PASSED, wanted, "open")
    if deaf or not told:
        seen = f"nothing could listen on {node['host']}: {deaf[0]}" if deaf else "nothing could probe it"
        return check(*named, NOT_VERIFIED, wanted, seen, "run playbooks/verify.yml once the cluster is up")
    ways = [f"{_name(one['peer'])} to {node['host']} ({one['address']}): {one['why']}" for one in failed]
    seen = core_text.listing(dict.fromkeys(ways), 4)
    return check(*named, FAILED, wanted, seen, _step(node, need, failed, add))


def _of_pods(node: dict) -> list[dict]:
    """Pods cannot be probed before there are any: if a tool runs, this looks for its rules for their networks."""
    there = {tuple(rule) for rule in node["firewall"]["rules"]}
    lacking = [rule for rule in _trust(node) if _key(rule) not in there]
    if node["firewall"]["tool"] not in COLLECTIONS or not lacking or node["variables"][OPTION] == "open":
        return []
    networks = ", ".join(rule["source"] for rule in lacking)
    seen = f"{node['firewall']['tool']} runs, without a rule for {networks}"
    step = f"set {OPTION}: open, or on {node['host']}: {'; '.join(map(command, lacking))}"
    return [check(PODS, "firewall: pods", NOT_VERIFIED, "pods let to the node, and through it", seen, step)]


def _step(node: dict, need: dict, failed: list[dict], add: list[dict]) -> str:
    firewall, tool = node["firewall"], node["firewall"]["tool"]
    between = "what lies between the nodes, such as a switch or a cloud's security group"
    sources = _sources(tuple(sorted({one["peer"]["address"] for one in failed})))
    rule = {"tool": tool, "kind": "port", "protocol": need["protocol"], "ports": need["id"].partition("/")[0]}
    commands = [command({**rule, "source": source, "zone": _zone(firewall, source)}) for source in sources[:6]]
    if tool in COLLECTIONS and node["variables"][OPTION] == "open" and not add:
        return f"{tool} has its rules: look for an earlier one that drops, then at {between}"
    if tool in COLLECTIONS:
        return f"set {OPTION}: open, or on {node['host']}: {'; '.join(commands)}; then look at {between}"
    if tool:
        return f"on {node['host']}: {'; '.join(commands)} (and where its rules are loaded from), or look at {between}"
    return f"no firewall runs on {node['host']}: look at {between}"


def _name(peer: dict) -> str:
    return peer["host"] if peer["host"] == peer["address"] else f"{peer['host']} ({peer['address']})"


def command(rule: dict) -> str:
    """The command that adds the rule by hand: with firewalld now and at boot, without a reload."""
    source, tool = rule["source"], rule["tool"]
    if tool == "firewalld":
        family = "ipv6" if ":" in source else "ipv4"
        port = f'port port="{rule.get("ports")}" protocol="{rule.get("protocol")}"'
        rich = f'--add-rich-rule=\'rule family="{family}" source address="{source}" {port} accept\''
        options = f"--zone={rule['zone']} {rich if rule['kind'] == 'port' else f'--add-source={source}'}"
        return f"firewall-cmd {options} && firewall-cmd --permanent {options}"
    if tool == "ufw" and rule["kind"] == "port":
        return f"ufw allow proto {rule['protocol']} from {source} to any port {rule['ports'].replace('-', ':')}"
    if tool == "ufw":
        return f"ufw {'route ' if rule['kind'] == 'route' else ''}allow from {source}"
    family = "ip6" if ":" in source else "ip"
    return f"nft insert rule inet filter input {family} saddr {source} {rule['protocol']} dport {rule['ports']} accept"


def findings(node: dict, planned: dict, lacking: dict) -> list[Finding]:
    """Why a run cannot start or continue on a node. lacking: {tool: collection missing on the controller}."""
    firewall, opens = node["firewall"], node["variables"][OPTION] == "open"
    found = [
        Finding(*map(port.get, Finding._fields))
        for port in planned["results"]
        if port["status"] == FAILED and not (opens and planned["add"])
    ]
    for tool in sorted({rule["tool"] for rule in (*planned["add"], *planned["remove"])}):
        if tool in lacking:
            wanted = f"the collection {lacking[tool]}, with which {OPTION}: open changes {tool}"
            step = (
                f"ansible-galaxy collection install {lacking[tool]}, or open the ports by hand and set {OPTION}: verify"
            )
            found.append(Finding("controller", wanted, "not installed", step, "firewall:collection"))
    if opens and node["server"] and node["variables"]["k3s_api_address"] and not firewall["names_vrrp"]:
        step = "in /etc/ufw/before.rules: -A ufw-before-input -p vrrp -s SERVER -j ACCEPT for each other server; then "
        step += f"ufw reload, and set {OPTION}: verify"
        found.append(
            Finding("firewall: VRRP (IP protocol 112)", "ufw 0.36.2 or newer", "an older one", step, "firewall:vrrp")
        )
    return found
