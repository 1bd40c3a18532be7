"""One lab node with a real API server, kubelet and containerd, from Go modules; a snapshot keeps it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

from ansible_collections.gpufabric.rdma.tests.tools.control_plane import SERVER_CONFIG, ControlPlane
from ansible_collections.gpufabric.rdma.tests.tools.node_tools_pod import with_tools

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "lab"))
os.environ["PATH"] += ":/usr/sbin:/sbin"

from lab import containers, image, programs, vm  # noqa: E402
from lab import settings as lab_settings  # noqa: E402

STATE = pathlib.Path(os.environ.get("LAB_DIR") or CHECKOUT / ".lab/kubelet").absolute()
PORT_BASE = int(os.environ.get("LAB_PORT_BASE") or 22500)
NODE = "node1"
SNAPSHOT = "cluster"
PAYLOAD = "/opt/rdma-device-plugin"
PLUGIN_IMAGE = CHECKOUT / "build/plugin-image.tar"
# The disks' sizes do not change, so that a node's snapshot fits whatever they hold; the files are sparse.
BED_BYTES = 290926592
LOAD_BYTES = 1 << 30
# Nothing is given up earlier: other work may have the cores.
PATIENCE = 600.0
WHEELS = ("--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

# The pool of most tests: the soft-RoCE device of the node's first fabric NIC.
RAIL0 = {
    "resourceName": "rail0",
    "rdmaHcaMax": 20,
    "softwareDevices": True,
    "selectors": {"ifNames": ["eth2"]},
    "linkUp": False,
}

# The pool of an HCA that comes while the plugin runs.
LATE = {**RAIL0, "resourceName": "late", "rdmaHcaMax": 5, "selectors": {"ifNames": ["dm9"]}}

AGENT_CONFIG = """\
server: https://127.0.0.1:6443
node-ip: 10.77.0.1
"""
AGENT_UNIT = """\
[Unit]
After=network-online.target
[Service]
Type=notify
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitMEMLOCK=infinity
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStart=/usr/local/bin/k3s agent
"""
LOOPBACK = {"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "loopback"}]}
SET_UP = """\
set -e
mkdir -p /srv/bed /etc/rancher/k3s /etc/cni/net.d /opt/cni/bin /var/lib/rancher/k3s/agent/images {payload}
blockdev --flushbufs /dev/vdb
mount -o ro /dev/vdb /srv/bed
for name in k3s ctr; do ln -sf /srv/bed/k3s /usr/local/bin/$name; done
ln -sf /srv/bed/cni/* /opt/cni/bin/
ln -sf /srv/bed/images/*.tar /var/lib/rancher/k3s/agent/images/
modprobe -a rdma_ucm ib_umad
touch /etc/resolv.conf
systemctl daemon-reload
systemctl start --no-block k3s-agent
"""


class Bed:
    def __init__(self) -> None:
        self.disk, self.k3s = bed_disk()
        self.load = STATE / "load.img"
        self.loaded = 0
        self.times: dict[str, float] = {}
        self.tunnel: subprocess.Popen | None = None
        # On this machine: emulated, it would take most of the node's time. The node's way to it is SSH.
        self.plane = ControlPlane(self.k3s, STATE / "control-plane", PORT_BASE + 5)

    # The machine

    def labctl(self, *words: str, stdin: bytes | None = None, check: bool = True) -> str:
        environment = {
            **os.environ,
            "LAB_DIR": str(STATE),
            "LAB_PORT_BASE": str(PORT_BASE),
            "LAB_NODES": NODE,
            "LAB_MEMORY_MIB": "3072",
            "LAB_DISKS": f"{self.disk}:{self.load}",
        }
        command = [str(CHECKOUT / "lab/labctl"), *words]
        done = subprocess.run(command, env=environment, input=stdin or b"", capture_output=True, check=False)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert not check or done.returncode == 0, f"{' '.join(words)[:300]}: exit code {done.returncode}\n{out}{err}"
        return out.strip()

    def node(self, script: str, stdin: bytes | None = None, check: bool = True) -> str:
        """Runs a script on the node; what it printed."""
        return self.labctl("ssh", NODE, script, stdin=stdin, check=check)

    def put(self, path: str, text: str) -> None:
        self.node(f"mkdir -p $(dirname {path}) && cat >{path}", stdin=text.encode())

    def up(self) -> None:
        """From the snapshot, or from the node's first boot if a snapshot of this very bed is not there."""
        STATE.mkdir(parents=True, exist_ok=True)
        self.loaded = fill_load_disk(self.load)
        saved, made_of = STATE / "control-plane.saved", STATE / "bed.txt"
        start = time.monotonic()
        snapshots = self.snapshots()
        if made_of.exists() and made_of.read_text() == self.disk.name and SNAPSHOT in snapshots:
            self.plane.start(saved)
            self.labctl("restore", SNAPSHOT)
            self.open_tunnel()
        else:
            made_of.unlink(missing_ok=True)
            self.plane.start()
            if lab_settings.PRISTINE in snapshots:
                self.labctl("restore", lab_settings.PRISTINE)
            else:
                self.labctl("up")
            self.times["node booted"] = time.monotonic() - start
            self.open_tunnel()
            self.join()
            self.labctl("snapshot", SNAPSHOT)
            self.plane.save(saved)
            made_of.write_text(self.disk.name)
        self.wait(self.ready, "node Ready")
        self.times["bed ready"] = time.monotonic() - start

    def snapshots(self) -> list[str]:
        """Of the node, if it stands on the image that is wanted today."""
        lab = lab_settings.load()
        node = vm.Node(dataclasses.replace(lab, state=STATE), NODE, 1)
        return node.snapshots() if node.record()["image"] == image.wanted(lab).name else []

    def join(self) -> None:
        start = time.monotonic()
        self.wait(lambda: self.try_kubectl("get", "serviceaccount", "default").returncode == 0, "the control plane")
        files = {
            "etc/rancher/k3s/config.yaml": AGENT_CONFIG,
            "etc/rancher/k3s/config.yaml.d/token.yaml": f"token: {self.plane.token()}\n",
            "etc/systemd/system/k3s-agent.service": AGENT_UNIT,
            "etc/cni/net.d/10-pods.conflist": json.dumps(LOOPBACK),
        }
        self.node(f"tar -C / -xf - && {SET_UP.format(payload=PAYLOAD)}", stdin=packed(files))
        self.wait(self.ready, "node Ready", every=2)
        self.times["agent started -> node Ready"] = time.monotonic() - start

    def open_tunnel(self) -> None:
        command = ["ssh", "-F", str(STATE / "ssh/config"), "-o", "ExitOnForwardFailure=yes", "-o", "ControlMaster=yes"]
        # It carries every later connection to the node as well: a handshake costs an emulated machine seconds.
        self.tunnel = subprocess.Popen(
            [*command, "-o", "ServerAliveCountMax=40", "-N", "-R", f"127.0.0.1:6443:127.0.0.1:{self.plane.port}", NODE],
            stdin=subprocess.DEVNULL,
        )

    def down(self) -> None:
        if self.tunnel:
            self.tunnel.terminate()
            self.tunnel.wait()
        self.labctl("power", NODE, "off", check=False)
        self.plane.stop()

    # The cluster

    def try_kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig)}
        command = [str(self.k3s), "kubectl", "--request-timeout=60s", *words]
        return subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, check=False)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        done = self.try_kubectl(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def get(self, *words: str) -> dict | None:
        """The object, or None while it is not there or the API server does not answer."""
        done = self.try_kubectl("get", *words, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def apply(self, *objects: dict) -> None:
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(listing))

    def ready(self) -> bool:
        node = self.get("node", NODE)
        conditions = {row["type"]: row["status"] for row in (node or {}).get("status", {}).get("conditions", ())}
        account = self.try_kubectl("get", "serviceaccount", "default").returncode == 0
        return conditions.get("Ready") == "True" and account

    def resource(self, name: str) -> tuple[str | None, str | None]:
        """(capacity, allocatable) of the node for one resource, as the API server has it."""
        status = (self.get("node", NODE) or {}).get("status", {})
        return status.get("capacity", {}).get(name), status.get("allocatable", {}).get(name)

    def restart_kubelet(self, resource: str, count: int) -> tuple[float, float]:
        """Restarts k3s; seconds until it is active, and until the new kubelet itself reports that many allocatable."""
        before = int(self.node("date +%s"))
        start = time.monotonic()
        self.node("systemctl restart k3s-agent")
        active = time.monotonic() - start

        def reported() -> bool:
            node = self.get("node", NODE)
            if not node:
                return False
            ready = next(row for row in node["status"]["conditions"] if row["type"] == "Ready")
            beat = datetime.datetime.fromisoformat(ready["lastHeartbeatTime"].replace("Z", "+00:00")).timestamp()
            return beat > before and ready["status"] == "True" and self.resource(resource)[1] == str(count)

        self.wait(reported, f"{resource}: {count} allocatable after a restart of k3s")
        return active, time.monotonic() - start

    def wait(self, condition, what: str, limit: float = PATIENCE, every: float = 0.3) -> float:
        """Seconds until the condition holds."""
        start = time.monotonic()
        while not condition():
            self.plane.require()
            if time.monotonic() - start > limit:
                log = self.node(
                    "journalctl --no-pager -n 30 -u k3s -u rdma-device-plugin; kubectl get pods -A", check=False
                )
                raise AssertionError(f"{what}: not within {limit:.0f} s\n{log}")
            time.sleep(every)
        return time.monotonic() - start

    def wait_resource(self, name: str, allocatable: int | None, capacity: int | None = None) -> float:
        """Seconds until the node shows that many."""
        wanted = None if allocatable is None else str(allocatable)

        def there() -> bool:
            have = self.resource(name)
            return have[1] == wanted and (capacity is None or have[0] == str(capacity))

        return self.wait(there, f"{name}: {allocatable} allocatable, seen {self.resource(name)}")

    def take_port_down_and_up(self, what: str) -> None:
        """Sees the devices of RAIL0 go with its port and come back with it; what: whose times these are."""
        with timed(self.times, f"{what}: port down -> allocatable 0"):
            self.node("ip link set eth2 down")
            self.wait_resource("rdma/rail0", 0, 20)
        with timed(self.times, f"{what}: port up -> allocatable 20"):
            self.node("ip link set eth2 up")
            self.wait_resource("rdma/rail0", 20, 20)

    # Pods

    def pod(self, name: str, resources: dict[str, int], script: str = "sleep 100000", **spec) -> dict:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": with_tools(
                {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": False,
                    "securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True},
                    "containers": [
                        {
                            "name": "main",
                            "command": ["sh", "-c", script],
                            "securityContext": {
                                "allowPrivilegeEscalation": False,
                                "capabilities": {"drop": ["ALL"], "add": []},
                            },
                            "resources": {"limits": {key: str(count) for key, count in resources.items()}},
                        }
                    ],
                    **spec,
                }
            ),
        }

    def phase(self, name: str) -> str:
        return ((self.get("pod", name) or {}).get("status") or {}).get("phase", "")

    def run_pod(self, pod: dict, phase: str = "Running") -> float:
        name = pod["metadata"]["name"]
        self.remove_pods(name)
        self.apply(pod)
        return self.wait_phase(name, phase)

    def wait_phase(self, name: str, phase: str) -> float:
        def there() -> bool:
            seen = self.phase(name)
            if seen in ("Failed", "Succeeded") and seen != phase:
                logs = self.logs(name)
                raise AssertionError(
                    f"pod {name}: wanted {phase}, seen {seen}: {self.get('pod', name)['status']}\n{logs}"
                )
            return seen == phase

        return self.wait(there, f"pod {name} {phase}")

    def remove_pods(self, *names: str) -> None:
        self.kubectl("delete", "pod", "--ignore-not-found", "--wait", *names)

    def container(self, name: str) -> str:
        return self.get("pod", name)["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")

    def inside(self, name: str, script: str, check: bool = True) -> str:
        """Runs a script in the pod's container, as its user, through containerd: the API server can't reach it."""
        words = ["k3s", "ctr", "tasks", "exec", "--exec-id", f"test-{time.monotonic_ns()}", self.container(name)]
        return self.node(shlex.join([*words, "sh", "-c", script]), check=check)

    def logs(self, name: str) -> str:
        return self.node(f"cat /var/log/pods/default_{name}_*/main/*.log", check=False)

    def identity(self, name: str) -> tuple[str, str, int]:
        """What changes when a pod or its container is not the same any more."""
        pod = self.get("pod", name)
        status = pod["status"]["containerStatuses"][0]
        return pod["metadata"]["uid"], status["containerID"], status["restartCount"]


# What the node gets


def packed(files: dict[str, str | bytes]) -> bytes:
    """A tar archive of these files."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return held.getvalue()


def cache_key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def libraries() -> pathlib.Path:
    """A folder with what the plugin runs on, for the node's Python; made once for each requirements.txt."""
    requirements = CHECKOUT / "device_plugin/requirements.txt"
    folder = programs.CACHE / f"libraries-{cache_key(requirements.read_text(), *WHEELS, *PLATFORMS)}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="building-", dir=folder.parent) as work:
            target = pathlib.Path(work, "libraries")
            platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
            command = [sys.executable, "-m", "pip", "--quiet", "install", "--target", str(target), *WHEELS, *platforms]
            subprocess.run([*command, "--requirement", str(requirements)], check=True)
            target.rename(folder)
    return folder


def bed_disk() -> tuple[pathlib.Path, pathlib.Path]:
    """A disk image with the cluster's programs, images and the plugin's libraries; and the k3s program in it."""
    built = programs.ensure(["k3s", "cni-plugins", "peer-plugin"])
    tars = containers.ensure(image.ensure(lab_settings.load()), ["pause"], built)
    wheels = libraries()
    texts = [SERVER_CONFIG, AGENT_CONFIG, AGENT_UNIT, SET_UP, json.dumps(LOOPBACK)]
    key = cache_key(*(f"{path}" for path in [*built.values(), *tars.values(), wheels]), *texts)
    disk = programs.CACHE / f"bed-{key}.img"
    if not disk.exists():
        with tempfile.TemporaryDirectory(prefix="building-", dir=programs.CACHE) as work:
            folder = pathlib.Path(work, "bed")
            shutil.copytree(built["cni-plugins"], folder / "cni")
            shutil.copytree(built["peer-plugin"], folder / "peer")
            shutil.copytree(wheels, folder / "libraries")
            shutil.copy2(built["k3s"] / "k3s", folder / "k3s")
            (folder / "images").mkdir()
            for name, path in tars.items():
                shutil.copy2(path, folder / f"images/{name}.tar")
            unfinished = pathlib.Path(work, "disk")
            command = [
                "mke2fs",
                "-q",
                "-t",
                "ext4",
                "-O",
                "^has_journal",
                "-m",
                "0",
                "-d",
                str(folder),
                str(unfinished),
            ]
            subprocess.run([*command, f"{BED_BYTES >> 10}k"], check=True)
            for old in programs.CACHE.glob("bed-*.img"):
                old.unlink()
            unfinished.rename(disk)
    return disk, built["k3s"] / "k3s"


LAID_OVER = "localhost/rdma-device-plugin:laid-over"
# A captured machine's /sys in place of the node's, in the container alone; then the plugin, with the arguments given.
OVERLAY = """\
#!/laid-over/busybox sh
set -e
box=/laid-over/busybox
$box mount --bind /laid-over/sys /sys
$box mount -t tmpfs none /dev/infiniband
for name in rdma_cm uverbs0 uverbs1 umad0 umad1 issm0 issm1; do $box touch /dev/infiniband/$name; done
exec /bin/k8s-rdma-shared-dp "$@"
"""


def laid_over_tree(folder: pathlib.Path) -> None:
    """The GH200 fixture as guide 000 has its machine: other names of its netdevs, a cable in both ports."""
    spec = importlib.util.spec_from_file_location("fixture_tree", CHECKOUT / "tests/tools/tree.py")
    tree = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tree)
    text = json.dumps(tree.load("gh200-cx7-roce"), default=str)
    for before, after in (("enp1s0f0np0", "ens8f0np0"), ("enp1s0f1np1", "ens8f1np1")):
        assert before in text
        text = text.replace(before, after)
    tree.lay_out(json.loads(text), folder)
    tree.add_modalias(folder)
    for state in folder.glob("sys/class/infiniband/*/ports/1/state"):
        state.write_text("4: ACTIVE\n")


