"""verify.yml and matrix.yml with a cluster: laid-out nodes, and a double of `k3s kubectl` instead of the cluster."""

import json
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROCE = (tree.texts("output") / "pod-roce.txt").read_text()
NETDEV = "enp1s0f0np0"
PROGRAMS = ("loopback", "macvlan", "whereabouts")
PODS = [{"kind": kind, "node": f"node{number}"} for kind in ("workload", "seed") for number in (1, 2)]


@pytest.fixture
def cluster(tmp_path):
    """The cluster that the plays run against; its test pods answer like those of guide 004."""
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
    for name in ("node1", "node2"):
        root = tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / name)
        hosts[name] = {"discovery_root": str(root)}
        # Without them no pod can start, so none is tried.
        (root / "opt/cni/bin").mkdir(parents=True)
        for program in PROGRAMS:
            (root / "opt/cni/bin" / program).write_text("#!/bin/sh\n")
            (root / "opt/cni/bin" / program).chmod(0o755)
    # Without an image the pods run the node's own tools, and a tree of files has none.
    own = {"limits_services": ["containerd"], "verification_image": "localhost/verification:test"}
    common = running.local(**own, discovery_rails=[{"pci": "0000:01:00.0"}])
    groups = {"gpu_nodes": {"hosts": hosts, "vars": common}, "k3s_servers": {"hosts": {"node1": None}}}

    def run(playbook, *arguments, **variables):
        words = (f"gpufabric.rdma.{playbook}", "-e", json.dumps(variables), *arguments)
        code, output = running.play(tmp_path, *words, inventory={"all": {"children": groups}})
        assert "Traceback" not in output
        assert "gpufabric-verification" not in cluster.namespaces(), "it is gone afterwards"
        return code, " ".join(output.split()), output

    return run


@pytest.fixture
def checks(play, tmp_path):
    """checks(): {host: {id: check}} of a verification."""

    def run():
        play("verify", verification_results=str(tmp_path / "results.json"))
        nodes = json.loads((tmp_path / "results.json").read_text())["nodes"]
        return {node["host"]: {one["id"]: one for one in node["checks"]} for node in nodes}

    return run


def test_pods_are_run_judged_and_gone_and_the_linter_speaks(play, cluster):
    output = play("verify")[2]
    failed = output.partition("\nFailed\n")[2].partition("\nNot verified\n")[0]
    # The nodes were never set up, which is reported; the pods are fine; the linter reports the network.
    assert [kind for kind in ("pod workload", "pod seed") if kind in failed] == []
    assert f"{NETDEV} of node1 carries the default route" in " ".join(failed.split())
    assert "ib_write_bw rail 0 over net1: pod on node1 -> node2" in output
    assert {"apply", "exec", "delete"} <= {call[0] for call in cluster.calls()}


def test_a_program_of_a_network_that_cannot_run_is_named_on_its_node_and_not_waited_for(checks, cluster, tmp_path):
    (tmp_path / "node2/opt/cni/bin/macvlan").chmod(0o644)
    found = checks()
    assert "cni:plugin-not-executable" not in found["node1"]
    assert found["node2"]["cni:plugin-not-executable"]["object"] == "/opt/cni/bin/macvlan"
    assert found["node2"]["pod:workload"]["seen"] == "/opt/cni/bin/macvlan: mode 0644"
    assert not [call for call in cluster.calls("exec") if "node2" in " ".join(call)]


def refuse_pods(program):
    """The API server refuses applied objects."""
    refusal = "Error from server (Forbidden): pods is forbidden"
    said = f'[ "$1" = apply ] && {{ echo "{refusal}" >&2; exit 1; }}'
    program.write_text(program.read_text().replace("exec", f"{said}\nexec"))


def test_where_the_pod_part_fails_for_the_first_node_every_node_keeps_its_own_checks(checks, cluster, tmp_path):
    """The API server refuses the pods; node2 has a CNI configuration without its plugin."""
    refuse_pods(tmp_path / "bin/k3s")
    planted = tmp_path / "node2/etc/cni/net.d/10-site.conflist"
    planted.parent.mkdir(parents=True)
    planted.write_text(json.dumps({"name": "site", "cniVersion": "1.0.0", "plugins": [{"type": "elsewhere"}]}))
    found = checks()
    assert found["node1"]["pod:tests"]["status"] == "failed"
    assert found["node2"]["cni:plugin-missing"]["status"] == "failed"
    own = [{name for name in ids if name.startswith(("module:", "port:", "memlock:"))} for ids in found.values()]
    assert own[0] == own[1] != set()
    assert {"cluster:node", "resource:" + pods.own_resource(0)} <= set(found["node1"]) & set(found["node2"])
    assert cluster.calls("exec") == []


def test_check_mode_reads_the_cluster_once_and_starts_nothing(play, cluster):
    play("verify", "--check", verification_pods=False)
    assert cluster.calls() == []
    assert "check mode starts no pod" in play("verify", "--check")[1]
    assert [call[0] for call in cluster.calls()] == ["get"]


@pytest.mark.parametrize("playbook", ["verify", "matrix"])
def test_a_namespace_of_a_team_is_refused_and_nothing_in_it_goes(play, cluster, playbook):
    managed = [{"manager": "kubectl-create", "operation": "Update", "fieldsV1": []}]
    cluster.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml-team", "managedFields": managed}})
    cluster.add_pod("ml-team", "training", "node1")
    code, output, _lines = play(playbook, verification_namespace="ml-team", matrix_host=False)
    assert {"Namespace//ml-team", "Pod/ml-team/training"} <= set(cluster.objects)
    assert (code != 0, "managed by kubectl-create" in output) == (True, True)
    assert {call[0] for call in cluster.calls()} == {"get"}


def test_pods_are_measured_in_both_directions_and_are_gone_afterwards(play, cluster, tmp_path):
    given = {"matrix_host": False, "matrix_seconds": 1, "matrix_json": str(tmp_path / "matrix.json")}
    code, _output, _lines = play("matrix", **given)
    tests = json.loads((tmp_path / "matrix.json").read_text())["tests"]
    # The double's 9301.10 MB/s is 78 Gb/s, which is little for this card.
    keys = ("path", "rail", "gbit_per_s", "verdict", "from", "to")
    told = ("pod", 0, 78.023, "outlier")
    assert [tuple(row[key] for key in keys) for row in tests] == [(*told, "node1", "node2"), (*told, "node2", "node1")]
    assert {tuple(row["counters_not_read"]) for row in tests} == {("from", "to")}
    assert code != 0
    # The double records a call once its process has begun, and a server may be killed earlier if its client is done.
    assert 2 + 2 <= len(cluster.calls("exec")) <= 2 + 4, "each pod is asked once; two ends for each direction"
    assert len(cluster.calls("apply")) == 1


def test_where_no_pod_can_be_measured_what_the_nodes_measured_is_kept(play, cluster, tmp_path):
    refuse_pods(tmp_path / "bin/k3s")
    code, output, _lines = play("matrix", matrix_json=str(tmp_path / "matrix.json"))
    assert (code != 0, "pods is forbidden" in output) == (True, True)
    tests = json.loads((tmp_path / "matrix.json").read_text())["tests"]
    assert {(row["path"], row["from"]) for row in tests} == {("host", "node1"), ("host", "node2")}
