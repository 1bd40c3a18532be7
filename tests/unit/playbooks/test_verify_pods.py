"""playbooks/verify.yml with a cluster: laid-out nodes, and a double of `k3s kubectl` in the place of the cluster."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROCE = (ROOT / "tests/fixtures/pods/roce.txt").read_text()
NETDEV, ADDRESS = "enp1s0f0np0", "198.51.100.253"
PODS = [{"kind": kind, "node": f"node{number}"} for kind in ("workload", "seed") for number in (1, 2)]


@pytest.fixture
def verify(tmp_path):
    """verify(*arguments): output of the play, and the cluster it ran against; two nodes like the one of guide 004."""
    cluster = kubectl_cluster.make(tmp_path / "cluster.json", NETDEV, pods.own_resource(0))
    for pod in PODS:
        text = ROCE.replace("active_mtu:		4096 (5)", "active_mtu:		1024 (3)")
        cluster.answer(f"{pod['kind']}-{pod['node']}", kubectl_cluster.answer_of(text, pod))
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

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", "ansible", "playbook", "-i", inventory, "gpufabric.rdma.verify", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        return done.stdout + done.stderr, cluster

    run.cluster = cluster
    return run


def test_pods_are_run_judged_and_gone_and_the_linter_speaks(verify):
    output, cluster = verify()
    assert "Traceback" not in output
    failed = output.partition("\nFailed\n")[2].partition("\nNot verified\n")[0]
    # The nodes were never set up, which is told; of the pods nothing is wrong; of the network what the linter finds.
    assert "pod workload" not in failed
    assert "pod seed" not in failed
    assert f"{NETDEV} of node1 carries the default route" in " ".join(failed.split())
    assert "ib_write_bw rail 0 over net1: pod on node1 -> node2" in output
    made = {" ".join(call) for call in cluster.calls()}
    assert [w for w in ("apply", "exec", "delete namespace") if not any(call.startswith(w) for call in made)] == []
    assert "gpufabric-verification" not in cluster.namespaces()


def test_check_mode_reads_the_cluster_once_and_starts_nothing(verify):
    output, cluster = verify("--check")
    assert "Traceback" not in output
    assert [call[0] for call in cluster.calls()] == ["get"]
    assert "check mode starts no pod" in output


def test_without_pods_the_cluster_is_not_asked(verify):
    _output, cluster = verify("-e", "verification_pods=false", "--check")
    assert cluster.calls() == []


def test_the_variables_of_other_roles_are_typed_and_have_their_defaults(verify):
    """Text is no consent to pod traffic over a rail, and blocks are held to what networks_pods_per_node is."""
    cluster = verify.cluster
    objects = cluster.objects
    node = next(item for item in objects.values() if item["kind"] == "Node")
    node["metadata"]["annotations"] = {"flannel.alpha.coreos.com/public-ip": ADDRESS}
    nad = next(item for item in objects.values() if item["kind"] == "NetworkAttachmentDefinition")
    config = json.loads(nad["spec"]["config"])
    config["ipam"] = {"type": "host-local", "subnet": "10.56.0.0/28"}
    nad["spec"]["config"] = json.dumps(config)
    cluster.state(objects=objects)
    output = " ".join(verify("--check", "-e", "flannel_fabric_allowed=false")[0].split())
    assert f"Flannel uses {NETDEV} ({ADDRESS}), which is rail 0" in output
    assert "addresses for 16 pods a node" in output
