"""A node's k3s about its cluster, and whether the cluster can spare a node: servers answer, etcd has all members.

The etcd inside k3s reports on its metrics address which members it knows and which are connected to it, without a
certificate and without the load of a client.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.request
from collections.abc import Sequence
from typing import Callable, Optional

from .._core.change import Finding, Refused
from .._k3s import address
from .._k3s import state as k3s_state
from .._k3s.config import DATA
from ..hca.tree import Tree
from . import ownership
from .kubectl import OF_K3S, POLL_SECONDS, Kubectl, KubectlError, conditions

PATIENCE = 20  # seconds
_UUIDS = '{range .items[*]}{.metadata.name} {.status.nodeInfo.systemUUID}{"\\n"}{end}'
ETCD_CONFIG = f"{DATA}/server/db/etcd/config"
_SERVER = tuple(f"node-role.kubernetes.io/{role}" for role in ("control-plane", "etcd", "master"))
_ETCD = "node-role.kubernetes.io/etcd"
_GAUGE = re.compile(r'^etcd_network_(known|active)_peers\{Local="(\w+)",Remote="(\w+)"\} (\S+)$', re.MULTILINE)
_LEADER = re.compile(r"^etcd_server_has_leader 1$", re.MULTILINE)
_BACK = (
    "bring it back (see kubectl get nodes, and journalctl -u k3s on it), or take it out of the cluster for good "
    "(kubectl delete node), and run again"
)
Fetch = Callable[[str], str]


def state(
    run: Callable,
    root: str,
    tests_namespace: Optional[str],
    shared_address: Optional[str],
    kubectl: Sequence[str] = OF_K3S,
) -> dict:
    """What node_facts returns as k3s. run: as AnsibleModule.run_command. Raises OSError."""
    node = k3s_state.node(root, run)
    if shared_address and not root.rstrip("/"):
        node["shared"] = address.shared(shared_address, run)
    serving = node["services"]["k3s"]["active"]
    client = Kubectl(kubectl, limit=PATIENCE)
    node["etcd"] = etcd(Tree(root))
    node["registered"] = registered(client) if serving else {}
    node["namespaces"] = refused_namespaces(client, tests_namespace) if tests_namespace and serving else []
    return node


def registered(kubectl: Kubectl) -> dict[str, str]:
    """{name of a Node: system UUID of its machine}; empty if the API server does not answer."""
    try:
        code, out, _error = kubectl.run_retrying("get", "nodes", f"--output=jsonpath={_UUIDS}")
    except KubectlError:
        return {}
    rows = [line.partition(" ") for line in out.splitlines()] if code == 0 else []
    return {name: uuid for name, _space, uuid in rows}


def refused_namespaces(kubectl: Kubectl, name: str) -> list[dict]:
    """Why test pods cannot use the namespace; empty if the API server does not answer, because they ask again."""
    try:
        ownership.tests_namespace(kubectl, name)
    except KubectlError:
        return []
    except Refused as refused:
        return [finding._asdict() for finding in refused.findings]
    return []


# --- whether the cluster can spare a node -----------------------------------------------------------------------------


def fetch(url: str) -> str:
    """The answer of a local address, without any proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as answer:
        return answer.read().decode("utf-8", "replace")


def etcd(tree: Tree, fetch: Fetch = fetch) -> Optional[dict]:
    """{itself, known, active (with itself), leader} of the etcd inside k3s, {error} if it does not answer, None without
    an etcd.
    """
    config = tree.read(ETCD_CONFIG)
    if config is None:
        return None
    listens = re.search(r"^listen-metrics-urls:\s*[\"']?(https?://[^,\"'\s]+)", config, re.MULTILINE)
    if not listens:
        return {"error": f"{ETCD_CONFIG} has no listen-metrics-urls"}
    try:
        text = fetch(f"{listens[1]}/metrics")
    except (OSError, ValueError, http.client.HTTPException) as error:
        return {"error": f"{listens[1]} does not answer: {error}"}
    rows = [(kind, remote) for kind, _local, remote, value in _GAUGE.findall(text) if float(value) > 0]
    itself = {local for _kind, local, _remote, _value in _GAUGE.findall(text)}
    members = {kind: {remote for which, remote in rows if which == kind} for kind in ("known", "active")}
    return {
        "itself": next(iter(itself), None),
        "known": sorted(members["known"] | itself),
        "active": sorted(members["active"] | itself),
        "leader": bool(_LEADER.search(text)),
    }


