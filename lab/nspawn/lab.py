"""The commands `up`, `down` and `status` for all nodes, and the state file from which `down` undoes everything."""

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from lab.settings import CHECKOUT, LabError, run, say
from lab.ssh import banner, make_key

from .cgroup import Cgroup
from .image import Image
from .machine import Machine, fixture_path
from .network import Bridge

HOME = CHECKOUT / ".lab/nspawn"
STATE = HOME / "state.json"
NODES = HOME / "nodes"
SSH = HOME / "ssh"
SSH_CONFIG = SSH / "config"
KEY = SSH / "id_ed25519"
KNOWN_HOSTS = SSH / "known_hosts"
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_PER_NODE = 8  # six while a node runs, a few more while it boots
BOOT_SECONDS, BOOT_SECONDS_PER_NODE = 60, 3  # one or two are enough on an idle machine
# Keeps bridges, cgroups, units and machines of two checkouts on one machine apart.
LAB_ID = f"gfr-{hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:4]}"
UNDO = "run: lab/nspawnctl down"
INSIDE = "usr/local/lib/lab"  # where a node finds node_init.py
NSPAWN = "systemd-nspawn"
NEEDS = (
    "the nodes need root with CAP_SYS_ADMIN and CAP_NET_ADMIN, a writable cgroup hierarchy, overlay, veth and\n"
    "          bridge; a machine that cannot give that still runs the VM scenario: make molecule SCENARIO=default"
)


def read_state() -> dict[str, Any]:
    return json.loads(STATE.read_text()) if STATE.exists() else {}


def _write_state(state: dict[str, Any]) -> None:
    HOME.mkdir(parents=True, exist_ok=True)
    STATE.write_text(json.dumps(state, indent=1) + "\n")


def _host_systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


class Node:
    """One starting or running node, as the state file describes it."""

    def __init__(self, name: str, record: dict[str, Any]) -> None:
        self.name = name
        self.address: str = record["address"].partition("/")[0]
        self.fixture: str = record["fixture"]
        self.folder = NODES / name
        self.console = self.folder / "console.log"
        self.unit = f"{LAB_ID}-{name}.service"
        self.cgroup = f"{LAB_ID}/{name}"
        self._process: subprocess.Popen[bytes] | None = None

    def ended(self) -> bool:
        """Whether the node that this process started has ended."""
        if _host_systemd():
            return subprocess.run(["systemctl", "--quiet", "is-active", self.unit], check=False).returncode != 0
        return self._process is not None and self._process.poll() is not None

    def answers(self) -> bool:
        return banner(22, 1, self.address)

    def start(self) -> None:
        command = [sys.executable, str(CHECKOUT / "lab/nspawnctl"), "boot", self.name]
        # The node's mounts live in its process' namespace: they go when the process ends, in any way.
        command = ["unshare", "--mount", "--propagation=private", *command]
        if _host_systemd():
            output = (f"--property=Standard{stream}=append:{self.console}" for stream in ("Output", "Error"))
            unit = [f"--unit={self.unit}", "--property=Delegate=yes", "--property=TasksMax=16384", *output]
            run(["systemd-run", "--quiet", "--collect", *unit, *command], f"node {self.name}", "look at `systemctl`")
            return
        with self.console.open("wb") as console:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True
            )

    def stop(self) -> None:
        if not _host_systemd():
            left = Cgroup(self.cgroup).remove()
            if left:
                next_step = "look at them with `ps`, then run: lab/nspawnctl down"
                raise LabError(f"node {self.name}", "no process left after SIGKILL", f"processes {left}", next_step)
        elif not self.ended():
            # --kill-who was renamed --kill-whom; without either the signal goes to all processes of the unit.
            hint = f"stop it by hand: systemctl stop {self.unit}"
            run(["systemctl", "kill", "--signal=SIGKILL", self.unit], f"unit {self.unit}", hint)

    def why_silent(self) -> str:
        console = self.console.read_text(errors="replace") if self.console.exists() else ""
        tail = [line for line in console.splitlines() if line.strip()][-15:]
        state = "its process has ended" if self.ended() else "no answer"
        return f"{state}; its console says:" + "".join(f"\n            {line}" for line in tail or ["nothing"])


