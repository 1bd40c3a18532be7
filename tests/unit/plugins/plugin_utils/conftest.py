"""Facts of the nodes that a sound cluster is made of (tests/tools/pitfall_world.py)."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import pitfall_world


@pytest.fixture
def captured(facts_of, variables):
    """Facts of captured nodes, and the variables of a host that sets none."""
    found = {name: facts_of(name, rails=[]) for name in ("card-without-mlx5-ib", "exclusive-netns-foreign-file")}
    rails = [{"hca": "mlx5_0"}, {"hca": "mlx5_1"}]
    found["gh200-cx7-roce"] = facts_of("gh200-cx7-roce", rails=rails[:1])
    found["gh200-two-rails"] = facts_of("gh200-cx7-roce", rails=rails)
    pitfall_world.converged(found["gh200-cx7-roce"], variables)
    return {**found, "variables": variables}
