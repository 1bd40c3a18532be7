"""The checks of all hosts, from the state of nodes, fabric and cluster. Pure."""

from typing import NamedTuple

from ...module_utils._core import text as core_text
from ...module_utils._kube import dra
from ...module_utils._kube import pods as kube_pods
from .._core import fleet
from .._findings import diagnosis
from .._findings.checks import FAILED, NOT_VERIFIED, check
from .._preflight import fabric_plan
from .._preflight import host as preflight_host
from . import cluster as verify_cluster
from . import gpu_checks, host_checks, pairs, pod_checks, traffic_class
from .cluster import Cluster

_UNREAD = ("a task of this run failed, see above", "fix that and run playbooks/verify.yml again")


class Seen(NamedTuple):
    """What a run has seen. collected and failures have a row per node."""

    hosts: list[str]  # all of the play
    nodes: list[dict]  # host, variables, read, planned, boot_id and firewall of those that took part
    collected: list[dict]  # what fabric_tests returned on each node in the end
    failures: list[str]  # why a node dropped out, or empty
    plan: dict  # of the fabric tests
    unplanned: str  # why there is none, or empty
    cluster: Cluster | None  # None without one


def gather(hosts: list[str], known: list[dict], shared: dict) -> Seen:
    """Input of `judge`.

    known: for each host node, started, collected (what fabric_tests returned) and cni (what cni_lint returned). shared:
    for the host that asked for all, its node, paired (the plan of the tests between nodes) and, with a cluster,
    offered, pods (their plan), ran and stopped (as cluster_info, plan and test_pods returned them). Any may be missing.
    """
    # Includes hosts that have left the play since: their results are known.
    known = [of_host for of_host in known if "node" in of_host]
    collected = [of_host.get("collected") or {} for of_host in known]
    paired = shared.get("paired") or {}
    return Seen(
        hosts,
        [of_host["node"] for of_host in known],
        collected,
        [pairs.dropped(of_host.get("started"), answer) for of_host, answer in zip(known, collected)],
        paired.get("plan") or {"tests": [], "unpaired": [], "clashes": []},
        fleet.failure(paired),
        _cluster(known, shared) if "offered" in shared else None,
    )


def _cluster(known: list[dict], shared: dict) -> Cluster:
    places = verify_cluster.places([of_host for of_host in known if of_host.get("cni")])
    offered, planned, ran = shared["offered"], shared.get("pods") or {}, shared.get("ran") or {}
    return verify_cluster.of_play(places, offered, shared["node"]["variables"])._replace(
        plan=planned.get("plan") or {},
        run=ran,
        stopped=ran.get("removed") or shared.get("stopped") or {},
        pod=offered.get("pod") or {},
        failure=fleet.failure(offered, planned, ran),
    )


def judge(seen: Seen, check_mode: bool) -> dict:
    """judged (each host with its checks and its part of the report) and checks (by host)."""
    judged = _nodes(seen, check_mode)
    by_host = {node["host"]: node["checks"] for node in judged}
    for host, item in _fabric(seen, check_mode):
        by_host[host].append(item)
    for host, item in _of_cluster(seen, check_mode):
        by_host[host].append(item)
    claims = _claims(seen.cluster) if seen.cluster else {}
    named, verdicts = diagnosis.diagnose(by_host)
    for node in judged:
        node.update(
            checks=named[node["host"]],
            diagnosis=verdicts.get(node["host"]),
            claims=claims.get(node["host"], []),
        )
    return {"judged": judged, "checks": named}


def _nodes(seen: Seen, check_mode: bool) -> list[dict]:
    loaded = {node["host"]: set(answer.get("loaded") or ()) for node, answer in zip(seen.nodes, seen.collected)}
    nodes = {node["host"]: node for node in seen.nodes}
    judged = []
    for host in seen.hosts:
        node = nodes.get(host)
        if node is None:
            checks = host_checks.absent("an earlier step of this run failed")
        elif not node["read"].get("probe"):
            read = node["read"]
            why = read.get("failure") or f"unreachable: {core_text.reason(read.get('msg'))}"
            checks = host_checks.absent(why)
        else:
            try:
                judged.append(_judge_node(node, check_mode, loaded[host]))
                continue
            except Exception as error:  # noqa: BLE001 - any error is this node's
                checks = host_checks.absent(f"its answer cannot be judged: {type(error).__name__}: {str(error)[:200]}")
        judged.append({"host": host, "facts": None, "checks": checks})
    return judged


