"""documents.py FOLDER [KIND...]: what the playbooks write, for judges that nobody here wrote.

Each kind is a folder below FOLDER, made by real playbooks over laid-out nodes; the cluster, and the perftest that the
matrix runs, are doubles.

drift    drift.json, .xml, .md, .prom: a node that nobody has set up, one that is unreachable
verify   results.json, and applied.json with the objects that were sent to the cluster: two nodes, two test pods on each
matrix   matrix.json: two nodes, two rails, one of them throttled
report   report.json and .xml of the three above, and of a fleet with every kind of finding
render   a folder for Git with every component, and an nccl-tests job
metrics  what the device plugin serves at /metrics
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.tests.tools import (
    bandwidth_double,
    kubectl_cluster,
    node_python,
    report_documents,
    tree,
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
LIMIT = 300  # seconds; a busy machine needs many
ROCE_RAIL = [{"pci": "0000:01:00.0"}]


class Site:
    """Laid-out nodes and the commands that a user has, in a folder of their own."""

    def __init__(self, folder: pathlib.Path, **variables):
        self.folder, self.hosts, self.variables = folder, {}, variables
        self.cluster = kubectl_cluster.Cluster(folder / "cluster.json")

    def add(self, name: str, fixture: str | dict, **variables) -> pathlib.Path:
        root = self.folder / name
        tree.lay_out(tree.load(fixture) if isinstance(fixture, str) else fixture, root)
        (root / "proc/sys/kernel").mkdir(parents=True, exist_ok=True)
        (root / "proc/sys/kernel/hostname").write_text(f"{name}\n")
        self.hosts[name] = {"ansible_connection": "local", "discovery_root": str(root), **variables}
        return root

    def run(self, *words, codes=(0,), servers=(), **environment) -> None:
        common = {
            "ansible_python_interpreter": node_python.path(),
            "ansible_become": False,
            "limits_services": ["containerd"],
            **self.variables,
        }
        groups = {"gpu_nodes": {"hosts": self.hosts, "vars": common}}
        if servers:
            groups["k3s_servers"] = {"hosts": {name: {} for name in servers}}
        (self.folder / "hosts.json").write_text(json.dumps(groups))
        done = subprocess.run(
            [str(word) for word in words],
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "ANSIBLE_HOME": str(self.folder / "home"),
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_SSH_TIMEOUT": "3",
                "LC_ALL": "C.UTF-8",
                "PATH": f"{self.folder / 'bin'}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
                "PWD": str(self.folder),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in codes:
            sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")

    def play(self, name: str, *arguments, **more) -> None:
        self.run(
            *(sys.executable, "-m", "ansible", "playbook", "-i", "hosts.json"),
            *(f"gpufabric.rdma.{name}", *arguments),
            **more,
        )


def drift(site: Site, target: pathlib.Path) -> None:
    site.add("untouched", "gh200-cx7-roce", limits_services=["k3s"])
    site.hosts["away"] = AWAY
    # 4: one host is unreachable.
    site.run(sys.executable, ROOT / "bin/drift.py", "-i", "hosts.json", f"-edrift_directory={target}", codes=[4])


def verify(site: Site, target: pathlib.Path) -> None:
    netdev, text = "enp1s0f0np0", (ROOT / "tests/fixtures/pods/roce.txt").read_text()
    site.variables["discovery_rails"] = ROCE_RAIL
    site.cluster = kubectl_cluster.make(site.cluster.path, netdev, pods.own_resource(0))
    for number in (1, 2):
        root = site.add(f"node{number}", "gh200-cx7-roce")
        loopback = root / "opt/cni/bin/loopback"
        loopback.parent.mkdir(parents=True, exist_ok=True)
        loopback.write_text("#!/bin/sh\n")
        loopback.chmod(0o755)
        for kind in ("workload", "seed"):
            pod = {"kind": kind, "node": f"node{number}"}
            site.cluster.answer(f"{kind}-node{number}", kubectl_cluster.answer_of(text, pod))
    site.cluster.install(site.folder / "bin/k3s")
    # Nobody has set the nodes up, which is what the report says.
    site.play("verify", f"-everification_results={target / 'results.json'}", codes=[2], servers=["node1"])
    applied = [item for items in site.cluster.state().get("applied", {}).values() for item in items]
    (target / "applied.json").write_text(json.dumps(applied, indent=1))


def matrix(site: Site, target: pathlib.Path) -> None:
    site.variables.update(discovery_software_hcas=True, matrix_seconds=1, matrix_round_seconds=8)
    captured = tree.load("lab-rxe-debian12")
    for number in (1, 2):
        fixture = copy.deepcopy(captured)
        addresses = fixture["seams"]["addresses"]
        for netdev in ("eth2", "eth3"):
            addresses[netdev] = [f"198.18.{netdev[-1]}.{number}/24"]
        for index in range(2, 8):
            addresses[f"dm{index}"] = [f"198.19.{number * 10 + index}.1/24"]
        # One machine plays all nodes, so each needs ports of its own.
        bandwidth_double.install(site.add(f"node{number}", fixture, matrix_port=18400 + 50 * number))
    planted = site.folder / "planted.json"
    planted.write_text(json.dumps({"gbit": 10, "rails": {"node1/rxe1": 2}, "log": str(site.folder / "log")}))
    # 2: the throttled rail is found.
    site.play("matrix", f"-ematrix_json={target / 'matrix.json'}", codes=[0, 2], BANDWIDTH_DOUBLE=str(planted))


def report(site: Site, target: pathlib.Path) -> None:
    given = {
        "report_results": target.parent / "verify/results.json",
        "report_drift": target.parent / "drift/drift.json",
        "report_matrix": target.parent / "matrix/matrix.json",
    }
    site.play("report", *(f"-e{name}={path}" for name, path in given.items()), f"-ereport_directory={target}")
    fleet = subprocess.run(
        [sys.executable, report_documents.__file__, "fleet"], capture_output=True, text=True, check=True
    ).stdout
    (site.folder / "fleet.json").write_text(fleet)
    site.play("report", "-ereport_results=fleet.json", f"-ereport_directory={target / 'fleet'}")


def render(site: Site, target: pathlib.Path) -> None:
    for name in ("node1", "node2"):
        site.add(name, "h100-8x-cx7-ib")
    components = ["whereabouts", "nv-ipam", "ipoib-cni", "sriov-cni", "ib-sriov-cni", "sriov-device-plugin"]
    subnets = {"ipam": "nv-ipam", "namespaces": ["default"]}
    site.variables |= {
        "cluster_objects_folder": str(target / "git"),
        "device_plugin_mode": "daemonset",
        "networks_rails": True,
        "networks_components": components,
        "networks_sriov_resources": [{"name": "vfs", "prefix": "example.com"}],
        "networks_attachments": [
            {"name": "vf", "type": "sriov", "resource_name": "example.com/vfs", "subnet": "192.168.1.0/24", **subnets}
        ],
        "k3s_node_features_by_nfd": True,
    }
    site.play("render", servers=["node1"])
    image = f"registry.example.com/nccl-tests@sha256:{'a' * 64}"
    job = [f"-enccl_tests_image={image}", f"-enccl_tests_file={target}/nccl-tests.yml", "-enccl_tests_networks=rail0"]
    site.play("nccl_tests", *job, servers=["node1"])


def metrics(site: Site, target: pathlib.Path) -> None:
    """The plugin on a captured node; without a kubelet it registers nowhere, and says so in its metrics."""
    root = site.add("node1", "h100-8x-cx7-ib")
    config = {"configList": [{"resourceName": "rail0", "rdmaHcaMax": 63, "selectors": {"vendors": ["15b3"]}}]}
    (site.folder / "config.json").write_text(json.dumps(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    url = f"http://{address}/metrics"
    words = ["-config-file", site.folder / "config.json", "-root", root, "-metrics-address", address]
    for flag, name in (("-kubelet-root", "kubelet"), ("-device-plugin-dir", "kubelet/plugins"), ("-cdi-dir", "cdi")):
        (site.folder / name).mkdir(exist_ok=True)
        words += [flag, site.folder / name]
    python = ROOT / ".cache/plugin-venv/bin/python"
    plugin = subprocess.Popen(
        [python, "-m", "rdma_device_plugin", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "device_plugin")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until = time.monotonic() + LIMIT
        while time.monotonic() < until and plugin.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=60) as answer:
                (target / "metrics.prom").write_bytes(answer.read())
                return
            time.sleep(0.2)
        plugin.kill()  # it would never close what is read here
        said = plugin.communicate()[0][-2000:]
        sys.exit(f"the device plugin serves no metrics at {url} within {LIMIT} s:\n{said}")
    finally:
        plugin.kill()
        plugin.wait()


KINDS = {made.__name__: made for made in (drift, verify, matrix, report, render, metrics)}


def main(folder: str, *kinds: str) -> None:
    for kind in kinds or KINDS:
        target = pathlib.Path(folder).absolute() / kind
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        # Thousands of small files: memory is the place for them where there is one.
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as scratch:
            KINDS[kind](Site(pathlib.Path(scratch)), target)


if __name__ == "__main__":
    main(*sys.argv[1:])
