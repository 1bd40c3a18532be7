"""The device plugin as objects of a cluster, and which DaemonSets of a cluster are a device plugin of this kind.

PRIVATE to the collection. Pure.
"""

from __future__ import annotations

import copy
from typing import Callable

from .._core.change import Plan
from .config import PLUGIN

OWNER = "rdma-device-plugin"
MANAGER = "gpufabric.rdma"
LABELS = {"app.kubernetes.io/name": OWNER, "app.kubernetes.io/managed-by": MANAGER}
CONFIG_MAP = "rdma-devices"
ACCOUNT = OWNER
_KUBELET = "/var/lib/kubelet"
_REGISTRY = "/plugins_registry"
# Its socket for the kubelet.
_FILES = {"name": "plugin", "path": f"{_KUBELET}/plugins/rdma.gpufabric.io"}
_CDI = {"name": "cdi", "path": "/var/run/cdi"}


def objects(daemonset: dict, config: str, links_up: bool, settings: dict) -> list[dict]:
    """ConfigMap and DaemonSet. settings: image, node_selector, use_cdi, metrics_address, kubelet_root, api."""
    made = copy.deepcopy(daemonset)
    meta = made["metadata"]
    meta["labels"] = {**meta.get("labels", {}), **LABELS}
    pod = made["spec"]["template"]["spec"]
    pod["nodeSelector"] = dict(settings["node_selector"])
    (container,) = pod["containers"]
    container["image"] = settings["image"]
    arguments = []
    if links_up:
        container["securityContext"]["capabilities"]["add"] = ["NET_ADMIN"]
    over_dra = settings["api"] != PLUGIN
    if settings["use_cdi"]:
        arguments.append("-use-cdi")
    if settings["use_cdi"] or over_dra:
        container["volumeMounts"].append({"name": _CDI["name"], "mountPath": _CDI["path"]})
        pod["volumes"].append(
            {"name": _CDI["name"], "hostPath": {"path": _CDI["path"], "type": "DirectoryOrCreate"}},
        )
    if over_dra:
        arguments += ["-mode", settings["api"], "-node-name", "$(NODE_NAME)"]
        _over_dra(pod, container)
    if settings["metrics_address"]:
        arguments += ["-metrics-address", settings["metrics_address"]]
    root = settings["kubelet_root"].rstrip("/")
    if root != _KUBELET:
        # kubelet.sock stays where it is; the watched directory follows the kubelet's --root-dir.
        arguments += ["-kubelet-root", root]
        for item in [*container["volumeMounts"], *(volume.get("hostPath", {}) for volume in pod["volumes"])]:
            for key in ("mountPath", "path"):
                if str(item.get(key, "")).endswith((_REGISTRY, _FILES["path"].rpartition("/")[2])):
                    item[key] = root + item[key].removeprefix(_KUBELET)
    if arguments:
        container["args"] = arguments
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": meta["namespace"], "labels": dict(LABELS)},
        "data": {"config.json": config},
    }
    return [config_map, made]


def _over_dra(pod: dict, container: dict) -> None:
    """What the plugin needs over DRA: a token that names its node, that name, and a folder in the kubelet's."""
    pod["serviceAccountName"] = ACCOUNT
    pod["automountServiceAccountToken"] = True
    container["env"] = [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    container["volumeMounts"].append({"name": _FILES["name"], "mountPath": _FILES["path"]})
    pod["volumes"].append(
        {"name": _FILES["name"], "hostPath": {"path": _FILES["path"], "type": "DirectoryOrCreate"}},
    )


def plugins(daemon_sets: list[dict], ours: Callable[[dict], bool]) -> list[dict]:
    """The device plugins among the DaemonSets of a cluster.

    Each with namespace, name, image, ours (what `ours` says), owner (the object that would bring it back, or "").
    """
    found = []
    for item in daemon_sets:
        for container in item["spec"]["template"]["spec"]["containers"]:
            words = [*container.get("command", []), *container.get("args", [])]
            # The Go plugin's image has the path as its entry point; its manifests need not name it.
            if not any("k8s-rdma-shared-d" in word for word in [*words, container.get("image", "")]):
                continue
            meta = item["metadata"]
            owners = [f"{owner['kind']} {owner['name']}" for owner in meta.get("ownerReferences", [])]
            found.append(
                {
                    "namespace": meta["namespace"],
                    "name": meta["name"],
                    "image": container.get("image", ""),
                    "ours": ours(item),
                    "owner": ", ".join(owners),
                }
            )
            break
    return found


def migration(found: list[dict], replaced: str, allowed: bool | None) -> Plan:
    """Which DaemonSets to delete before the device plugin takes over.

    found: see plugins. replaced: namespace/name of the DaemonSet that will be applied and so replaces one with this
    name; empty when none is wanted.
    """
    made = Plan()
    for item in found:
        if replaced == f"{item['namespace']}/{item['name']}" and not item["owner"]:
            continue
        name = f"{item['namespace']}/{item['name']}"
        obj = f"DaemonSet {name}"
        if item["owner"]:
            made.finding(
                obj,
                "no other RDMA device plugin",
                f"image {item['image']}, managed by {item['owner']}",
                f"remove the plugin from {item['owner']}, which would recreate the DaemonSet, and run again",
            )
        elif item["ours"] or allowed:
            made.change(obj, "delete", f"image {item['image']}", "")
        elif allowed is None:
            made.finding(
                obj,
                "no other RDMA device plugin",
                f"image {item['image']}",
                "set device_plugin_migrate_allowed: true to delete it first (running pods keep their devices, new ones "
                "wait a few seconds), or false to leave it",
            )
        else:
            made.not_applied.append(f"{obj} (image {item['image']}) stays: device_plugin_migrate_allowed is false")
    return made
