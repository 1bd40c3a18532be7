# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which test pods a cluster can run.

PRIVATE to the collection. Pure; runs on the controller.
"""

from __future__ import annotations

import posixpath

from ...module_utils._kube import pods as kube_pods
from . import pod_checks


def plan(cluster: dict) -> dict:
    """namespace, objects, pods and left_out, as kube_pods.plan returns them; none if the cluster could not be read.

    cluster: hosts, read (what cluster_info returned), namespace, image; pod_name if a user's pod is checked.
    """
    hosts, read = cluster["hosts"], cluster["read"].get("cluster")
    if not read or cluster.get("pod_name"):
        return {"namespace": cluster["namespace"], "objects": [], "pods": [], "left_out": {}, "skipped": []}
    offered = {**read, "networks": pod_checks.networks_of(read, hosts)}
    offered["nads"] = [nad for nad in read["nads"] if nad["kind"] == "NetworkAttachmentDefinition"]
    plan = kube_pods.plan(hosts, offered, {"namespace": cluster["namespace"], "image": cluster["image"]})
    blocked = {host["host"]: _blocked(host, kube_pods.find_node(host, read["nodes"])) for host in hosts}
    return _without(plan, blocked)


# What every pod's sandbox needs, whatever networks it has. (Without any CNI configuration the node is not Ready.)
_LOOPBACK = "loopback"


def _blocked(host: dict, node) -> tuple[str, str]:
    """Why no pod can start on a node, and why none with a network of its own; empty where nothing says so."""
    if node is None:
        return "", ""
    taints = [taint for taint in node["taints"] if not _tolerated(taint)]
    if not node["ready"]:
        return f"node {node['name']} is not Ready: {node['why']}", ""
    if taints:
        return f"node {node['name']} has the taint {', '.join(taints)}", ""
    for one in (host.get("cni") or {}).get("findings") or []:
        program = posixpath.basename(one["object"].split()[-1])
        if one["id"].startswith("plugin-") and program == _LOOPBACK:
            return "", f"{one['object']}: {one['seen']}"
    return "", ""


def _tolerated(taint: str) -> bool:
    key, _colon, effect = taint.rpartition(":")
    return effect == "PreferNoSchedule" or key in [one["key"] for one in kube_pods.TOLERATIONS]


def _without(plan: dict, blocked: dict) -> dict:
    """The plan without the pods that cannot start, which are listed under `skipped`, each with the reason."""
    reasons = {
        pod["name"]: blocked[pod["host"]][0] or (blocked[pod["host"]][1] if pod["kind"] != "host" else "")
        for pod in plan["pods"]
    }
    kept = [pod for pod in plan["pods"] if not reasons[pod["name"]]]
    objects = [item for item in plan["objects"] if not (item["kind"] == "Pod" and reasons[item["metadata"]["name"]])]
    skipped = [{"pod": pod, "reason": reasons[pod["name"]]} for pod in plan["pods"] if reasons[pod["name"]]]
    return {
        **plan,
        "pods": kept,
        "objects": objects if kept else [],
        "skipped": skipped,
        "left_out": {**{item["pod"]["host"]: item["reason"] for item in skipped}, **plan["left_out"]},
    }
