"""Cordon, drain and uncordon a node of the cluster.

Annotation and cordon are one patch on the node object, under the collection's field manager: after any failure a later
run knows whether this collection cordoned the node. A node cordoned by someone else gets no annotation and
stays cordoned. The annotation outlives an administrator's uncordon, the managed field does not: only both prove a
cordon ours, and an annotation without it is removed.
"""

from __future__ import annotations

import json
import re

from .._core.change import Change, Plan, Refused
from .kubectl import MANAGER, Kubectl, KubectlError, last_words
from .ownership import SHOW

MARK = "rdma.gpufabric.io/cordoned-for-driver"
_CORDON = {"metadata": {"annotations": {MARK: "true"}}, "spec": {"unschedulable": True}}
_UNCORDON = {"metadata": {"annotations": {MARK: None}}, "spec": {"unschedulable": None}}
_UNMARK = {"metadata": {"annotations": {MARK: None}}}
_PATCHES = {
    "cordon": (_CORDON, "cordoned"),
    "uncordon": (_UNCORDON, "uncordoned"),
    "remove": (_UNMARK, f"without annotation {MARK}"),
}
_MIRROR = "kubernetes.io/config.mirror"
_PROTECTED = re.compile(r'evicting pods/"([^"]+)" -n "([^"]+)".*disruption budget')


class Node:
    """A node on the API server. timeout: seconds that its pods may take to terminate."""

    def __init__(self, kubectl: Kubectl, name: str, timeout: int):
        self._kubectl, self._name, self._timeout = kubectl, name, timeout
        self._drained = False

    def read(self, pods: bool = True) -> dict:
        """name, cordoned, marked (whether it has our annotation), ours (whether the cordon is), pods.

        pods: whether to list those that a drain evicts, as namespace/name.
        """
        try:
            (node,) = self._kubectl.items("node", self._name, SHOW)
        except KubectlError as refused:
            if "NotFound" not in refused.reason:
                raise
            step = "use the name that kubectl get nodes shows (role driver: driver_drain_node) and run again"
            said = last_words(refused.reason)
            raise Refused.because(f"node {self._name}", "a node of the cluster", said, step) from None
        cordoned = bool(node["spec"].get("unschedulable"))
        marked = MARK in (node["metadata"].get("annotations") or {})
        return {
            "name": self._name,
            "cordoned": cordoned,
            "marked": marked,
            "ours": cordoned and marked and _set_by_us(node),
            "pods": self._pods() if pods and not self._drained else [],
        }

    def apply(self, changes: list[Change]):
        for change in changes:
            if change.action == "drain":
                self._drain()
            else:
                patch, wanted = _PATCHES[change.action]
                words = ("--type=merge", f"--field-manager={MANAGER}", f"--patch={json.dumps(patch)}")
                self._kubectl.output(f"node {self._name} {wanted}", "patch", "node", self._name, *words)
            yield change

    def _pods(self) -> list[str]:
        here = self._kubectl.items("pods", "--all-namespaces", f"--field-selector=spec.nodeName={self._name}")
        return sorted(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in here if _leaves(pod))

    def _drain(self) -> None:
        words = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={self._timeout}s")
        code, out, error = self._kubectl.run_retrying("drain", self._name, *words, limit=self._timeout + 60)
        if code:
            step = "fix what it reports (see kubectl get poddisruptionbudgets --all-namespaces; delete pods without a "
            step += "controller yourself) and run again; the node stays cordoned, and the run continues from here"
            wanted = f"drained within {self._timeout} s"
            raise Refused.because(f"node {self._name}", wanted, _obstacle(error or out), step)
        # A pod that tolerates the cordon may already be back; draining again would evict it forever.
        self._drained = True


def _set_by_us(node: dict) -> bool:
    """Whether we were the last to set `unschedulable`, and nobody has unset it since."""
    managed = node["metadata"].get("managedFields") or []
    ours = [entry.get("fieldsV1") or {} for entry in managed if entry.get("manager") == MANAGER]
    return any("f:unschedulable" in (fields.get("f:spec") or {}) for fields in ours)


def _leaves(pod: dict) -> bool:
    """Whether a drain evicts the pod: it leaves those of DaemonSets and the kubelet's own."""
    meta = pod["metadata"]
    controllers = [owner["kind"] for owner in meta.get("ownerReferences") or [] if owner.get("controller", True)]
    return "DaemonSet" not in controllers and _MIRROR not in (meta.get("annotations") or {})


def _obstacle(text: str) -> str:
    """kubectl drain's last message, preceded by the pods that a disruption budget protects."""
    protected = list(dict.fromkeys(f"{namespace}/{name}" for name, namespace in _PROTECTED.findall(text)))
    said = last_words(text)
    return f"a disruption budget protects {', '.join(protected)}: {said}" if protected else said


def plan_drain(seen: dict) -> Plan:
    """seen: see Node.read()."""
    made, obj = Plan(), f"node {seen['name']}"
    if not seen["cordoned"]:
        made.change(obj, "cordon", "schedulable", "cordoned")
    elif not seen["ours"]:
        made.notes.append(f"{obj} was cordoned by someone else and stays cordoned afterwards")
        _unmark(made, seen)
    if seen["pods"]:
        made.change(obj, "drain", "\n".join(seen["pods"]), "")
    return made


def plan_uncordon(seen: dict) -> Plan:
    """seen: see Node.read()."""
    made, obj = Plan(), f"node {seen['name']}"
    if seen["ours"]:
        made.change(obj, "uncordon", "cordoned", "schedulable")
        return made
    if seen["cordoned"]:
        made.notes.append(f"{obj} was cordoned by someone else and stays cordoned")
    _unmark(made, seen)
    return made


def _unmark(made: Plan, seen: dict) -> None:
    """Remove the annotation of our cordon after someone lifted it."""
    if seen["marked"]:
        made.change(f"annotation {MARK} of node {seen['name']}", "remove", "set, for a cordon that has been lifted", "")
