"""bin/drift.py: an exit code is an answer only where this very run has reached a verdict."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

WRAPPER = pathlib.Path(__file__).resolve().parents[3] / "bin/drift.py"
CODES = {"converged": 0, "drift": 2, "reboot_pending": 3, "unsafe": 4, "unreachable": 4}
# Stands for ansible-playbook and the recorder: writes what PLAN says where the verdict was asked for, and ends as PLAN
# says.
RUNNER = """#!{python}
import json, os, pathlib, signal, sys, time
plan = json.loads(os.environ["PLAN"])
handed = json.loads(sys.argv[sys.argv.index("--extra-vars") + 1])
pathlib.Path("arguments.json").write_text(json.dumps(sys.argv[1:]))
if "verdict" in plan:
    written = {{"run": handed["drift_run"], **plan["verdict"]}}
    place = handed.get("drift_verdict_file", "drift/verdict.json")
    for path in (pathlib.Path(place), pathlib.Path(os.environ["GPUFABRIC_RDMA_DRIFT_ANSWER"])):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(plan.get("text") or json.dumps(written))
if plan.get("sleep"):
    pathlib.Path("started").touch()
    time.sleep(plan["sleep"])
if plan.get("signal"):
    os.kill(os.getpid(), plan["signal"])
sys.exit(plan.get("code", 0))
"""


def verdict(*answers, **change):
    worst = max(answers, key=list(CODES).index)
    hosts = {f"node{number}": answer for number, answer in enumerate(answers)}
    found = {"schema": "gpufabric.rdma/drift-verdict/1", "at": "2026-11-22T07:10:00Z", "verdict": worst}
    return {**found, "exit_code": CODES[worst], "hosts": hosts, **change}


@pytest.fixture
def call(tmp_path):
    """call(plan of the runner, *arguments): (exit code, what the wrapper says)."""
    runner = tmp_path / "bin/ansible-playbook"
    runner.parent.mkdir()
    runner.write_text(RUNNER.format(python=sys.executable))
    runner.chmod(0o755)
    environment = {**os.environ, "PATH": f"{runner.parent}:{os.environ['PATH']}"}

    def run(plan, *arguments, background=False):
        command = [sys.executable, WRAPPER, *arguments]
        settings = {"cwd": tmp_path, "env": {**environment, "PLAN": json.dumps(plan)}, "text": True}
        if background:
            return subprocess.Popen(command, stderr=subprocess.PIPE, **settings)
        done = subprocess.run(command, capture_output=True, check=False, **settings)
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize(
    ("answers", "ansible", "code"),
    [
        (["converged"], 0, 0),
        (["converged", "drift"], 0, 2),
        (["drift", "reboot_pending", "converged"], 0, 3),
        (["drift", "unsafe", "reboot_pending"], 0, 4),
        (["converged", "unreachable"], 4, 4),
        (["converged", "unreachable"], 0, 4),
        (["unsafe", "converged"], 2, 4),
    ],
)
def test_the_worst_host_gives_the_exit_code(call, answers, ansible, code):
    seen, told = call({"verdict": verdict(*answers), "code": ansible})
    assert seen == code, told
    assert f"exit code {code}" in told


NO_VERDICT = {
    "ansible-playbook ended at once": {"code": 4},
    "ansible-playbook ended well and nobody wrote": {"code": 0},
    "a syntax error": {"code": 4, "verdict": verdict("converged", run="an earlier one")},
    "an earlier run's verdict": {"code": 0, "verdict": verdict("converged", run="an earlier one")},
    "not JSON": {"code": 0, "verdict": {}, "text": "{"},
    "JSON that is no verdict": {"code": 0, "verdict": {}, "text": "[]"},
    "another schema": {"code": 0, "verdict": verdict("converged", schema="gpufabric.rdma/drift/1")},
    "no host": {"code": 0, "verdict": verdict("converged", hosts={})},
    "a code that is not the worst host's": {"code": 0, "verdict": verdict("drift", verdict="converged", exit_code=0)},
    "an answer that nobody knows": {"code": 0, "verdict": verdict("converged", hosts={"a": "fine"})},
    "converged, and yet a host failed": {"code": 2, "verdict": verdict("converged")},
    "drift, and yet an unexpected exception": {"code": 250, "verdict": verdict("drift")},
    "unreachable, and yet an error": {"code": 1, "verdict": verdict("unreachable")},
    "killed after its verdict": {"signal": signal.SIGKILL, "verdict": verdict("converged")},
    "killed before it": {"signal": signal.SIGKILL},
}


@pytest.mark.parametrize("plan", NO_VERDICT.values(), ids=NO_VERDICT)
def test_without_a_verdict_of_this_run_the_exit_code_is_1(call, plan):
    seen, told = call(plan)
    assert (seen, "no verdict was reached" in told) == (1, True)


def test_a_stale_verdict_file_is_gone_before_anything_runs(call, tmp_path):
    assert call({"verdict": verdict("converged")})[0] == 0
    assert (tmp_path / "drift/verdict.json").exists()
    assert call({"code": 4})[0] == 1
    assert not (tmp_path / "drift/verdict.json").exists()


def test_what_ansible_is_handed(call, tmp_path):
    assert call({"verdict": verdict("drift")}, "--verdict-file", "out/v.json", "-i", "hosts", "--limit", "a:b")[0] == 2
    passed = json.loads((tmp_path / "arguments.json").read_text())
    assert passed[:5] == ["-i", "hosts", "--limit", "a:b", "--check"]
    assert passed[-1] == "gpufabric.rdma.drift"
    assert json.loads(passed[-2])["drift_verdict_file"] == str(tmp_path / "out/v.json")
    assert call({"verdict": verdict("drift")}, "-e", "drift_directory=out")[0] == 2
    handed = json.loads((tmp_path / "arguments.json").read_text())[-2]
    assert set(json.loads(handed)) == {"drift_run"}, "where the verdict goes is for the options to say"


def test_a_runner_that_is_not_there_and_options_that_cannot_be_read_are_no_verdict(call):
    assert call({}, "--runner", "no-such-program")[0] == 1
    assert call({}, "--runner")[0] == 1


def test_ended_from_outside_it_ends_ansible_and_gives_no_verdict(call, tmp_path):
    process = call({"verdict": verdict("converged"), "sleep": 60}, background=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=10) == 1
    process.stderr.close()
