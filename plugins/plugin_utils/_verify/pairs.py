"""The pairs of nodes for verbs traffic, their rails and rounds.

Pure. Peers are found by rail index and subnet, never by name: rail i of one node is cabled to rail i of the next. Each
rail's nodes form a chain, so every node takes part and there is one test fewer than there are nodes.
"""

from collections import Counter

from ...module_utils._core.text import grouped
from ...module_utils._kube.pods import gid_address
from .._core import fleet
from .._core.addresses import address as address_of
from .._core.addresses import for_peers, netaddr
from .._preflight import fabric_plan

TOOLS = ("rping", "ib_write_bw")
# Nodes start in groups of `forks`; the first ones wait this long for the last ones.
GRACE_SECONDS = 20


def ends(node: dict) -> list[dict]:
    """The rails of one node as ends of a test; `reason` says why one cannot be used, `resources` what it occupies.

    node: host, facts, address (for handshakes), tools (the installed ones), base_port, runs (whether it can run
    anything), fabric_plan (the variable).
    """
    facts = node["facts"]
    hcas, links = {hca["name"]: hca for hca in facts["hcas"]}, shared_links(facts["hcas"])
    made = [_end(node, rail, hcas[rail["hca"]]) for rail in facts["rails"] if rail["hca"] in hcas]
    return [{**end, "resources": _resources_of(end, links)} for end in made]


def _resources_of(end: dict, links: dict) -> list[str]:
    nic = f"{end['host']} NIC {links.get(end['hca'], end['hca'])}"
    # A software HCA runs on the CPU: two tests on one node would disturb each other.
    return [nic, f"{end['host']} processor"] if end["kind"] == "software" else [nic]


def shared_links(hcas: list[dict]) -> dict:
    """{HCA: the first HCA that shares its PCIe link towards the host}.

    The functions of one card share its slot, and cards at distance PIX or PXB the link above their switch.
    """
    leader: dict = {}
    for hca in hcas:
        name, pci = hca["name"], hca["pci"]
        leader.setdefault(name, name)
        for other in hcas:
            if other is hca or not pci or not other["pci"]:
                continue
            same = _slot(pci) == _slot(other["pci"])
            if same or hca["nic_distances"].get(other["name"]) in ("PIX", "PXB"):
                old, new = leader.setdefault(other["name"], other["name"]), leader[name]
                leader = {one: new if first == old else first for one, first in leader.items()}
    return leader


def _slot(pci: dict) -> str:
    return pci["address"].rpartition(".")[0]


def _end(node: dict, rail: dict, hca: dict) -> dict:
    port = next(port for port in hca["ports"] if port["number"] == rail["port"])
    netdev = next((netdev for netdev in hca["netdevs"] if netdev["name"] == rail["netdev"]), None)
    addresses = for_peers(netdev["addresses"]) if netdev else []
    end = {
        "host": node["host"],
        "rail": rail["index"],
        "hca": hca["name"],
        "port": port["number"],
        "netdev": rail["netdev"],
        "kind": hca["kind"],
        "link_layer": port["link_layer"],
        "gbps": _gbps(hca, port),
        "traffic_class": fabric_plan.side(fabric_plan.of(node.get("fabric_plan")), port["link_layer"]),
        "management": node["address"],
        "tools": node["tools"],
        "networks": {str(netaddr.IPNetwork(address).cidr): str(netaddr.IPNetwork(address).ip) for address in addresses},
        "gids": {gid_address(gid["gid"]): gid["index"] for gid in port["gids"] if gid["type"] == "RoCE v2"},
        "reason": None,
    }
    if not node["runs"]:
        end["reason"] = "its facts come from a tree of files, which cannot send"
    elif port["state"] != "ACTIVE":
        end["reason"] = f"the port is {port['state']}"
    elif not end["networks"]:
        if port["link_layer"] == "InfiniBand" and port["gids"]:
            # Without IPoIB two ports can reach each other if their subnet prefix (upper half of the GID) is the same.
            gid = address_of(port["gids"][0]["gid"])
            end["networks"] = {f"InfiniBand subnet {int(gid) >> 64:016x}": None} if gid else {}
            end["reason"] = None if gid else f"{port['gids'][0]['gid']} is no GID"
        else:
            end["reason"] = (
                f"{rail['netdev'] or 'the port'} has no IPv4 or routable IPv6 address, so no peer can address it"
            )
    return end


