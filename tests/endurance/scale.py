"""scale.py [NODES ...]: the cost of each more node: the host layer's first run, second run and drift on fast nodes.

The nodes are systemd under nspawn with captured machines as their /sys; running nodes are replaced.

Next to each run, in the same minute, a play makes as many calls of a module that does nothing. Each run opens new
connections. Processor time and memory are those of the controller's processes: the command, all its descendants
and the connections that ssh keeps. Seconds are not a fleet's: nodes and controller share this machine's processors.

Then the second run of host and cluster layers, without verify, as an installed user has it: no settings, no checkout's
ansible.cfg. These nodes are folders, and their modules' processor time is left out.
"""

import collections
import contextlib
import ctypes
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, running
from ansible_collections.gpufabric.rdma.tests.unit.playbooks.test_cluster import Cluster

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
NODES = CHECKOUT / "lab/nspawnctl"
INVENTORY = ("-i", str(NODES), "-i", str(CHECKOUT / "molecule/rails/inventory"))
# Two of InfiniBand with eight HCAs, one of RoCE with two: machines whose addresses may occur twice.
FIXTURES = "h100-8x-cx7-ib,gh200-cx7-roce,a100-8x-cx6"
PR_SET_CHILD_SUBREAPER = 36
TICKS = os.sysconf("SC_CLK_TCK")
RUNS = ("first run", "second run", "drift")


def descendants() -> set[int]:
    """All processes below this one."""
    found, waiting = set(), [os.getpid()]
    while waiting:
        parent = waiting.pop()
        try:
            children = list(map(int, pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))
        except OSError:  # it has ended
            continue
        found.update(children)
        waiting += children
    return found


