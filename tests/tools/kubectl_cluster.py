"""The folder of a kubectl double, and the two nodes that it stands for."""

from __future__ import annotations

import json
import pathlib
import sys

DOUBLE = pathlib.Path(__file__).with_name("kubectl_double.py")


class Cluster:
    """What tests plant into the double and read from it."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.argv = [sys.executable, "-E", "-S", str(DOUBLE), "kubectl"]  # starts in a third of the time
        self.environment = {"KUBECTL_DOUBLE": str(folder)}

    def objects(self):
        return json.loads((self.folder / "objects.json").read_text())

    def namespaces(self):
        return [item["metadata"]["name"] for item in self.objects() if item["kind"] == "Namespace"]

    def calls(self):
        log = self.folder / "calls.log"
        return log.read_text().splitlines() if log.exists() else []

    def plant(self, name, content):
        (self.folder / name).write_text(content if isinstance(content, str) else json.dumps(content))

    def answer(self, pod, text):
        (self.folder / "answers").mkdir(exist_ok=True)
        (self.folder / "answers" / f"{pod}.txt").write_text(text)

    def add(self, *items):
        (self.folder / "objects.json").write_text(json.dumps([*self.objects(), *items]))

    def add_pod(self, namespace, name, node, annotation=None, limits=None):
        annotations = {"k8s.v1.cni.cncf.io/networks": annotation} if annotation else {}
        self.add(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
                "spec": {"nodeName": node, "containers": [{"name": "app", "resources": {"limits": limits or {}}}]},
                "status": {
                    "phase": "Running",
                    "podIP": "10.42.0.9",
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )


def make(folder, master="eth2", resource="rdma/rail0") -> Cluster:
    """Two Ready nodes with one rail each, its network, CoreDNS."""
    pathlib.Path(folder).mkdir(parents=True)
    cluster = Cluster(folder)
    config = {
        "cniVersion": "0.3.1",
        "name": "rail0",
        "type": "macvlan",
        "master": master,
        "ipam": {"type": "whereabouts", "range": "10.56.0.0/24"},
    }
    network = {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "name": "rail0",
            "namespace": "default",
            "annotations": {"k8s.v1.cni.cncf.io/resourceName": resource},
        },
        "spec": {"config": json.dumps(config)},
    }
    dns = {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}}
    items = [_node(1, resource), _node(2, resource), network]
    items += [{"apiVersion": "v1", "kind": "Service", "metadata": dns, "spec": {}}]
    items += [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("default", "kube-system")
    ]
    cluster.plant("objects.json", items)
    return cluster


def _node(number, resource):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node{number}"},
        "spec": {"podCIDRs": [f"10.42.{number - 1}.0/24"]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": f"10.0.0.{number}"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "capacity": {"cpu": "2", resource: "100"},
            "allocatable": {"cpu": "2", resource: "100"},
        },
    }


def hosts():
    """The same two nodes as the inventory and their facts know them."""
    rail = {
        "index": 0,
        "hca": "mlx5_0",
        "port": 1,
        "netdev": "eth2",
        "pci": "0000:18:00.0",
        "kind": "pci",
        "link_layer": "Ethernet",
        "active_mtu": 4096,
        "char_devices": ["uverbs0", "umad0"],
    }
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
    return text.replace("@@ user\n1000", "@@ user\n0") if pod["kind"] in ("seed", "host") else text
