"""The lab's cluster, as `site.yml` leaves it, for tests that break it on purpose.

LAB_DIR and its companions say which lab; `make lab-scenarios` sets them. The first test that asks for the cluster
brings it up and saves both nodes; later sessions start from that, as long as what made it is unchanged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import time

import pytest
from ansible_collections.gpufabric.rdma.tests.tools.lab_nodes import CHECKOUT, Lab

SNAPSHOT = "cluster"
SOURCES = ("roles", "plugins", "playbooks", "device_plugin", "inventory/lab", "lab", "lock")
PATIENCE = 600.0
FIGURES = pytest.StashKey()


def made_of() -> str:
    """A digest of everything that decides what the cluster looks like."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SOURCES],
        cwd=CHECKOUT,
        capture_output=True,
        check=True,
    )
    total = hashlib.sha256(os.environ.get("LAB_CLUSTER", "").encode())
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        path = CHECKOUT / name
        if path.is_file():
            total.update(f"{name}\0".encode() + path.read_bytes())
    return total.hexdigest()


class Cluster(Lab):
    """Both nodes, the playbooks on them, and the API server through the first one."""

    nodes = ("node1", "node2")

    def __init__(self) -> None:
        self.state = pathlib.Path(os.environ["LAB_DIR"]).resolve()
        self.figures: list[str] = []
        self.first = None  # the run that made the cluster, where this session did

    def run(self, playbook, *arguments):
        return self.play(playbook, "-e", f"@{self.state}/cluster.yml", *arguments)

    def bring_up(self) -> None:
        """From the saved nodes, or from their first boot."""
        mark = self.state / "cluster.made-of"
        if mark.exists() and mark.read_text() == made_of():
            with self.timed("both nodes back from the saved state"):
                self.labctl("restore", SNAPSHOT)
                self.wait(self.settled, "all nodes Ready and all pods running")
            return
        mark.unlink(missing_ok=True)
        with self.timed("nodes booted"):
            self.labctl("up")
        with self.timed("bundle filled"):
            self.labctl("bundle")
        with self.timed("site.yml on bare nodes"):
            self.first = self.run("site.yml")
        assert self.first.code == 0, self.first.text[-6000:]
        self.labctl("snapshot", SNAPSHOT)
        mark.write_text(made_of())

    @contextlib.contextmanager
    def timed(self, what: str):
        start = time.monotonic()
        yield
        self.figures.append(f"{time.monotonic() - start:7.1f} s  {what}")

    def try_node(self, name: str, script: str) -> str:
        """What a node says, or nothing while it does not answer."""
        done = self.try_labctl("ssh", name, script, stdin="")
        return done.stdout.strip() if done.returncode == 0 else ""

    def startup_taints(self) -> list[str]:
        """Nodes that have not been proven ready for RDMA pods yet."""
        return [
            node["metadata"]["name"]
            for node in self.get("nodes").get("items", ())
            if any(taint["key"] == "rdma.gpufabric.io/not-ready" for taint in node["spec"].get("taints", ()))
        ]

    # The API server

    def try_kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.try_labctl(
            "ssh", "node1", "k3s kubectl --request-timeout=60s " + " ".join(words), stdin=stdin or ""
        )

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        done = self.try_kubectl(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def get(self, *words: str) -> dict:
        """The object or the list; {} while it is not there or nobody answers."""
        done = self.try_kubectl("get", *words, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def settled(self) -> bool:
        conditions = [
            row["status"] == "True"
            for node in self.get("nodes").get("items", ())
            for row in node["status"]["conditions"]
            if row["type"] == "Ready"
        ]
        return len(conditions) == len(self.nodes) and all(conditions) and all(self.pods().values())

    def pods(self) -> dict[str, bool]:
        """{"namespace/name uid": whether it is ready}."""
        found = {}
        for pod in self.get("pods", "--all-namespaces").get("items", ()):
            meta = pod["metadata"]
            rows = pod["status"].get("conditions", ())
            ready = any(row["type"] == "Ready" and row["status"] == "True" for row in rows)
            found[f"{meta['namespace']}/{meta['name']} {meta['uid']}"] = ready
        return found

    def main_pids(self) -> dict[str, str]:
        """The main process of each service that a second run must leave alone."""
        units = {"node1": "k3s rdma-device-plugin", "node2": "k3s-agent rdma-device-plugin"}
        return {
            name: self.node(name, f"systemctl show --property=MainPID --value {services}")
            for name, services in units.items()
        }

    def wait(self, condition, what: str, limit: float = PATIENCE) -> None:
        """Until the condition holds."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > limit:
                state = self.try_kubectl("get", "nodes,pods", "--all-namespaces", "-o", "wide").stdout
                events = self.try_kubectl("get", "events", "-A", "--sort-by=.lastTimestamp").stdout
                raise AssertionError(f"{what}: not within {limit:.0f} s\n{state}\n{events[-3000:]}")
            time.sleep(1)


def pytest_terminal_summary(terminalreporter, config):
    if config.stash.get(FIGURES, None):
        terminalreporter.section("figures of the lab's cluster")
        for line in config.stash[FIGURES]:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def brought_up(pytestconfig):
    found = Cluster()
    pytestconfig.stash[FIGURES] = found.figures
    found.bring_up()
    return found


@pytest.fixture
def cluster(brought_up):
    """For a test that leaves the cluster as it found it."""
    return brought_up


@pytest.fixture
def breakable(brought_up):
    """For a test that does not: both nodes are taken back afterwards."""
    yield brought_up
    brought_up.labctl("restore", SNAPSHOT)
    brought_up.wait(brought_up.settled, "all nodes Ready and all pods running")
