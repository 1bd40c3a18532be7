"""Cordon, drain and uncordon of the role driver, against a double of kubectl that keeps its cluster in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, kubectl_cluster, node_python, tree

MARK = "rdma.gpufabric.io/cordoned-for-driver"
POD = kubectl_cluster.pod("jobs", "train-0", "node1", owner="ReplicaSet")
PROXY = kubectl_cluster.pod("kube-system", "kube-proxy-x", "node1", owner="DaemonSet")
# What the gate says of a node on which pods run; the driver itself is left alone here.
GATE = {"verdict": "nothing", "steps": ["cordon and drain the Kubernetes node"]}


class Cluster(kubectl_cluster.Cluster):
    """The cluster, and the two halves of the role that speak to it."""

    def __init__(self, folder, node):
        super().__init__(folder / "cluster.json")
        self.folder, self.node = folder, node
        self.add(kubectl_cluster.node("node1", annotations={"a.example/b": "kept"}), POD, PROXY)

    @property
    def cordoned(self):
        return self.objects["Node//node1"]["spec"].get("unschedulable", False)

    @property
    def annotations(self):
        return self.objects["Node//node1"]["metadata"]["annotations"]

    @property
    def pods(self):
        return [item for item in self.objects.values() if item["kind"] == "Pod"]

    def play(self, *halves, extra=(), **variables):
        """Runs activate.yml, verify.yml or both; (exit code, output, number of changes). extra: what -e is given."""
        playbook = [
            {
                "hosts": "all",
                "gather_facts": False,
                "tasks": [
                    {"ansible.builtin.include_role": {"name": "gpufabric.rdma.driver", "tasks_from": half}}
                    for half in halves
                ],
            }
        ]
        known = {
            "ansible_connection": "local",
            "ansible_python_interpreter": node_python.path(),
            "discovery_root": str(self.node),
            "driver_drain_allowed": True,
            "driver_drain_command": self.argv,
            "__driver_plan": {"changes": []},
            "__driver_gate": GATE,
            **variables,
        }
        (self.folder / "play.yml").write_text(json.dumps(playbook))
        (self.folder / "hosts.json").write_text(json.dumps({"all": {"hosts": {"node1": known}}}))
        given = [word for text in extra for word in ("-e", text)]
        done = subprocess.run(
            [ansible_playbook.path(), "-i", "hosts.json", "play.yml", *given],
            cwd=self.folder,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": ansible_playbook.no_settings(),
                "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
                "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
                "LC_ALL": "C.UTF-8",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        report = json.loads(done.stdout[done.stdout.index("{") :])
        return done.returncode, done.stdout, report["stats"]["node1"]["changed"]


@pytest.fixture
def cluster(tmp_path):
    tree.lay_out(tree.load("h100-8x-cx7-ib"), tmp_path / "node")  # memory and disk hold the same driver
    return Cluster(tmp_path, tmp_path / "node")


def test_the_node_is_cordoned_drained_and_uncordoned(cluster):
    code, output, changed = cluster.play("activate")
    assert (code, changed) == (0, 1), output
    assert cluster.cordoned
    assert cluster.annotations == {"a.example/b": "kept", MARK: "true"}
    assert cluster.pods == [PROXY]
    code, output, changed = cluster.play("verify")
    assert (code, changed) == (0, 1), output
    assert not cluster.cordoned
    assert cluster.annotations == {"a.example/b": "kept"}
    code, output, changed = cluster.play("verify")
    assert (code, changed) == (0, 0), output


def test_a_consent_given_as_text_lets_the_node_in_again(cluster):
    assert cluster.play("activate", extra=["driver_drain_allowed=true"])[0] == 0
    assert cluster.cordoned
    code, output, changed = cluster.play("verify", extra=["driver_drain_allowed=true"])
    assert (code, changed) == (0, 1), output
    assert not cluster.cordoned
    assert MARK not in cluster.annotations


def test_a_node_that_someone_else_has_cordoned_stays_cordoned(cluster):
    cordoned = kubectl_cluster.node("node1", annotations={})
    cordoned["spec"]["unschedulable"] = True
    cluster.add(cordoned)
    code, output, changed = cluster.play("activate", "verify")
    assert (code, changed) == (0, 1), output  # the drain alone
    assert cluster.cordoned
    assert cluster.annotations == {}
    assert cluster.pods == [PROXY]


def test_a_run_that_ended_between_drain_and_uncordon_is_picked_up_by_the_next(cluster):
    assert cluster.play("activate")[0] == 0
    # The run ends here. The next one finds the node cordoned, and knows by the note that it was this role.
    code, output, changed = cluster.play("activate", "verify")
    assert (code, changed) == (0, 1), output
    assert not cluster.cordoned
    assert MARK not in cluster.annotations


def test_a_next_run_that_has_nothing_to_drain_still_uncordons(cluster):
    assert cluster.play("activate")[0] == 0
    assert cluster.play("verify")[0] == 0
    assert not cluster.cordoned


def test_a_drain_that_a_disruption_budget_stops_is_reported_and_leaves_a_state_to_resume_from(cluster):
    cluster.state(budgets=["train-0"])
    code, output, _changed = cluster.play("activate")
    assert code != 0
    assert "node node1: wanted drained within 600 s, seen a disruption budget protects jobs/train-0" in output
    assert "global timeout reached: 600s" in output
    assert "Next step: fix what it reports" in output
    assert cluster.annotations[MARK] == "true"
    cluster.state(budgets=[])
    code, output, _changed = cluster.play("activate", "verify")
    assert code == 0, output
    assert not cluster.cordoned
    assert cluster.pods == [PROXY]


def test_a_name_that_the_cluster_does_not_know_is_reported(cluster):
    code, output, changed = cluster.play("activate", driver_drain_node="gpu-17")
    assert (code, changed) == (2, 0), output
    assert 'nodes \\"gpu-17\\" not found' in output
    assert "driver_drain_node" in output
    assert not cluster.cordoned


def test_without_consent_the_cluster_is_not_asked(cluster):
    assert cluster.play("verify", driver_drain_allowed=None)[0] == 0
    assert cluster.calls() == []
