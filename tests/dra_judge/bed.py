"""A cluster of nodes without machines: a real control plane, the kubelet's DRA code, our daemon, a GPU driver's double.

Each node is a tree of tests/fixtures/hosts. Its kubelet is kubelet-judge, which prepares and unprepares what the real
scheduler binds to it, and starts no containers.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from ansible_collections.gpufabric.rdma.tests.tools import tree
from ansible_collections.gpufabric.rdma.tests.tools.control_plane import (
    Api,
    ControlPlane,
    Refused,
    answering,
    free_port,
)

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / "lab")]

from lab import programs  # noqa: E402

PACKAGE = CHECKOUT / "device_plugin"
PYTHON = CHECKOUT / ".cache/plugin-venv/bin/python"
DRIVER, GPU_DRIVER = "rdma.gpufabric.io", "gpu.example.com"
ROOT = "resource.kubernetes.io/pcieRoot"
RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"
TEMPLATES = f"{RESOURCES}/namespaces/default/resourceclaimtemplates"
PODS = "/api/v1/namespaces/default/pods"
GATES = ("DRAConsumableCapacity=true", "DRADeviceTaints=true", "ResourceHealthStatus=true")
# Nothing here is heavy, but other work may have the cores.
PATIENCE = 300.0
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def options(gates: tuple[str, ...]) -> dict:
    """k3s' options: the gates, and no controller that taints nodes which send no heartbeat."""
    wanted = [f"feature-gates+={gate}" for gate in gates]
    return {
        "kube-apiserver-arg": wanted,
        "kube-scheduler-arg": wanted,
        "kube-controller-manager-arg": [*wanted, "controllers-=-node-lifecycle-controller"],
    }


def attribute(device: dict, name: str):
    """The value of a device's attribute, whatever its type; None without it."""
    return next(iter(device.get("attributes", {}).get(name, {}).values()), None)