def boot(name: str) -> NoReturn:
    """The body of a node's own process: mounts its root file system and becomes its container."""
    state = read_state()
    record = state["nodes"][name]
    node = Node(name, record)
    if not _host_systemd():
        Cgroup(node.cgroup).enter()
    os.chdir(HOME)  # relative overlay options, because the user's path may contain characters with a meaning for mount
    layer = node.folder.relative_to(HOME) / "layer"
    layer.mkdir(exist_ok=True)
    run(["mount", "-t", "tmpfs", "-o", "mode=0755", f"{LAB_ID}-{name}", str(layer)], f"layer of node {name}", NEEDS)
    for part in ("upper", "work", "root"):
        (layer / part).mkdir()
    shutil.copytree(node.folder / "seed", layer / "upper", dirs_exist_ok=True)
    options = f"lowerdir={':'.join(record['layers'])},upperdir={layer}/upper,workdir={layer}/work"
    run(["mount", "-t", "overlay", "-o", options, "overlay", f"{layer}/root"], f"overlay of node {name}", NEEDS)
    command = [
        NSPAWN,
        "--quiet",
        "--keep-unit",
        "--register=no",
        f"--directory={layer}/root",
        f"--machine={name}-{LAB_ID[-4:]}",
        f"--hostname={name}",
        f"--network-bridge={Bridge(LAB_ID, state['subnet']).name}",
        "--console=pipe",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
        "/usr/bin/python3",
        f"/{INSIDE}/node_init.py",
    ]
    os.execvp(command[0], command)


def up(count: int, fixtures: Sequence[str]) -> None:
    """Boots `count` nodes that play the fixtures in turn."""
    if read_state():
        raise LabError("fast nodes", "none yet", f"{STATE} describes some", UNDO)
    if not shutil.which(NSPAWN):
        raise LabError("the fast nodes", f"the program {NSPAWN}", "not on PATH", "lab/packages lab installs it")
    bridge = Bridge(LAB_ID)
    parts = [fixtures[number % len(fixtures)] for number in range(count)]
    root = Image(HOME / "base").ensure()
    machines = {
        name: Machine(HOME / "machines", fixture_path(name, HOME / "machines"), root) for name in dict.fromkeys(parts)
    }
    playing = {f"node{number}": machines[part] for number, part in enumerate(parts, 1)}
    state: dict[str, Any] = {
        "boot": secrets.token_hex(4),
        "subnet": str(bridge.subnet),
        "nodes": {},
    }
    for number, (name, machine) in enumerate(playing.items(), 1):
        state["nodes"][name] = {
            "address": str(bridge.node_address(number)),
            "fixture": machine.name,
            "layers": [str(layer.relative_to(HOME)) for layer in (machine.tree, root)],
        }
    _write_state(state)
    try:
        _boot_all(state, bridge, playing)
    except BaseException:
        down()
        raise
    say(f"{len(parts)} nodes answer SSH, for example: lab/nspawnctl ssh node1")


def _boot_all(state: dict[str, Any], bridge: Bridge, playing: dict[str, Machine]) -> None:
    nodes = [Node(name, record) for name, record in state["nodes"].items()]
    _room_for_inotify(len(nodes), state)
    bridge.create()
    _seed_all(nodes, state, playing)
    for node in nodes:
        node.start()
    patience = BOOT_SECONDS + BOOT_SECONDS_PER_NODE * len(nodes)
    deadline = time.monotonic() + patience
    waiting = nodes
    while waiting := [node for node in waiting if not node.answers()]:
        if any(node.ended() for node in waiting) or time.monotonic() > deadline:
            names = ", ".join(f"{node.name} ({node.fixture})" for node in waiting)
            wanted = f"sshd of each greets within {patience} s"
            worst = sorted(waiting, key=lambda node: not node.ended())[:2]
            seen = "\n          ".join(f"{node.name}: {node.why_silent()}" for node in worst)
            raise LabError(f"fast nodes {names}", wanted, seen, f"fix what the console reports; {NEEDS}")
        time.sleep(0.05)


