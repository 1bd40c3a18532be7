"""What keeps a node from serving over DRA: the cluster, its kubelet, its container runtime. Pure."""

import re

from ...module_utils._core.change import Finding

LEAST = (1, 34)
_BACK = "or set device_plugin_api: device-plugin"
_UPGRADE = f"upgrade it (k3s: playbooks/upgrade_k3s.yml), {_BACK}"
_GATES = {
    "DRAConsumableCapacity": (
        "each HCA is one device that several claims share",
        "each HCA is published as one unit per share",
    ),
    "DRADeviceTaints": ("an HCA whose port is down stays, with a taint", "an HCA whose port is down leaves its pool"),
}


def findings(name: str, runtime: dict, cluster: dict | None) -> list[Finding]:
    """name: of the node in the cluster. runtime: what node_facts returned. cluster: what cluster_info returned as dra;
    None if no API server responds yet; then only the node's own state counts.
    """
    found = []
    node = (cluster or {}).get("nodes", {}).get(name)
    if cluster and (not cluster["served"] or _release(cluster["version"]) < LEAST):
        wanted = "Kubernetes 1.34 or newer, which serves resource.k8s.io/v1"
        seen = cluster["version"] if _release(cluster["version"]) < LEAST else f"{cluster['version']} without it"
        found.append(Finding("API server", wanted, seen, _UPGRADE))
    if node and node["kubelet"] and _release(node["kubelet"]) < LEAST:
        found.append(Finding(f"kubelet of {name}", "1.34 or newer, for DRA", node["kubelet"], _UPGRADE))
    return found + _without_cdi(name, runtime, (node or {}).get("runtime") or "")


def _without_cdi(name: str, runtime: dict, program: str) -> list[Finding]:
    """The runtime passes a claim's devices to containers only by CDI."""
    obj, wanted = f"container runtime of {name}", "CDI switched on, by which a claim's devices reach containers"
    place = runtime["source"] or "/etc/containerd/config.toml"
    step = f"remove enable_cdi = false (configuration of containerd: {place}) and restart the runtime, {_BACK}"
    if runtime["cdi"] is False:
        return [Finding(obj, wanted, f"enable_cdi = false in {place} or a file that it imports", step)]
    kind, _colon, version = program.partition("://")
    release = _release(version)
    if not program or (kind == "containerd" and release >= (2, 0)) or (kind == "cri-o" and release >= (1, 28)):
        return []
    if kind == "containerd" and release >= (1, 7):
        step = (
            f"set enable_cdi = true for the CRI plugin in {place} and restart it, or upgrade to containerd 2, {_BACK}"
        )
        return [] if runtime["cdi"] else [Finding(obj, wanted, f"containerd {version}, which has it off", step)]
    step = f"upgrade to containerd 2 or CRI-O 1.28, {_BACK}"
    return [Finding(obj, wanted, program, step)]


def notes(cluster: dict | None, extended_resources: bool) -> list[str]:
    """What the API server's feature gates mean for this cluster."""
    gates = (cluster or {}).get("gates") or {}
    made = [f"{gate} is {'on' if gates[gate] else 'off'}: {_GATES[gate][not gates[gate]]}" for gate in _GATES if gates]
    if gates and extended_resources and not gates["DRAExtendedResource"]:
        made.append(
            "DRAExtendedResource is off: the API server drops the name of the extended resource from the classes, so "
            "pods have to make claims; requests such as rdma/hca_shared_devices_0: 1 stay Pending"
        )
    return made


def _release(version: str) -> tuple[int, int]:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)
