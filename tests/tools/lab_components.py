"""How long each part of the lab's cluster took, by its own timestamps: runs are compared with this."""

from __future__ import annotations

import datetime

from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls

PROBE = "component"


def components(cluster) -> dict[str, float]:
    """{part: seconds} of the cluster as its first run left it; where nodes run in parallel, those of the slowest.

    Each part counts from the moment it had what it needs: a service from its start, Flannel and Multus from their
    DaemonSets, a node's Ready from Multus' configuration, a pod with net1 (created and deleted here) from its object.
    """
    started, ready = _service(cluster, cluster.server)
    found = {"server ready": ready - started}
    nodes = {row["metadata"]["name"]: row for row in cluster.get("nodes")["items"]}
    if cluster.worker != cluster.server:
        started, _ready = _service(cluster, cluster.worker)
        found["agent joined"] = _seconds(nodes[cluster.worker]["metadata"]["creationTimestamp"]) - started
    leased = _written(cluster, "/run/flannel/subnet.env")
    found["Flannel's subnet leased"] = leased - _created(cluster, pitfalls.FLANNEL)
    written = _written(cluster, pitfalls.CONF)
    found["Multus' configuration written"] = written - _created(cluster, pitfalls.MULTUS)
    found["nodes Ready"] = max(0.0, max(_became_ready(row) for row in nodes.values()) - written)
    found["a pod with net1 running"] = _pod(cluster)
    return found


def _service(cluster, name: str) -> tuple[float, float]:
    """When the kubelet's service was started, and when it reported READY."""
    show = "systemctl show --timestamp=unix --value --property=InactiveExitTimestamp --property=ActiveEnterTimestamp"
    said = cluster.node(name, f"{show} {cluster.kubelet_service(name)}").split()
    started, ready = sorted(float(stamp.lstrip("@")) for stamp in said)
    return started, ready


def _created(cluster, daemon: tuple[str, str]) -> float:
    name, namespace = daemon
    return _seconds(cluster.get("daemonset", name, "-n", namespace)["metadata"]["creationTimestamp"])


def _written(cluster, path: str) -> float:
    """When the file was last written, on the node where that was last."""
    return max(float(cluster.node(name, f"stat -c %Y {path}")) for name in cluster.nodes)


def _became_ready(node: dict) -> float:
    (row,) = (row for row in node["status"]["conditions"] if row["type"] == "Ready" and row["status"] == "True")
    return _seconds(row["lastTransitionTime"])


def _pod(cluster) -> float:
    pitfalls.apply(cluster, pitfalls.pod(PROBE, cluster.worker, "default/rail0"))
    cluster.wait(lambda: pitfalls.running(cluster, PROBE), "a pod with net1 runs", pitfalls.PATIENCE)
    found = cluster.get("pod", PROBE, "-n", pitfalls.NAMESPACE)
    (status,) = found["status"]["containerStatuses"]
    cluster.kubectl("delete", "namespace", pitfalls.NAMESPACE)
    return _seconds(status["state"]["running"]["startedAt"]) - _seconds(found["metadata"]["creationTimestamp"])


def _seconds(stamp: str) -> float:
    """Of a Kubernetes time, as 2026-11-22T23:51:07Z, since the epoch."""
    return datetime.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