def _seed_all(nodes: Sequence[Node], state: dict[str, Any], playing: dict[str, Machine]) -> None:
    """Writes each node's identity: a folder that becomes its upper layer, and the SSH access."""
    for folder in (SSH, NODES):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    login = make_key(KEY, LAB_ID, UNDO)
    hosts = "127.0.0.1 localhost\n" + "".join(f"{node.address} {node.name}\n" for node in nodes)
    known, config = [], []
    for node in nodes:
        machine = playing[node.name]
        shape = {"address": state["nodes"][node.name]["address"], "links": machine.links()}
        shape["default_routes"] = machine.default_routes()
        seed = node.folder / "seed"
        for relative, content in {
            "etc/hostname": f"{node.name}\n",
            "etc/hosts": hosts,
            "etc/machine-id": hashlib.sha256(node.unit.encode()).hexdigest()[:32] + "\n",
            "root/.ssh/authorized_keys": login,
            f"{INSIDE}/node_init.py": (Path(__file__).parent / "node_init.py").read_text(),
            f"{INSIDE}/node.json": json.dumps(shape),
        }.items():
            (seed / relative).parent.mkdir(parents=True, exist_ok=True)
            (seed / relative).write_text(content)
        (seed / "root").chmod(0o700)
        (seed / "root/.ssh").chmod(0o700)
        host_key = make_key(seed / "etc/ssh/ssh_host_ed25519_key", node.name, UNDO)
        known.append(f"{node.name},{node.address} {host_key}")
        config.append(
            f"Host {node.name}\n  HostName {node.address}\n  User root\n  IdentityFile {KEY}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {KNOWN_HOSTS}\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
        )
    KNOWN_HOSTS.write_text("".join(known))
    SSH_CONFIG.write_text("".join(config))
    owner = int(os.environ.get("SUDO_UID", 0)), int(os.environ.get("SUDO_GID", 0))
    for path in (SSH, *SSH.iterdir()):
        os.chown(path, *owner)  # with sudo the calling user must be able to use the key


def _room_for_inotify(count: int, state: dict[str, Any]) -> None:
    """The kernel's default of 128 instances per user is enough for about 20 systemds; more would hang at boot."""
    limit = int(INOTIFY.read_text())
    needed = _inotify_in_use() + count * INOTIFY_PER_NODE
    if limit >= needed:
        return
    raised = max(1024, needed)
    state["inotify"] = {"before": limit, "raised": raised}
    _write_state(state)
    say(f"fs.inotify.max_user_instances: raised from {limit} to {raised} for {count} systemds; `down` restores it")
    INOTIFY.write_text(str(raised))


def _inotify_in_use() -> int:
    used = 0
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            used += os.readlink(link) == "anon_inode:inotify"
        except OSError:  # the process or the descriptor is gone
            continue
    return used


def down() -> int:
    """Ends the nodes and undoes the changes of `up` to this machine; returns the number of nodes."""
    state = read_state()
    for name, record in state.get("nodes", {}).items():
        Node(name, record).stop()
    Cgroup(LAB_ID).remove()
    Bridge(LAB_ID, state.get("subnet")).remove()
    raised = state.get("inotify")
    if raised and int(INOTIFY.read_text()) == raised["raised"]:
        INOTIFY.write_text(str(raised["before"]))
        say(f"fs.inotify.max_user_instances: {raised['before']} again")
    for folder in (NODES, SSH):
        shutil.rmtree(folder, ignore_errors=True)
    STATE.unlink(missing_ok=True)
    return len(state.get("nodes", {}))


def inventory() -> dict[str, Any]:
    """The running nodes as an Ansible script inventory, also grouped by fixture; empty if none run."""
    groups: dict[str, Any] = {"gpu_nodes": {"hosts": []}}
    state = read_state()
    for name, record in state.get("nodes", {}).items():
        for group in ("gpu_nodes", "playing_" + re.sub(r"\W", "_", record["fixture"])):
            groups.setdefault(group, {"hosts": []})["hosts"].append(name)
    # The user is also set here: only then does Ansible see that `become: root` needs no sudo.
    shared = {
        "ansible_user": "root",
        "ansible_ssh_common_args": f"-F {SSH_CONFIG}",
        "ansible_python_interpreter": "/usr/bin/python3",
        # Ansible derives the socket of a shared connection only from the host's name, user and port: a run would reach
        # another checkout's node1, or wait for one that is gone, as long as that socket exists.
        "ansible_control_path": f"%(directory)s/{LAB_ID}-{state.get('boot')}-%%h",
    }
    return {**groups, "all": {"vars": shared}, "_meta": {"hostvars": {}}}


def status() -> int:
    """Prints one line per node; 0 if there are nodes and all of them answer."""
    nodes = [Node(name, record) for name, record in read_state().get("nodes", {}).items()]
    silent = [node for node in nodes if not node.answers()]
    for node in nodes:
        print(
            f"{node.name:<8} {node.address:<15} {node.fixture:<24} {'NO ANSWER' if node in silent else 'answers SSH'}"
        )
    if not nodes:
        print("no fast nodes; lab/nspawnctl up boots some")
    return 1 if silent or not nodes else 0
