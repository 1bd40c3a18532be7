"""A Debian root with ufw and firewalld in a network namespace of its own, as a node that Ansible reaches by chroot.

The firewalls, dbus and the kernel's packet filters are real. There is no systemd: who starts firewalld is the test. It
takes root, and leaves no mount and no rule behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook

# Not the one that unit tests share: its server is outside of the namespaces.
PLAYBOOK = str(pathlib.Path(sys.executable).with_name("ansible-playbook"))
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "lab"))
from lab.image import RELEASE, apt_options, apt_sources  # noqa: E402 - the lab's programs are no package of the tests

PACKAGES = ("dbus", "firewalld", "iproute2", "iptables", "nftables", "procps", "python3", "ufw")
NODE, PEER = "10.0.0.1", "10.0.0.2"
# The holder keeps the namespaces; `ready` says that they are complete. /sys/fs and the like are not needed.
_HOLD = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir={lower},upperdir=upper,workdir=work root
mount -t proc proc root/proc
mount -t sysfs sysfs root/sys
mount --bind /dev root/dev
mount -t tmpfs run root/run
mkdir -p root/run/dbus root/run/lock
ip link set lo up
ip link add eth0 type veth peer name far
ip link set eth0 up
ip link set far up
ip address add {node}/24 dev eth0
ip route add default via 10.0.0.254
touch ready
exec sleep infinity
"""


def reason_against() -> str:
    """Why it cannot be made here, or nothing."""
    if os.geteuid():
        return "needs root, to mount and to filter"
    return "" if shutil.which("mmdebstrap") else "needs mmdebstrap (lab/packages lab)"


def image() -> pathlib.Path:
    """The root, built once from Debian's packages."""
    key = hashlib.sha256(" ".join([RELEASE, *PACKAGES, *apt_sources()]).encode()).hexdigest()[:16]
    made = CHECKOUT / ".cache/firewall-root" / key
    if not made.is_dir():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--format=directory", *apt_options()]
        sources = ("-",) if apt_sources() else ()
        subprocess.run(
            [*command, f"--include={','.join(PACKAGES)}", RELEASE, str(part), *sources],
            input="\n".join(apt_sources()),
            text=True,
            check=True,
        )
        part.rename(made)
    return made


class Root:
    """One node over the image, until close()."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        for name in ("upper", "work", "root", "empty"):
            (folder / name).mkdir(parents=True)
        script = _HOLD.format(lower=image(), node=NODE)
        namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
        self.started: list[subprocess.Popen] = []
        self.holder = subprocess.Popen([*namespaces, "sh", "-c", script], cwd=folder)
        while not (folder / "ready").exists():
            assert self.holder.poll() is None, "the namespaces were not made, see above"
            os.sched_yield()
        listed = subprocess.run(
            ["ps", "--ppid", str(self.holder.pid), "-o", "pid="], capture_output=True, text=True, check=True
        )
        self.inside = ["nsenter", "--target", listed.stdout.strip(), "--mount", "--net", "--pid"]

    def close(self) -> None:
        for process in [*self.started, self.holder]:
            process.kill()
            process.wait()

    def start(self, *command: str) -> None:
        """A program of the root that keeps running."""
        into = [*self.inside, "chroot", str(self.folder / "root"), *command]
        self.started.append(subprocess.Popen(into, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def run(self, command: str, check: bool = True) -> str:
        """A shell command in the root, its output; an exit status other than 0 fails."""
        done = subprocess.run(
            [*self.inside, "chroot", str(self.folder / "root"), "sh", "-ec", command],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            check=False,
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def play(self, *arguments: str, tasks_from: str = "main", collections: str | None = None, **variables) -> Run:
        """The role for node1, the server of a cluster whose agent, 10.0.0.2, is only known by its address.

        With k3s_api_address 10.0.0.2 is a server, too.
        """
        role = {"name": "gpufabric.rdma.node_firewall", "tasks_from": tasks_from, "rolespec_validate": False}
        play = {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [{"name": "Role", "ansible.builtin.include_role": role}],
        }
        here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        shared = variables.get("k3s_api_address")
        far = {**here, "discovery_root": str(self.folder / "empty"), "k3s_node_ip": PEER, "k3s_api_address": shared}
        there = {
            "ansible_connection": "community.general.chroot",
            "ansible_host": str(self.folder / "root"),
            "ansible_python_interpreter": "/usr/bin/python3",
            **variables,
        }
        servers = {"node1": {}, "node2": {}} if shared else {"node1": {}}
        groups = {"gpu_nodes": {"hosts": {"node1": there, "node2": far}}, "k3s_servers": {"hosts": servers}}
        (self.folder / "hosts.json").write_text(json.dumps(groups))
        (self.folder / "play.yml").write_text(json.dumps([play]))
        paths = collections or ":".join(path for path in sys.path if path)
        done = subprocess.run(
            [*self.inside, f"--wdns={self.folder}", PLAYBOOK, "-i", "hosts.json", "play.yml", *arguments],
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": ansible_playbook.no_settings(),
                "ANSIBLE_COLLECTIONS_PATH": paths,
                "ANSIBLE_HOME": str(self.folder / "home"),
                "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
                "LC_ALL": "C.UTF-8",
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return Run(done)


class Run:
    """What a play did on node1."""

    def __init__(self, done):
        self.code = done.returncode
        assert "{" in done.stdout, done.stdout + done.stderr
        document = json.loads(done.stdout[done.stdout.index("{") :])
        self.tasks = [
            (task["task"]["name"].rpartition(" : ")[2], task["hosts"]["node1"])
            for play in document["plays"]
            for task in play["tasks"]
            if "node1" in task["hosts"]
        ]
        failed = [f"{name}: {result.get('msg')}" for name, result in self.tasks if result.get("failed")]
        self.text = "\n".join([*failed, done.stderr]) or "nothing failed"
        self.changed = document["stats"]["node1"]["changed"]

    def findings(self) -> list[dict]:
        return [finding for _name, result in self.tasks for finding in result.get("findings") or []]

    def items(self) -> list[str]:
        """Labels of what was opened or closed, or would be."""
        return [
            item["_ansible_item_label"]
            for _name, result in self.tasks
            for item in result.get("results") or []
            if item.get("changed")
        ]
