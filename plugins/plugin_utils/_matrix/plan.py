"""The bandwidth matrix before it runs: ends, pairs in both directions, rounds, duration and load.

Pure. Peers are found as in _verify.pairs: by rail index and network.
"""

import math

from ...module_utils._core import text
from ...module_utils._core.change import Finding, Refused, at
from .._verify import pairs as verify_pairs

HOST, POD = "host", "pod"
# Seconds per test besides sending: starting both ends, the handshake, reading the counters.
OVERHEAD_SECONDS = 3
# Tests of one plan: all pairs of 64 nodes with 8 rails are 32,256 tests, 23 MB and 17 minutes.
MOST_TESTS = 33_000


def ends_of(node: dict) -> list[dict]:
    """The rails of one node as ends, with the input of the expected figure (`carries`).

    node: as for pairs.ends, and in_use ({HCA: [who]}), load_allowed (None, True or False), cuda (what its tool can do
    with GPU memory: send, dmabuf; None if it was not asked), expected_gbit_per_s (or None). `refused` says why the user
    excluded an end.
    """
    facts = node["facts"]
    hcas = {hca["name"]: hca for hca in facts["hcas"]}
    gpus = {gpu["address"]: gpu for gpu in facts["gpus"]}
    dmabuf = facts["gpudirect"]["mode"] == "dmabuf"
    ends = []
    for end in verify_pairs.ends(node):
        hca = hcas[end["hca"]]
        rail = next(rail for rail in facts["rails"] if (rail["index"], rail["hca"]) == (end["rail"], end["hca"]))
        users = node["in_use"].get(end["hca"])
        if end["reason"] is None and "ib_write_bw" not in end["tools"]:
            end["reason"] = "ib_write_bw is not installed (package perftest)"
        refused = None
        if users and node["load_allowed"] is False:
            refused = f"{end['hca']} is in use by {text.names(users)}, and matrix_load_allowed is false"
        ends.append(
            {
                **end,
                "reason": end["reason"] or refused,
                "refused": refused,
                "cuda": node["cuda"],
                "id": (end["host"], end["rail"], end["hca"], end["port"]),
                "carries": carries(hca, end, rail, gpus, dmabuf, node["expected_gbit_per_s"]),
            }
        )
    return ends


def carries(hca: dict, end: dict, rail: dict, gpus: dict, dmabuf: bool, override) -> dict:
    """Facts about one end, for the expected figure and the reasons of a slow test."""
    port = next(port for port in hca["ports"] if port["number"] == end["port"])
    pci = hca["pci"] or {}
    gpu = gpus.get(rail["gpu"]) if rail.get("gpu") else None
    return {
        "kind": hca["kind"],
        "device": f"{pci.get('vendor')}:{pci.get('device')}" if pci else None,
        "link_layer": port["link_layer"],
        "rate_gbps": port["rate_gbps"],
        "rate_text": port.get("rate_text"),
        "mtu": port.get("active_mtu") if isinstance(port.get("active_mtu"), int) else None,
        "link": pci.get("link") or {},
        "numa_node": pci.get("numa_node"),
        "local_cpus": pci.get("local_cpus"),
        "gpu_index": gpu["index"] if gpu else None,
        "gpu_distance": rail.get("distance"),
        "dmabuf": dmabuf,
        "override": override,
    }


def known(node: dict) -> dict:
    """Input of ends_of. node: host, address, variables, facts, read (what fabric_tests returned)."""
    variables, read = node["variables"], node["read"]
    return {
        "host": node["host"],
        "facts": node["facts"],
        "address": variables["verification_address"] or node["address"],
        "tools": read["tools"],
        "base_port": variables["matrix_port"],
        "fabric_plan": variables["fabric_plan"],
        # A captured tree lacks the tool; that is reason enough.
        "runs": True,
        "in_use": read["in_use"],
        "cuda": read["cuda"],
        "load_allowed": variables["matrix_load_allowed"],
        "expected_gbit_per_s": variables["matrix_expected_gbit_per_s"],
    }


def settings(nodes: list[dict]) -> dict:
    """The settings of the run; if nodes differ, those of the first node count."""
    variables = nodes[0]["variables"]
    names = ("host", "peers", "seconds", "round_seconds", "minimum_percent", "peer_percent", "cuda")
    return {name: variables[f"matrix_{name}"] for name in names}


def plan(nodes: list[dict], options: dict) -> dict:
    """rounds (lists of test ids), tests ({id: test}), ends, alone (ends without a test, each with its reason), clashes.

    options: peers, seconds, round_seconds, cuda. Each pair is measured in both directions, in consecutive
    rounds. Refused if that makes more tests than a plan can have.
    """
    every = [end for node in nodes for end in ends_of(node)]
    return planned(every, {node["host"]: node["base_port"] for node in nodes}, options, HOST, len(nodes))


