"""Where runs are interrupted: a fast node (native, the host layer and the device plugin), or a lab node with a cluster.

fresh(phase)    the node as it is at the start of a phase
start(...)      site.yml on it, in a session of its own
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from ansible_collections.gpufabric.rdma.tests.tools import recording
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import Cluster
from ansible_collections.gpufabric.rdma.tests.tools.lab_nodes import CHECKOUT

NODE = "node1"
LOCK = CHECKOUT / ".lab/interrupted.lock"
KILLED = -signal.SIGKILL
# Files of ours, of systemd and of the node's settings. Keys, times and what Ansible keeps differ from node to node.
LOOK = """
cd /
find etc opt usr/local var/lib/rdma-device-plugin var/lib/kubelet root run/rdma-device-plugin -xdev \
  \\( -path root/.ansible -o -name 'ssh_host_*' -o -path root/.ssh -o -path usr/local/lib/lab -o -name '*.pyc' \\
     -o -name __pycache__ \\) -prune -o -printf '%y %m %u %p %l\\n' 2>/dev/null | sort
find etc usr/local var/lib/rdma-device-plugin -xdev -type f \
  ! -name 'ssh_host_*' ! -path 'usr/local/lib/lab/*' ! -name '*.pyc' -exec sha256sum {} + 2>/dev/null | sort
systemctl list-unit-files --no-legend
systemctl show --property=Id,ActiveState,LimitMEMLOCK 'gpufabric*' rdma-device-plugin k3s k3s-agent containerd
for link in /sys/class/net/*; do echo "$link $(cat $link/mtu)"; done
"""


@dataclasses.dataclass
class Ended:
    """A run that ended, by itself or killed."""

    code: int
    text: str
    steps: list[dict]  # what tests/tools/callback_plugins/cut_off.py wrote down
    seconds: float

    @property
    def passed(self) -> int:
        """How many checks the run saw passed."""
        found = re.findall(r"^Verification on .*: (\d+) passed", self.text, re.MULTILINE)
        return int(found[-1]) if found else 0

    def not_verified(self) -> list[str]:
        """The report's lines about what could not be checked."""
        found = re.search(r"^Not verified\n((?:.+\n)+)", self.text, re.MULTILINE)
        return [line.strip() for line in found.group(1).splitlines()] if found else []

    def last(self) -> str:
        """The last lines of what it said, without Ansible's decoration."""
        return "\n".join(line for line in self.text.splitlines() if line.strip(" *"))[-3000:]


class Bed:
    playbooks = ("playbooks/site.yml",)
    words: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.built = tempfile.TemporaryDirectory()  # the archives of modules, which each run would build anew

    def close(self) -> None:
        self.end()
        self.built.cleanup()

    def start(self, after: str = "", words: tuple[str, ...] = ()) -> Ended:
        """The playbooks on the node, killed right after the result that is named, or as they end by themselves."""
        with tempfile.TemporaryDirectory() as folder:
            steps = pathlib.Path(folder, "steps")
            steps.touch()
            begun = time.monotonic()
            done = subprocess.run(
                ["ansible-playbook", *self.words, *words, *self.playbooks],
                cwd=CHECKOUT,
                env={
                    **os.environ,
                    "ANSIBLE_CALLBACK_PLUGINS": str(recording.PLUGINS),
                    "ANSIBLE_CALLBACKS_ENABLED": "cut_off",
                    "ANSIBLE_NOCOLOR": "true",
                    "BUILT_MODULES": self.built.name,
                    "CUT_OFF_STEPS": str(steps),
                    "CUT_OFF_AFTER": f"{NODE} {after}",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                start_new_session=True,
            )
            seconds = time.monotonic() - begun
            found = [json.loads(line) for line in steps.read_text().splitlines()]
        return Ended(done.returncode, done.stdout, [step for step in found if step["host"] == NODE], seconds)


class Fast(Bed):
    """A systemd node under nspawn, made anew for each case; in the order of site.yml, with the plugin before verify."""

    name = "fast"
    # The rail's captured MTU: /sys is read-only there, so rail_links only writes what the next boot reads.
    settings = {"rail_links_settings": [{"pci": "0000:18:00.0", "mtu": 2044}]}
    phases = {"booted": ""}
    fixture = "h100-8x-cx7-ib"
    playbooks = ("playbooks/host.yml", "molecule/rails/plays/device_plugin.yml", "playbooks/verify.yml")
    control = CHECKOUT / "lab/nspawnctl"
    inventory = ("-i", str(control), "-i", str(CHECKOUT / "molecule/rails/inventory"))

    def __init__(self) -> None:
        super().__init__()
        # One at a time: the fast nodes of a checkout are one set.
        self.lock = open(LOCK, "w")  # noqa: SIM115
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.reports = tempfile.TemporaryDirectory()
        given = {
            "device_plugin_wheel_dir": str(CHECKOUT / "build/wheels"),
            "report_file": f"{self.reports.name}/report.html",
            **self.settings,
        }
        self.words = (*self.inventory, "-e", json.dumps(given))

    def fresh(self, phase: str = "booted") -> None:
        self.end()
        self._run(self.control, "up", "1", "--fixture", self.fixture)
        # As molecule/rails/prepare.yml does: a running service would rightly be asked to restart.
        self.node("systemctl stop k3s k3s-agent containerd 2>/dev/null || true")

    def end(self) -> None:
        self._run(self.control, "down")

    def close(self) -> None:
        super().close()
        self.reports.cleanup()
        self.lock.close()

    def node(self, script: str) -> str:
        return self._run(self.control, "ssh", NODE, script)

    def look(self) -> set[str]:
        """What a finished node looks like."""
        return set(self.node(LOOK).splitlines())

    def _run(self, *words) -> str:
        done = subprocess.run(
            list(map(str, words)), cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


class LabNode(Bed):
    """A virtual machine that becomes a cluster of one node, restored for each case to the start of its phase."""

    name = "lab"
    # How a run gets from one phase to the next: it is killed right after the result that is named.
    phases = {
        "ready": "gpufabric.rdma.cni_plugins : Install the CNI plugins",
        "host": "gpufabric.rdma.k3s : Configure and start k3s",
        "k3s": "gpufabric.rdma.cluster_objects : Apply the objects of all roles",
        "objects": "",
    }

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()
        self.words = (*self.cluster.hosts, *self.cluster.variables)
        self.cluster.labctl("up")
        self.cluster.labctl("bundle")

    def fresh(self, phase: str) -> None:
        self.cluster.labctl("restore", phase)

    def keep(self, phase: str) -> None:
        self.cluster.labctl("snapshot", phase)

    def look(self) -> set[str]:
        """Not compared here: each cluster has keys, addresses and times of its own; the run's checks judge it."""
        return set()

    def end(self) -> None:
        """The node stays, for the next start."""


BEDS = {bed.name: bed for bed in (Fast, LabNode)}
