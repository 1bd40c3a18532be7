"""python soak.py [ROUNDS]: kubelet.sock recreated again and again, with refusals; what memory and descriptors do.

Each round stops the kubelet and restarts it at the same path; every second one refuses first. The plugin is a process
with its real times, on a laid-out node. Growth is read after the first quarter, when caches and arenas are filled.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "device_plugin"
sys.path[:0] = [str(PACKAGE), str(HERE)]
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import measure  # noqa: E402
from kubelet_double import Kubelet  # noqa: E402
from node import Node  # noqa: E402

RAILS = {f"rdma/rail{number}": f"mlx5_{number}" for number in range(2)}
UNITS = 100


def ours(base, root, config):
    """This plugin as a process on a node below `root`, with the kubelet's directories below `base`."""
    path = pathlib.Path(base, "config.json")
    path.write_bytes(config)
    places = ["-kubelet-root", str(base), "-device-plugin-dir", f"{base}/device-plugins", "-root", str(root)]
    return measure.Subject(
        "ours",
        (sys.executable, "-m", "rdma_device_plugin", "-config-file", str(path), *places),
        {**os.environ, "PYTHONPATH": str(PACKAGE)},
    )


def soak(base, rounds, watches, tell=lambda _line: None):
    """[(round, RSS in MiB, descriptors, threads)]; AssertionError when a resource does not come back."""
    node = Node(base / "node", "h100-8x-cx7-ib")
    one_each = {"extraSelectors": lambda name: {"rdmaDevices": [RAILS[name]]}}
    subject = ours(base, node.root, measure.config(RAILS, UNITS, **one_each))
    seen = []
    kubelet = Kubelet(base, watches=watches).start()
    process = measure.Process(subject, base / "log")
    try:
        for number in range(rounds + 1):
            for name in RAILS:
                kubelet.wait_allocatable(name, UNITS, seconds=20)
            if number % max(1, rounds // 10) == 0:
                time.sleep(0.3)  # what the last round has closed is gone by then
                seen.append((number, process.memory(), process.descriptors(), process.threads()))
                tell("round {:4d}: RSS {:.2f} MiB, {} descriptors, {} threads".format(*seen[-1]))
            kubelet.stop()
            if number % 2:
                kubelet.refuse = "no room"
                kubelet.start()
                event = "notified" if watches else "register"
                refused = kubelet.count(event) + len(RAILS)
                assert kubelet.wait(lambda e=event, r=refused: kubelet.count(e) >= r, 20), "no attempt at this kubelet"
                kubelet.stop()
                kubelet.refuse = ""
            kubelet.log.clear()
            kubelet.start()
        code, _took = process.end()
        assert code == 0, f"exit code {code}"
    finally:
        process.kill()
        kubelet.stop()
    return seen


def growth(seen):
    """(MiB, descriptors) from the first quarter of the rounds to their end."""
    first = next(one for one in seen if one[0] * 4 >= seen[-1][0])
    return seen[-1][1] - first[1], seen[-1][2] - first[2]


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    for watches in (False, True):
        base = pathlib.Path(tempfile.mkdtemp(prefix="dp", dir="/dev/shm"))
        try:
            sys.stdout.write(f"{'watch' if watches else 'legacy'}, {rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
            begun = time.monotonic()
            seen = soak(base, rounds, watches, lambda line: sys.stdout.write(f"  {line}\n"))
            memory, descriptors = growth(seen)
            took = time.monotonic() - begun
            sys.stdout.write(f"  growth {memory:+.2f} MiB, {descriptors:+d} descriptors; {took:.0f} s\n")
        finally:
            shutil.rmtree(base)


if __name__ == "__main__":
    main()
