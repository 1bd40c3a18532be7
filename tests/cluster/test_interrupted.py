"""site.yml killed at random moments on the way from bare nodes to the cluster: the next run picks up where it left off.

INTERRUPTIONS says how often (20), INTERRUPTIONS_LONGEST after how many seconds at most (300). The moments are drawn
from a seed that is printed, so that a failure can be repeated.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time

import pytest
from ansible_collections.gpufabric.rdma.tests.tools.lab_nodes import CHECKOUT

TIMES = int(os.environ.get("INTERRUPTIONS", "20"))
# Finished work is skipped, so each run gets further than the one before, on a finished node to its test pods.
LONGEST = float(os.environ.get("INTERRUPTIONS_LONGEST", "300"))


def kill_after(cluster, seconds):
    """Exit code and output of a run that finished; None for one that was killed."""
    command = ["ansible-playbook", *cluster.hosts, *cluster.variables, str(CHECKOUT / "playbooks/site.yml")]
    with tempfile.TemporaryFile("w+") as said:
        run = subprocess.Popen(command, cwd=CHECKOUT, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            run.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            return None
        said.seek(0)
        return run.returncode, said.read()


def test_a_run_that_was_killed_at_random_moments_is_taken_up(breakable):
    seed = os.environ.get("INTERRUPTIONS_SEED") or str(time.time_ns())
    moments = [random.Random(f"{seed} {turn}").uniform(5, LONGEST) for turn in range(TIMES)]
    breakable.labctl("restore", "ready")
    ended = [run for moment in moments if (run := kill_after(breakable, moment))]
    killed = TIMES - len(ended)
    breakable.note(f"{killed:7}    runs killed of {TIMES}, INTERRUPTIONS_SEED={seed}, within {LONGEST:.0f} s")
    assert killed > 0
    # A run that may finish is never refused because of what a killed one left.
    assert [text[-6000:] for code, text in ended if code] == []

    last = breakable.run("site.yml")

    assert last.code == 0, last.text[-6000:]
    assert [last.checks(name, "failed") for name in breakable.nodes] == [[]] * len(breakable.nodes)


@pytest.mark.parametrize("moment", [60, 180, 300])
def test_k3s_that_is_killed_during_a_run_does_not_end_it(breakable, moment):
    service = breakable.kubelet_service(breakable.worker)
    kill = f"sleep {moment}; systemctl kill --signal=SIGKILL {service}"
    breakable.node(breakable.worker, f"systemd-run --quiet sh -c '{kill}'")

    first = breakable.run("site.yml")
    second = first if first.code == 0 else breakable.run("site.yml")

    assert second.code == 0, second.text[-6000:]
    breakable.note(f"        k3s killed after {moment} s: {'that' if first is second else 'the next'} run converged")
