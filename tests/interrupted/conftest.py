"""A fast node (tests/interrupted/beds.py) that a test may break, and how it looks after runs that nothing disturbed."""

from __future__ import annotations

import sys

import pytest
from ansible_collections.gpufabric.rdma.tests.tools.figures import Section

sys.path.insert(0, __file__.rpartition("/")[0])

import beds

FIGURES = Section("figures of interrupted runs")


def pytest_terminal_summary(terminalreporter, config):
    FIGURES.write(terminalreporter, config)


@pytest.fixture(scope="session")
def note(pytestconfig):
    """A line for the end of the session, and at once with pytest's -s."""
    lines = FIGURES.lines(pytestconfig)

    def write(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    return write


@pytest.fixture(scope="session")
def bed():
    found = beds.Fast()
    yield found
    found.close()


@pytest.fixture(scope="session")
def undisturbed(bed, note):
    """A first run that nothing disturbed, with what a finished node looks like."""
    bed.fresh()
    run = bed.start()
    assert run.code == 0, run.last()
    note(f"{run.seconds:7.1f} s  undisturbed first run, {run.passed} checks passed")
    run.look = bed.look()
    return run


@pytest.fixture
def node(bed, undisturbed):
    """The bed with a node that no run has touched."""
    bed.fresh()
    return bed
