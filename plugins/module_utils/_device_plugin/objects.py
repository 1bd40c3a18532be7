"""The device plugin as objects of a cluster. Pure."""

from __future__ import annotations

import copy

from .config import PLUGIN

OWNER = "rdma-device-plugin"
MANAGER = "gpufabric.rdma"
LABELS = {"app.kubernetes.io/name": OWNER, "app.kubernetes.io/managed-by": MANAGER}
CONFIG_MAP = "rdma-devices"
ACCOUNT = OWNER
_KUBELET = "/var/lib/kubelet"
_REGISTRY = "/plugins_registry"
# Its socket for the kubelet.
_FILES = f"{_KUBELET}/plugins/rdma.gpufabric.io"
_CDI = "/var/run/cdi"


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
        _mount(pod, container, "cdi", _CDI)
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
                if str(item.get(key, "")).endswith((_REGISTRY, _FILES.rpartition("/")[2])):
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
    """What the plugin needs over DRA: a token bound to its node, the node's name, and a folder in the kubelet's."""
    pod["serviceAccountName"] = ACCOUNT
    pod["automountServiceAccountToken"] = True
    container["env"] = [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    _mount(pod, container, "plugin", _FILES)


def _mount(pod: dict, container: dict, name: str, path: str) -> None:
    """A folder of the node at the same path in the pod."""
    container["volumeMounts"].append({"name": name, "mountPath": path})
    pod["volumes"].append({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}})
