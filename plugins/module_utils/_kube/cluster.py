"""What a cluster provides to pods: nodes, networks, and their DaemonSets. Reads the API server."""

from __future__ import annotations

import collections

from .._cni import nad_lint
from .._core.text import quantity
from . import dra
from .kubectl import Kubectl, KubectlError

TYPES = ("nodes", "services", "namespaces", "daemonsets.apps", "configmaps")
RUNTIME_CLASSES = "runtimeclasses.node.k8s.io"
OPTIONAL = (
    "network-attachment-definitions.k8s.cni.cncf.io",
    "ippools.nv-ipam.nvidia.com",
    "cidrpools.nv-ipam.nvidia.com",
    "nicclusterpolicies.mellanox.com",
    "nicnodepolicies.mellanox.com",
    RUNTIME_CLASSES,
    *dra.TYPES,
)
# Where device plugins register, and the label by which Pod Security rejects them.
SOCKETS = ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet")
ENFORCE = "pod-security.kubernetes.io/enforce"


def read(kubectl: Kubectl) -> tuple[dict | None, str | None]:
    """(cluster, None), or (None, why it could not be read).

    cluster: nodes, nads (with pools of nv-ipam), dns (bool), namespaces, cni, policies, plugins, security,
    runtime_classes (names; None if the server has no such type), dra (see dra.read).
    """
    try:
        items, served = kubectl.items_of(OPTIONAL, "-A", always=TYPES)
    except KubectlError as refused:
        return None, refused.reason
    by_kind = collections.defaultdict(list)
    for item in items:
        by_kind[item["kind"]].append(item)
    claimed = dra.read(items)
    labels = {item["metadata"]["name"]: item["metadata"].get("labels") or {} for item in by_kind["Namespace"]}
    classes = [item["metadata"]["name"] for item in by_kind["RuntimeClass"]]
    return {
        "nodes": [{**node(item), "hcas": dra.hcas(claimed, item["metadata"]["name"])} for item in by_kind["Node"]],
        "dra": claimed,
        "nads": [bare(item) for item in items if item["kind"] in ("NetworkAttachmentDefinition", *nad_lint.POOLS)],
        "dns": any((item["metadata"].get("labels") or {}).get("k8s-app") == "kube-dns" for item in by_kind["Service"]),
        "namespaces": list(labels),
        "runtime_classes": classes if RUNTIME_CLASSES in served else None,
        "cni": cni_objects(items),
        "policies": [
            {**bare(item), "status": item.get("status") or {}}
            for item in [*by_kind["NicClusterPolicy"], *by_kind["NicNodePolicy"]]
        ],
        "plugins": plugin_objects(items),
        "security": {name: given[ENFORCE] for name, given in labels.items() if ENFORCE in given},
    }, None


def cni_objects(items: list[dict]) -> list[dict]:
    """Flannel and Multus, ours or foreign: their DaemonSets, and the ConfigMaps in their namespaces."""
    daemons = [
        item
        for item in items
        if item["kind"] == "DaemonSet" and any(word in item["metadata"]["name"] for word in ("flannel", "multus"))
    ]
    beside = {item["metadata"]["namespace"] for item in daemons}
    return [*map(bare, daemons), *(item for item in _maps(items) if item["metadata"]["namespace"] in beside)]


def _maps(items: list[dict]) -> list[dict]:
    return [{**bare(item), "data": item.get("data") or {}} for item in items if item["kind"] == "ConfigMap"]


def plugin_objects(items: list[dict]) -> list[dict]:
    """Device plugins for RDMA, ours or foreign: their DaemonSets, and the ConfigMaps that these mount."""
    daemons, mounted = [], set()
    for item in items:
        if item["kind"] != "DaemonSet" or "rdma" not in item["metadata"]["name"]:
            continue
        volumes = item["spec"]["template"]["spec"].get("volumes") or []
        if any((volume.get("hostPath") or {}).get("path", "").rstrip("/") in SOCKETS for volume in volumes):
            daemons.append(item)
            maps = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
            mounted |= {(item["metadata"]["namespace"], name) for name in maps}
    places = [(item["metadata"]["namespace"], item["metadata"]["name"], item) for item in _maps(items)]
    return [*map(bare, daemons), *(item for namespace, name, item in places if (namespace, name) in mounted)]


def node(item: dict) -> dict:
    status = item["status"]
    ready = next((condition for condition in status.get("conditions") or [] if condition["type"] == "Ready"), {})

    def resources(values):
        # Extended resources have a domain; hugepages have none. The API server writes 1000 as 1k.
        return {name: quantity(value) for name, value in (values or {}).items() if "/" in name}

    return {
        "name": item["metadata"]["name"],
        "ready": ready.get("status") == "True",
        "why": ready.get("message") or "",
        "addresses": [address["address"] for address in status.get("addresses") or []],
        "pod_cidrs": item["spec"].get("podCIDRs") or [],
        # Set by Flannel: the address of the NIC used for pod traffic.
        "pod_network_address": (item["metadata"].get("annotations") or {}).get("flannel.alpha.coreos.com/public-ip"),
        "labels": item["metadata"].get("labels") or {},
        "taints": [f"{taint['key']}:{taint['effect']}" for taint in item["spec"].get("taints") or []],
        "capacity": resources(status.get("capacity")),
        "allocatable": resources(status.get("allocatable")),
    }


def bare(item: dict) -> dict:
    meta = {key: item["metadata"][key] for key in ("name", "namespace", "annotations") if item["metadata"].get(key)}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": meta, "spec": item.get("spec") or {}}