def _gbps(hca: dict, port: dict):
    """Capacity of the port in Gb/s: the link's rate or that of its PCIe slot; None if that is not meaningful."""
    rate = port["rate_gbps"]
    if hca["kind"] != "pci" or not isinstance(rate, (int, float)):
        return None
    link = (hca["pci"] or {}).get("link") or {}
    speed, width = link.get("speed_gts"), link.get("width")
    if isinstance(speed, (int, float)) and isinstance(width, int):
        # Line coding is 8b/10b up to PCIe 2 and 128b/130b after it; packet headers take about a tenth more.
        rate = min(rate, speed * width * (0.8 if speed <= 5 else 128 / 130) * 0.9)
    return round(rate, 1)


def plan_nodes(nodes: list[dict]) -> dict:
    """plan, and options of the module fabric_tests: parts (of each host with tests), grace_seconds, wait_seconds.

    nodes: host, address, variables and read (what node_facts returned) of each host of the play.
    """
    usable = [node for node in nodes if node["read"].get("probe")]
    wanted = [node for node in usable if node["variables"]["verification_fabric"]]
    measured = [
        {
            "host": node["host"],
            "facts": node["read"]["ansible_facts"]["rdma"],
            "address": node["variables"]["verification_address"] or node["address"],
            "tools": node["read"]["probe"]["tools"],
            "base_port": node["variables"]["verification_port"],
            "fabric_plan": node["variables"]["fabric_plan"],
            "runs": node["read"]["probe"]["char_devices"] is not None,
        }
        for node in wanted
    ]
    planned = plan(measured)
    limit = max((node["variables"]["verification_timeout_seconds"] for node in wanted), default=0)
    return outcome(planned, {test["id"]: test for test in planned["tests"]}, len(nodes), limit)


def outcome(planned: dict, tests: dict | None, hosts: int, round_seconds: int) -> dict:
    """tests: by id, of those that the hosts run. wait_seconds: until every node has given up its last round."""
    return {
        "plan": planned,
        "parts": parts(planned["rounds"], tests) if tests is not None else {},
        "grace_seconds": grace_seconds(hosts),
        "wait_seconds": grace_seconds(hosts) + len(planned["rounds"]) * round_seconds + 10,
    }


def parts(rounds: list[list[str]], tests: dict) -> dict:
    """{host: [{order, steps: [{id, role, test}]}]}: what each node runs; order: the number of the round.

    rounds: ids of tests; tests: by id.
    """
    made: dict = {}
    for order, identities in enumerate(rounds):
        for identity in identities:
            test = tests[identity]
            for role in ("server", "client"):
                mine = made.setdefault(test[role]["host"], [])
                if not mine or mine[-1]["order"] != order:
                    mine.append({"order": order, "steps": []})
                mine[-1]["steps"].append({"id": identity, "role": role, "test": test})
    return made


def grace_seconds(hosts: int) -> int:
    return GRACE_SECONDS + hosts


def dropped(started: dict | None, collected: dict) -> str:
    """Why a node returned no results, or not all; or empty. Both as the module fabric_tests returned them."""
    silent = collected.get("msg") if collected.get("unreachable") else ""
    return collected.get("error") or fleet.failure(started, collected) or silent or ""


def joined(answers: list[tuple], tests) -> dict:
    """{test id: {client: result, server: result}} from what the nodes returned about their own ends of the tests.

    answers: (host, answer); the host is None for what a server returned about pods.
    """
    ends = {(test["id"], role): test[role]["host"] for test in tests for role in ("client", "server")}
    results: dict = {}
    for host, answer in answers:
        for result in answer.get("results") or []:
            end = (result["id"], result["role"])
            if host in (None, ends.get(end)):
                results.setdefault(end[0], {})[end[1]] = result
    return results


def book(rounds: list[list], busy: dict, needed, item) -> None:
    """Put an item into the first round in which its resources are free. busy: {resource: a bit for each round}."""
    taken = 0
    for resource in needed:
        taken |= busy.get(resource, 0)
    first = ~taken & (taken + 1)
    for resource in needed:
        busy[resource] = busy.get(resource, 0) | first
    number = first.bit_length() - 1
    if number == len(rounds):
        rounds.append([])
    rounds[number].append(item)


