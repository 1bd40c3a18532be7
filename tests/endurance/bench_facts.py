"""How long gathering the facts takes, as a ratio to reading the same files raw and to the command-line route.

    bench_facts.py                  on the fixture h100-8x-cx7-ib (8 GPUs, 8 HCAs), laid out as a tree
    bench_facts.py --root / --cli   on this machine, with lspci, ibv_devinfo, rdma, ibstat and modinfo beside it

Medians of many rounds, the two ways in turn. Raw means: open, read and close each file that gathering opened, GID slots
included, by their paths, in a loop that does nothing with what it reads. On a node without this collection the folders
plugins/module_utils/hca and tests/endurance are enough, side by side as they are here.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "plugins/module_utils"), str(HERE.parents[1] / "tools")]

from hca import Tree  # noqa: E402
from hca.facts import gather  # noqa: E402
from hca.seams import Seams  # noqa: E402

FIXTURE = "h100-8x-cx7-ib"
GOAL_RATIO = 3.0
GOAL_FORKS = 0
# What people type to learn the same; modinfo once for each of the modules whose build decides.
COMMANDS = (
    ("lspci", "-D", "-nn", "-vvv"),
    ("ibv_devinfo", "-v"),
    ("rdma", "link", "show"),
    ("rdma", "system", "show"),
    ("ibstat",),
    *(("modinfo", name) for name in ("mlx5_core", "mlx5_ib", "ib_core")),
)
FORKING = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system")


class ForkCounter:
    """Counts processes by Python's own audit events, whoever starts them."""

    def __init__(self):
        self.count = 0
        self.armed = False
        sys.addaudithook(self._see)

    def _see(self, event, _arguments):
        if self.armed and event in FORKING:
            self.count += 1


def opened_files(root: str) -> tuple[list[str], int]:
    """(paths of this machine that gathering reads, number of other accesses: listings, links, status)."""
    files, others, tree = {}, 0, Tree(root)
    prefix = "" if tree.live else tree.root

    def record(how, path):
        nonlocal others
        if how == "read":
            files[prefix + path] = None
        elif how == "slots":
            files.update({f"{prefix}{path}/{name}": None for name in tree.listdir(path)})
        else:
            others += 1

    gather(Tree(root, record=record))
    return [path for path in files if os.path.isfile(path)], others


def read_raw(paths: list[str]) -> None:
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            while os.read(descriptor, 65536):
                pass
        except OSError:
            pass  # EINVAL of an empty slot: the raw route meets it too
        finally:
            os.close(descriptor)


def timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def run(argv: tuple[str, ...]) -> None:
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def measure(root: str, rounds: int, cli: bool) -> dict:
    """{facts, raw, cli: seconds, files, others, forks, missing: [commands that are not installed]}."""
    paths, others = opened_files(root)
    forks = ForkCounter()
    samples = {"facts": [], "raw": [], "cli": []}
    there = [argv for argv in COMMANDS if shutil.which(argv[0])]
    for _round in range(rounds):
        samples["raw"].append(timed(lambda: read_raw(paths)))
        forks.armed = True
        samples["facts"].append(timed(lambda: gather(Tree(root), Seams.of(Tree(root)))))
        forks.armed = False
    for _round in range(min(rounds, 5) if cli else 0):
        samples["cli"].append(timed(lambda: [run(argv) for argv in there]))
    return {
        **{name: statistics.median(times) if times else None for name, times in samples.items()},
        "files": len(paths),
        "others": others,
        "forks": forks.count / rounds,
        "missing": sorted({argv[0] for argv in COMMANDS} - {argv[0] for argv in there}),
        "commands": len(there),
    }


def describe(found: dict, what: str, rounds: int, cli: bool) -> list[str]:
    ratio = found["facts"] / found["raw"]
    lines = [
        f"{what}: {found['files']} files read, {found['others']} listings, links and status calls; "
        f"medians of {rounds} rounds",
        f"  gather            {found['facts'] * 1e3:8.2f} ms",
        f"  the same files raw{found['raw'] * 1e3:8.2f} ms   ratio {ratio:.2f} (goal <= {GOAL_RATIO:g})",
        f"  forks             {found['forks']:8g}      (goal {GOAL_FORKS})",
    ]
    if not cli:
        lines.append(
            "  command line      not verified here: it shows this machine only; run with --root / --cli on a node"
        )
    elif found["missing"]:
        lines.append(f"  command line      not verified here: not installed: {', '.join(found['missing'])}")
    else:
        lines.append(
            f"  command line      {found['cli'] * 1e3:8.2f} ms   {found['commands']} commands; "
            f"gather takes 1/{found['cli'] / found['facts']:.1f} of it"
        )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the tree to read; default: the fixture, laid out in a temporary folder")
    parser.add_argument("--fixture", default=FIXTURE, help="another node of tests/fixtures")
    parser.add_argument("--cli", action="store_true", help="time the command-line route too (with --root /)")
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--assert", dest="strict", action="store_true", help="exit 1 when a goal is missed")
    options = parser.parse_args()
    if options.cli and options.root != "/":
        parser.error("--cli asks the running kernel, so it goes with --root / only")
    with tempfile.TemporaryDirectory() as folder:
        root, what = options.root, options.root
        if root is None:
            import tree

            root, what = str(tree.lay_out(tree.load(options.fixture), folder)), options.fixture
        found = measure(root, options.rounds, options.cli)
    print("\n".join(describe(found, what, options.rounds, options.cli)))
    missed = found["facts"] / found["raw"] > GOAL_RATIO or found["forks"] > GOAL_FORKS
    return int(options.strict and missed)


if __name__ == "__main__":
    sys.exit(main())
