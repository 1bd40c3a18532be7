"""verify.yml and matrix.yml with a cluster: laid-out nodes, and a double of `k3s kubectl` in place of the cluster."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, kubectl_cluster, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROCE = (ROOT / "tests/fixtures/pods/roce.txt").read_text()
NETDEV, ADDRESS = "enp1s0f0np0", "198.51.100.253"
PROGRAMS = ("loopback", "macvlan", "whereabouts")
PODS = [{"kind": kind, "node": f"node{number}"} for kind in ("workload", "seed") for number in (1, 2)]


@pytest.fixture
def cluster(tmp_path):
    """The cluster that the plays run against; its test pods answer as those of guide 004."""
    made = kubectl_cluster.make(tmp_path / "cluster.json", NETDEV, pods.own_resource(0))
    text = ROCE.replace("active_mtu:		4096 (5)", "active_mtu:		1024 (3)")
    for pod in PODS:
        made.answer(f"{pod['kind']}-{pod['node']}", kubectl_cluster.answer_of(text, pod))
    made.install(tmp_path / "bin/k3s")
    return made


@pytest.fixture
def play(tmp_path, cluster):
    """play(playbook, *arguments): its exit code and its output, on two nodes like the one of guide 004."""
    hosts = {}
    for number in (1, 2):
        root = tmp_path / f"node{number}"
        tree.lay_out(tree.load("gh200-cx7-roce"), root)
        hosts[f"node{number}"] = {"discovery_root": str(root)}
        # Without them no pod can start, and none is tried.
        for name in PROGRAMS:
            program = root / "opt/cni/bin" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": node_python.path(),
        "ansible_become": False,
        "limits_services": ["containerd"],
        # Without one the pods run the node's own tools, and a tree of files has none.
        "verification_image": "localhost/verification:test",
        "discovery_rails": [{"pci": "0000:01:00.0"}],
    }
    inventory = tmp_path / "hosts.yml"
    groups = {"gpu_nodes": {"hosts": hosts, "vars": common}, "k3s_servers": {"hosts": {"node1": None}}}
    inventory.write_text(yaml.safe_dump({"all": {"children": groups}}))
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
    }

    def run(playbook, *arguments):
        done = subprocess.run(
            [ansible_playbook.path(), "-i", inventory, f"gpufabric.rdma.{playbook}", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_pods_are_run_judged_and_gone_and_the_linter_speaks(play, cluster):
    _code, output = play("verify")
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


def test_a_program_of_a_network_that_cannot_run_is_named_on_its_node_and_not_waited_for(play, cluster, tmp_path):
    program = tmp_path / "node2/opt/cni/bin/macvlan"
    program.chmod(0o644)
    results = tmp_path / "results.json"
    play("verify", "-e", json.dumps({"verification_results": str(results)}))
    found = {node["host"]: node for node in json.loads(results.read_text())["nodes"]}
    checks = {host: {one["id"]: one for one in node["checks"]} for host, node in found.items()}
    assert "cni:plugin-not-executable" not in checks["node1"]
    assert checks["node2"]["cni:plugin-not-executable"]["object"] == "/opt/cni/bin/macvlan"
    assert checks["node2"]["pod:workload"]["seen"] == "/opt/cni/bin/macvlan: mode 0644"
    assert not [call for call in cluster.calls() if call[0] == "exec" and "node2" in " ".join(call)]


def refuse_pods(program):
    """The API server refuses what is applied."""
    refusal = "Error from server (Forbidden): pods is forbidden"
    said = f'[ "$1" = apply ] && {{ echo "{refusal}" >&2; exit 1; }}'
    program.write_text(program.read_text().replace("exec", f"{said}\nexec"))


def test_where_the_pod_part_fails_for_the_first_node_every_node_keeps_its_own_checks(play, cluster, tmp_path):
    """The API server refuses the pods; on node2 stands a CNI configuration whose plugin is missing."""
    refuse_pods(tmp_path / "bin/k3s")
    planted = tmp_path / "node2/etc/cni/net.d/10-site.conflist"
    planted.parent.mkdir(parents=True)
    planted.write_text(json.dumps({"name": "site", "cniVersion": "1.0.0", "plugins": [{"type": "elsewhere"}]}))
    results = tmp_path / "results.json"
    code, output = play("verify", "-e", json.dumps({"verification_results": str(results)}))
    assert code != 0
    found = {node["host"]: node for node in json.loads(results.read_text())["nodes"]}
    assert "an earlier step of this run failed" not in output
    checks = {host: {one["id"]: one["status"] for one in node["checks"]} for host, node in found.items()}
    assert checks["node1"]["pod:tests"] == "failed"
    assert checks["node2"]["cni:plugin-missing"] == "failed"
    own = {
        host: {name for name in ids if name.startswith(("module:", "port:", "memlock:"))}
        for host, ids in checks.items()
    }
    assert own["node1"] == own["node2"] != set()
    assert {"cluster:node", "resource:" + pods.own_resource(0)} <= set(checks["node1"]) & set(checks["node2"])
    assert not [call for call in cluster.calls() if call[0] == "exec"]
    assert "gpufabric-verification" not in cluster.namespaces()


def test_check_mode_reads_the_cluster_once_and_starts_nothing(play, cluster):
    _code, output = play("verify", "--check")
    assert "Traceback" not in output
    assert [call[0] for call in cluster.calls()] == ["get"]
    assert "check mode starts no pod" in output


@pytest.mark.parametrize("playbook", ["verify", "matrix"])
def test_a_namespace_of_a_team_is_refused_and_nothing_in_it_goes(play, cluster, playbook):
    managed = [{"manager": "kubectl-create", "operation": "Update", "fieldsV1": []}]
    cluster.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml-team", "managedFields": managed}})
    cluster.add_pod("ml-team", "training", "node1")
    code, output = play(playbook, "-e", "verification_namespace=ml-team", "-e", "matrix_host=false")
    assert {"Namespace//ml-team", "Pod/ml-team/training"} <= set(cluster.objects)
    assert code != 0
    text = " ".join(output.split())
    assert "namespace ml-team" in text
    assert "managed by kubectl-create" in text
    assert "Traceback" not in output
    assert {call[0] for call in cluster.calls()} == {"get"}


def test_without_pods_the_cluster_is_not_asked(play, cluster):
    play("verify", "-e", "verification_pods=false", "--check")
    assert cluster.calls() == []


def test_the_variables_of_other_roles_are_typed_and_have_their_defaults(play, cluster):
    """Text is no consent to pod traffic over a rail, and blocks are held to what networks_pods_per_node is."""
    objects = cluster.objects
    node = next(item for item in objects.values() if item["kind"] == "Node")
    node["metadata"]["annotations"] = {"flannel.alpha.coreos.com/public-ip": ADDRESS}
    nad = next(item for item in objects.values() if item["kind"] == "NetworkAttachmentDefinition")
    config = json.loads(nad["spec"]["config"])
    config["ipam"] = {"type": "host-local", "subnet": "10.56.0.0/28"}
    nad["spec"]["config"] = json.dumps(config)
    cluster.state(objects=objects)
    output = " ".join(play("verify", "--check", "-e", "flannel_fabric_allowed=false")[1].split())
    assert f"Flannel uses {NETDEV} ({ADDRESS}), which is rail 0" in output
    assert "addresses for 16 pods per node" in output


def test_pods_are_measured_in_both_directions_and_are_gone_afterwards(play, cluster, tmp_path):
    settings = {"matrix_host": False, "matrix_seconds": 1, "matrix_json": str(tmp_path / "matrix.json")}
    code, output = play("matrix", "-e", json.dumps(settings))
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
    assert code != 0
    assert "pod round 2 of 2: 1 test, slowest 78.023 Gb/s" in output
    sent = cluster.calls("exec")
    # The double notes a call when its process has begun, and a server whose client is done may be ended before.
    assert 2 + 2 <= len(sent) <= 2 + 4, "each pod is asked once; a server and a client for each direction"
    assert len(cluster.calls("apply")) == 1
    assert "gpufabric-verification" not in cluster.namespaces()


def test_where_no_pod_can_be_measured_what_the_nodes_measured_is_kept(play, cluster, tmp_path):
    refuse_pods(tmp_path / "bin/k3s")
    code, output = play("matrix", "-e", json.dumps({"matrix_json": str(tmp_path / "matrix.json")}))
    assert code != 0
    assert "bandwidth from pod to pod: wanted measured, seen" in output
    assert "pods is forbidden" in output
    assert (tmp_path / "matrix.json").exists()
    tests = json.loads((tmp_path / "matrix.json").read_text())["tests"]
    assert {(row["path"], row["from"]) for row in tests} == {("host", "node1"), ("host", "node2")}
    assert "gpufabric-verification" not in cluster.namespaces()
