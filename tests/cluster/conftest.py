"""The lab's cluster after `site.yml`, for tests that break it on purpose."""

import pytest
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import SNAPSHOT, Cluster

FIGURES = pytest.StashKey[list]()


def pytest_terminal_summary(terminalreporter, config):
    lines = config.stash.get(FIGURES, [])
    if lines:
        terminalreporter.section("figures of the lab's cluster")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def brought_up(pytestconfig):
    found = Cluster()
    found.figures = pytestconfig.stash.setdefault(FIGURES, [])
    found.bring_up()
    return found


@pytest.fixture
def cluster(brought_up):
    """For a test that leaves the cluster unchanged."""
    return brought_up


@pytest.fixture
def breakable(brought_up):
    """For a test that changes it: the nodes are restored afterwards."""
    yield brought_up
    brought_up.labctl("restore", SNAPSHOT)
    brought_up.wait(brought_up.settled, "all nodes Ready and all pods running")
