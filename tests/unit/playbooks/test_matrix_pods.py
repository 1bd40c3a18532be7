"""playbooks/matrix.yml between pods: laid-out nodes, and a double of `k3s kubectl` in the place of the cluster."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROCE = (ROOT / "tests/fixtures/pods/roce.txt").read_text()


def test_pods_are_measured_in_both_directions_and_are_gone_afterwards(tmp_path):
    cluster = kubectl_cluster.make(tmp_path / "cluster.json", "enp1s0f0np0", pods.own_resource(0))
    for number in (1, 2):
        pod = {"kind": "workload", "node": f"node{number}"}
        cluster.answer(f"workload-node{number}", kubectl_cluster.answer_of(ROCE, pod))
    cluster.install(tmp_path / "bin/k3s")
    hosts = {}
    for number in (1, 2):
        root = tmp_path / f"node{number}"
        tree.lay_out(tree.load("gh200-cx7-roce"), root)
        hosts[f"node{number}"] = {"discovery_root": str(root)}
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": node_python.path(),
        "ansible_become": False,
        "limits_services": ["containerd"],
        "discovery_rails": [{"pci": "0000:01:00.0"}],
        "matrix_host": False,
        "matrix_seconds": 1,
        "matrix_json": str(tmp_path / "matrix.json"),
    }
    inventory = tmp_path / "hosts.yml"
    groups = {"gpu_nodes": {"hosts": hosts, "vars": common}, "k3s_servers": {"hosts": {"node1": None}}}
    inventory.write_text(yaml.safe_dump({"all": {"children": groups}}))
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_HOME": str(tmp_path / "home"),
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "-i", inventory, "gpufabric.rdma.matrix"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    output = done.stdout + done.stderr
    assert (tmp_path / "matrix.json").exists(), output
    tests = json.loads((tmp_path / "matrix.json").read_text())["tests"]
    assert [(row["path"], row["rail"], row["from"], row["to"]) for row in tests] == [
        ("pod", 0, "node1", "node2"),
        ("pod", 0, "node2", "node1"),
    ], output
    # The double's 9301.10 MB/s is 78 Gb/s, which is little for this card.
    assert {row["gbit_per_s"] for row in tests} == {78.023}
    assert {tuple(row["counters_not_read"]) for row in tests} == {("from", "to")}
    assert {row["verdict"] for row in tests} == {"outlier"}
    assert done.returncode != 0
    assert "pod round 2 of 2: 1 test, slowest 78.023 Gb/s" in output
    sent = cluster.calls("exec")
    # The double notes a call when its process has begun, and a server whose client is done may be ended before.
    assert 2 + 2 <= len(sent) <= 2 + 4, "each pod is asked once; a server and a client for each direction"
    assert len(cluster.calls("apply")) == 1
    assert "gpufabric-verification" not in cluster.namespaces()
