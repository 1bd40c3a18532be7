"""Which test pods a cluster can run. Pure."""

import posixpath
from collections.abc import Collection

from ...module_utils._cni import nad_lint, node_lint
from ...module_utils._kube import pods as kube_pods
from . import pod_checks
from .cluster import Cluster


def networks(nodes: list[dict], cluster: dict | None) -> dict[str, list[dict]]:
    """{host: the networks that Multus attaches to pods on it, each with its name, as in findings, and its config}.

    Those of the cluster whose resource the node offers, or that have none; without a cluster, the files on the node.
    nodes: host and read of those whose networks were read.
    """
    hosts = [{"host": node["host"], **node["read"]["networks"]} for node in nodes]
    if not cluster:
        return {
            host["host"]: [
                {"name": f"network file {name}", "config": text} for name, text in sorted(host["files"].items())
            ]
            for host in hosts
        }
    known = kube_pods.find_nodes(hosts, cluster["nodes"])
    return {host["host"]: _attached(host, known[host["host"]], cluster["nads"]) for host in hosts}


def _attached(host: dict, node: dict | None, nads: list[dict]) -> list[dict]:
    return [
        {"name": f"NetworkAttachmentDefinition {network['namespace']}/{network['name']}", "config": text}
        for network in nad_lint.from_objects(nads, nad_lint.files_by_name([host]))
        if node and (network["resource"] is None or network["resource"] in node["capacity"])
        for text in network["configs"].values()
    ]


def plan(cluster: Cluster) -> dict:
    """namespace, objects, pods and left_out, as kube_pods.plan returns them.

    No pods if the cluster could not be read, or if a user's pod is checked.
    """
    hosts, read = cluster.hosts, cluster.read.get("cluster")
    if not read or cluster.pod_name:
        return {"namespace": cluster.namespace, "objects": [], "pods": [], "left_out": {}, "skipped": []}
    offered = {**read, "networks": pod_checks.networks_of(read, hosts)}
    offered["nads"] = [nad for nad in read["nads"] if nad["kind"] == "NetworkAttachmentDefinition"]
    options = {key: getattr(cluster, key) for key in ("namespace", "image", "gpu_class")}
    plan = kube_pods.plan(hosts, offered, options)
    configs = {network["name"]: network["configs"] for network in offered["networks"]}
    known = kube_pods.find_nodes(hosts, read["nodes"])
    blocked = {host["host"]: _blocked(host, known[host["host"]]) for host in hosts}
    return _without(plan, {pod["name"]: _reason(pod, configs, *blocked[pod["host"]]) for pod in plan["pods"]})


# Programs that every pod's sandbox needs. (Without any CNI configuration the node is not Ready.)
_LOOPBACK = "loopback"
# Kubernetes removes these some time after the node is Ready again; the pods wait longer than that.
_LAGGING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _blocked(host: dict, node) -> tuple[str, dict]:
    """Why no pod can start on a node, empty if one can; and each CNI program that cannot run, with the reason."""
    if node is None:
        return "", {}
    if not node["ready"]:
        return f"node {node['name']} is not Ready: {node['why']}", {}
    taints = [taint for taint in node["taints"] if not _tolerated(taint) and not taint.startswith(_LAGGING)]
    if taints:
        return f"node {node['name']} has the taint {', '.join(taints)}", {}
    findings = (host.get("cni") or {}).get("findings") or []
    return "", {
        posixpath.basename(finding["object"].split()[-1]): f"{finding['object']}: {finding['seen']}"
        for finding in findings
        if finding["id"].startswith("plugin-")
    }


def _reason(pod: dict, configs: dict, why: str, programs: dict) -> str:
    """Why a pod cannot start, empty if it can. A pod of the host network starts no CNI program."""
    if why or pod["kind"] == "host":
        return why
    needed = [_LOOPBACK]
    for item in pod["attachments"]:
        known = configs[item["network"]]
        needed += node_lint.network_programs(known.get(pod["host"]) or known.get("") or "")
    return next((programs[name] for name in needed if name in programs), "")


def _tolerated(taint: str) -> bool:
    key, _colon, effect = taint.rpartition(":")
    return effect == "PreferNoSchedule" or key in [toleration["key"] for toleration in kube_pods.TOLERATIONS]


def _without(plan: dict, reasons: dict) -> dict:
    """The plan without the pods that cannot start, which `skipped` lists with their reasons."""
    kept = only(plan, [name for name, reason in reasons.items() if not reason])
    skipped = [{"pod": pod, "reason": reasons[pod["name"]]} for pod in plan["pods"] if reasons[pod["name"]]]
    return {
        **kept,
        "objects": kept["objects"] if kept["pods"] else [],
        "skipped": skipped,
        "left_out": {**{item["pod"]["host"]: item["reason"] for item in skipped}, **plan["left_out"]},
    }


def only(plan: dict, names: Collection[str]) -> dict:
    """The plan with these of its pods, and the templates of their claims."""
    of_pods = ("Pod", "ResourceClaimTemplate")
    objects = [item for item in plan["objects"] if item["kind"] not in of_pods or item["metadata"]["name"] in names]
    return {**plan, "pods": [pod for pod in plan["pods"] if pod["name"] in names], "objects": objects}
