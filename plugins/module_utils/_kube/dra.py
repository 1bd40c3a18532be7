"""DRA on the API server: its features, the devices that our plugin publishes, and their claims."""

from __future__ import annotations

import json

from .._core.change import Change, Plan
from .._device_plugin import dra
from .kubectl import Kubectl, KubectlError, Unreachable, last_words, parse_items

GROUP = "resource.k8s.io"
TYPES = ("deviceclasses.resource.k8s.io", "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io")
_PROBE = "probe.rdma.gpufabric.io"


# --- features of the cluster ------------------------------------------------------------------------------------------


def capabilities(kubectl: Kubectl) -> dict:
    """version (of Kubernetes), served (whether resource.k8s.io/v1 is served), gates {feature gate: whether the API
    server keeps its fields}, nodes {name: {kubelet, runtime, system_uuid}}. No effect: two objects are applied as a dry
    run.

    An API server silently drops fields of a gate that is off.
    """
    version = json.loads(kubectl.output("an answer to /version", "get", "--raw=/version"))["gitVersion"]
    names = {"kubelet": "kubeletVersion", "runtime": "containerRuntimeVersion", "system_uuid": "systemUUID"}
    nodes = {}
    for item in kubectl.items("nodes"):
        info = (item.get("status") or {}).get("nodeInfo", {})
        nodes[item["metadata"]["name"]] = {name: info.get(field) or "" for name, field in names.items()}
    known = {"version": version, "served": False, "gates": {}, "nodes": nodes}
    code, out, error = kubectl.apply(_probes(), "--dry-run=server", "--force-conflicts", "--output=json")
    if code and "no matches for kind" in error:
        return known
    if code:
        raise KubectlError("a dry run of a DeviceClass and a ResourceSlice", error or out)
    kept = {item["kind"]: item["spec"] for item in parse_items(out)}
    device = (kept["ResourceSlice"].get("devices") or [{}])[0]
    gates = {
        "DRAConsumableCapacity": bool(device.get("allowMultipleAllocations")),
        "DRADeviceTaints": bool(device.get("taints")),
        "DRAExtendedResource": bool(kept["DeviceClass"].get("extendedResourceName")),
    }
    return {**known, "served": True, "gates": gates}


def _probes() -> list[dict]:
    selector = {"cel": {"expression": f"device.driver == '{_PROBE}'"}}
    device = {
        "name": "probe",
        "allowMultipleAllocations": True,
        "taints": [{"key": f"{_PROBE}/probe", "effect": "NoSchedule"}],
    }
    spec = {
        "driver": _PROBE,
        "nodeName": "probe",
        "pool": {"name": "probe", "generation": 1, "resourceSliceCount": 1},
        "devices": [device],
    }
    return [
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "DeviceClass",
            "metadata": {"name": _PROBE},
            "spec": {"selectors": [selector], "extendedResourceName": f"{_PROBE}/probe"},
        },
        {"apiVersion": f"{GROUP}/v1", "kind": "ResourceSlice", "metadata": {"name": _PROBE}, "spec": spec},
    ]


# --- objects of the cluster -------------------------------------------------------------------------------------------


def read(items: list[dict]) -> dict:
    """classes (names), extended (resources that these serve), devices (of all drivers: node, driver, pool, name,
    attributes {qualified name: value}, taints) and claims (see claim) among objects of the API server.
    """
    slices = [item for item in items if item["kind"] == "ResourceSlice"]
    classes = [item for item in items if item["kind"] == "DeviceClass"]
    return {
        "classes": sorted(item["metadata"]["name"] for item in classes),
        "extended": [(item.get("spec") or {}).get("extendedResourceName") for item in classes],
        "devices": [device for item in _newest(slices) for device in _devices(item)],
        "claims": [claim(item) for item in items if item["kind"] == "ResourceClaim"],
    }


def _newest(slices: list[dict]) -> list[dict]:
    """The slices of each pool's last generation: older ones are leftovers, which the scheduler ignores."""
    pools = [(item["spec"]["driver"], item["spec"]["pool"]["name"]) for item in slices]
    generations = [item["spec"]["pool"]["generation"] for item in slices]
    last = dict(sorted(zip(pools, generations)))
    return [item for item, pool, generation in zip(slices, pools, generations) if generation == last[pool]]


def _devices(item: dict):
    spec = item["spec"]
    for device in spec.get("devices") or []:
        attributes = {
            name if "/" in name else f"{spec['driver']}/{name}": next(iter(value.values()), None)
            for name, value in (device.get("attributes") or {}).items()
        }
        yield {
            "node": spec.get("nodeName"),
            "driver": spec["driver"],
            "pool": spec["pool"]["name"],
            "name": device["name"],
            "attributes": attributes,
            "taints": [f"{taint['key']}:{taint['effect']}" for taint in device.get("taints") or []],
        }


