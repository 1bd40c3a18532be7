"""Tests that break a running lab on purpose. They need the lab of LAB_DIR to be up and converged; `make lab-pitfalls`
runs them so. Each test starts from the same snapshot and leaves the nodes in that state."""

import pytest
from ansible_collections.gpufabric.rdma.tests.tools.lab_nodes import Lab

SNAPSHOT = "converged"


@pytest.fixture(scope="session")
def converged():
    """The nodes as they are when the tests begin."""
    lab = Lab()
    lab.labctl("snapshot", SNAPSHOT)
    return lab


@pytest.fixture
def lab(converged):
    yield converged
    converged.labctl("restore", SNAPSHOT)


@pytest.fixture
def untouched(converged):
    """The nodes as they were after their first boot, for a test that converges them itself."""
    converged.labctl("restore", "ready")
    yield converged
    converged.labctl("restore", SNAPSHOT)
