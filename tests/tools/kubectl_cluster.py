"""The state of the kubectl double, and the two nodes that it simulates."""

from __future__ import annotations

import json
import pathlib
import shlex
import sys

from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Kubectl
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_double

DOUBLE = pathlib.Path(kubectl_double.__file__)


class Cluster:
    """What tests plant into the double and read from it; see kubectl_double for the keys of its state."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        # Without its site packages Python starts in a third of the time.
        self.argv = [sys.executable, "-E", "-S", str(DOUBLE), f"--kubeconfig={self.path}"]

    def state(self, **change) -> dict:
        found = json.loads(self.path.read_text()) if self.path.exists() else {"objects": {}, "calls": []}
        if change:
            found.update(change)
            self.path.write_text(json.dumps(found))
        return found

    @property
    def objects(self) -> dict:
        return self.state()["objects"]

    def calls(self, verb=None) -> list[list[str]]:
        return [call for call in self.state()["calls"] if verb in (None, call[0])]

    def namespaces(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.objects.values() if item["kind"] == "Namespace"]

    def client(self, **options) -> Kubectl:
        return Kubectl(self.argv, **options)

    def install(self, path) -> None:
        """Make path a program `k3s`, whose first argument is kubectl."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\nshift\nexec {shlex.join(self.argv)} "$@"\n')
        path.chmod(0o755)

    def answer(self, pod, text) -> None:
        self.state(answers={**self.state().get("answers", {}), pod: text})

    def add(self, *items) -> None:
        self.state(objects={**self.objects, **{kubectl_double.key(item): item for item in items}})

    def add_pod(self, namespace, name, node, annotation=None, limits=None):
        annotations = {"k8s.v1.cni.cncf.io/networks": annotation} if annotation else {}
        made = pod(namespace, name, node, annotations=annotations)
        made["spec"]["containers"] = [{"name": "app", "resources": {"limits": limits or {}}}]
        made["status"].update(podIP="10.42.0.9", conditions=[{"type": "Ready", "status": "True"}])
        self.add(made)


def make(path, master="eth2", resource="rdma/rail0") -> Cluster:
    """Two Ready nodes with one rail each, its network, CoreDNS."""
    cluster = Cluster(path)
    ipam = {"type": "whereabouts", "range": "10.56.0.0/24"}
    config = {"cniVersion": "0.3.1", "name": "rail0", "type": "macvlan", "master": master, "ipam": ipam}
    served = {"k8s.v1.cni.cncf.io/resourceName": resource}
    cluster.add(
        *(_node(number, resource) for number in (1, 2)),
        {
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": "rail0", "namespace": "default", "annotations": served},
            "spec": {"config": json.dumps(config)},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
            "spec": {},
        },
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("default", "kube-system")),
        definition("k8s.cni.cncf.io", "NetworkAttachmentDefinition", "network-attachment-definitions"),
        definition("nv-ipam.nvidia.com", "IPPool", "ippools"),
        definition("nv-ipam.nvidia.com", "CIDRPool", "cidrpools"),
        definition("mellanox.com", "NicClusterPolicy", "nicclusterpolicies"),
    )
    return cluster


def definition(group, kind, plural) -> dict:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": {"kind": kind, "plural": plural}},
    }


def node(name, **metadata) -> dict:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata}, "spec": {}}


def pod(namespace, name, on, owner=None, **metadata) -> dict:
    """A pod that runs on a node. owner: kind of its controller."""
    if owner:
        metadata["ownerReferences"] = [{"kind": owner, "name": "its-owner", "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"nodeName": on, "containers": []},
        "status": {"phase": "Running"},
    }


def _node(number, resource):
    made = node(f"node{number}")
    made["spec"]["podCIDRs"] = [f"10.42.{number - 1}.0/24"]
    made["status"] = {
        "addresses": [{"type": "InternalIP", "address": f"10.0.0.{number}"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "capacity": {"cpu": "2", resource: "100"},
        "allocatable": {"cpu": "2", resource: "100"},
    }
    return made


def hosts():
    """The same two nodes as the inventory and their facts know them."""
    rail = {"index": 0, "hca": "mlx5_0", "port": 1, "netdev": "eth2", "pci": "0000:18:00.0", "kind": "pci"}
    rail.update(link_layer="Ethernet", active_mtu=4096, char_devices=["uverbs0", "umad0"])
    netdev = {"index": 5, "mtu": 9000, "type": "ether", "addresses": [], "default_route": False}
    cni = {"findings": [], "not_verified": [], "configurations": ["/etc/cni/net.d/00-multus.conf"]}
    return [
        {"host": f"node{number}", "rails": [rail], "netdevs": {"eth2": netdev}, "routes": [], "files": {}, "cni": cni}
        for number in (1, 2)
    ]


def answer_of(text: str, pod: dict) -> str:
    """A composed answer with the address that the double gives to a pod, and its user."""
    number = int(pod["node"][-1]) - 1
    last = number * 16 + 2
    text = text.replace("10.56.0.2", f"10.56.0.{last}").replace("0a38:0002", f"0a38:{last:04x}")
    text = text.replace("10.42.0.9/24", f"10.42.{number}.9/24")
    # In the double's two nodes the peer is the pod of the other one.
    text = text.replace("10.42.0.9  ", f"10.42.{1 - number}.9  ")
    return text.replace("@@ user\n1000", "@@ user\n0") if pod["kind"] in ("seed", "host") else text