def planned(every: list[dict], next_port: dict, options: dict, path: str, nodes: int) -> dict:
    """The same for these ends, on nodes or in pods. next_port: of each node, the next TCP port of a test."""
    made: dict = {"path": path, "rounds": [], "tests": {}, "alone": [], "clashes": []}
    memories = {"host": every, **({"cuda": [_with_gpu(end) for end in every]} if options["cuda"] else {})}
    grouped = {memory: verify_pairs.chains(ends) for memory, ends in memories.items()}
    _refuse_too_many(
        [len(chain) for groups, _clashes in grouped.values() for _network, chain in groups], options, nodes
    )
    for memory, ends in memories.items():
        groups, clashes = grouped[memory]
        by_id = {end["id"]: end for end in ends}
        networks = {end["id"]: network for network, chain in groups for end in chain}
        resources = {end["id"]: set(end["resources"]) for end in ends}
        ids = [[end["id"] for end in chain] for _network, chain in groups]
        pairs = schedule(ids, resources, options["peers"])
        for edges in pairs:
            for ways in (edges, [(other, one) for one, other in edges]):
                tests = [_test(by_id[one], by_id[other], networks[one], path, memory, next_port) for one, other in ways]
                made["tests"].update((test["id"], test) for test in tests)
                made["rounds"].append([test["id"] for test in tests])
        met = {end_id for edges in pairs for edge in edges for end_id in edge}
        made["alone"] += [
            without(end, end["reason"] or verify_pairs.why_alone(end, every, nodes), memory)
            for end in ends
            if end["id"] not in met
        ]
        made["clashes"] = clashes
    return {**made, "carries": {f"{end['host']} {end['hca']}/{end['port']}": end["carries"] for end in every}}


def _refuse_too_many(chains: list[int], options: dict, nodes: int) -> None:
    """chains: number of ends in each network of each rail."""

    def tests(peers):
        return 2 * sum(meetings(length, peers) for length in chains)

    if tests(options["peers"]) <= MOST_TESTS:
        return
    fits = max((peers for peers in range(1, max(chains)) if tests(peers) <= MOST_TESTS), default=None)
    step = "measure some of the nodes at a time: --limit"
    if fits:
        step = f"set matrix_peers: {fits}, which makes {text.count(tests(fits), 'test')}; or {step}"
    seen = f"{text.count(tests(options['peers']), 'test')} between {text.count(nodes, 'node')}; nothing has been sent"
    raise Refused.because("matrix_peers", f"at most {text.count(MOST_TESTS, 'test')} in a run", seen, step)


def _with_gpu(end: dict) -> dict:
    """The end with the reason why it cannot send from GPU memory, if there is one."""
    reason = end["reason"]
    can = end["cuda"] or {"send": False, "dmabuf": False}
    if reason is None and not can["send"]:
        reason = f"ib_write_bw of {end['host']} was built without CUDA"
    if reason is None and end["carries"]["dmabuf"] and not can["dmabuf"]:
        reason = f"GPU memory of {end['host']} is reached by dma-buf, but its ib_write_bw has no --use_cuda_dmabuf"
    if reason is None and end["carries"]["gpu_index"] is None:
        reason = "the facts show no GPU for this rail"
    return {**end, "reason": reason}


def without(end: dict, reason: str, memory: str = "host") -> dict:
    return {**{key: end[key] for key in ("host", "rail", "hca", "port")}, "memory": memory, "reason": reason}


def _test(client: dict, server: dict, network: str, path: str, memory: str, next_port: dict) -> dict:
    """One direction of one pair, in the form that _traffic.rounds runs."""
    key = server.get("node", server["host"])
    port = next_port[key]
    next_port[key] += 1
    address = server["networks"][network]
    return {
        "id": f"{path}-rail{client['rail']}-{client['host']}-{server['host']}" + ("-cuda" if memory == "cuda" else ""),
        "tool": "ib_write_bw",
        "path": path,
        "memory": memory,
        "rail": client["rail"],
        # ib_write_bw exchanges its queue pair numbers over TCP, which needs no address on the rail itself.
        "address": address if address is not None and ":" not in address else server["management"],
        "tcp_port": port,
        "client": _side(client, network, memory),
        "server": _side(server, network, memory),
    }