def claim(item: dict) -> dict:
    """namespace, name, pods (that hold it), devices (driver, pool, device, request) of a ResourceClaim."""
    status = item.get("status") or {}
    allocated = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    owners = [owner["name"] for owner in item["metadata"].get("ownerReferences") or [] if owner["kind"] == "Pod"]
    return {
        "namespace": item["metadata"]["namespace"],
        "name": item["metadata"]["name"],
        "of": owners,
        "pods": sorted(user["name"] for user in status.get("reservedFor") or [] if user.get("resource") == "pods"),
        "devices": [{key: result.get(key) for key in ("request", "driver", "pool", "device")} for result in allocated],
    }


def attribute(device: dict, name: str):
    """An attribute under our domain, or None."""
    return device["attributes"].get(f"{dra.DRIVER}/{name}")


def ours(cluster: dict, node: str) -> list[dict]:
    """The devices that our plugin publishes for a node."""
    return [device for device in cluster["devices"] if device["driver"] == dra.DRIVER and device["node"] == node]


def hcas(cluster: dict, node: str) -> list[dict]:
    """The HCAs that a node offers over DRA: hca, rail, class (of its rail, or None), devices (how many represent it),
    taints.
    """
    offered: dict = {}
    for device in ours(cluster, node):
        rail = attribute(device, "rail")
        name = None if rail is None else dra.class_of(rail)
        hca_name = attribute(device, "name") or device["name"]
        known = {"hca": hca_name, "rail": rail, "class": name if name in cluster["classes"] else None}
        hca = offered.setdefault((hca_name, rail), {**known, "devices": 0, "taints": []})
        hca["devices"] += 1
        hca["taints"] = list(dict.fromkeys([*hca["taints"], *device["taints"]]))
    return list(offered.values())


def neighbours(cluster: dict, node: str) -> list[dict]:
    """Devices of other drivers on a node that report their PCIe root: GPUs with a DRA driver."""
    return [
        device
        for device in cluster["devices"]
        if device["driver"] != dra.DRIVER and device["node"] == node and dra.PCIE_ROOT in device["attributes"]
    ]


def device_of(cluster: dict, result: dict) -> dict | None:
    """The published device of an allocation; None if it is no longer published."""
    key = (result["driver"], result["pool"], result["device"])
    return next(
        (device for device in cluster["devices"] if (device["driver"], device["pool"], device["name"]) == key), None
    )


def held(cluster: dict) -> dict[str, list[dict]]:
    """{node: claims on its HCAs}: claim (namespace/name), pods, hca, rail, device."""
    devices = {(device["driver"], device["pool"], device["name"]): device for device in reversed(cluster["devices"])}
    by_node: dict[str, list[dict]] = {}
    for claimed in cluster["claims"]:
        for result in claimed["devices"]:
            key = (result["driver"], result["pool"], result["device"])
            device = devices.get(key) if result["driver"] == dra.DRIVER else None
            if device:
                by_node.setdefault(device["node"], []).append(
                    {
                        "claim": f"{claimed['namespace']}/{claimed['name']}",
                        "pods": claimed["pods"],
                        "hca": attribute(device, "name"),
                        "rail": attribute(device, "rail"),
                        "device": device["name"],
                    }
                )
    return {node: sorted(claims, key=lambda item: (item["claim"], item["device"])) for node, claims in by_node.items()}


class Slices:
    """The slices that our plugin published for a node. The scheduler allocates from them as long as they exist."""

    def __init__(self, kubectl: Kubectl, node: str):
        self._kubectl, self._node = kubectl, node

    def read(self) -> dict:
        """slices (names), down (why no API server responds, or None)."""
        try:
            items, _served = self._kubectl.items_of([TYPES[1]])
        except Unreachable as silent:
            return {"slices": [], "down": last_words(silent.reason)}
        own = [item for item in items if item["spec"]["driver"] == dra.DRIVER]
        names = [item["metadata"]["name"] for item in own if item["spec"].get("nodeName") == self._node]
        return {"slices": sorted(names), "down": None}

    def apply(self, changes: list[Change]):
        for change in changes:
            name = change.object.split()[1]
            self._kubectl.output(f"{change.object} deleted", "delete", TYPES[1], name, "--ignore-not-found")
            yield change


def plan_withdrawal(state: dict) -> Plan:
    """state: see Slices.read()."""
    decided = Plan()
    for name in state["slices"]:
        decided.change(f"ResourceSlice {name}", "delete", "present", "")
    if state["down"]:
        decided.not_verified.append(
            f"whether ResourceSlices of the nodes are left: no API server responds ({state['down']})"
        )
    return decided
