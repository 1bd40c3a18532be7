"""What each further node costs: the host layer's first run, its second run and drift on 1, 2, 4 ... fast nodes.

    make scale [N='1 2 4 8 16 32 64'] [ARGS='--rounds 2']      measures, adds to build/scale/scale.json, prints, draws
    bench_scale.py --plot FILE                                  prints and draws what is in that file

The nodes are systemd under systemd-nspawn with captured machines as their /sys (lab/nspawnctl), shapes in turn; nodes
that run already are replaced. Beside each run, in the same minute, runs a play of as many calls of a module that does
nothing. Each run opens its connections anew. The figures are those of the controller's processes (process_tree.py) but
for the seconds: nodes and controller share this machine's processors, which a fleet does not.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests/tools"))

import process_tree  # noqa: E402
import recording  # noqa: E402
import scale_figures  # noqa: E402

NODES = CHECKOUT / "lab/nspawnctl"
INVENTORY = ("-i", str(NODES), "-i", str(CHECKOUT / "molecule/rails/inventory"))
# Two of InfiniBand with eight HCAs, one of RoCE with two: machines whose addresses may be there twice.
FIXTURES = "h100-8x-cx7-ib,gh200-cx7-roce,a100-8x-cx6"
RESULTS = CHECKOUT / "build/scale/scale.json"
MIB_A_NODE = 60


def measured(command, folder: pathlib.Path) -> tuple[dict[str, float], int]:
    """Figures of a run with connections of its own, and the remote calls of the node that got most."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        record = pathlib.Path(own) / "record"
        connections = ("-e", f"ansible_control_path_dir={own}")
        figures = process_tree.run([*map(str, command), *connections], CHECKOUT, recording.environment(record))
        hosts = recording.written(record)["hosts"].values()
    return figures, max(host["remote_calls"] for host in hosts)


def playbook(name):
    return ("ansible-playbook", *INVENTORY, name)


def site():
    return (*playbook(CHECKOUT / "playbooks/site.yml"), "-e", "report_written=false")


def drift(folder):
    wrapper = (sys.executable, CHECKOUT / "bin/drift.py", "--playbook", CHECKOUT / "playbooks/drift.yml")
    return (*wrapper, *INVENTORY, "-e", f"drift_directory={folder}")


def nothing(calls: int, folder: pathlib.Path):
    """A play of as many calls that do nothing."""
    path = folder / f"nothing-{calls}.yml"
    tasks = [{"name": f"Call {number}", "ansible.builtin.ping": {}} for number in range(calls)]
    path.write_text(json.dumps([{"hosts": "gpu_nodes", "gather_facts": False, "become": True, "tasks": tasks}]))
    return playbook(path)


def others() -> float:
    """Share of this machine's processors that was in use, over two seconds in which this program does nothing."""

    def read():
        with open("/proc/stat", encoding="ascii") as stream:
            fields = list(map(int, stream.readline().split()[1:9]))
        return sum(fields), fields[3] + fields[4]

    before = read()
    time.sleep(2)
    after = read()
    return 1 - (after[1] - before[1]) / max(after[0] - before[0], 1)


def fresh(count: int) -> None:
    subprocess.run([NODES, "down"], check=True, capture_output=True)
    subprocess.run([NODES, "up", str(count), "--fixture", FIXTURES], check=True, capture_output=True)


def room_for(count: int) -> None:
    with open("/proc/meminfo", encoding="ascii") as stream:
        free = next(int(line.split()[1]) for line in stream if line.startswith("MemAvailable")) // 1024
    if free < count * MIB_A_NODE + 1024:
        sys.exit(
            f"{count} fast nodes: wanted {count * MIB_A_NODE + 1024} MiB of free memory, seen {free} MiB. "
            "Next step: give fewer nodes (N=…), or end what uses the memory"
        )


def size(count: int, rounds: int) -> list[dict]:
    """The runs on so many nodes, each beside one that does nothing."""
    rows = []
    room_for(count)
    for number in range(rounds):
        busy = others()
        fresh(count)
        with tempfile.TemporaryDirectory(prefix="scale") as name:
            folder = pathlib.Path(name)
            measured(playbook(CHECKOUT / "molecule/rails/prepare.yml"), folder)
            for what, command in (("first run", site()), ("second run", site()), ("drift", drift(folder))):
                ours, calls = measured(command, folder)
                none, called = measured(nothing(calls, folder), folder)
                if called != calls:
                    sys.exit(f"calls that do nothing: wanted {calls} a node, seen {called}")
                rows.append({"nodes": count, "run": what, "calls": calls, "ours": ours, "nothing": none, "busy": busy})
                print(
                    f"{count:3} nodes, round {number + 1}, {what:10} {calls:3} calls: {ours['seconds']:7.1f} s, "
                    f"as many that do nothing {none['seconds']:7.1f} s",
                    flush=True,
                )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int, help="numbers of nodes; none prints what was measured before")
    parser.add_argument("--rounds", type=int, default=1, help="how often each size is measured; the smallest counts")
    parser.add_argument("--plot", type=pathlib.Path, help="also draw into this file")
    options = parser.parse_args()
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    try:
        for count in options.sizes:
            rows = [row for row in rows if row["nodes"] != count] + size(count, options.rounds)
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    finally:
        if options.sizes:
            subprocess.run([NODES, "down"], check=False, capture_output=True)
    if not rows:
        sys.exit(f"{RESULTS}: wanted: figures of an earlier run, seen: none. Next step: make scale N='1 2 4 8'")
    print(scale_figures.text(rows))
    if options.plot:
        options.plot.write_text(scale_figures.plot(rows))
        print(f"drawn: {options.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