def _fabric(seen: Seen, check_mode: bool):
    """(host, check) of the tests between nodes."""
    by_test = pairs.joined(list(zip((node["host"] for node in seen.nodes), seen.collected)), seen.plan["tests"])
    results = {name: ends["client"] for name, ends in by_test.items() if "client" in ends}
    servers = {name: ends["server"]["error"] for name, ends in by_test.items() if "server" in ends}
    # The reason why a node dropped out explains its tests better than "no result".
    failed = dict(zip((node["host"] for node in seen.nodes), seen.failures))
    for test in seen.plan["tests"]:
        ends = (test["server"]["host"], test["client"]["host"])
        reasons = [f"{host}: {failed[host]}" for host in ends if failed.get(host)]
        if reasons:
            servers[test["id"]] = "; ".join(reasons)
    percents = {node["host"]: node["variables"]["verification_bandwidth_minimum_percent"] for node in seen.nodes}
    yield from host_checks.fabric_checks(seen.plan, results, servers, percents, check_mode)
    plans = {node["host"]: fabric_plan.of(node["variables"]["fabric_plan"]) for node in seen.nodes}
    for test in seen.plan["tests"]:
        host = test["client"]["host"]
        for item in traffic_class.checks(plans.get(host), test, by_test.get(test["id"]) or {}):
            yield host, item
    if seen.unplanned:
        step = "fix that and run playbooks/verify.yml again"
        yield (
            seen.hosts[0],
            check("fabric:plan", "fabric", FAILED, "tests between the nodes", seen.unplanned, step),
        )


def _of_cluster(seen: Seen, check_mode: bool):
    """(host, check) of the GPU layer and, with a cluster, of its state."""
    cluster = seen.cluster
    read = {node["host"]: node["read"].get("ansible_facts", {}).get("rdma", {}) for node in seen.nodes}
    if cluster and cluster.hosts:
        placed = {place["host"] for place in cluster.hosts}
        for node in seen.nodes:
            if node["read"].get("probe") and node["host"] not in placed:
                wanted = "its interfaces and routes read"
                yield node["host"], check("cluster:node", "cluster node", NOT_VERIFIED, wanted, *_UNREAD)
        yield from _gpu_layer(cluster, read)
        drivers = {host: facts.get("driver") for host, facts in read.items()}
        yield from pod_checks.cluster_checks(cluster, drivers, check_mode)
    elif cluster:
        why = cluster.failure or _UNREAD[0]
        wanted = "its state collected"
        yield seen.hosts[0], check("cluster:api", "cluster", NOT_VERIFIED, wanted, why, _UNREAD[1])
    else:
        for host, facts in read.items():
            for item in gpu_checks.gpu_checks(host, facts, None, None):
                yield host, item


def _gpu_layer(cluster: Cluster, read: dict):
    """(host, check) of each node with GPUs, with the cluster's view of it."""
    places = {place["host"]: place for place in cluster.hosts}
    offered = cluster.read.get("cluster")
    known = kube_pods.find_nodes(cluster.hosts, offered["nodes"]) if offered else {}
    for host, facts in read.items():
        own = offered and {**offered, "nodes": [known[host]] if known.get(host) else []}
        for item in gpu_checks.gpu_checks(host, facts, own, places.get(host)):
            yield host, item


def _claims(seen: Cluster) -> dict[str, list[dict]]:
    """The holders of each host's HCAs over DRA; only for hosts where cluster and node were read."""
    cluster = seen.read.get("cluster") or {}
    if not cluster.get("dra"):
        return {}
    held = dra.held(cluster["dra"])
    known = kube_pods.find_nodes(seen.hosts, cluster.get("nodes") or [])
    return {host: held.get(node["name"], []) for host, node in known.items() if node}


def _judge_node(node: dict, check_mode: bool, loaded: set[str]) -> dict:
    # Further readings of the node are next to its facts.
    facts = {**node["read"]["ansible_facts"]["rdma"], "firmware": node["read"].get("firmware")}
    outcome = preflight_host.plan(facts, node["variables"])
    checks = host_checks.host_checks(facts, node["variables"], node["read"]["probe"], check_mode, loaded)
    seen = (node.get("firewall"), node.get("firewall_failure"))
    checks += host_checks.firewall_checks(*seen, node["variables"], check_mode)
    checks += gpu_checks.initiated(node["host"], facts, node["variables"]["verification_gpu_initiated"])
    return {
        "host": node["host"],
        "facts": {key: facts[key] for key in ("hcas", "rails")},
        "checks": checks,
        "planned": node["planned"],
        "pending": outcome["changes"],
        "reboot_reasons": outcome["reboot_reasons"] + facts["reboot_reasons"],
        "rebooted": node["boot_id"] not in (None, facts["node"]["boot_id"]),
    }