class Node:
    """One node's processes and folders."""

    def __init__(self, bed: Bed, name: str, fixture: str):
        self.bed = bed
        self.name = name
        self.base = bed.folder / name
        self.tree = self.base / "tree"
        self.cdi = self.base / "cdi"
        self.running: dict[str, subprocess.Popen] = {}
        self.credential = bed.plane.kubeconfig
        for folder in ("plugins", "plugins_registry", "cdi"):
            (self.base / folder).mkdir(parents=True)
        tree.lay_out(tree.load(fixture), self.tree)
        room = {"cpu": "192", "memory": "2Ti", "pods": "1000"}
        status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"pool": name}},
            "status": status,
        }
        bed.api.ask("POST", "/api/v1/nodes", node)
        # What the node controller does when the kubelet reports.
        bed.api.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, "application/merge-patch+json")

    def log(self, what: str) -> pathlib.Path:
        return self.base / f"{what}.log"

    def start(self, what: str, command: list, **environment: str) -> None:
        with self.log(what).open("a") as log:
            self.running[what] = subprocess.Popen(
                [str(word) for word in command],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def end(self, what: str, kill: bool = False) -> None:
        process = self.running.pop(what, None)
        if process:
            process.kill() if kill else process.terminate()
            process.wait(30)

    def kubelet(self) -> None:
        command = [self.bed.built / "kubelet-judge", "-serve", "-kubeconfig", self.bed.plane.kubeconfig]
        self.start("kubelet", [*command, "-base", self.base, "-cdi-dir", self.cdi, "-node-name", self.name])

    def daemon_command(self, pools: list[dict]) -> list[str]:
        config = self.base / "config.json"
        config.write_text(json.dumps({"configList": pools}))
        places = ["-kubelet-root", self.base, "-device-plugin-dir", self.base / "device-plugins", "-cdi-dir", self.cdi]
        # faulthandler: the judge asks a daemon that does not end what its threads do.
        words = [PYTHON, "-X", "faulthandler", "-m", "rdma_device_plugin", "-mode", "dra"]
        words += ["-config-file", config, "-root", self.tree]
        words += [*places, "-kubeconfig", self.credential, "-node-name", self.name]
        return [str(word) for word in words]

    def daemon(self, pools: list[dict]) -> None:
        self.start("daemon", self.daemon_command(pools), PYTHONPATH=str(PACKAGE))

    def gpus(self) -> None:
        command = [self.bed.built / "gpu-dra", "-kubeconfig", self.bed.plane.kubeconfig, "-node-name", self.name]
        command += ["-root", self.tree, "-cdi-dir", self.cdi, "-plugins-dir", self.base / "plugins"]
        self.start("gpus", [*command, "-plugins-registry", self.base / "plugins_registry", "-driver", GPU_DRIVER])

    def use(self, token: str) -> None:
        """The daemon's credential from now on; without it, it has the administrator's."""
        self.credential = self.bed.api.kubeconfig(self.base / "daemon.kubeconfig", token)

    def require(self) -> None:
        """Nobody waits for a program that has ended."""
        for what, process in self.running.items():
            text = self.log(what).read_text()[-2000:]
            assert process.poll() is None, f"{self.name}: {what} ended with {process.returncode}\n{text}"

    def devices(self, driver: str) -> dict[str, dict]:
        """{name: device} of the newest complete generation of the node's pool; empty while it is not complete."""
        slices = [
            item["spec"]
            for item in self.bed.api.items(f"{RESOURCES}/resourceslices")
            if item["spec"]["driver"] == driver and item["spec"].get("nodeName") == self.name
        ]
        newest = max((one["pool"]["generation"] for one in slices), default=0)
        slices = [one for one in slices if one["pool"]["generation"] == newest]
        if not slices or len(slices) != slices[0]["pool"]["resourceSliceCount"]:
            return {}
        return {device["name"]: device for one in slices for device in one.get("devices") or ()}


class Bed:
    """The control plane and its nodes. gates: feature gates of the cluster."""

    def __init__(self, folder: pathlib.Path, gates: tuple[str, ...] = ()):
        built = programs.ensure(["k3s", "dra"])
        self.folder = folder
        self.gates = gates
        self.built = built["dra"]
        self.figures: list[str] = []
        self.nodes: dict[str, Node] = {}
        self.k3s = built["k3s"] / "k3s"
        self.plane = ControlPlane(self.k3s, folder / "plane", free_port(), options(gates))
        self.plane.start()
        self.api: Api = answering(self.plane)

    def node(self, name: str, fixture: str) -> Node:
        self.nodes[name] = Node(self, name, fixture)
        return self.nodes[name]

    def stop(self) -> None:
        for node in self.nodes.values():
            for what in list(node.running):
                node.end(what, kill=True)
        self.plane.stop()

    def wait(self, condition: Callable[[], object], what: str, limit: float = PATIENCE) -> float:
        """Seconds until the condition holds."""
        start = time.monotonic()
        while not condition():
            self.plane.require()
            for node in self.nodes.values():
                node.require()
            assert time.monotonic() - start < limit, f"{what}: not within {limit:.0f} s\n{self.state()}"
            time.sleep(0.1)
        return time.monotonic() - start

    def state(self) -> str:
        """What helps when something did not come: pods, their last events, the ends of the logs."""
        lines = []
        for pod in self.api.items(PODS):
            conditions = [row.get("message", "") for row in pod["status"].get("conditions", ())]
            lines.append(
                f"{pod['metadata']['name']} {pod['spec'].get('nodeName')} {pod['status']['phase']} {conditions}"
            )
        for node in self.nodes.values():
            for what in node.running:
                lines.append(f"== {node.name} {what}\n{node.log(what).read_text()[-1500:]}")
        return "\n".join(lines)

    def remove(self, name: str) -> None:
        """A node with all that is on it; its slices go with the Node object that owns them."""
        node = self.nodes.pop(name)
        for what in list(node.running):
            node.end(what, kill=True)
        self.api.ask("DELETE", f"/api/v1/nodes/{name}")
        slices = f"{RESOURCES}/resourceslices"
        self.wait(
            lambda: not [row for row in self.api.items(slices) if row["spec"].get("nodeName") == name], "slices gone"
        )

    # Objects

    def apply(self, objects: list[dict]) -> None:
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        command = [str(self.k3s), "kubectl", "--kubeconfig", str(self.plane.kubeconfig), "apply", "--server-side"]
        done = subprocess.run(
            [*command, "--force-conflicts", "-f", "-"], input=document, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def token(self, namespace: str, account: str, pod: dict | None = None) -> str:
        """For a service account: one that any process may hold, or that of a pod."""
        spec: dict = {"expirationSeconds": 7200}
        if pod:
            reference = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"]}
            spec["boundObjectRef"] = {**reference, "uid": pod["metadata"]["uid"]}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return self.api.ask("POST", path, request)["status"]["token"]

    def device_class(self, name: str, expression: str) -> None:
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        document = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
        self.api.apply(f"{RESOURCES}/deviceclasses/{name}", document)

    def template(self, name: str, requests: dict[str, dict], constraints: list[dict]) -> None:
        """requests: {name: what stands below `exactly`}."""
        devices = {
            "requests": [{"name": key, "exactly": exactly} for key, exactly in requests.items()],
            "constraints": constraints,
        }
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name},
            "spec": {"spec": {"devices": devices}},
        }
        self.api.apply(f"{TEMPLATES}/{name}", document)

    def pod(self, name: str, template: str, **spec) -> None:
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "fabric"}]}}
        claims = [{"name": "fabric", "resourceClaimTemplateName": template}]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"containers": [container], "resourceClaims": claims, **spec},
        }
        self.api.ask("POST", PODS, pod)

    def delete(self, name: str) -> None:
        with contextlib.suppress(Refused):
            self.api.ask("DELETE", f"{PODS}/{name}")

    def phases(self) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in self.api.items(PODS)}

    def gone(self, names: list[str]) -> bool:
        """Pods and the claims that were made for them."""
        left = {pod["metadata"]["name"] for pod in self.api.items(PODS)}
        owners = {
            owner["name"]
            for claim in self.api.items(CLAIMS)
            for owner in claim["metadata"].get("ownerReferences") or ()
        }
        return not (left | owners) & set(names)

    def allocation(self, pod: str) -> dict[str, tuple[Node, dict]]:
        """{request: (node, device)} of the claim that was made for a pod."""
        for claim in self.api.items(CLAIMS):
            if any(owner["name"] == pod for owner in claim["metadata"].get("ownerReferences") or ()):
                results = claim["status"]["allocation"]["devices"]["results"]
                return {
                    row["request"]: (
                        self.nodes[row["pool"]],
                        self.nodes[row["pool"]].devices(row["driver"])[row["device"]],
                    )
                    for row in results
                }
        raise AssertionError(f"{pod} has no claim")

    def reason(self, pod: str) -> str:
        """Why the scheduler has not bound a pod; empty before it said so."""
        conditions = self.api.ask("GET", f"{PODS}/{pod}")["status"].get("conditions", ())
        return next((row["message"] for row in conditions if row.get("reason") == "Unschedulable"), "")


@contextlib.contextmanager
def running(gates: tuple[str, ...] = ()) -> Iterator[Bed]:
    # Paths of sockets hold 107 characters; a node is a thousand files.
    with tempfile.TemporaryDirectory(prefix="dra", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        bed = Bed(pathlib.Path(folder), gates)
        try:
            yield bed
        finally:
            bed.stop()
