"""Servers of a cluster as folders: a real member of etcd each, and one double of kubectl for all of them.

machines.py reboot PLAN    a server's reboot: its member is killed, SSH comes back, then the
                           member, then the kubelet reports its new boot
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).parent
ETCD = "var/lib/rancher/k3s/server/db/etcd"
KERNEL = "6.8"


def build(folder: pathlib.Path) -> pathlib.Path:
    """The member, from the modules of the test bed's k3s."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    for path in (ROOT / "lab/testbed/k3s-double/go.mod", ROOT / "lab/testbed/k3s-double/go.sum"):
        shutil.copy(path, folder)
    shutil.copy(HERE / "main.go", folder)
    command = [go, "build", "-trimpath", "-buildvcs=false", "-mod=mod", "-o", "member", "."]
    subprocess.run(command, cwd=folder, check=True, env={**os.environ, "CGO_ENABLED": "0"})
    return folder / "member"


def wait(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def playbook(folder: pathlib.Path, plays: list, inventory: dict, *words: str) -> tuple[int, str]:
    """Plays over an inventory, with the connections of this bed; (exit code, output)."""
    from ansible_collections.gpufabric.rdma.tests.tools import running

    (folder / "ansible.cfg").touch()
    own = {
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
        "ANSIBLE_CONNECTION_PLUGINS": str(HERE / "connection_plugins"),
        "ANSIBLE_HOME": str(folder / "home"),
    }
    program = [sys.executable, "-m", "ansible", "playbook"]
    return running.play(folder, *words, program=program, inventory=inventory, plays=plays, **own)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _port in range(count)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


class Machine:
    """A server. plan: the data for its reboot, in a file."""

    def __init__(self, folder, name, program, ports, members, cluster):
        self.folder, self.name, self.cluster = folder, name, cluster
        self.metrics = f"http://127.0.0.1:{ports[2]}"
        client, peer = (f"http://127.0.0.1:{port}" for port in ports[:2])
        etcd = {"name": name, "data-dir": folder / ETCD / "data", "initial-cluster": members, "logger": "zap"}
        etcd |= {"listen-client-urls": client, "advertise-client-urls": client, "listen-metrics-urls": self.metrics}
        etcd |= {"listen-peer-urls": peer, "initial-advertise-peer-urls": peer, "initial-cluster-state": "new"}
        etcd |= {"log-level": "error", "unsafe-no-fsync": "true"}
        for path, text in {
            f"{ETCD}/config": "".join(f"{key}: {value}\n" for key, value in etcd.items()),
            "var/lib/rancher/k3s/agent/kubelet.kubeconfig": "",
            "proc/sys/kernel/hostname": f"{name}\n",
            "proc/sys/kernel/random/boot_id": f"{name}-boot-1\n",
            f"boot/vmlinuz-{KERNEL}": "kernel",
            f"boot/initrd.img-{KERNEL}": "image",
            f"lib/modules/{KERNEL}/modules.dep": "modules",
            "reboot": f"#!/bin/sh\nexec {sys.executable} {__file__} reboot {folder}/plan\n",
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        (folder / "reboot").chmod(0o755)
        self.plan = {"name": name, "folder": str(folder), "program": str(program), "kubectl": cluster.argv}

    def write_plan(self, machines, stays_away=False) -> None:
        health = {machine.name: machine.metrics for machine in machines}
        self.folder.joinpath("plan").write_text(json.dumps({**self.plan, "health": health, "stays_away": stays_away}))

    def start(self) -> None:
        start(self.folder, self.plan["program"])

    def kill(self) -> None:
        kill(self.folder)


def start(folder, program) -> None:
    """Outlives its parent, like a service."""
    words = [str(program), str(folder / ETCD / "config"), str(folder / "log"), str(folder / "pid")]
    subprocess.run(["sh", "-c", 'setsid "$1" "$2" >>"$3" 2>&1 & echo $! >"$4"', "sh", *words], check=True)


def kill(folder) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return json.load(answer)["health"] == "true"
    except (OSError, ValueError, urllib.error.URLError):
        return False


def reboot(plan: dict) -> None:
    folder, name = pathlib.Path(plan["folder"]), plan["name"]

    def kubectl(*words: str) -> str:
        return subprocess.run([*plan["kubectl"], *words], check=True, capture_output=True, text=True).stdout

    def status(ready: str, **info: str) -> None:
        patch = {"status": {"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": info}}
        kubectl("patch", "node", name, "--type=merge", f"--patch={json.dumps(patch)}")

    def note(event: str) -> None:
        pods = json.loads(kubectl("get", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={name}"))["items"]
        node = json.loads(kubectl("get", "node", name))
        seen = {
            "event": event,
            "name": name,
            "healthy": sorted(other for other, url in plan["health"].items() if healthy(url)),
            "pods": [pod["metadata"]["name"] for pod in pods],
            "cordoned": bool(node["spec"].get("unschedulable")),
        }
        with open(folder.parent / "events", "a") as stream:
            stream.write(json.dumps(seen) + "\n")

    note("down")
    kill(folder)
    if plan["stays_away"]:
        status("Unknown")
        return
    time.sleep(1)
    boot = folder / "proc/sys/kernel/random/boot_id"
    boot.write_text(boot.read_text().replace("boot-1", "boot-2"))
    (folder / "down").unlink()
    time.sleep(4)
    start(folder, plan["program"])
    time.sleep(2)
    status("True", bootID=boot.read_text().strip())
    note("up")


if __name__ == "__main__":
    reboot(json.loads(pathlib.Path(sys.argv[2]).read_text()))
