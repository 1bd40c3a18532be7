"""python bench.py [ROUNDS] [--realtime] [--modes]: this plugin against the kubelet double, 8 resources of 1,000 units.

Natively, on a laid-out node. Where a network namespace of one's own can be had, an interface made and removed in it
gives the real kernel event that follows a plug; otherwise the scan each second sees it, and the output says so.
--realtime: the plugin and the double go before everything else on this machine (SCHED_RR), which a busy machine needs
to show what a quiet one would; the output says so.
--modes: instead, memory and processor time of the modes device-plugin, both and dra, one after the other in each round,
with a double of the API server too.
Port states have no event on InfiniBand: the poll of 0.5 s sees them, plus downSeconds 0.3 of the default hysteresis.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "device_plugin"
sys.path[:0] = [str(PACKAGE), str(HERE)]
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import bare  # noqa: E402
import measure  # noqa: E402
from api_server_double import ApiServer  # noqa: E402
from kubelet_double import Kubelet  # noqa: E402
from node import Node  # noqa: E402
from rdma_device_plugin import links  # noqa: E402

# As installed, with bytecode: a shell may forbid Python to write it, and each start would compile again.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
ENVIRONMENT["PYTHONPATH"] = str(PACKAGE)

UNITS = 1000
RAILS = {f"rdma/rail{number}": f"mlx5_{number}" for number in range(8)}
GOALS = {
    "ready: all resources allocatable (s)": 0.25,
    "RSS (MiB)": 40,
    "Allocate p99 (ms)": 1,
    "HCA plugged (s)": 1,
    "HCA unplugged (s)": 1,
    "link down to Unhealthy (s)": 1,
    "all back after a kubelet restart (s)": 0.5,
    "SIGTERM to exit (s)": 1,
}
ALONE = "RDMA_BENCH_NETNS"


def event():
    """A real uevent of this network namespace: an interface comes and goes with an open descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", b"bench0", 0x1002))  # TUNSETIFF: IFF_TAP, IFF_NO_PI
    os.close(tap)


def one_round(watches, announce):
    base = pathlib.Path(tempfile.mkdtemp(prefix="dp", dir="/dev/shm"))
    try:
        node = Node(base / "node", "h100-8x-cx7-ib")
        (base / "config.json").write_bytes(
            measure.config(
                RAILS, UNITS, 60 if announce else 1, extraSelectors=lambda name: {"rdmaDevices": [RAILS[name]]}
            )
        )
        places = ["-kubelet-root", str(base), "-device-plugin-dir", f"{base}/device-plugins", "-root", str(node.root)]
        subject = measure.Subject(
            "ours",
            (sys.executable, "-m", "rdma_device_plugin", "-config-file", str(base / "config.json"), *places),
            ENVIRONMENT,
        )
        plan = measure.Plan(base, RAILS, UNITS, node, announce=announce)
        try:
            return {**measure.measure(subject, plan, watches), **bare.floor(ENVIRONMENT)}
        except RuntimeError:
            sys.stderr.write((base / "ours.log").read_text()[-2000:])
            raise
    finally:
        shutil.rmtree(base)


def one_of_modes(mode, units=63, calm=5.0):
    """{what: figure} of one start in a mode, 8 HCAs with so many units or shares, nothing asked of it afterwards."""
    over_dra = {"device-plugin": (), "both": list(RAILS)[4:], "dra": RAILS}[mode]
    base = pathlib.Path(tempfile.mkdtemp(prefix="dp", dir="/dev/shm"))
    try:
        node = Node(base / "node", "h100-8x-cx7-ib")
        apis = {"api": lambda name: "dra" if name in over_dra else "device-plugin"} if mode == "both" else {}
        selected = {"extraSelectors": lambda name: {"rdmaDevices": [RAILS[name]]}}
        (base / "config.json").write_bytes(measure.config(RAILS, units, **selected, **apis))
        with ApiServer(base) as api, Kubelet(base, started=api.wipe) as kubelet:
            places = ["-kubelet-root", base, "-device-plugin-dir", f"{base}/device-plugins", "-root", node.root]
            places += ["-mode", mode, "-kubeconfig", api.kubeconfig, "-node-name", api.node]
            command = [sys.executable, "-m", "rdma_device_plugin", "-config-file", base / "config.json", *places]
            process = measure.Process(measure.Subject(mode, list(map(str, command)), ENVIRONMENT), base / "log")
            try:
                for name in set(RAILS) - set(over_dra):
                    kubelet.wait_allocatable(name, units, 60)
                wanted = len(over_dra) * units
                if not api.wait(lambda: not wanted or len(api.devices() or ()) == wanted, 60):
                    raise RuntimeError(f"mode {mode}: {len(api.devices() or ())} of {wanted} devices are published")
                found = {"ready (s)": time.monotonic() - process.begun, "processor until then (s)": process.processor()}
                time.sleep(calm)
                before = process.processor()
                time.sleep(calm)
                found["RSS (MiB)"], found["threads"] = process.memory(), process.threads()
                found["idle processor (%)"] = (process.processor() - before) / calm * 100
                process.end()
                return found
            finally:
                process.kill()
    finally:
        shutil.rmtree(base)


def modes(rounds):
    results = {"device-plugin": [], "both": [], "dra": []}
    for _round in range(rounds):
        for mode, found in results.items():
            found.append(one_of_modes(mode))
    for mode, found in results.items():
        sys.stdout.write("\n".join(measure.table(f"mode {mode}", found)) + "\n")


def conditions(realtime):
    load = os.getloadavg()[0]
    if realtime:
        quiet = "; real-time priority, so that other work on this machine counts little"
    else:
        quiet = "" if load < 0.5 else "; NOT a quiet machine, figures are worse than they need be"
    return f"Python {sys.version.split()[0]}, {os.cpu_count()} processors, load {load:.2f} at the start{quiet}"


def main():
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    rounds = int(words[0]) if words else 3
    realtime = "--realtime" in sys.argv
    if realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    if ALONE not in os.environ and shutil.which("unshare"):
        probe = ["unshare", "--net", sys.executable, "-c", "open('/dev/net/tun', 'r+b', 0)"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            os.environ[ALONE] = "1"
            os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    if "--modes" in sys.argv:
        sys.stdout.write(conditions(realtime) + "\n")
        links.set_up("lo")
        modes(rounds)
        return
    announce = event if ALONE in os.environ else None
    sys.stdout.write(conditions(realtime) + "\n")
    plug = "a kernel event" if announce else "the scan each second (no network namespace of our own here)"
    sys.stdout.write(f"plug is reported by {plug}\n")
    for watches in (True, False):
        results = [one_round(watches, announce) for _round in range(rounds)]
        sys.stdout.write("\n".join(measure.table("watch" if watches else "legacy", results, GOALS)) + "\n")


if __name__ == "__main__":
    main()
