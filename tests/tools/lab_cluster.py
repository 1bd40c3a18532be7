"""The lab's cluster for tests: the nodes, the playbooks on them, the API server.

LAB_DIR and its companions select the lab; `make cluster` sets them for one node. The first test that needs the cluster
brings it up and saves its nodes; later sessions start from that, as long as its sources are unchanged.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from ansible_collections.gpufabric.rdma.tests.tools import running

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
SNAPSHOT = "cluster"
SOURCES = ("roles", "plugins", "playbooks", "device_plugin", "inventory", "lab", "lock")
PATIENCE = 600.0
STARTUP_TAINT = "rdma.gpufabric.io/not-ready"
# sysctl comes before the modules: reading all of /proc/sys loads binfmt_misc.
# Ansible's files below ~/.ansible/tmp and kubectl's cache of the API server's types do not come from the playbook.
EVERYTHING = """
find /etc /opt /usr /boot /root /home /var/lib/rdma-device-plugin /var/lib/cni -xdev \
  \\( -path /root/.ansible -o -path /root/.kube/cache \\) -prune -o \
  -printf '%p %m %u %s %C@\\n' 2>/dev/null
sysctl -a 2>/dev/null | grep -E '^(net.ipv4.conf|net.ipv6.conf|net.bridge|fs.inotify)'
cut -d' ' -f1 /proc/modules
ip -o address show scope global
iptables-save | sed 's/\\[[0-9:]*\\]//; /^#/d'
rdma system show
systemctl list-unit-files --no-legend
systemctl show --property=Id,MainPID,ActiveState --value 'gpufabric*' k3s k3s-agent rdma-device-plugin
"""
OBJECTS = (
    "configmaps,daemonsets,network-attachment-definitions,serviceaccounts,secrets,namespaces,clusterroles,"
    "clusterrolebindings,roles,rolebindings,customresourcedefinitions"
)


def made_of() -> str:
    """A digest of everything that determines the cluster."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SOURCES]
    listed = subprocess.run(words, cwd=CHECKOUT, capture_output=True, check=True)
    total = hashlib.sha256(
        json.dumps([os.environ.get(name) for name in ("LAB_CLUSTER", "LAB_K3S", "LAB_NODES")]).encode()
    )
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        path = CHECKOUT / name
        if path.is_file():
            total.update(f"{name}\0".encode() + path.read_bytes())
    return total.hexdigest()


def taints(node: dict) -> list[str]:
    return [taint["key"] for taint in node.get("spec", {}).get("taints", ())]


@dataclasses.dataclass
class Run:
    """One ansible-playbook run: its exit code and, host by host, the results of its tasks."""

    code: int
    text: str
    results: dict
    record: dict  # from tests/tools/callback_plugins/run_record.py

    def changes(self, host):
        """(object, action) of everything the modules changed, or would change in check mode."""
        return {
            (change["object"], change["action"])
            for result in self.results[host]
            for change in result.get("changes") or ()
        }

    def facts(self, host, name):
        """The values that tasks gave this fact, in their order."""
        facts = [result.get("ansible_facts", {}) for result in self.results[host]]
        return [fact[name] for fact in facts if name in fact]

    def checks(self, host, status):
        return [check for check in self.facts(host, "rdma_checks")[0] if check["status"] == status]


