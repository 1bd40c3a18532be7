"""Time drift on many fast nodes, and what each further node adds, beside as many calls of a module that does nothing.

    make bench-drift [N=16]

The nodes are systemd under systemd-nspawn with captured machines as their /sys (lab/nspawnctl), settled by site.yml
first. Printed: seconds for 1 and for N nodes, remote calls a node, the slope per node of both, and their ratio
(goal: 1.5). Nodes that run already are replaced.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests/tools"))

import recording  # noqa: E402

NODES = CHECKOUT / "lab/nspawnctl"
INVENTORY = ("-i", str(NODES), "-i", str(CHECKOUT / "molecule/rails/inventory"))
FIXTURES = "h100-8x-cx7-ib,gh200-cx7-roce"
ROUNDS = 3
GOAL = 1.5


def run(*command, **environment):
    """Seconds that the command took."""
    start = time.monotonic()
    done = subprocess.run(
        list(map(str, command)),
        cwd=CHECKOUT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
        )
    return time.monotonic() - start


def nodes():
    listed = json.loads(subprocess.run([NODES, "--list"], capture_output=True, text=True, check=True).stdout)
    return listed["gpu_nodes"]["hosts"]


def drift(hosts, folder, **environment):
    return run(
        *(sys.executable, CHECKOUT / "bin/drift.py"),
        *("--playbook", CHECKOUT / "playbooks/drift.yml", *INVENTORY, "--limit", ",".join(hosts)),
        *("-e", f"drift_directory={folder}"),
        **environment,
    )


def calls_of(hosts, folder):
    drift(hosts, folder, **recording.environment(folder / "record"))
    return max(host["remote_calls"] for host in recording.written(folder / "record")["hosts"].values())


def main(count):
    run(NODES, "up", count, "--fixture", FIXTURES)
    run("ansible-playbook", *INVENTORY, CHECKOUT / "molecule/rails/prepare.yml")
    print(f"site.yml on {count} nodes: {run('ansible-playbook', *INVENTORY, CHECKOUT / 'playbooks/site.yml'):.1f} s")
    hosts = nodes()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        calls = calls_of(hosts, folder)
        nothing = folder / "nothing.yml"
        tasks = [{"ansible.builtin.ping": {}}] * calls
        nothing.write_text(json.dumps([{"hosts": "gpu_nodes", "gather_facts": False, "become": True, "tasks": tasks}]))
        seconds = {}
        for size in (1, count):
            some = hosts[:size]
            empty = ("ansible-playbook", *INVENTORY, "--limit", ",".join(some), nothing)
            seconds[size] = (
                min(drift(some, folder) for _round in range(ROUNDS)),
                min(run(*empty) for _round in range(ROUNDS)),
            )
    for size, (ours, none) in seconds.items():
        print(f"{size:3} nodes: drift {ours:6.1f} s, {calls} calls of a module that does nothing {none:6.1f} s")
    slopes = [(seconds[count][which] - seconds[1][which]) / (count - 1) for which in (0, 1)]
    ratio = slopes[0] / slopes[1]
    print(f"each further node: drift {slopes[0]:.2f} s, nothing {slopes[1]:.2f} s, ratio {ratio:.2f} (goal {GOAL})")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
    finally:
        subprocess.run([NODES, "down"], check=False)