def fill_load_disk(load: pathlib.Path) -> int:
    """The second disk is a tar file as it is: the plugin's image, if there is one, and the laid-over one; its size."""
    load.unlink(missing_ok=True)
    if PLUGIN_IMAGE.exists():
        with tempfile.TemporaryDirectory() as work:
            root = pathlib.Path(work, "root")
            laid = root / "laid-over"
            laid_over_tree(laid)
            shutil.copy2(image.BUSYBOX, laid / "busybox")
            (laid / "start").write_text(OVERLAY)
            (laid / "start").chmod(0o755)
            containers.extend(PLUGIN_IMAGE, load, LAID_OVER, ("/laid-over/start",), containers.layer(root))
    seen = load.stat().st_size if load.exists() else 0
    assert seen < LOAD_BYTES, f"{PLUGIN_IMAGE}: its archive has {seen} bytes, the disk {LOAD_BYTES}"
    with load.open("ab") as out:
        out.truncate(LOAD_BYTES)
    return seen


def package(version: str) -> bytes:
    """The plugin as a tar file for PYTHONPATH: its package with the discovery library, saying that version."""
    files = {}
    for source, name in (
        (CHECKOUT / "device_plugin/rdma_device_plugin", "rdma_device_plugin"),
        (CHECKOUT / "plugins/module_utils/hca", "rdma_device_plugin/hca"),
    ):
        for path in sorted(source.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{name}/{path.relative_to(source)}"] = path.read_bytes()
    first = "rdma_device_plugin/__init__.py"
    before = files[first]
    files[first] = before.replace(b'__version__ = "0.1.0"', f'__version__ = "{version}"'.encode())
    assert version == "0.1.0" or files[first] != before, "the package's version stands elsewhere"
    return packed(files)


@contextlib.contextmanager
def timed(times: dict[str, float], what: str):
    start = time.monotonic()
    yield
    times[what] = time.monotonic() - start
