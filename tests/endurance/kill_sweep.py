"""kill_sweep.py [--cases N]: site.yml killed after each task that changed something, and after a sample of the others,
on a fast node that is recreated each time; the next run has to converge.

The node has systemd under nspawn, the host layer and the device plugin. A case is right if the next run ends with 0,
passes as many checks as an undisturbed run, and leaves the node in the same state. Finished cases are kept in
.lab/kill-sweep, and are not repeated while the sources are the same.
"""

import argparse
import dataclasses
import fcntl
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.tests.tools import running
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import CHECKOUT, made_of

HOME = CHECKOUT / ".lab/kill-sweep"
NODE = "node1"
KILLED = -signal.SIGKILL
SAMPLE = 30  # of the tasks that changed nothing
CONTROL = CHECKOUT / "lab/nspawnctl"
PLAYBOOKS = ("playbooks/host.yml", "molecule/rails/plays/device_plugin.yml", "playbooks/verify.yml")
# Our files, those of systemd and the node's settings. Keys, times and Ansible's own files differ between nodes.
LOOK = """
cd /
find etc opt usr/local var/lib/rdma-device-plugin var/lib/kubelet root run/rdma-device-plugin -xdev \
  \\( -path root/.ansible -o -name 'ssh_host_*' -o -path root/.ssh -o -path usr/local/lib/lab -o -name '*.pyc' \\
     -o -name __pycache__ \\) -prune -o -printf '%y %m %u %p %l\\n' 2>/dev/null | sort
find etc usr/local var/lib/rdma-device-plugin -xdev -type f \
  ! -name 'ssh_host_*' ! -path 'usr/local/lib/lab/*' ! -name '*.pyc' -exec sha256sum {} + 2>/dev/null | sort
systemctl list-unit-files --no-legend
systemctl show --property=Id,ActiveState,LimitMEMLOCK 'gpufabric*' rdma-device-plugin k3s k3s-agent containerd
for link in /sys/class/net/*; do echo "$link $(cat $link/mtu)"; done
"""


@dataclasses.dataclass
class Ended:
    """A run that ended, by itself or killed. steps: the record of tests/tools/callback_plugins/run_record.py."""

    code: int
    text: str
    steps: list[dict]
    seconds: float

    @property
    def passed(self) -> int:
        """How many checks the run saw passed."""
        found = re.findall(r"^Verification on .*: (\d+) passed", self.text, re.MULTILINE)
        return int(found[-1]) if found else 0

    def last(self) -> str:
        """The last lines of its output, without Ansible's decoration."""
        return "\n".join(line for line in self.text.splitlines() if line.strip(" *"))[-3000:]


