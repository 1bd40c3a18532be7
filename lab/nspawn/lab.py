"""The nodes as a whole: what `up`, `down` and `status` do, and the one state file that `down` undoes everything from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .cgroup import Cgroup
from .errors import LabError, fail, run
from .image import Image
from .machine import CHECKOUT, Machine, fixture_path
from .network import Bridge

HOME = CHECKOUT / ".lab/nspawn"
STATE = HOME / "state.json"
NODES = HOME / "nodes"
SSH = HOME / "ssh"
SSH_CONFIG = SSH / "config"
KEY = SSH / "id_ed25519"
KNOWN_HOSTS = SSH / "known_hosts"
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_PER_NODE = 8  # measured: six while a node runs, a few more while it boots
BOOT_SECONDS = 60
# Two checkouts on one machine must not meet: this names their bridges, cgroups, units and machines apart.
LAB_ID = f"gfr-{hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:4]}"
INSIDE = "usr/local/lib/lab"  # where a node finds node_init.py


def say(text: str) -> None:
    print(f"nspawn: {text}", flush=True)


def read_state() -> dict[str, Any]:
    return json.loads(STATE.read_text()) if STATE.exists() else {}


def _write_state(state: dict[str, Any]) -> None:
    HOME.mkdir(parents=True, exist_ok=True)
    STATE.write_text(json.dumps(state, indent=1) + "\n")


def _host_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def _unit(node: str) -> str:
    return f"{LAB_ID}-{node}.service"


def _console(node: str) -> Path:
    return NODES / node / "console.log"


class Node:
    """One running or starting node, as the state file describes it."""

    def __init__(self, name: str, record: dict[str, Any]) -> None:
        self.name = name
        self.address: str = record["address"].split("/")[0]
        self.fixture: str = record["fixture"]

    def alive(self) -> bool:
        if _host_systemd():
            return subprocess.run(["systemctl", "--quiet", "is-active", _unit(self.name)], check=False).returncode == 0
        return bool(Cgroup(f"{LAB_ID}/{self.name}").pids())

    def answers(self) -> bool:
        """Whether sshd greets: an open port alone may be a socket that nobody serves yet."""
        try:
            with socket.create_connection((self.address, 22), timeout=1) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def start(self) -> None:
        boot = [
            "unshare",
            "--mount",
            "--propagation=private",
            sys.executable,
            str(CHECKOUT / "lab/nspawnctl"),
            "boot",
            self.name,
        ]
        if _host_systemd():
            run(
                [
                    "systemd-run",
                    "--quiet",
                    "--collect",
                    f"--unit={_unit(self.name)}",
                    "--property=Delegate=yes",
                    "--property=TasksMax=16384",
                    f"--property=StandardOutput=file:{_console(self.name)}",
                    f"--property=StandardError=file:{_console(self.name)}",
                    *boot,
                ],
                f"node {self.name}",
                "read the error of systemd-run above",
            )
            return
        with _console(self.name).open("wb") as console:
            subprocess.Popen(boot, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True)

    def stop(self) -> None:
        if _host_systemd():
            if self.alive():
                run(
                    ["systemctl", "kill", "--signal=SIGKILL", _unit(self.name)],
                    f"unit {_unit(self.name)}",
                    f"stop it by hand: systemctl stop {_unit(self.name)}",
                )
            return
        left = Cgroup(f"{LAB_ID}/{self.name}").remove()
        if left:
            fail(
                f"node {self.name}",
                "no process left after SIGKILL",
                f"processes {sorted(left)}",
                "look at them with `ps`, then run: lab/nspawnctl down",
            )


def boot(name: str) -> NoReturn:
    """The body of a node's own process: its mounts live in a namespace of their own and go away with it."""
    record = read_state()["nodes"][name]
    if not _host_systemd():
        Cgroup(f"{LAB_ID}/{name}").enter()
    os.chdir(HOME)  # relative overlay options: no path of the user's can hold a separator that mount would read
    layer = Path("nodes") / name / "layer"
    layer.mkdir(exist_ok=True)
    hint = "run as root with CAP_SYS_ADMIN on a kernel with tmpfs and overlay"
    run(
        ["mount", "-t", "tmpfs", "-o", "mode=0755", f"{LAB_ID}-{name}", str(layer)],
        f"node {name}: writable layer",
        hint,
    )
    for part in ("upper", "work", "root"):
        (layer / part).mkdir()
    shutil.copytree(Path("nodes") / name / "seed", layer / "upper", dirs_exist_ok=True)
    options = f"lowerdir={':'.join(record['layers'])},upperdir={layer}/upper,workdir={layer}/work"
    run(
        ["mount", "-t", "overlay", "-o", options, "overlay", str(layer / "root")],
        f"node {name}: root file system",
        hint,
    )
    os.execvp(
        "systemd-nspawn",
        [
            "systemd-nspawn",
            "--quiet",
            "--keep-unit",
            "--register=no",
            f"--directory={layer}/root",
            f"--machine={name}-{LAB_ID[-4:]}",
            f"--hostname={name}",
            f"--network-bridge={LAB_ID}",
            "--console=pipe",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "--kill-signal=SIGRTMIN+3",
            "/usr/bin/python3",
            f"/{INSIDE}/node_init.py",
        ],
    )


