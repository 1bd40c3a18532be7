"""The slices against a real API server: DRA_K3S=build has it built from Go modules (lab/testbed).

The real API server shows the fields that it keeps, its validation and its garbage collection of owners. The kubelet
and its wipe at the start are doubles.
"""

import base64
import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import pytest
import yaml
from api_server_double import pool
from harness import HERE, Node, Running, document, entry
from kubelet_double import Kubelet

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
K3S = os.environ.get("DRA_K3S", "")  # the program of lab/testbed, or `build`
DRIVER = "rdma.gpufabric.io"
UP, DOWN = "mlx5-0", "mlx5-1"
GATES = {
    "default": (),
    "consumable": ("DRAConsumableCapacity",),
    "both": ("DRAConsumableCapacity", "DRADeviceTaints", "DRADeviceTaintRules"),
}

pytestmark = pytest.mark.skipif(not K3S, reason="not verified: no API server, DRA_K3S=build builds one")


def program():
    if K3S != "build":
        return pathlib.Path(K3S)
    sys.path.append(str(HERE.parents[1] / "lab"))
    from lab import programs

    return programs.ensure(["k3s"])["k3s"] / "k3s"


def free_port():
    """A port of 127.0.0.1 whose two successors, for the datastore, are free too."""
    for port in range(23000, 23900, 10):
        try:
            for number in range(3):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port + number))
        except OSError:
            continue
        return port
    raise AssertionError("no three free ports from 23000 to 23900")


class Server:
    """The API server with its controllers on this machine, from nothing. gates: feature gates that are on."""

    def __init__(self, folder, gates):
        self.gates, self.folder = gates, folder
        self.kubeconfig, self.log, self.process = folder / "kubeconfig", folder.parent / "control-plane.log", None
        self.config = {
            "data-dir": str(folder),
            "https-listen-port": free_port(),
            "bind-address": "127.0.0.1",
            "write-kubeconfig": str(self.kubeconfig),
            "node-name": "control-plane",
            "node-ip": "10.77.0.254",
            "disable-agent": True,
            "flannel-backend": "none",
        }
        if gates:
            self.config["kube-apiserver-arg"] = ["feature-gates=" + ",".join(f"{gate}=true" for gate in gates)]

    def start(self):
        """Wait until the controllers have created the default service account: only the scheduler starts later."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "config.yaml"
        config.write_text(json.dumps(self.config))
        with self.log.open("w") as log:
            environment = {**os.environ, "K3S_CONFIG_FILE": str(config)}
            self.process = subprocess.Popen([program(), "server"], env=environment, stdout=log, stderr=log)
        deadline, seen = time.monotonic() + 300, ""
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"the control plane ended, see {self.log}"
            try:
                self.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")
                return
            except OSError as error:  # no answer yet, or not with the object
                seen = str(error)
            time.sleep(0.3)
        raise AssertionError(f"{seen}; see {self.log}")

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def ask(self, method, path, body=None):
        """The answer's object, with the credential of the kubeconfig."""
        found = yaml.safe_load(self.kubeconfig.read_text())
        cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile() as pair:
            pair.write(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
            pair.flush()
            context.load_cert_chain(pair.name)
        request = urllib.request.Request(
            f"{cluster['server']}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": "application/json", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            return json.load(answer)

    def create_node(self):
        """Its uid."""
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}}
        return self.ask("POST", "/api/v1/nodes", node)["metadata"]["uid"]

    def slices(self):
        return self.ask("GET", SLICES)["items"]

    def wipe(self):
        self.ask("DELETE", SLICES)

    def devices(self):
        """{name: device} of the whole pool; None while it is incomplete."""
        found = pool([one["spec"] for one in self.slices()])
        return found and found[1]

    def until(self, condition, seconds=90):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition(self.devices()):
                return True
            time.sleep(0.1)
        return False


@pytest.fixture(scope="module", params=GATES)
def server(request, tmp_path_factory):
    running = Server(tmp_path_factory.mktemp(request.param) / "state", GATES[request.param])
    try:
        running.start()
        running.create_node()
        yield running
    finally:
        running.stop()


def test_slices_on_a_real_api_server(base, server):
    """The life of a pool: form, attributes, port down and up, wipe, 200 units, a new Node, an API server away."""
    shared, tainted = "DRAConsumableCapacity" in server.gates, "DRADeviceTaints" in server.gates
    node = Node(base / "node")

    def names(*hcas, count=3):
        return {name if shared else f"{name}-u{unit:02d}" for name in hcas for unit in range(1 if shared else count)}

    with (
        Kubelet(base, started=server.wipe) as kubelet,
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
        sys.stdout.write(f"{server.gates}: slices back after {time.monotonic() - begun:.1f} s\n")

        plugin.configure(document(entry(count=200)))
        size = (2 if tainted else 1) * (1 if shared else 200)
        assert server.until(lambda found: found is not None and len(found) == size), plugin.problems()

        server.stop()
        assert plugin.until(lambda: any("API server" in line for line in plugin.problems()), 60)
        plugin.configure(document(entry(count=2)))
        server.start()
        wanted = names(UP, DOWN, count=2) if tainted else names(UP, count=2)
        assert server.until(lambda found: found is not None and set(found) == wanted), plugin.problems()

        server.ask("DELETE", "/api/v1/nodes/node1")
        uid = server.create_node()

        def owned(_found):
            found = server.slices()
            return found and all(one["metadata"]["ownerReferences"][0]["uid"] == uid for one in found)

        assert server.until(owned, 180), plugin.problems()