def control(*words) -> str:
    command = [str(CONTROL), *map(str, words)]
    done = subprocess.run(command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Bed:
    """A fast node, and site.yml's playbooks on it."""

    def __init__(self, folder: pathlib.Path) -> None:
        given = {
            "device_plugin_wheel_dir": str(CHECKOUT / "build/wheels"),
            "report_file": f"{folder}/report.html",
            # The rail's captured MTU: /sys is read-only there, so rail_links only writes what the next boot reads.
            "rail_links_settings": [{"pci": "0000:18:00.0", "mtu": 2044}],
        }
        inventory = ("-i", str(CONTROL), "-i", str(CHECKOUT / "molecule/rails/inventory"))
        self.command = ["ansible-playbook", *inventory, "-e", json.dumps(given), *PLAYBOOKS]
        self.steps = folder / "steps"
        self.environment = {
            **os.environ,
            "ANSIBLE_CALLBACK_PLUGINS": str(running.PLUGINS),
            "ANSIBLE_NOCOLOR": "true",
            "BUILT_MODULES": str(folder / "built"),  # archives of modules, which each run would rebuild
            "CUT_OFF_STEPS": str(self.steps),
        }
        (folder / "built").mkdir()

    def fresh(self) -> None:
        control("down")
        control("up", "1", "--fixture", "h100-8x-cx7-ib")
        # Like molecule/rails/prepare.yml: a running service would rightly be asked to restart.
        control("ssh", NODE, "systemctl stop k3s k3s-agent containerd 2>/dev/null || true")

    def look(self) -> set[str]:
        return set(control("ssh", NODE, LOOK).splitlines())

    def start(self, after: str = "") -> Ended:
        """The playbooks, killed right after the given result, or until they end by themselves."""
        self.steps.write_text("")
        begun = time.monotonic()
        done = subprocess.run(
            self.command,
            cwd=CHECKOUT,
            env={**self.environment, "CUT_OFF_AFTER": f"{NODE} {after}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            start_new_session=True,
        )
        steps = [json.loads(line) for line in self.steps.read_text().splitlines()]
        seconds = time.monotonic() - begun
        return Ended(done.returncode, done.stdout, [step for step in steps if step["host"] == NODE], seconds)


def cases(steps: list[dict]) -> list[dict]:
    """Each task that changed something, then a sample of the other results, each place once."""
    changed = [step for step in steps if step["kind"] == "changed"]
    taken = {step["place"] for step in changed}
    others = {step["place"]: step for step in steps if step["place"] not in taken}
    sample = random.sample(sorted(others), min(SAMPLE, len(others)))
    rows = [("changed", step) for step in changed] + [("sample", others[place]) for place in sample]
    return [{"place": step["place"], "task": step["task"], "kind": kind} for kind, step in rows]


def judge(bed: Bed, case: dict, wanted: dict) -> dict:
    """The case with its outcome: `next` is "converged", or the difference."""
    begun = time.monotonic()
    bed.fresh()
    killed = bed.start(case["place"])
    if killed.code != KILLED:
        return {**case, "next": f"not killed: exit code {killed.code}", "said": killed.last(), "seconds": 0.0}
    after = bed.start()
    differs = sorted(bed.look() ^ set(wanted["look"])) if after.code == 0 else []
    if after.code:
        verdict = f"exit code {after.code}"
    elif after.passed < wanted["passed"]:  # the killed run's installations are also checked
        verdict = f"{after.passed} checks passed, not {wanted['passed']}"
    else:
        verdict = f"{len(differs)} differences" if differs else "converged"
    said = after.last() if after.code else "\n".join(differs)
    return {**case, "next": verdict, "said": said, "seconds": round(time.monotonic() - begun, 1)}


def planned(bed: Bed, sources: str) -> dict:
    """The saved plan, or a new one from an undisturbed run."""
    plan = HOME / "plan.json"
    known = json.loads(plan.read_text()) if plan.exists() else {}
    if known.get("sources") == sources:
        return known
    (HOME / "results.jsonl").unlink(missing_ok=True)
    bed.fresh()
    run = bed.start()
    if run.code:
        sys.exit(f"undisturbed run: wanted exit code 0; seen {run.code}\n{run.last()}")
    print(f"{run.seconds:7.1f} s  undisturbed: {len(run.steps)} results, {run.passed} checks passed", flush=True)
    known = {"sources": sources, "passed": run.passed, "look": sorted(bed.look()), "cases": cases(run.steps)}
    plan.write_text(json.dumps(known, indent=1))
    return known


def sweep(bed: Bed, most: int | None) -> list[dict]:
    known, results = planned(bed, made_of()), HOME / "results.jsonl"
    done = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    over = {row["place"] for row in done}
    todo = [case for case in known["cases"] if case["place"] not in over][:most]
    print(f"{len(known['cases'])} cases, {len(done)} done before, {len(todo)} now")
    for case in todo:
        row = judge(bed, case, known)
        done.append(row)
        with results.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(f"{row['seconds']:7.1f} s  {row['next']:<12}  {row['kind']:<7}  {row['task']}", flush=True)
        for line in row["said"].splitlines()[-12:]:
            print(f"           {line}")
    return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--cases", type=int, help="at most this many more")
    given = parser.parse_args()
    HOME.mkdir(parents=True, exist_ok=True)
    with open(HOME / "lock", "w") as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a checkout has one set of fast nodes
        done = sweep(Bed(pathlib.Path(folder)), given.cases)
        control("down")
    bad = [row for row in done if row["next"] != "converged"]
    rows = [(row["task"], row["kind"], row["next"], f"{row['seconds']:.0f}") for row in done]
    print(f"\n{core_text.table(('TASK', 'KIND', 'NEXT RUN', 'SECONDS'), rows)}\n")
    print(f"kill-sweep: {len(done)} cases, {len(done) - len(bad)} converged, {len(bad)} not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