def _seed(folder: Path, name: str, record: dict[str, Any], machine: Machine, peers: dict[str, str]) -> str:
    """Writes what makes this node itself into the folder that becomes its upper layer; returns its SSH host key."""
    files = {
        "etc/hostname": f"{name}\n",
        "etc/hosts": "".join(f"{address} {host}\n" for host, address in {"localhost": "127.0.0.1", **peers}.items()),
        "etc/machine-id": hashlib.sha256(f"{LAB_ID}/{name}".encode()).hexdigest()[:32] + "\n",
        "root/.ssh/authorized_keys": KEY.with_suffix(".pub").read_text(),
        f"{INSIDE}/node_init.py": (Path(__file__).parent / "node_init.py").read_text(),
        f"{INSIDE}/node.json": json.dumps(
            {"address": record["address"], "links": machine.links(), "default_routes": machine.default_routes()}
        ),
    }
    for relative, content in files.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "root").chmod(0o700)
    (folder / "root/.ssh").chmod(0o700)
    return _make_key(folder / "etc/ssh/ssh_host_ed25519_key", name)


def _make_key(path: Path, comment: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        f"SSH key {path}",
        "run: lab/nspawnctl down",
    )
    return path.with_suffix(".pub").read_text()


def _write_ssh(nodes: Sequence[Node], host_keys: dict[str, str]) -> None:
    KNOWN_HOSTS.write_text("".join(f"{node.name},{node.address} {host_keys[node.name]}" for node in nodes))
    SSH_CONFIG.write_text(
        "".join(
            f"Host {node.name}\n"
            f"  HostName {node.address}\n"
            "  User root\n"
            f"  IdentityFile {KEY}\n"
            "  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {KNOWN_HOSTS}\n"
            "  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n"
            for node in nodes
        )
    )
    owner = int(os.environ.get("SUDO_UID", 0)), int(os.environ.get("SUDO_GID", 0))
    for path in (SSH, *SSH.iterdir()):
        os.chown(path, *owner)  # with sudo the person who asked must be able to use the key


def _inotify_instances_in_use() -> int:
    used = 0
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            used += os.readlink(link) == "anon_inode:inotify"
        except OSError:  # the process or the descriptor is gone
            continue
    return used


def _room_for_inotify(count: int, state: dict[str, Any]) -> None:
    limit = int(INOTIFY.read_text())
    needed = _inotify_instances_in_use() + count * INOTIFY_PER_NODE
    if limit >= needed:
        return
    raised = max(1024, needed)
    state["inotify"] = {"before": limit, "raised": raised}
    _write_state(state)
    say(
        f"raising fs.inotify.max_user_instances from {limit} to {raised}: {count} systemd instances need about {needed}; `down` restores it"
    )
    INOTIFY.write_text(str(raised))


def _restore_inotify(state: dict[str, Any]) -> None:
    ours = state.get("inotify")
    if ours and int(INOTIFY.read_text()) == ours["raised"]:
        INOTIFY.write_text(str(ours["before"]))
        say(f"fs.inotify.max_user_instances is {ours['before']} again")


