"""How often a node of a converged cluster is asked: once for what several roles ask, and again after a change.

Two laid-out nodes, a bundle, and a double of kubectl. tests/cluster/test_runs.py counts those of a whole run.
"""

from __future__ import annotations

import collections
import json

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import running
from ansible_collections.gpufabric.rdma.tests.unit.playbooks.test_drift_cluster import Cluster

# As site.yml has them in one run; verify.yml asks on its own.
NAMES = ("nodes", "cluster_nodes", "host", "cluster")
LAYERS = [{"import_playbook": f"gpufabric.rdma.layers.{name}"} for name in NAMES]
# What preflights read, and what the roles after them have use for as long as nothing has been changed.
READ = "Gather facts of the node"
ON_A_NODE = (
    READ,
    "Install the CNI plugins",
    "Configure and start k3s",
    "Configure kernel modules, sysctls and CNI",
    "Install the unit that removes the startup taint",
    "Install the unit that removes a stale Multus configuration",
    "Install and start the device plugin",
)
PERSISTED = "etc/modules-load.d/gpufabric-rdma.conf"
UP = {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": 2}


class Layers(Cluster):
    """A cluster whose workloads are up."""

    def __init__(self, folder):
        super().__init__(folder)
        # As for who installs the collection: the playbooks set it.
        self.environment.pop("ANSIBLE_PIPELINING")
        (folder / "layers.yml").write_text(json.dumps(LAYERS))
        self._run({})
        objects = self.cluster.objects
        for item in objects.values():
            if item["kind"] == "DaemonSet":
                item["status"] = UP
        self.cluster.state(objects=objects)

    def calls(self, record):
        """{host: {task: remote calls}} of a run of host and cluster layer."""
        self._run(running.environment(record))
        return {
            name: collections.Counter(call.partition(" [")[0].rpartition(" : ")[2] for call in host["calls"])
            for name, host in running.written(record).items()
            if name in self.nodes
        }

    def _run(self, more):
        kept, self.environment = self.environment, {**self.environment, **more}
        code, output = self.command("ansible-playbook", "-i", "hosts.json", "layers.yml")
        self.environment = kept
        assert code == 0, output


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    return Layers(tmp_path_factory.mktemp("cluster"))


def test_a_converged_node_is_read_once_and_asked_only_by_what_could_differ_in_it(layers, tmp_path):
    found = layers.calls(tmp_path)
    assert found["node1"] == dict.fromkeys((*ON_A_NODE, "Apply the objects of all roles"), 1)
    assert found["node2"] == dict.fromkeys(ON_A_NODE, 1)


def test_after_a_change_of_the_host_layer_nothing_that_was_read_before_it_is_used(layers, tmp_path):
    (layers.nodes["node2"] / PERSISTED).unlink()
    found = layers.calls(tmp_path)
    assert [found[name][READ] for name in layers.nodes] == [2, 2]
    for task in ("Load and persist kernel modules", "Set the RDMA network namespace mode"):
        assert (found["node1"][task], found["node2"][task]) == (0, 1), "the other node had nothing to change"
    assert found["node1"]["Apply the objects of all roles"] == 1
