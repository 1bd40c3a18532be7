"""cluster_node, as Ansible runs it, against the double of kubectl."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.node import MARK
from ansible_collections.gpufabric.rdma.plugins.modules import cluster_node
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running

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
        given = {"name": "node1", "state": state, "kubectl": self.argv, "api_timeout_seconds": 0, **options}
        return running.module(cluster_node, check, **given)

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


@pytest.mark.parametrize(
    ("steps", "left", "cordoned"),
    [
        ("cordon -> drained:drain uncordoned:", KEPT, True),
        ("drained:cordon,drain -> uncordon uncordoned:remove uncordoned:", KEPT, False),
        ("drained:cordon,drain uncordon cordon -> uncordoned:remove uncordoned:", KEPT, True),
        ("drained:cordon,drain uncordon cordon -> drained:remove uncordoned:", KEPT, True),
        ("drained:cordon,drain uncordon -> drained:cordon uncordoned:uncordon", KEPT, False),
    ],
    ids=[
        "cordoned before",
        "uncordoned meanwhile",
        "and cordoned again",
        "and drained",
        "our mark outlived it",
    ],
)
def test_a_cordon_of_an_administrator_is_not_ours(cluster, steps, left, cordoned):
    """steps: what an administrator does, and a run of the module with the actions that it takes."""
    for step in steps.replace("->", "").split():
        state, colon, wanted = step.partition(":")
        if not colon:
            cluster.admin(step)
            continue
        announced = cluster.run(state, check=True)
        done = cluster.run(state)
        assert actions(announced) == actions(done) == (wanted.split(",") if wanted else []), step
        assert bool(done["notes"]) == (cluster.cordoned and MARK not in cluster.annotations), step
    assert (cluster.cordoned, cluster.annotations) == (cordoned, left)


def test_a_run_that_ended_between_cordon_and_drain_is_picked_up(cluster):
    node = cluster_node.Node(cluster.client(), "node1", 60)
    next(iter(node.apply(cluster_node.plan_drain(node.read()).changes)))
    assert cluster.cordoned
    assert actions(cluster.run("drained")) == ["drain"]
    assert actions(cluster.run("uncordoned")) == ["uncordon"]


def test_a_pod_that_tolerates_the_cordon_and_comes_back_is_not_evicted_again(cluster):
    node = cluster_node.Node(cluster.client(), "node1", 60)
    assert len(list(node.apply(cluster_node.plan_drain(node.read()).changes))) == 2
    cluster.add(kubectl_cluster.pod("jobs", "train-2", "node1", owner="ReplicaSet"))
    assert cluster_node.plan_drain(node.read()).changes == []


def refused(cluster, **options):
    found = cluster.run("drained", **options)
    (finding,) = found["findings"]
    return found, finding


def test_pods_that_a_disruption_budget_protects_are_named_and_the_next_run_picks_up(cluster):
    cluster.state(budgets=["train-0"])
    found, finding = refused(cluster, timeout_seconds=7)
    assert (finding["object"], finding["wanted"]) == ("node node1", "drained within 7 s")
    assert "jobs/train-0" in finding["seen"]
    assert "global timeout reached: 7s" in finding["seen"]
    assert actions(found) == ["cordon"], "what was done before is told"
    assert cluster.annotations[MARK] == "true"
    cluster.state(budgets=[])
    assert actions(cluster.run("drained")) == ["drain"]


def test_what_cannot_be_drained_is_named(cluster):
    assert 'nodes "gpu-17" not found' in refused(cluster, name="gpu-17")[1]["seen"]
    assert not cluster.cordoned
    cluster.add(kubectl_cluster.pod("default", "mine", "node1"))
    assert "default/mine" in refused(cluster)[1]["seen"], "a pod without a controller"
    assert {TRAIN, "Pod/default/mine"} <= set(cluster.objects)
    cluster.state(down=True)
    for state in ("drained", "uncordoned"):
        assert [finding["object"] for finding in cluster.run(state)["findings"]] == ["API server"]


def test_slices_of_a_node_go_and_those_of_others_stay(cluster):
    for driver, node in (("rdma.gpufabric.io", "node1"), ("rdma.gpufabric.io", "node2"), ("gpu.nvidia.com", "node1")):
        spec = {"driver": driver, "nodeName": node, "pool": {"name": node, "generation": 1}}
        cluster.add(
            {"kind": "ResourceSlice", "apiVersion": "v1", "metadata": {"name": f"{node}-{driver}"}, "spec": spec}
        )
    wanted = [("ResourceSlice node1-rdma.gpufabric.io", "delete")]
    for check in (True, False):
        result = cluster.run("withdrawn", check=check)
        assert [(change["object"], change["action"]) for change in result["changes"]] == wanted
    assert cluster.run("withdrawn")["changes"] == []
    assert len([item for item in cluster.objects.values() if item["kind"] == "ResourceSlice"]) == 2
    cluster.state(without=["ResourceSlice"])
    assert cluster.run("withdrawn")["changes"] == []
    cluster.state(down=True)
    silent = cluster.run("withdrawn")
    assert (silent.get("failed", False), silent["changes"], len(silent["not_verified"])) == (False, [], 1)
