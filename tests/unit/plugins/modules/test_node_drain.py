"""node_drain, as Ansible runs it, against the double of kubectl."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.node import MARK
from ansible_collections.gpufabric.rdma.plugins.modules import node_drain
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

KEPT = {"a.example/b": "kept"}
TRAIN, PROXY, MIRROR = "Pod/jobs/train-0", "Pod/kube-system/kube-proxy-x", "Pod/kube-system/static-node1"


class Cluster(kubectl_cluster.Cluster):
    """node1 with a pod of a ReplicaSet, one of a DaemonSet and one of the kubelet's own; node2 with one more."""

    def __init__(self, path):
        super().__init__(path)
        self.add(
            kubectl_cluster.node("node1", annotations={"a.example/b": "kept"}),
            kubectl_cluster.node("node2"),
            kubectl_cluster.pod("jobs", "train-0", "node1", owner="ReplicaSet"),
            kubectl_cluster.pod("jobs", "train-1", "node2", owner="ReplicaSet"),
            kubectl_cluster.pod("kube-system", "kube-proxy-x", "node1", owner="DaemonSet"),
            kubectl_cluster.pod(
                "kube-system", "static-node1", "node1", owner="Node", annotations={"kubernetes.io/config.mirror": "x"}
            ),
        )

    def run(self, state, check=False, **options):
        arguments = {"name": "node1", "state": state, "kubectl": self.argv, "api_timeout_seconds": 0, **options}
        done = subprocess.run(
            [sys.executable, node_drain.__file__],
            input=json.dumps({"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check}}),
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": ":".join(sys.path), "LC_ALL": "C.UTF-8"},
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    def admin(self, verb):
        """What an administrator does at the command line."""
        assert self.client().run(verb, "node1")[0] == 0

    @property
    def cordoned(self):
        return self.objects["Node//node1"]["spec"].get("unschedulable", False)

    @property
    def annotations(self):
        return self.objects["Node//node1"]["metadata"]["annotations"]


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path / "cluster.json")


def actions(result):
    return [change["action"] for change in result["changes"]]


def test_a_node_is_cordoned_drained_and_uncordoned_and_each_second_run_changes_nothing(cluster):
    announced = cluster.run("drained", check=True)
    assert {call[0] for call in cluster.calls()} == {"get"}
    drained = cluster.run("drained")
    assert actions(announced) == actions(drained) == ["cordon", "drain"]
    assert drained["changes"][1]["before"] == "jobs/train-0"
    assert cluster.cordoned
    assert cluster.annotations == {"a.example/b": "kept", MARK: "true"}
    assert {name for name in cluster.objects if name.startswith("Pod/")} == {"Pod/jobs/train-1", PROXY, MIRROR}
    assert cluster.run("drained")["changed"] is False
    assert len(cluster.calls("drain")) == 1

    assert actions(cluster.run("uncordoned", check=True)) == ["uncordon"]
    assert cluster.cordoned
    assert actions(cluster.run("uncordoned")) == ["uncordon"]
    assert not cluster.cordoned
    assert cluster.annotations == {"a.example/b": "kept"}
    assert cluster.run("uncordoned")["changed"] is False


def test_a_node_that_someone_else_has_cordoned_stays_cordoned(cluster):
    cluster.admin("cordon")
    drained = cluster.run("drained")
    assert actions(drained) == ["drain"]
    assert drained["notes"] == ["node node1 was cordoned by someone else and stays cordoned afterwards"]
    left = cluster.run("uncordoned")
    assert (left["changed"], left["notes"]) == (False, ["node node1 was cordoned by someone else and stays cordoned"])
    assert cluster.cordoned
    assert cluster.annotations == KEPT


def test_a_mark_that_outlives_an_administrators_uncordon_is_removed_and_nothing_else(cluster):
    cluster.run("drained")
    cluster.admin("uncordon")
    assert cluster.annotations == {**KEPT, MARK: "true"}
    announced, done = cluster.run("uncordoned", check=True), cluster.run("uncordoned")
    assert actions(announced) == actions(done) == ["remove"]
    assert done["changes"][0]["object"] == f"annotation {MARK} of node node1"
    assert (cluster.cordoned, cluster.annotations) == (False, KEPT)
    assert cluster.run("uncordoned")["changed"] is False


@pytest.mark.parametrize("drained_between", [False, True])
def test_a_cordon_that_an_administrator_sets_after_lifting_ours_is_not_taken_for_ours(cluster, drained_between):
    cluster.run("drained")
    cluster.admin("uncordon")
    cluster.admin("cordon")
    if drained_between:
        drained = cluster.run("drained")
        assert actions(drained) == ["remove"]
        assert drained["notes"] == ["node node1 was cordoned by someone else and stays cordoned afterwards"]
    left = cluster.run("uncordoned")
    assert actions(left) == ([] if drained_between else ["remove"])
    assert left["notes"] == ["node node1 was cordoned by someone else and stays cordoned"]
    assert (cluster.cordoned, cluster.annotations) == (True, KEPT)


def test_a_mark_that_outlived_its_cordon_is_kept_by_the_next_cordon_of_ours(cluster):
    cluster.run("drained")
    cluster.admin("uncordon")
    assert actions(cluster.run("drained")) == ["cordon"]
    assert actions(cluster.run("uncordoned")) == ["uncordon"]
    assert (cluster.cordoned, cluster.annotations) == (False, KEPT)


def test_a_run_that_ended_between_cordon_and_drain_is_picked_up(cluster):
    node = node_drain.Node(cluster.client(), "node1", 60)
    next(iter(node.apply(node_drain.plan_drain(node.read()).changes)))
    assert cluster.cordoned
    assert actions(cluster.run("drained")) == ["drain"]
    assert actions(cluster.run("uncordoned")) == ["uncordon"]
    assert not cluster.cordoned


def test_pods_that_a_disruption_budget_protects_are_named_and_the_next_run_picks_up(cluster):
    cluster.state(budgets=["train-0"])
    refused = cluster.run("drained", timeout_seconds=7)
    assert refused["failed"]
    (finding,) = refused["findings"]
    assert (finding["object"], finding["wanted"]) == ("node node1", "drained within 7 s")
    assert finding["seen"].startswith("a disruption budget protects jobs/train-0: ")
    assert "global timeout reached: 7s" in finding["seen"]
    assert "poddisruptionbudgets" in finding["next_step"]
    assert actions(refused) == ["cordon"], "what was done before is told"
    assert cluster.annotations[MARK] == "true"
    cluster.state(budgets=[])
    assert actions(cluster.run("drained")) == ["drain"]
    assert actions(cluster.run("uncordoned")) == ["uncordon"]


def test_a_pod_without_a_controller_stops_the_drain_and_is_named(cluster):
    cluster.add(kubectl_cluster.pod("default", "mine", "node1"))
    (finding,) = cluster.run("drained")["findings"]
    assert "declare no controller" in finding["seen"]
    assert "default/mine" in finding["seen"]
    assert {TRAIN, "Pod/default/mine"} <= set(cluster.objects)


def test_a_pod_that_tolerates_the_cordon_and_comes_back_is_not_evicted_again(cluster):
    node = node_drain.Node(cluster.client(), "node1", 60)
    assert len(list(node.apply(node_drain.plan_drain(node.read()).changes))) == 2
    cluster.add(kubectl_cluster.pod("jobs", "train-2", "node1", owner="ReplicaSet"))
    assert node_drain.plan_drain(node.read()).changes == []


def test_a_name_that_the_cluster_does_not_know_is_reported(cluster):
    (finding,) = cluster.run("drained", name="gpu-17")["findings"]
    assert 'nodes "gpu-17" not found' in finding["seen"]
    assert "driver_drain_node" in finding["next_step"]
    assert not cluster.cordoned


def test_an_api_server_that_does_not_answer_is_reported(cluster):
    cluster.state(down=True)
    for state in ("drained", "uncordoned"):
        (finding,) = cluster.run(state)["findings"]
        assert (finding["object"], finding["wanted"]) == ("API server", "an answer")
        assert "driver_drain_host" in finding["next_step"]