class Cluster:
    """The nodes, the playbooks on them, and the API server through the first one.

    server and worker are the nodes that tests break; in a lab with one node they are the same.
    """

    nodes = tuple(os.environ.get("LAB_NODES", "").split()) or ("node1", "node2")
    server, worker = nodes[0], nodes[-1]
    inventory = "lab" if len(nodes) > 1 else "lab-single"

    def __init__(self) -> None:
        self.state = pathlib.Path(os.environ["LAB_DIR"]).resolve()
        self.figures: list[str] = []
        self.first = None  # the run that made the cluster, if in this session, and its seconds
        self.first_seconds = 0.0
        # Variables of every run on the cluster.
        self.variables = ("-e", f"@{self.state}/cluster.yml")
        self.hosts = ("-i", str(CHECKOUT / "inventory" / self.inventory))

    def given(self, name: str):
        return json.loads((self.state / "cluster.yml").read_text()).get(name)

    def kubelet_service(self, name: str) -> str:
        return "k3s" if name == self.server else "k3s-agent"

    def try_labctl(self, *words, stdin=None):
        command = [CHECKOUT / "lab" / "labctl", *words]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def labctl(self, *words):
        done = self.try_labctl(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def node(self, name, script):
        return self.labctl("ssh", name, script).strip()

    def run(self, playbook, *arguments):
        command = ["ansible-playbook", *self.hosts, CHECKOUT / "playbooks" / playbook, *self.variables, *arguments]
        # Machine-readable, so no test reads a layout for people.
        told = self.state / "environment"
        own = dict(line.split("=", 1) for line in told.read_text().splitlines()) if told.exists() else {}
        with tempfile.TemporaryDirectory() as records:
            more = {**own, "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", **running.environment(records)}
            done = subprocess.run(
                command, env={**os.environ, **more}, cwd=CHECKOUT, capture_output=True, text=True, check=False
            )
            record = running.written(records)
        text = done.stdout + done.stderr
        start = done.stdout.find("{\n")
        assert start >= 0, text
        results = {}
        for play in json.loads(done.stdout[start:])["plays"]:
            for task in play["tasks"]:
                for host, result in task["hosts"].items():
                    results.setdefault(host, []).append(result)
        return Run(done.returncode, text, results, record)

    def succeed(self, playbook, *arguments):
        done = self.run(playbook, *arguments)
        assert done.code == 0, done.text[-6000:]
        return done

    def drift(self, *arguments: str) -> tuple[int, dict, str]:
        """bin/drift.py on the nodes: exit code, {host: its entry in drift.json}, output."""
        playbook = ("--playbook", str(CHECKOUT / "playbooks" / "drift.yml"))
        with tempfile.TemporaryDirectory() as reports:
            words = [*playbook, *self.hosts, *self.variables, "-e", f"drift_directory={reports}", *arguments]
            command = [sys.executable, CHECKOUT / "bin/drift.py", *words]
            done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
            text = done.stdout + done.stderr
            written = pathlib.Path(reports, "drift.json")
            assert written.is_file(), text
            entries = json.loads(written.read_text())["hosts"]
        return done.returncode, {entry["host"]: entry for entry in entries}, text

    def everything(self) -> dict[str, set[str]]:
        """All that a run could change, for comparison: files with the time of their last change, settings, objects."""
        found = {name: set(self.node(name, EVERYTHING).splitlines()) for name in self.nodes}
        found["objects"] = set()
        for row in self.get(OBJECTS, "--all-namespaces")["items"]:
            meta = row["metadata"]
            # A status also changes the resourceVersion; objects with a status count generations.
            version = meta.get("generation", meta["resourceVersion"])
            found["objects"].add(f"{row['kind']} {meta.get('namespace')}/{meta['name']} {meta['uid']} {version}")
        for row in self.get("nodes")["items"]:
            found["objects"].add(json.dumps([row["metadata"]["labels"], row["spec"]], sort_keys=True))
        return found

    def changed_since(self, before: dict[str, set[str]]) -> dict[str, list[str]]:
        """The difference between everything() then and now, in both directions."""
        now = self.everything()
        return {name: sorted(now[name] ^ before[name]) for name in now if now[name] != before[name]}

    def bring_up(self) -> None:
        """From the saved nodes, or from their first boot.

        The mark is next to a node's disk, so `labctl down` removes it with the saved state.
        """
        mark = self.state / "nodes" / self.server / "cluster.made-of"
        if mark.exists() and mark.read_text() == made_of():
            with self.timed("nodes back from the saved state"):
                self.labctl("restore", SNAPSHOT)
                self.wait(self.settled, "all nodes Ready and all pods running")
            return
        mark.unlink(missing_ok=True)
        with self.timed("nodes booted"):
            self.labctl("up")
        with self.timed("bundle filled"):
            self.labctl("bundle")
        start = time.monotonic()
        with self.timed("site.yml on bare nodes"):
            self.first = self.run("site.yml")
        self.first_seconds = time.monotonic() - start
        assert self.first.code == 0, self.first.text[-6000:]
        self.labctl("snapshot", SNAPSHOT)
        mark.write_text(made_of())

    def note(self, figure: str) -> None:
        """A line for the end of the session; also printed at once with pytest's -s, in case the session is cut off."""
        self.figures.append(figure)
        print(figure, flush=True)

    @contextlib.contextmanager
    def timed(self, what: str):
        start = time.monotonic()
        yield
        self.note(f"{time.monotonic() - start:7.1f} s  {what}")

    def try_node(self, name: str, script: str) -> str:
        """A node's output; empty while it does not answer."""
        done = self.try_labctl("ssh", name, script, stdin="")
        return done.stdout.strip() if done.returncode == 0 else ""

    def reboot(self, name: str, how: str = "hard reset") -> None:
        """A hard reset, or a reboot by systemd, until the node answers again.

        Unlike k3s' datastore, the double's does not wait for the disk (UnsafeNoFsync): only its files are synced first,
        so the reset loses nothing that the API server has acknowledged.
        """
        self.node(name, "find /var/lib/rancher/k3s/server -type f -exec sync {} + 2>/dev/null; true")
        script = "cat /proc/sys/kernel/random/boot_id"
        before = self.node(name, script)
        self.labctl("power", name, "reset" if how == "hard reset" else "reboot")
        self.wait(lambda: self.try_node(name, script) not in ("", before), f"a new boot of {name}")

    def came_back(self, name: str) -> bool:
        """Whether the API server knows about this boot: until the kubelet reports, everything looks as before."""
        script = "cat /proc/sys/kernel/random/boot_id; date -u -d @$(sed -n 's/^btime //p' /proc/stat) +%FT%TZ"
        boot, since = (self.try_node(name, script).splitlines() or ["", ""])[:2]
        pods = [
            status.get("state", {}).get("running", {}).get("startedAt", "")
            for pod in self.get("pods", "--all-namespaces", f"--field-selector=spec.nodeName={name}").get("items", ())
            for status in pod["status"].get("containerStatuses") or [{}]
        ]
        known = self.get("node", name).get("status", {}).get("nodeInfo", {}).get("bootID")
        return boot != "" and known == boot and bool(pods) and all(started >= since for started in pods)

    def startup_taints(self) -> list[str]:
        """Nodes that are not verified as ready for RDMA pods yet."""
        nodes = self.get("nodes").get("items", ())
        return [node["metadata"]["name"] for node in nodes if STARTUP_TAINT in taints(node)]

    def startup_taint_times(self, name: str) -> tuple[float, float]:
        """When our unit set the startup taint in this boot of the node, and when it removed it; Unix time."""
        said = self.node(name, "journalctl --boot --unit gpufabric-rdma-node-ready --output short-unix --no-pager")
        times = {}
        for line in said.splitlines():
            for word in ("set", "removed"):
                if f"taint {STARTUP_TAINT} {word}:" in line:
                    times[word] = float(line.split()[0])
        assert times.keys() == {"set", "removed"}, said
        return times["set"], times["removed"]

    def wait_bound_untainted(self, pod: str, namespace: str, name: str, patience: float) -> None:
        """Wait until the scheduler has bound the pod, which must not happen while the node has the startup taint."""

        def bound() -> bool:
            # Read the pod before the node: a taint may be removed in between.
            place = self.get("pod", pod, "-n", namespace).get("spec", {}).get("nodeName")
            tainted = STARTUP_TAINT in taints(self.get("node", name))
            assert not (place and tainted), f"{pod} was bound to {place} while it had the startup taint"
            return bool(place) and not tainted

        self.wait(bound, f"{pod} bound", patience)

    # The API server

    def try_kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.try_labctl(
            "ssh", self.server, "k3s kubectl --request-timeout=60s " + " ".join(words), stdin=stdin or ""
        )

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Its output. A connection that a busy server did not accept is retried, because nothing has happened yet."""
        for _try in range(4):
            done = self.try_kubectl(*words, stdin=stdin)
            if "TLS handshake timeout" not in done.stderr:
                break
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def get(self, *words: str) -> dict:
        """The object or the list; {} while it does not exist or the API server does not answer."""
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

    def allocatable(self, resource: str) -> int | None:
        """The worker's allocatable amount of a resource; None while the API server does not answer."""
        node = self.get("node", self.worker)
        return int(node["status"]["allocatable"].get(resource, 0)) if node else None

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
        show = "systemctl show --property=MainPID --value rdma-device-plugin"
        return {name: self.node(name, f"{show} {self.kubelet_service(name)}") for name in self.nodes}

    def wait(self, condition, what: str, limit: float = PATIENCE) -> None:
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > limit:
                state = self.try_kubectl("get", "nodes,pods", "--all-namespaces", "-o", "wide").stdout
                events = self.try_kubectl("get", "events", "-A", "--sort-by=.lastTimestamp").stdout
                raise AssertionError(f"{what}: not within {limit:.0f} s\n{state}\n{events[-3000:]}")
            time.sleep(1)