def plan(nodes: list[dict]) -> dict:
    """tests: what to run; rounds: their ids; unpaired: ends without a test, each with its reason; clashes: addresses
    that two nodes have.
    """
    every = [end for node in nodes for end in ends(node)]
    tests, paired = [], set()
    rounds: list[list[str]] = []
    busy: dict = {}
    next_port = {node["host"]: node["base_port"] for node in nodes}
    groups, clashes = chains(every)
    for network, chain in groups:
        for client, server in zip(chain, chain[1:]):
            address = server["networks"][network]
            if address is not None and client["networks"][network] == address:
                continue
            paired |= {(end["host"], end["rail"], end["hca"]) for end in (client, server)}
            made = _tests(client, server, network, next_port)
            tests += made
            for test in [test for test in made if not test["missing"]]:
                book(rounds, busy, {*client["resources"], *server["resources"]}, test["id"])
    unpaired = [
        {**end, "reason": end["reason"] or why_alone(end, every, len(nodes))}
        for end in every
        if (end["host"], end["rail"], end["hca"]) not in paired
    ]
    return {"tests": tests, "rounds": rounds, "unpaired": unpaired, "clashes": clashes}


def chains(every: list[dict]) -> tuple[list[tuple[str, list[dict]]], list[dict]]:
    """([(network, ends in order)] rail by rail, addresses that two nodes have)."""
    groups, clashes = [], []
    for rail in sorted({end["rail"] for end in every}):
        usable = [end for end in every if end["rail"] == rail and end["reason"] is None]
        for network, chain in _by_network(usable).items():
            groups.append((network, chain))
            clashes += _shared_addresses(network, chain)
    return groups, clashes


def _by_network(usable: list[dict]) -> dict[str, list[dict]]:
    """An end with several networks joins the one with most other ends."""
    members = Counter(network for end in usable for network in end["networks"])
    return grouped((max(end["networks"], key=members.__getitem__), end) for end in usable)


def _shared_addresses(network: str, chain: list[dict]) -> list[dict]:
    holders = grouped((end["networks"][network], end) for end in chain if end["networks"][network] is not None)
    return [{"address": address, "ends": sharing} for address, sharing in holders.items() if len(sharing) > 1]


def _tests(client: dict, server: dict, network: str, next_port: dict) -> list[dict]:
    address = server["networks"][network]
    tests = []
    for tool in TOOLS:
        if tool == "rping" and address is None:
            continue  # rdma_cm resolves IP addresses only
        port = next_port[server["host"]]
        next_port[server["host"]] += 1
        # ib_write_bw exchanges its queue pair numbers over TCP, which needs no address on the rail itself.
        over_rail = address is not None and (tool == "rping" or ":" not in address)
        tests.append(
            {
                "id": f"rail{server['rail']}-{client['host']}-{server['host']}-{tool}",
                "tool": tool,
                "rail": server["rail"],
                "network": network,
                "address": address if over_rail else server["management"],
                "tcp_port": port,
                "server": side(server, address),
                "client": side(client, client["networks"][network]),
                "gbps": min((end["gbps"] for end in (client, server) if end["gbps"]), default=None),
                "software": "software" in (client["kind"], server["kind"]),
                "missing": sorted({end["host"] for end in (client, server) if tool not in end["tools"]}),
            }
        )
    return tests


def side(end: dict, address) -> dict:
    gid = None if end["link_layer"] == "InfiniBand" else end["gids"].get(address)
    return {
        "host": end["host"],
        "hca": end["hca"],
        "port": end["port"],
        "netdev": end["netdev"],
        "ip": address,
        "gid": gid,
        "traffic_class": end["traffic_class"],
    }


def why_alone(end: dict, every: list[dict], nodes: int) -> str:
    others = [other for other in every if other["rail"] == end["rail"] and other["host"] != end["host"]]
    if nodes == 1:
        return "no peer: this play has one node only"
    if not others:
        return f"no peer: no other node has a rail {end['rail']}"
    usable = [other for other in others if other["reason"] is None]
    if not usable:
        return f"no peer: rail {end['rail']} of {others[0]['host']}: {others[0]['reason']}"
    here = ", ".join(end["networks"])
    there = ", ".join(f"{other['host']} {' '.join(other['networks'])}" for other in usable[:3])
    return f"no peer in {here}: rail {end['rail']} of {there}"
