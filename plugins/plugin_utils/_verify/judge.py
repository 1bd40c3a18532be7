# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of all hosts from what was seen of nodes, fabric and cluster.

PRIVATE to the collection. Pure; runs on the controller.
"""

from __future__ import annotations

from ...module_utils._core import text as core_text
from ...module_utils._kube import dra
from ...module_utils._kube import pods as kube_pods
from .._findings import diagnosis
from .._findings.checks import FAILED, NOT_VERIFIED, check
from .._preflight import host as preflight_host
from . import firewall_checks, gpu_checks, host_checks, pod_checks

_UNREAD = ("a task of this run failed, see above", "fix that and run playbooks/verify.yml again")


def judge(seen: dict, check_mode: bool) -> dict:
    """judged (each host with its checks and what the report says about it) and checks (by host).

    seen: hosts (all of the play), nodes (host, variables, read, planned, boot_id, firewall of those that took part),
    plan (of the
    fabric tests), unplanned (why there is none, or empty), results and servers (what fabric_client and fabric_server
    returned on each host), failures (why a node dropped out, or empty), cluster (as pod_checks.cluster_checks
    takes it, or empty).
    """
    results = {item["id"]: item for one in seen["results"] for item in one.get("results") or []}
    servers = {name: error for one in seen["servers"] for name, error in (one.get("servers") or {}).items()}
    # The reason why a node dropped out explains its tests better than "no result".
    failed = dict(zip((node["host"] for node in seen["nodes"]), seen["failures"]))
    for test in seen["plan"]["tests"]:
        reasons = [
            f"{side}: {failed[side]}" for side in (test["server"]["host"], test["client"]["host"]) if failed.get(side)
        ]
        if reasons:
            servers[test["id"]] = "; ".join(reasons)
    loaded = {node["host"]: set() for node in seen["nodes"]}
    for told in (seen["results"], seen["servers"]):
        for node, one in zip(seen["nodes"], told):
            loaded[node["host"]] |= set(one.get("loaded") or ())
    known = {node["host"]: node for node in seen["nodes"]}
    judged = []
    for host in seen["hosts"]:
        node = known.get(host)
        if node is None:
            judged.append(
                {"host": host, "facts": None, "checks": host_checks.absent("an earlier step of this run failed")}
            )
        elif not node["read"].get("probe"):
            judged.append({"host": host, "facts": None, "checks": host_checks.absent(_silence(node["read"]))})
        else:
            judged.append(_judge_node(node, check_mode, loaded[host]))
    by_host = {node["host"]: node["checks"] for node in judged}
    percents = {node["host"]: node["variables"]["verification_bandwidth_minimum_percent"] for node in seen["nodes"]}
    for host, item in host_checks.fabric_checks(seen["plan"], results, servers, percents, check_mode):
        by_host[host].append(item)
    if seen["unplanned"]:
        step = "fix that and run playbooks/verify.yml again"
        item = check("fabric:plan", "fabric", FAILED, "tests between the nodes", seen["unplanned"], step)
        by_host[seen["hosts"][0]].append(item)
    if seen["cluster"] and not seen["cluster"].get("hosts"):
        why = seen["cluster"].get("failure") or _UNREAD[0]
        item = check("cluster:api", "cluster", NOT_VERIFIED, "its state collected", why, _UNREAD[1])
        by_host[seen["hosts"][0]].append(item)
    elif seen["cluster"]:
        placed = {one["host"] for one in seen["cluster"]["hosts"]}
        for node in seen["nodes"]:
            if node["read"].get("probe") and node["host"] not in placed:
                item = check("cluster:node", "cluster node", NOT_VERIFIED, "its interfaces and routes read", *_UNREAD)
                by_host[node["host"]].append(item)
        read = {node["host"]: node["read"].get("ansible_facts", {}).get("rdma", {}) for node in seen["nodes"]}
        drivers = {host: facts.get("driver") for host, facts in read.items()}
        for host, item in _gpu_layer(seen["cluster"], read):
            by_host[host].append(item)
        for host, item in pod_checks.cluster_checks({**seen["cluster"], "drivers": drivers}, check_mode):
            by_host[host].append(item)
        claims = _claims(seen["cluster"])
        for node in judged:
            node["claims"] = claims.get(node["host"], [])
    else:
        for node in seen["nodes"]:
            facts = node["read"].get("ansible_facts", {}).get("rdma", {})
            by_host[node["host"]] += gpu_checks.gpu_checks(node["host"], facts, None, None)
    named, verdicts = diagnosis.diagnose(by_host)
    for node in judged:
        node.update(checks=named[node["host"]], diagnosis=verdicts.get(node["host"]))
    return {"judged": judged, "checks": named}


def _gpu_layer(cluster: dict, read: dict):
    """(host, check) of each node with GPUs, with what the cluster says of it."""
    places = {one["host"]: one for one in cluster["hosts"]}
    offered = cluster["read"].get("cluster")
    known = kube_pods.find_nodes(cluster["hosts"], offered["nodes"]) if offered else {}
    for host, facts in read.items():
        own = offered and {**offered, "nodes": [known[host]] if known.get(host) else []}
        for item in gpu_checks.gpu_checks(host, facts, own, places.get(host)):
            yield host, item


def _claims(seen: dict) -> dict[str, list[dict]]:
    """Who holds the HCAs of each host over DRA; of those where cluster and node were read."""
    cluster = seen["read"].get("cluster") or {}
    if not cluster.get("dra"):
        return {}
    held = dra.held(cluster["dra"])
    known = kube_pods.find_nodes(seen["hosts"], cluster.get("nodes") or [])
    return {host: held.get(node["name"], []) for host, node in known.items() if node}


def _judge_node(node: dict, check_mode: bool, loaded: set[str]) -> dict:
    facts = node["read"]["ansible_facts"]["rdma"]
    outcome = preflight_host.plan(facts, node["variables"])
    checks = host_checks.host_checks(facts, node["variables"], node["read"]["probe"], check_mode, loaded)
    checks += firewall_checks.checks(node.get("firewall"), node.get("firewall_failure"), node["variables"], check_mode)
    return {
        "host": node["host"],
        "facts": {key: facts[key] for key in ("hcas", "rails")},
        "checks": checks,
        "planned": node["planned"],
        "pending": outcome["changes"],
        "reboot_reasons": outcome["reboot_reasons"] + facts["reboot_reasons"],
        "rebooted": node["boot_id"] not in (None, facts["node"]["boot_id"]),
    }


def _silence(read: dict) -> str:
    return read.get("failure") or f"unreachable: {core_text.reason(read.get('msg'))}"