def up(count: int, fixtures: Sequence[str]) -> None:
    if read_state():
        fail("nodes", "none yet", f"{STATE} describes some", "run: lab/nspawnctl down")
    started = time.monotonic()
    bridge = Bridge(LAB_ID, os.environ.get("RAILS_SUBNET", "10.78.0.0/24"))
    image = Image(HOME / "base", say)
    root = image.ensure()
    machines = {name: Machine(HOME / "machines", fixture_path(name), root) for name in dict.fromkeys(fixtures)}
    state: dict[str, Any] = {"id": LAB_ID, "subnet": str(bridge.subnet), "nodes": {}}
    for number in range(1, count + 1):
        machine = machines[fixtures[(number - 1) % len(fixtures)]]
        state["nodes"][f"node{number}"] = {
            "address": str(bridge.node_address(number)),
            "fixture": machine.name,
            "layers": [str(machine.tree.relative_to(HOME)), str(root.relative_to(HOME))],
        }
    _write_state(state)
    try:
        _boot_all(state, bridge, {machine.name: machine for machine in machines.values()})
    except BaseException:
        down(quiet=True)
        raise
    say(f"{count} nodes answer SSH after {time.monotonic() - started:.1f} s: ssh -F {SSH_CONFIG} node1")


def _boot_all(state: dict[str, Any], bridge: Bridge, machines: dict[str, Machine]) -> None:
    nodes = [Node(name, record) for name, record in state["nodes"].items()]
    peers = {node.name: node.address for node in nodes}
    shutil.rmtree(SSH, ignore_errors=True)
    SSH.mkdir(mode=0o700)
    _make_key(KEY, LAB_ID)
    _room_for_inotify(len(nodes), state)
    bridge.create()
    host_keys = {}
    for node in nodes:
        seed = NODES / node.name / "seed"
        host_keys[node.name] = _seed(seed, node.name, state["nodes"][node.name], machines[node.fixture], peers)
        node.start()
    _write_ssh(nodes, host_keys)
    waiting = nodes
    deadline = time.monotonic() + BOOT_SECONDS
    while waiting := [node for node in waiting if not node.answers()]:
        ended = [node for node in waiting if not node.alive()] if time.monotonic() > deadline - BOOT_SECONDS + 2 else []
        if ended or time.monotonic() > deadline:
            raise LabError("\n".join(_why_not(node, node in ended) for node in ended or waiting))
        time.sleep(0.05)


def _why_not(node: Node, ended: bool) -> str:
    lines = _console(node.name).read_text(errors="replace").split("\n") if _console(node.name).exists() else []
    tail = "\n          ".join(line for line in lines[-15:] if line.strip()) or "nothing"
    return (
        f"node {node.name} ({node.fixture})\n"
        f"  wanted: sshd on {node.address} within {BOOT_SECONDS} s of systemd-nspawn\n"
        f"  seen:   {'its process ended' if ended else 'no answer'}; its console says: {tail}\n"
        "  next:   mend what the console names; systemd-nspawn needs root with CAP_SYS_ADMIN and CAP_NET_ADMIN, a writable\n"
        "          cgroup hierarchy, overlay, veth and bridge. Where this machine cannot give that, run the VM scenario: make lab-test"
    )


def down(quiet: bool = False, everything: bool = False) -> None:
    state = read_state()
    nodes = [Node(name, record) for name, record in state.get("nodes", {}).items()]
    for node in nodes:
        node.stop()
    if not _host_systemd():
        Cgroup(LAB_ID).remove()
    Bridge(LAB_ID, state.get("subnet", "10.78.0.0/24")).remove()
    _restore_inotify(state)
    for folder in (NODES, SSH):
        shutil.rmtree(folder, ignore_errors=True)
    STATE.unlink(missing_ok=True)
    if everything:
        shutil.rmtree(HOME, ignore_errors=True)
    if not quiet:
        say(f"{len(nodes)} nodes removed" if nodes else "no node was there")


def status() -> int:
    """Prints one line a node; 0 when every node answers."""
    nodes = [Node(name, record) for name, record in read_state().get("nodes", {}).items()]
    if not nodes:
        say("no nodes")
        return 0
    answering = [node.answers() for node in nodes]
    for node, answers in zip(nodes, answering, strict=True):
        print(f"{node.name:<8} {node.address:<15} {node.fixture:<24} {'answers SSH' if answers else 'NO ANSWER'}")
    return 0 if all(answering) else 1
