"""What the first run promises: bare nodes to pods with verbs."""

import pytest
from ansible_collections.gpufabric.rdma.tests.tools.lab_components import components

# The goal is a ratio that an idle machine reaches; a busy one says by how much it missed.
GOAL = 3


def test_site_takes_bare_nodes_to_pods_with_verbs(cluster):
    if cluster.first is None:
        pytest.skip("not verified in this session: the cluster was there already, saved by the one that made it")
    for name in cluster.nodes:
        assert cluster.first.checks(name, "failed") == []

    found = components(cluster)
    for part, seconds in found.items():
        assert seconds >= 0, part
        cluster.note(f"{seconds:7.0f} s  of the parts by themselves: {part}")
    total = sum(found.values())
    ratio = cluster.first_seconds / total
    cluster.note(f"{total:7.0f} s  together; site.yml took {ratio:.1f} times that (goal {GOAL})")
