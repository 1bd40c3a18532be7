"""How long gathering the facts takes, as a ratio to reading the same files raw.

    bench_facts.py            on the fixture h100-8x-cx7-ib (8 GPUs, 8 HCAs), laid out as a tree
    bench_facts.py --root /   on this machine

Medians of many rounds, the two ways in turn. Raw means: open, read and close each file that gathering opened, GID slots
included, by path, in a loop that ignores the content. On a node without this collection the folders
plugins/module_utils/hca and tests/endurance are enough, in the same layout.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "plugins/module_utils"), str(HERE.parents[1] / "tools")]

from hca import Tree  # noqa: E402
from hca.facts import gather  # noqa: E402
from hca.seams import Seams  # noqa: E402

FIXTURE = "h100-8x-cx7-ib"
FORKING = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.exec", "os.system")


def opened_files(root: str) -> list[str]:
    """Paths of this machine that gathering reads."""
    files, tree = {}, Tree(root)
    prefix = "" if tree.live else tree.root

    def record(how, path):
        if how == "read":
            files[prefix + path] = None
        elif how == "slots":
            files.update({f"{prefix}{path}/{name}": None for name in tree.listdir(path)})

    gather(Tree(root, record=record))
    return [path for path in files if os.path.isfile(path)]


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
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="the tree to read; default: the fixture, laid out in a temporary folder")
    parser.add_argument("--rounds", type=int, default=51)
    options = parser.parse_args()
    forks, armed = [], []
    # Python's own audit events show every started process.
    sys.addaudithook(lambda event, _arguments: forks.append(event) if armed and event in FORKING else None)
    with tempfile.TemporaryDirectory() as folder:
        root = options.root
        if root is None:
            import tree

            root = str(tree.lay_out(tree.load(FIXTURE), folder))
        paths, samples = opened_files(root), {"raw": [], "facts": []}
        for _round in range(options.rounds):
            samples["raw"].append(timed(lambda: read_raw(paths)))
            armed.append(True)
            samples["facts"].append(timed(lambda: gather(Tree(root), Seams.of(Tree(root)))))
            armed.clear()
    median = {name: statistics.median(times) * 1e3 for name, times in samples.items()}
    ratio = median["facts"] / median["raw"]
    print(f"{options.root or FIXTURE}: {len(paths)} files read; medians of {options.rounds} rounds")
    print(f"  gather            {median['facts']:8.2f} ms")
    print(f"  the same files raw{median['raw']:8.2f} ms   ratio {ratio:.2f}")
    print(f"  forks             {len(forks) / options.rounds:8g}")
    return int(bool(forks))  # the times are figures, a started process is a fault


if __name__ == "__main__":
    sys.exit(main())