def shared_memory(process: int) -> float:
    """MB that the process holds, a page that n processes share counted as 1/n; 0 if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(text.partition("Pss:")[2].split()[0]) / 1024 if "Pss:" in text else 0.0


def processor(process: int) -> float:
    """Seconds of processor time; 0 if it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def spent(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Seconds, processor seconds and MB (the maximum) of a command; ends this program if it fails."""
    others, most, look = descendants(), 0.0, 0.0
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        child = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**os.environ, **environment},
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
        )
        ended = 0
        while not ended:
            ended, status, usage = os.wait4(child.pid, os.WNOHANG)
            seconds = time.monotonic() - start
            if seconds >= look:
                most, look = max(most, sum(map(shared_memory, descendants() - others))), seconds + 0.5
            time.sleep(0.02)
        child.returncode = os.waitstatus_to_exitcode(status)
        left = descendants() - others
        total = usage.ru_utime + usage.ru_stime + sum(map(processor, left))
        for process in left:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it may end meanwhile
                os.kill(process, signal.SIGTERM)
                os.waitpid(process, 0)
        if child.returncode:
            output.seek(0)
            text = output.read().decode(errors="replace")[-5000:]
            sys.exit(f"{' '.join(command)}: exit code {child.returncode}, its output ends:\n{text}")
    return {"seconds": seconds, "processor": total, "MB": most}


def measured(command, folder: pathlib.Path) -> tuple[dict[str, float], int]:
    """Figures of a run with separate connections, and the remote calls of the node with the most."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        record = pathlib.Path(own) / "record"
        words = [*map(str, command), "-e", f"ansible_control_path_dir={own}"]
        figures = spent(words, running.environment(record))
        hosts = running.written(record).values()
    return figures, max(host["remote_calls"] for host in hosts)


def cluster(count: int) -> dict:
    """The converged run of both layers: processor seconds; results and remote calls of the server and of an agent."""
    with tempfile.TemporaryDirectory(prefix="scale", dir="/dev/shm") as name:
        folder = pathlib.Path(name)
        Cluster(folder, count).write()
        environment = {
            "ANSIBLE_CONFIG": ansible_playbook.no_settings(),
            "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "CUT_OFF_STEPS": str(folder / "steps"),
        }
        words = ("-i", str(folder / "hosts.json"), "gpufabric.rdma.site", "--skip-tags", "verify")
        command = ["ansible-playbook", *words, "-e", f"report_written=false k3s_bundle_dir={folder / 'bundle'}"]
        spent(command, {**running.environment(folder), **environment})
        (folder / "steps").unlink()
        figures = spent(command, {**running.environment(folder), **environment})
        hosts, steps = running.written(folder), (folder / "steps").read_text().splitlines()
    if changed := [host for host, record in hosts.items() if record["changed"]]:
        sys.exit(f"second run: wanted no change, seen changes on {', '.join(changed)}")
    results = collections.Counter(json.loads(step)["host"] for step in steps)
    of_hosts = {host: (results[host], hosts[host]["remote_calls"]) for host in ("node1", "node2") if host in hosts}
    print(f"{count:3} nodes of a cluster: {figures['processor']:.2f} s of processor, results and calls: {of_hosts}")
    return {"nodes": count, **figures}


def nothing(calls: int, folder: pathlib.Path) -> pathlib.Path:
    """A play with as many calls that do nothing, through pipes as the collection's plays."""
    path = folder / f"nothing-{calls}.yml"
    tasks = [{"name": f"Call {number}", "ansible.builtin.ping": {}} for number in range(calls)]
    play = {"hosts": "gpu_nodes", "gather_facts": False, "become": True, "vars": {"ansible_pipelining": True}}
    path.write_text(json.dumps([{**play, "tasks": tasks}]))
    return path


def size(count: int) -> list[dict]:
    """The runs on this many nodes, each next to one that does nothing."""
    rows = []
    for words in (("down",), ("up", str(count), "--fixture", FIXTURES)):
        subprocess.run([NODES, *words], check=True, capture_output=True)
    play = ("ansible-playbook", *INVENTORY)
    site = (*play, CHECKOUT / "playbooks/site.yml", "-e", "report_written=false")
    drift = (sys.executable, CHECKOUT / "bin/drift.py", "--playbook", CHECKOUT / "playbooks/drift.yml", *INVENTORY)
    with tempfile.TemporaryDirectory(prefix="scale") as name:
        folder = pathlib.Path(name)
        measured((*play, CHECKOUT / "molecule/rails/prepare.yml"), folder)
        for run, command in zip(RUNS, (site, site, (*drift, "-e", f"drift_directory={folder}"))):
            ours, calls = measured(command, folder)
            none, called = measured((*play, nothing(calls, folder)), folder)
            if called != calls:
                sys.exit(f"calls that do nothing: wanted {calls} a node, seen {called}")
            rows.append({"nodes": count, "run": run, "calls": calls, "ours": ours, "nothing": none})
            print(f"{count:3} nodes, {run:10} {calls:3} calls: {ours['seconds']:7.1f} s", flush=True)
    return rows


def table(rows: list[dict]) -> None:
    """Each run by number of nodes, with the cost of each additional node (least squares)."""
    print(f"\n{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; beside each figure as many calls of a no-op")
    for run in RUNS:
        of_run = sorted((row for row in rows if row["run"] == run), key=lambda row: row["nodes"])
        print(f"\n{run:10}  nodes  calls   seconds            processor s        MB")
        for row in of_run:
            ours, none = row["ours"], row["nothing"]
            cells = "  ".join(f"{ours[what]:8.1f} {none[what]:8.1f}" for what in ("seconds", "processor"))
            print(f"            {row['nodes']:5}  {row['calls']:5}  {cells}  {ours['MB']:8.0f}")
        if len(of_run) > 1:
            nodes = [row["nodes"] for row in of_run]
            for what in ("processor", "MB"):
                ours, none = (
                    statistics.linear_regression(nodes, [row[which][what] for row in of_run]).slope
                    for which in ("ours", "nothing")
                )
                print(f"            each further node: {ours:.2f} {what} ({none:.2f} for the calls)")


def main(sizes: list[int]) -> int:
    # Orphans of a command become children of this process.
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit("scale: the kernel refuses to let this process adopt what a command leaves behind (prctl)")
    try:
        table([row for count in sizes for row in size(count)])
        rows = [cluster(count) for count in sizes if count < 16]  # a rail's /24 has blocks for 15 nodes
        if len(rows) > 1:
            columns = ([row[what] for row in rows] for what in ("nodes", "processor"))
            print(f"each further node of a cluster: {statistics.linear_regression(*columns).slope:.2f} processor")
    finally:
        subprocess.run([NODES, "down"], check=False, capture_output=True)
    return 0


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]] or [1, 2, 4, 8]))
