"""Nodes of a cluster on this machine: a root (an overlay of this one's), a network namespace and a host name each.

They run a double of k3s around real members of etcd (main.go with the lab's datastore.go), which a double of systemctl
starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import plan as planner
from ansible_collections.gpufabric.rdma.tests.tools import recording

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).parent
TESTBED = ROOT / "lab/testbed/k3s-double"
BRIDGE = "rdmak3s"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TOKEN = "7f" * 32


def build(folder: pathlib.Path) -> pathlib.Path:
    """The double, from the modules that the test bed's k3s is built from."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    for path in (TESTBED / "go.mod", TESTBED / "go.sum", TESTBED / "datastore.go", HERE / "main.go"):
        shutil.copy(path, folder)
    command = [go, "build", "-trimpath", "-buildvcs=false", "-mod=mod", "-o", "k3s", "."]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    return folder / "k3s"


def run(*words: str, check: bool = True) -> subprocess.CompletedProcess:
    return subprocess.run(words, check=check, capture_output=True, text=True)


def unusable() -> str:
    """Why nodes cannot be had here, or nothing."""
    if os.geteuid():
        return "roots and network namespaces need root"
    if not shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin"):
        return "go is not installed"
    return "" if run("unshare", "--mount", "--net", "true", check=False).returncode == 0 else "no namespaces here"


def playbook(folder: pathlib.Path, name: str, *words: str, cut_off: str = "") -> tuple[int, str]:
    """A playbook with the inventory hosts.json of the folder, in a session of its own; (exit code, output)."""
    (folder / "ansible.cfg").touch()
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.json", name, *words],
        cwd=folder,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
            "ANSIBLE_CONNECTION_PLUGINS": str(HERE / "connection_plugins"),
            "ANSIBLE_CALLBACK_PLUGINS": str(recording.PLUGINS),
            "ANSIBLE_CALLBACKS_ENABLED": "cut_off",
            "ANSIBLE_HOME": str(folder / "home"),
            "CUT_OFF_AFTER": cut_off,
            "LC_ALL": "C.UTF-8",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    return done.returncode, done.stdout + done.stderr


