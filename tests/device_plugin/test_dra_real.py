"""The slices against a real API server: `make plugin-dra`, which builds it from Go modules (lab/testbed).

The API server is the better judge of what it keeps, of validation and of the garbage collection of owners. The kubelet
stays a double, and so does the wipe of its start.
"""

from __future__ import annotations

import json
import os
import pathlib
import socket
import subprocess
import time

import pytest
from harness import Node, Running, document, entry
from kubelet_double import Kubelet

K3S = os.environ.get("DRA_K3S", "")
DRIVER = "rdma.gpufabric.io"
UP, DOWN = "mlx5-0", "mlx5-1"
CONFIG = """\
data-dir: {folder}/state
https-listen-port: {port}
bind-address: 127.0.0.1
write-kubeconfig: {folder}/kubeconfig
node-name: control-plane
node-ip: 10.77.0.254
disable-agent: true
flannel-backend: none
"""
GATES = {
    "default": (),
    "consumable": ("DRAConsumableCapacity",),
    "both": ("DRAConsumableCapacity", "DRADeviceTaints", "DRADeviceTaintRules"),
}

pytestmark = pytest.mark.skipif(not K3S, reason="not verified: no API server, make plugin-dra builds one")


class ControlPlane:
    """The API server with its controllers, from nothing. gates: feature gates that are on."""

    def __init__(self, folder, gates):
        self.folder = pathlib.Path(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.folder.mkdir()
        text = CONFIG.format(folder=folder, port=self.port)
        if gates:
            listed = ",".join(f"{gate}=true" for gate in gates)
            text += f'kube-apiserver-arg: ["feature-gates={listed}"]\n'
        (self.folder / "config.yaml").write_text(text)
        self.kubeconfig = self.folder / "kubeconfig"
        self.process = None

    def start(self):
        with open(self.folder / "log", "ab") as log:
            environment = {**os.environ, "K3S_CONFIG_FILE": str(self.folder / "config.yaml")}
            self.process = subprocess.Popen([K3S, "server"], env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 180
        while self.run("get", "--raw", "/readyz", check=False).strip() != "ok":
            assert self.process.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()[
                -3000:
            ]
            time.sleep(0.5)
        return self

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def run(self, *arguments, check=True, **more):
        command = [K3S, "kubectl", "--kubeconfig", str(self.kubeconfig), *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)
        assert not check or answer.returncode == 0, answer.stderr
        return answer.stdout

    def create(self, document):
        self.run("create", "--validate=false", "-f", "-", input=json.dumps(document))

    def devices(self):
        """{name: device} of the whole pool; None while it is not whole."""
        found = [one["spec"] for one in json.loads(self.run("get", "resourceslices", "-o", "json"))["items"]]
        latest = max((spec["pool"]["generation"] for spec in found), default=0)
        current = [spec for spec in found if spec["pool"]["generation"] == latest]
        if any(spec["pool"]["resourceSliceCount"] != len(current) for spec in current):
            return None
        return {device["name"]: device for spec in current for device in spec.get("devices") or ()}

    def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition(self.devices()):
                return True
            time.sleep(0.2)
        return False


@pytest.fixture(scope="module", params=GATES)
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("api") / request.param
    running = ControlPlane(folder, GATES[request.param])
    try:
        running.start()
        running.gates = GATES[request.param]
        running.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}})
        yield running
    finally:
        running.stop()


def test_slices_on_a_real_api_server(base, server):
    """The life of a pool in one: form, attributes, port down and up, wipe, 504 units, a new Node, an API server away."""
    shared, tainted = "DRAConsumableCapacity" in server.gates, "DRADeviceTaints" in server.gates
    node = Node(base / "node")

    def names(*hcas, count=3):
        return {name if shared else f"{name}-u{unit:02d}" for name in hcas for unit in range(1 if shared else count)}

    def wipe():
        server.run("delete", "resourceslices", "--all", "--wait=false")

    with (
        Kubelet(base, started=wipe) as kubelet,
        Running(
            base,
            document(entry(count=3, health={"upSeconds": 0.1})),
            node.root,
            settings_mode="dra",
            kubeconfig=str(server.kubeconfig),
            node_name="node1",
            plugins_directory=f"{base}/plugins",
        ) as plugin,
    ):
        everything = names(UP, DOWN) if tainted else names(UP)
        assert server.until(lambda found: found is not None and set(found) == everything), plugin.problems()
        first = server.devices()[min(names(UP))]
        assert bool(first.get("allowMultipleAllocations")) == shared
        assert first["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:00"}
        assert plugin.until(lambda: not plugin.problems()), plugin.problems()
        writes = plugin.plugin.front.publisher.writes
        time.sleep(2)
        assert plugin.plugin.front.publisher.writes == writes, "what the API server made of it is not written again"

        def usable(found):
            return found is not None and any(
                not device.get("taints") for name, device in found.items() if name in names(UP)
            )

        node.port("mlx5_0", "1: DOWN")
        assert server.until(lambda found: found is not None and not usable(found)), plugin.problems()
        node.port("mlx5_0", "4: ACTIVE")
        assert server.until(usable), plugin.problems()

        begun = time.monotonic()
        kubelet.restart()
        assert server.until(usable, 20), plugin.problems()
        print(f"{server.gates}: slices back after {time.monotonic() - begun:.1f} s")

        plugin.configure(document(entry(count=200)))
        size = (2 if tainted else 1) * (1 if shared else 200)
        assert server.until(lambda found: found is not None and len(found) == size), plugin.problems()

        server.stop()
        assert plugin.until(lambda: any("API server" in line for line in plugin.problems()), 60)
        plugin.configure(document(entry(count=2)))
        server.start()
        wanted = names(UP, DOWN, count=2) if tainted else names(UP, count=2)
        assert server.until(lambda found: found is not None and set(found) == wanted, 90), plugin.problems()

        server.run("delete", "node", "node1", "--wait=false")
        server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}})
        uid = server.run("get", "node", "node1", "-o", "jsonpath={.metadata.uid}")

        def owned(_found):
            slices = json.loads(server.run("get", "resourceslices", "-o", "json"))["items"]
            return slices and all(one["metadata"]["ownerReferences"][0]["uid"] == uid for one in slices)

        assert server.until(owned, 120), plugin.problems()
