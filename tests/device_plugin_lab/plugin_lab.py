"""python tests/device_plugin_lab/plugin_lab.py [--rounds N]: boots a lab node, runs scenarios.py there, prints a table.

Exit code 0 when every row is as wanted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import labnode


def seconds(times):
    if not times:
        return ""
    return f"{statistics.median(times):.2f} (to {max(times):.2f})" if len(times) > 1 else f"{times[0]:.2f}"


def table(rows):
    """Lines of aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def show(result):
    header = ("", "WHAT", "WANTED", "SEEN", "SECONDS, MEDIAN (TO MOST)")
    rows = [
        ("ok" if row["good"] else "MISS", row["what"], row["wanted"], row["seen"], seconds(row["times"]))
        for row in result["rows"]
    ]
    sys.stdout.write("\n".join(table([header, *rows])) + "\n\n")
    header = ("AFTER", "ROUNDS", "RSS KiB", "ANONYMOUS KiB", "DESCRIPTORS", "THREADS")
    names = ("after", "rounds", "rss", "anonymous", "descriptors", "threads")
    sys.stdout.write("\n".join(table([header, *([str(row[name]) for name in names] for row in result["growth"])])))
    loads = ", ".join(f"{load:.1f}" for load in result["load"])
    sys.stdout.write(f"\n\nload average: node {loads} (before, after); this machine {os.getloadavg()[0]:.1f}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="kubelet restarts and config swaps, each")
    given = parser.parse_args()
    try:
        folder = labnode.payload()
        with labnode.running():
            begun = time.monotonic()
            labnode.bring(folder)
            program = f"{labnode.PYTHON} scenarios.py --rounds {given.rounds} --keep-log /var/log/plugin-lab"
            done = labnode.on_node(f"cd {labnode.TARGET} && exec {program}", stdout=subprocess.PIPE)
            took = time.monotonic() - begun
    except labnode.Failed as error:
        sys.stderr.write(f"plugin-lab: {error}\n")
        return 1
    if not done.stdout.strip():
        sys.stderr.write(f"plugin-lab: scenarios.py gave no result (exit code {done.returncode}), see above\n")
        return 1
    result = json.loads(done.stdout)
    show(result)
    missed = sum(not row["good"] for row in result["rows"])
    sys.stdout.write(f"{len(result['rows']) - missed} as wanted, {missed} missed; {took / 60:.1f} minutes\n")
    return 1 if missed or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
