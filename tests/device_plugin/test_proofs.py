"""Each row and each pitfall has tests that exist, and each pitfall a fault that is planted against one of them."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import faults
import proofs
import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def collected():
    """IDs of all tests of this folder, `file::name`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", str(HERE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-2000:]
    return {line.removeprefix("tests/device_plugin/") for line in done.stdout.splitlines()}


def test_all_rows_and_pitfalls_are_there():
    assert list(proofs.ROWS) == [f"A{number}" for number in range(1, 43)]
    assert sorted(proofs.PITFALLS) == [*range(1, 15), 17]


def test_every_proof_is_collected(collected):
    named = {test for tests in [*proofs.ROWS.values(), *proofs.PITFALLS.values()] for test in tests}
    named |= {fault.test for fault in faults.FAULTS}
    assert named - collected == set()


def test_every_pitfall_has_a_fault_against_its_tests():
    for number, tests in proofs.PITFALLS.items():
        planted = {fault.test for fault in faults.FAULTS if fault.pitfall == f"pitfall {number}"}
        assert planted & set(tests), f"pitfall {number}: no fault is planted"


@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.title)
def test_a_fault_can_be_planted(fault):
    """What it replaces is there, once"""
    for name, old, new in fault.edits:
        text = (faults.CHECKOUT / faults.PACKAGE / name).read_text()
        assert text.count(old) == 1, f"{name}: {old}"
        compile(text.replace(old, new), name, "exec")