class Network:
    """A bridge for the nodes, in a network namespace of its own: nothing of it is on this machine's network."""

    def __init__(self):
        self.name = f"{BRIDGE}{os.getpid()}"
        run("ip", "netns", "add", self.name)
        self._in("link", "add", "br0", "type", "bridge")
        self._in("link", "set", "br0", "up")

    def _in(self, *words: str) -> None:
        run("ip", "-n", self.name, *words)

    def join(self, namespace: str, port: str, address: str) -> None:
        self._in("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._in("link", "set", port, "master", "br0", "up")
        for words in (
            ["link", "set", "lo", "up"],
            ["link", "set", "eth0", "up"],
            ["address", "add", f"{address}/24", "dev", "eth0"],
        ):
            run("ip", "-n", namespace, *words)
        run("ip", "-n", namespace, "route", "add", "default", "dev", "eth0")

    def enter_as(self, address: str) -> None:
        """Give the bridge an address, for a client beside the nodes."""
        self._in("link", "set", "lo", "up")
        self._in("address", "add", f"{address}/24", "dev", "br0")

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess:
        return run("ip", "netns", "exec", self.name, *words, check=check)

    def unplug(self, port: str) -> None:
        self._in("link", "set", port, "down")

    def plug(self, port: str) -> None:
        self._in("link", "set", port, "up")

    def end(self) -> None:
        run("ip", "netns", "delete", self.name, check=False)


class Machine:
    def __init__(self, folder: pathlib.Path, name: str, address: str, network: Network):
        self.name, self.address, self.folder = name, address, folder / name
        self.namespace = f"{network.name}{name}"
        self.root = self.folder / "root"
        self.folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(self.folder))
        for part in ("upper", "work", "root"):
            (self.folder / part).mkdir()
        layers = f"lowerdir=/,upperdir={self.folder}/upper,workdir={self.folder}/work"
        run("mount", "-t", "overlay", "-o", layers, "overlay", str(self.root))
        run("mount", "-t", "proc", "proc", str(self.root / "proc"))
        run("mount", "--bind", "/dev", str(self.root / "dev"))
        run("ip", "netns", "add", self.namespace)
        network.join(self.namespace, name, address)
        self.file("/run/systemd/system/.keep", "")
        self.file(
            "/usr/local/sbin/systemctl", "#!/usr/bin/python3\n" + HERE.joinpath("systemctl.py").read_text(), 0o755
        )
        self.file("/usr/local/sbin/journalctl", "#!/bin/sh\ntail -n 4 /var/log/k3s*.log\n", 0o755)

    @property
    def enter(self) -> list[str]:
        words = [
            "ip",
            "netns",
            "exec",
            self.namespace,
            "unshare",
            "--uts",
            "sh",
            "-c",
            'hostname "$1"; shift; exec "$@"',
            "sh",
        ]
        return [*words, self.name, "env", f"PATH={PATH}", "chroot", str(self.root)]

    def file(self, path: str, text: str, mode: int = 0o644) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def run(self, *words: str, check: bool = True) -> str:
        done = run(*self.enter, *words, check=False)
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr, self.log())
        return done.stdout.strip()

    def log(self) -> str:
        return "".join(path.read_text()[-2000:] for path in (self.root / "var/log").glob("k3s*.log"))

    def kubectl(self, *words: str) -> str:
        return self.run(k3s.BINARY, "kubectl", *words)

    def objects(self) -> dict:
        return json.loads(self.kubectl("objects"))

    def has(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()

    def text(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def end(self) -> None:
        for name in k3s.SERVICES.values():
            self.run("systemctl", "stop", name, check=False)
        run("ip", "netns", "delete", self.namespace, check=False)
        for place in (self.root / "dev", self.root / "proc", self.root, self.folder):
            run("umount", "--lazy", str(place), check=False)


class Cluster:
    """Three servers and an agent, started as the role k3s starts them: the first makes the cluster, the others join."""

    def __init__(self, folder: pathlib.Path, program: pathlib.Path, servers: int = 3):
        self.folder, self.program, self.machines = folder, program, {}
        self.network = Network()
        names = [f"server{number}" for number in range(1, servers + 1)] + ["agent1"]
        try:
            for number, name in enumerate(names, 11):
                self.machines[name] = Machine(folder, name, f"198.18.3.{number}", self.network)
                self.install(name)
            for name in names:
                self.start(name)
        except BaseException:
            self.end()
            raise

    @property
    def servers(self) -> list[Machine]:
        return [machine for name, machine in self.machines.items() if name.startswith("server")]

    @property
    def first(self) -> Machine:
        return self.machines["server1"]

    def install(self, name: str) -> None:
        machine = self.machines[name]
        role = "server" if name.startswith("server") else "agent"
        own = {"node-ip": machine.address, "node-name": name, "token-file": k3s.TOKEN}
        if name != "server1":
            own["server"] = f"https://{self.first.address}:6443"
        wanted = {"role": role, "options": {k3s.CONFIG: own}, "registries": {}, "token_given": True}
        for path, (text, mode) in planner.texts(wanted).items():
            machine.file(path, text, int(mode, 8))
        machine.file(k3s.TOKEN, TOKEN + "\n", 0o600)
        place = machine.root / k3s.BINARY.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.program, place)

    def start(self, name: str) -> None:
        machine = self.machines[name]
        service = k3s.SERVICES["server" if name.startswith("server") else "agent"]
        machine.run("systemctl", "enable", service)
        machine.run("systemctl", "start", service)
        self.wait(lambda: machine.has("/run/k3s-ready"), machine.log)

    @staticmethod
    def wait(condition, told=lambda: "") -> None:
        deadline = time.monotonic() + 90
        while not condition():
            assert time.monotonic() < deadline, told()
            time.sleep(0.2)

    def inventory(self) -> dict:
        hosts = {
            name: {
                "ansible_connection": "inside",
                "inside_folder": str(machine.root),
                "inside_enter": machine.enter,
                "ansible_become": False,
                "ansible_python_interpreter": sys.executable,
                "k3s_node_ip": machine.address,
                "k3s_node_name": name,
                "k3s_start_timeout_seconds": 90,
            }
            for name, machine in self.machines.items()
        }
        servers = {machine.name: {} for machine in self.servers}
        return {"gpu_nodes": {"hosts": hosts}, "k3s_servers": {"hosts": servers}}

    def play(self, name: str, *words: str, cut_off: str = "") -> tuple[int, str]:
        """A playbook of the collection; (exit code, output). cut_off: "HOST TASK" after which the run is killed."""
        (self.folder / "hosts.json").write_text(json.dumps(self.inventory()))
        return playbook(self.folder, f"gpufabric.rdma.{name}", *words, cut_off=cut_off)

    def end(self) -> None:
        for machine in self.machines.values():
            with contextlib.suppress(OSError):
                machine.end()
        self.network.end()
