"""The benchmark measures what it says."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/bench_facts.py"


def bench(*arguments, env=None):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_it_prints_ratio_and_forks_and_says_what_it_could_not_compare():
    done = bench("--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout
    assert "forks                    0" in done.stdout
    assert "not verified here" in done.stdout


def test_commands_that_are_missing_are_named(tmp_path):
    done = bench("--rounds", "1", "--root", "/", "--cli", env={"PATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "not verified here: not installed: ibstat, ibv_devinfo, lspci, modinfo, rdma" in done.stdout


def test_commands_of_another_machine_are_refused(tmp_path):
    done = bench("--root", str(tmp_path), "--cli")
    assert done.returncode == 2
    assert "--root /" in done.stderr


def test_a_fork_is_counted(tmp_path):
    """The counter uses Python's audit events; a library that forked would show."""
    script = f"""
import sys; sys.argv = ["bench"]; sys.path.insert(0, {str(SCRIPT.parent)!r})
import bench_facts, subprocess
counter = bench_facts.ForkCounter()
subprocess.run(["true"])
counter.armed = True
subprocess.run(["true"])
print(counter.count)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
