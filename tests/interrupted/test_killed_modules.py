"""A module that is killed on the node, at a random moment of its work: the next run finishes what it began.

MODULE_KILLS says how often (15); the moments are drawn from MODULE_KILLS_SEED, which is printed.
"""

from __future__ import annotations

import os
import random
import time

import pytest

TIMES = int(os.environ.get("MODULE_KILLS", "15"))
SEED = os.environ.get("MODULE_KILLS_SEED") or str(time.time_ns())
# Counts the time in which Ansible's Python runs a module; SIGKILL for that process once it was so many seconds.
WATCH = """
import os, signal, sys, time
moment, total, before = float(sys.argv[1]), 0.0, time.monotonic()
while True:
    time.sleep(0.004)
    now = time.monotonic()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/" + name + "/cmdline", "rb") as stream:
                module = stream.read() == b"/usr/bin/python3\\0"
        except OSError:
            continue
        if module:
            total += now - before
            if total >= moment:
                os.kill(int(name), signal.SIGKILL)
                open("/run/module-killed", "w").close()
                sys.exit()
            break
    before = now
    with open("/run/modules-seconds", "w") as stream:
        stream.write(str(total))
"""


def watch(bed, moment: float) -> None:
    """Sets the watcher on the node; it counts from here on."""
    bed.node(
        f"cat > /run/watch.py <<'END'\n{WATCH}END\nsystemd-run --quiet --unit=watch python3 /run/watch.py {moment}"
    )


@pytest.fixture(scope="module")
def module_seconds(bed, undisturbed):
    """For how long modules work in a first run."""
    bed.fresh()
    watch(bed, float("inf"))
    run = bed.start()
    assert run.code == 0, run.last()
    return float(bed.node("cat /run/modules-seconds"))


@pytest.mark.parametrize("turn", range(TIMES))
def test_the_next_run_finishes_what_a_killed_module_began(node, undisturbed, module_seconds, note, turn):
    moment = random.Random(f"{SEED} {turn}").uniform(0, module_seconds)
    watch(node, moment)
    first = node.start()
    hit = node.node("ls /run/module-killed 2>/dev/null || true")
    node.node("systemctl stop watch 2>/dev/null || true")
    if not hit:
        pytest.skip(f"not verified: modules ended within {moment:.1f} s this time; MODULE_KILLS_SEED={SEED}")

    second = node.start()

    # A module that had answered is only the rest of its process; its run goes on and ends well.
    killed = [step["task"] for step in first.steps if step["kind"] == "failed"] or ["a module that had answered"]
    note(
        f"{second.seconds:7.1f} s  next run; killed after {moment:5.2f} of {module_seconds:.1f} s in modules, in "
        f"{killed[-1]}: exit code {first.code}; MODULE_KILLS_SEED={SEED}"
    )
    assert (first.code == 0) == (killed == ["a module that had answered"]), first.last()
    assert second.code == 0, second.last()
    assert second.passed >= undisturbed.passed
    assert sorted(node.look() ^ undisturbed.look) == []