def _side(end: dict, network: str, memory: str) -> dict:
    side = verify_pairs.side(end, end["networks"][network])
    side.update(
        pod=end.get("pod"),
        local_cpus=end["carries"]["local_cpus"],
        gpu=end["carries"]["gpu_index"] if memory == "cuda" else None,
        dmabuf=end["carries"]["dmabuf"],
    )
    return side


# Which pairs are measured at the same time, so that no shared resource serves two tests at once. A group, the ends of
# one rail in one network, is a complete graph, and a round is a set of its edges without a common vertex. The circle
# method colours the edges of a complete graph with n vertices in n - 1 rounds for even n and n for odd n, and no
# colouring needs fewer. Groups run side by side; if two of them share something, a PCIe link or the processor of a
# software HCA, first fit puts the later pair into a later round, and never needs more than 2d - 1 rounds, d being the
# most pairs that one shared resource takes part in.


def circle(names: list, peers: int | None = None) -> list[list[tuple]]:
    """Rounds of disjoint pairs in which every two names meet exactly once, or each name at least `peers` others.

    The first name keeps its seat, the others move on by one seat a round, and the name opposite is the partner. With an
    odd number of names the one opposite the empty seat pauses, once in all rounds: for `peers`, one more round.
    """
    seats: list = [*names, *([None] if len(names) % 2 else [])]
    half = len(seats) // 2
    rounds = []
    for _turn in range(turns(len(names), peers)):
        pairs = zip(seats[:half], reversed(seats[half:]))
        rounds.append([(one, other) for one, other in pairs if one is not None and other is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in rounds if pairs]


def turns(names: int, peers: int | None = None) -> int:
    every = max(0, names - 1 + names % 2)
    return every if peers is None else min(every, peers + names % 2)


def meetings(names: int, peers: int | None = None) -> int:
    return turns(names, peers) * (names // 2)


def schedule(groups: list[list], resources: dict, peers: int | None = None) -> list[list[tuple]]:
    """Rounds of pairs: every two ends of a group meet once, and no two pairs of a round need the same resource.

    groups: lists of ends. resources: {end: names of what it uses}. The two ends of a pair may share none either. peers:
    the least number of others in its group that an end meets; None: all.
    """
    busy: dict = {}
    scheduled: list[list[tuple]] = []
    for group in groups:
        for pairs in circle(group, peers):
            for one, other in pairs:
                verify_pairs.book(scheduled, busy, resources[one] | resources[other], (one, other))
    return scheduled


def announcement(plan: dict, nodes: list[dict], options: dict) -> str:
    """The load on each node and its duration, printed before anything is sent."""
    tests, rounds = len(plan["tests"]), len(plan["rounds"])
    if not tests:
        return "Bandwidth matrix: nothing to send; no rail has a peer."
    hosts = {host for host, _hca in _loaded(plan)}
    usual, most = rounds * (options["seconds"] + OVERHEAD_SECONDS), rounds * options["round_seconds"]
    lines = [
        f"Bandwidth matrix of {text.count(len(hosts), 'node')}: {text.count(tests, 'test')} in "
        f"{text.count(rounds, 'round')}, up to {max(map(len, plan['rounds']))} at once, about {clock(usual)}, at most "
        f"{clock(most + verify_pairs.grace_seconds(len(hosts)))}.",
        f"Load: in its rounds an HCA sends or receives at full rate for {options['seconds']} s; a round uses no HCA "
        "and no PCIe link twice. Other traffic on these rails slows down meanwhile. Nothing is changed.",
    ]
    for node in nodes:
        for hca, users in sorted(node["in_use"].items()):
            lines.append(f"In use: {node['host']} {hca} by {text.names(users)}.")
    return "\n".join(lines)


def _loaded(plan: dict) -> set[tuple[str, str]]:
    """(host, HCA) of each end."""
    return {(test[role]["host"], test[role]["hca"]) for test in plan["tests"].values() for role in ("client", "server")}


def consent_findings(plan: dict, nodes: list[dict]) -> list[dict]:
    """HCAs in use that would get load without consent; of all hosts (see at)."""
    loaded, wanted = _loaded(plan), "an unused HCA, or consent to put load on it"
    step = "stop the job, or set matrix_load_allowed: true to measure anyway (the job slows down), or false to leave "
    step += "this HCA out"
    return [
        row
        for node in nodes
        for hca, users in sorted(node["in_use"].items())
        if node["load_allowed"] is None and (node["host"], hca) in loaded
        for row in at(node["host"], [Finding(f"HCA {hca}", wanted, f"in use by {text.names(users)}", step)])
    ]


def clock(seconds: float) -> str:
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h"] * bool(hours) + [f"{minutes} min"] * bool(minutes) + [f"{rest} s"] * bool(rest and not hours)
    return " ".join(parts) or "0 s"
