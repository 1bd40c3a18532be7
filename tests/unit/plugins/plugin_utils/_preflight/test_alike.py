"""A node that differs from most of its like is named, with what it lacks."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.alike import differing

WHOLE = [[0, "0000:18:00.0"], [1, "0000:3a:00.0"]]


@pytest.mark.parametrize(
    ("nodes", "odd"),
    [
        ({"a": WHOLE, "b": WHOLE, "c": WHOLE[:1]}, {"c": "rail 1 (0000:3a:00.0)"}),
        ({"a": WHOLE, "b": WHOLE, "c": [WHOLE[0], [1, "0000:5c:00.0"]]}, {"c": "instead of 0000:3a:00.0"}),
        ({"a": WHOLE, "b": WHOLE}, {}),
        ({"a": WHOLE, "b": WHOLE[:1]}, {}),
        ({"a": WHOLE, "b": WHOLE, "c": WHOLE[:1], "d": WHOLE[1:]}, {}),
    ],
    ids=["a card is missing", "another card", "alike", "no majority of two", "no majority of four"],
)
def test_the_node_that_differs(nodes, odd):
    maps = {host: {"product": ["DGX", "x86_64"], "rails": rails} for host, rails in nodes.items()}
    maps["other"] = {"product": ["another"], "rails": []}
    found = differing(maps)
    assert found.keys() == odd.keys()
    assert all(odd[host] in found[host] for host in odd)
