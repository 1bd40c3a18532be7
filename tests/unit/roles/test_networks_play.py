"""The role networks as Ansible runs it: laid-out nodes, and a double of `k3s kubectl` instead of the cluster."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, kubectl_cluster, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
PLAY = [
    {
        "hosts": "gpu_nodes",
        "gather_facts": False,
        "tasks": [
            {"ansible.builtin.fail": {"msg": "planted"}, "when": "inventory_hostname in lost | default([])"},
            {"name": "Networks", "ansible.builtin.import_role": {"name": "gpufabric.rdma.networks"}},
        ],
    }
]
BLOCKS = "etc/cni/multus/net.d/gpufabric-rdma-rail0.conf"


class Site:
    """Two nodes, and the file that simulates the API server."""

    def __init__(self, folder):
        self.folder = folder
        self.cluster = kubectl_cluster.Cluster(folder / "cluster.json")
        self.cluster.install(folder / "bin/k3s")
        self.cluster.add(
            kubectl_cluster.definition(
                "k8s.cni.cncf.io", "NetworkAttachmentDefinition", "network-attachment-definitions"
            )
        )
        hosts = {}
        for number in (1, 2):
            root = folder / f"node{number}"
            tree.lay_out(tree.load("lab-rxe-debian12"), root)
            hosts[f"node{number}"] = {"discovery_root": str(root)}
        common = {
            "ansible_connection": "local",
            "ansible_python_interpreter": node_python.path(),
            "discovery_software_hcas": True,
            "discovery_rails": [{"hca": "rxe0"}, {"hca": "rxe1"}],
        }
        groups = {"gpu_nodes": {"hosts": hosts, "vars": common}, "k3s_servers": {"hosts": {"node1": None}}}
        (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
        (folder / "play.yml").write_text(yaml.safe_dump(PLAY))

    def networks(self):
        return [item for item in self.cluster.objects.values() if item["kind"] == "NetworkAttachmentDefinition"]

    def run(self, *arguments, **variables):
        done = subprocess.run(
            [
                *(ansible_playbook.path(), "-i", "hosts.yml", "play.yml", "--diff"),
                *("-e", json.dumps(variables)),
                *arguments,
            ],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
            },
            cwd=self.folder,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_blocks_lie_on_the_nodes_objects_in_the_cluster_and_a_second_run_changes_nothing(site):
    code, output = site.run(networks_rails=True)
    assert code == 0, output
    assert [(item["metadata"]["name"], item["spec"]) for item in site.networks()] == [("rail0", {}), ("rail1", {})]
    first, second = (json.loads((site.folder / f"node{n}" / BLOCKS).read_text()) for n in (1, 2))
    assert first["master"] == second["master"] == "eth2"
    assert first["ipam"]["ranges"][0][0]["rangeStart"] == "10.56.0.2"
    assert second["ipam"]["ranges"][0][0]["rangeStart"] == "10.56.0.18"
    code, again = site.run(networks_rails=True)
    assert code == 0, again
    assert again.count("changed=0") == 2, again


def test_a_limited_run_writes_its_nodes_and_leaves_the_cluster_alone(site):
    code, output = site.run("--limit", "node2", networks_rails=True)
    assert code == 0, output
    assert "this run sees 1 of 2 nodes, without node1" in " ".join(output.split())
    assert site.networks() == []
    second = json.loads((site.folder / "node2" / BLOCKS).read_text())
    assert second["ipam"]["ranges"][0][0]["rangeStart"] == "10.56.0.18"
    assert not (site.folder / "node1" / BLOCKS).exists()


def test_a_node_that_failed_earlier_in_the_play_is_named_and_the_cluster_left_alone(site):
    """Objects planned from the others would send its pods to nothing. It is not in the group of nodes, only played."""
    inventory = yaml.safe_load((site.folder / "hosts.yml").read_text())
    nodes = inventory["all"]["children"]["gpu_nodes"]
    moved = {"node2": {**nodes["hosts"].pop("node2"), "networks_node_number": 1}}
    inventory["all"]["children"]["others"] = {"hosts": moved, "vars": nodes["vars"]}
    (site.folder / "hosts.yml").write_text(yaml.safe_dump(inventory))
    (site.folder / "play.yml").write_text(yaml.safe_dump([{**PLAY[0], "hosts": "gpu_nodes:others"}]))
    code, output = site.run(networks_rails=True, lost=["node2"])
    assert code != 0, output
    assert "this run sees 1 of 2 nodes, without node2" in " ".join(output.split())
    assert site.networks() == []
    assert (site.folder / "node1" / BLOCKS).exists()


def test_check_mode_without_an_api_server_lists_what_would_come(site):
    site.cluster.state(down=True)
    code, output = site.run("--check", networks_rails=True)
    assert code == 0, output
    assert "NetworkAttachmentDefinition default/rail0" in output
    assert not (site.folder / "node1" / BLOCKS).exists()


def test_what_cannot_work_stops_before_anything_changes(site):
    bad = [
        {"name": "one", "type": "macvlan", "master": "eth9", "subnet": "10.42.9.0/24"},
        {"name": "two", "type": "macvlan", "rail": 0, "mtu": 9000, "resource_name": "rdma/nobody", "ipam": "none"},
    ]
    code, output = site.run(networks_attachments=bad)
    assert code != 0
    for words in ("interface eth9 on each node", "pod network 10.42.0.0/16", "mtu 9000", "rdma/nobody"):
        assert words in " ".join(output.split()), words
    assert "Traceback" not in output
    assert site.networks() == []
    assert not (site.folder / "node1" / BLOCKS).exists()
