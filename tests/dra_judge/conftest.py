"""Kubernetes' own code judges the DRA driver. `make dra-judge` runs these tests: they need Go, no virtual machine."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import sys

import pytest
from ansible_collections.gpufabric.rdma.tests.tools.figures import Section

_spec = importlib.util.spec_from_file_location("dra_bed", pathlib.Path(__file__).with_name("bed.py"))
bed_module = importlib.util.module_from_spec(_spec)
sys.modules["dra_bed"] = bed_module
_spec.loader.exec_module(bed_module)

FIGURES = Section("what Kubernetes' own code said")
FORMS = {"as Kubernetes 1.35 comes": (), "with gates": bed_module.GATES}


def pytest_terminal_summary(terminalreporter, config):
    FIGURES.write(terminalreporter, config)


@pytest.fixture(scope="session")
def figures(pytestconfig):
    return FIGURES.lines(pytestconfig)


@pytest.fixture(scope="session", params=FORMS, ids=[name.replace(" ", "-") for name in FORMS])
def bed(request, figures):
    if not os.environ.get("DRA_JUDGE"):
        pytest.skip("not verified: needs Go, and minutes (make dra-judge)")
    with bed_module.running(FORMS[request.param]) as made:
        made.form = request.param
        made.figures = figures
        yield made