def against(nodes: list[dict], etcd: Optional[dict], name: str, left: str = "", ready: bool = False) -> list[Finding]:
    """Reasons against rebooting a node or, after its reboot, against continuing with the next one.

    left: the boot that the node must have left. ready: whether it has to be Ready.
    """
    findings = _own(nodes, name, left, ready)
    for node in nodes:
        meta, told = node["metadata"], conditions(node)
        if not set(_SERVER) & set(meta.get("labels") or {}):
            continue
        # Not Ready itself is no reason: before the pod network no node is Ready, and a kubelet that reports it is up.
        if told.get("Ready") == "Unknown":
            findings.append(Finding(f"server {meta['name']}", "a kubelet that reports", "no report for a while", _BACK))
        # k3s sets it for each member.
        if told.get("EtcdIsVoter", "True") != "True":
            findings.append(Finding(f"server {meta['name']}", "a voting member of etcd", "not one now", _BACK))
    return findings + _etcd(nodes, etcd)


def _own(nodes: list[dict], name: str, left: str, ready: bool) -> list[Finding]:
    own = next((node for node in nodes if node["metadata"]["name"] == name), None)
    if own is None:
        step = "set the name that kubectl get nodes shows (k3s_node_name or driver_drain_node) and run again"
        return [Finding(f"node {name}", "a node of the cluster", "no node of that name", step)]
    boot = ((own.get("status") or {}).get("nodeInfo") or {}).get("bootID", "")
    step = "see kubectl describe node and journalctl -u k3s -u k3s-agent on it, fix what they report and run again"
    if left and boot == left:
        return [Finding(f"node {name}", "its kubelet's report of the new boot", "that of the previous boot", step)]
    if ready and not is_ready(nodes, name):
        return [Finding(f"node {name}", "Ready", "not Ready", step)]
    return []


def _etcd(nodes: list[dict], etcd: Optional[dict]) -> list[Finding]:
    if etcd is None:
        return []
    obj, wanted = "etcd of the cluster", "a leader and all members"
    if "error" in etcd:
        return [Finding(obj, wanted, etcd["error"], "see journalctl -u k3s on the server and run again")]
    # etcd before 3.6 does not list its members: then the nodes count.
    count = max(len(etcd["known"]), sum(_ETCD in (node["metadata"].get("labels") or {}) for node in nodes))
    # The one that answered is a member too; before 3.6 it says so only if it has peers.
    active = max(1, len(etcd["active"]))
    away = sorted(set(etcd["known"]) - set(etcd["active"]))
    seen = [] if etcd["leader"] else ["no leader"]
    if active < count:
        named = f", without {', '.join(away)}" if away else ""
        seen.append(f"{active} of {count} members{named}")
    return [Finding(obj, wanted, " and ".join(seen), _BACK)] if seen else []


def is_ready(nodes: list[dict], name: str) -> bool:
    return any(node["metadata"]["name"] == name and conditions(node).get("Ready") == "True" for node in nodes)


def wait(
    client: Kubectl, tree: Tree, seconds: float, judge: Callable, clock=time.monotonic, sleep=time.sleep
) -> tuple[list[dict], list[Finding]]:
    """(nodes, findings of judge(nodes, etcd)) once there are no findings, or when the time is up."""
    deadline = clock() + seconds
    while True:
        nodes = client.items("nodes")
        findings = judge(nodes, etcd(tree))
        if not findings or clock() >= deadline:
            return nodes, findings
        sleep(POLL_SECONDS)
