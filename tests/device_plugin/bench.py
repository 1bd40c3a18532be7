"""python bench.py [ROUNDS]: the plugin as a process against the kubelet double; 8 resources of 1000 devices on 8 HCAs.

Natively on a laid-out node, so: no uevents; link and plug are seen by the polls (port states each 0.5 s, and a scan
interval of 1 s). Times are from the cause to what the kubelet knows.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "device_plugin"
sys.path[:0] = [str(PACKAGE), str(HERE)]
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from harness import Node, document, entry  # noqa: E402
from kubelet_double import Kubelet  # noqa: E402

NAMES = [f"rdma/rail{number}" for number in range(8)]
UNITS = 1000
CALLS = 2000


def since(begun):
    return time.monotonic() - begun


def memory(pid):
    """Resident set, MB."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} is gone")


def processor(pid):
    """Seconds of processor time used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def everything(kubelet, names, count, seconds=20):
    assert kubelet.wait(lambda: all(kubelet.allocatable(name) == count for name in names), seconds)


def one_round(watches):
    base = pathlib.Path(tempfile.mkdtemp(prefix="dp", dir="/dev/shm"))
    node = Node(base / "node", "h100-8x-cx7-ib")
    entries = [
        entry(f"rail{number}", UNITS, extraSelectors={"rdmaDevices": [f"mlx5_{number}"]}, health={"upSeconds": 0})
        for number in range(8)
    ]
    (base / "config.json").write_bytes(document(*entries, interval=1))
    command = [sys.executable, "-m", "rdma_device_plugin", "-config-file", str(base / "config.json")]
    found = {}
    process = None
    try:
        with Kubelet(base, watches=watches) as kubelet, open(base / "log", "wb") as log:
            begun = time.monotonic()
            process = subprocess.Popen(
                [
                    *command,
                    "-root",
                    str(node.root),
                    "-kubelet-root",
                    str(base),
                    "-device-plugin-dir",
                    f"{base}/device-plugins",
                ],
                env={**os.environ, "PYTHONPATH": str(PACKAGE)},
                stderr=log,
                stdout=subprocess.DEVNULL,
            )
            kubelet.wait(lambda: NAMES[0] in kubelet.clients)
            found["first resource registered (s)"] = since(begun)
            everything(kubelet, NAMES, UNITS)
            found["all 8 x 1000 allocatable (s)"] = since(begun)
            found["processor time until then (s)"] = processor(process.pid)
            time.sleep(2)
            found["RSS (MB)"] = memory(process.pid)
            took = []
            for number in range(CALLS):
                begun = time.perf_counter()
                kubelet.allocate(NAMES[number % 8], ["7"])
                took.append((time.perf_counter() - begun) * 1000)
            found["Allocate p50 (ms)"] = statistics.median(took)
            found["Allocate p99 (ms)"] = statistics.quantiles(took, n=100)[98]
            before = processor(process.pid)
            time.sleep(3)
            found["idle processor (%)"] = (processor(process.pid) - before) / 3 * 100
            node.port("mlx5_3", "1: DOWN")
            begun = time.monotonic()
            everything(kubelet, NAMES[3:4], 0)
            found["link down (s)"] = since(begun)
            node.port("mlx5_3", "4: ACTIVE")
            everything(kubelet, NAMES[3:4], UNITS)
            node.unplug("mlx5_5")
            begun = time.monotonic()
            everything(kubelet, NAMES[5:6], 0)
            found["unplug, by poll (s)"] = since(begun)
            node.plug("mlx5_5")
            everything(kubelet, NAMES[5:6], UNITS)
            kubelet.stop()
            kubelet.start()
            begun = time.monotonic()
            everything(kubelet, NAMES, UNITS)
            found["all back after a kubelet restart (s)"] = since(begun)
            found["RSS at the end (MB)"] = memory(process.pid)
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            assert process.wait(10) == 0
            found["SIGTERM to exit (s)"] = since(begun)
    finally:
        if process and process.poll() is None:
            process.kill()
            sys.stdout.write((base / "log").read_text()[-2000:])
        shutil.rmtree(base)
    return found


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for watches in (True, False):
        results = [one_round(watches) for _round in range(rounds)]
        sys.stdout.write(f"{'watch' if watches else 'legacy'}, {rounds} rounds: median (least to most)\n")
        for name in results[0]:
            values = sorted(result[name] for result in results)
            sys.stdout.write(f"  {name:40} {statistics.median(values):8.2f}  ({values[0]:.2f} to {values[-1]:.2f})\n")


if __name__ == "__main__":
    main()
