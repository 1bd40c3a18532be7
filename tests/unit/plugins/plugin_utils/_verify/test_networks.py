"""The networks that pods on a node can get: by its resources, from the cluster or from its own files."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pods

RESOURCE = "k8s.v1.cni.cncf.io/resourceName"


def definition(name, config, resource=None):
    meta = {"name": name, "namespace": "default", **({"annotations": {RESOURCE: resource}} if resource else {})}
    return {"kind": "NetworkAttachmentDefinition", "metadata": meta, "spec": {"config": config} if config else {}}


NODES = [
    {"name": "node1", "addresses": [], "capacity": {"rdma/rail0": 63}},
    {"name": "node2", "addresses": ["10.0.0.2"], "capacity": {}},
]
NADS = [
    definition("any", '{"type": "macvlan"}'),
    definition("rail0", '{"type": "host-device"}', "rdma/rail0"),
    definition("file", None),
]
FILES = {"gpufabric-rdma-file.conf": json.dumps({"name": "file", "type": "ipvlan"})}


def node(name, *addresses):
    networks = {"netdevs": {"eth0": {"addresses": list(addresses)}}, "files": FILES}
    return {"host": name, "read": {"networks": networks}}


@pytest.mark.parametrize(
    ("host", "names"),
    [(node("node1"), ["any", "rail0", "file"]), (node("gpu2", "10.0.0.2/24"), ["any", "file"]), (node("stranger"), [])],
)
def test_a_node_gets_the_networks_whose_resource_it_has(host, names):
    found = pods.networks([host], {"nodes": NODES, "nads": NADS})[host["host"]]
    assert [one["name"] for one in found] == [f"NetworkAttachmentDefinition default/{name}" for name in names]
    assert all(json.loads(one["config"])["type"] for one in found)


def test_without_the_cluster_its_own_files_are_known():
    known = {"name": "network file gpufabric-rdma-file.conf", "config": FILES["gpufabric-rdma-file.conf"]}
    assert pods.networks([node("node1")], None) == {"node1": [known]}
