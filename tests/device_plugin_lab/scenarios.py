"""python3 scenarios.py [--rounds N]: on a lab node, the plugin as a process, a kubelet double, and real rxe HCAs.

Runs on the node alone, so that no time has a connection in it. Prints a JSON document: a row for each claim with what
was wanted and seen, times in seconds, and what the process held after so many rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from kubelet_double import Kubelet

HERE = pathlib.Path(__file__).resolve().parent
# What labnode.PYTHON sets for the double is not for the plugin.
PLUGIN_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
# Rounds after which the process counts as warm: its allocator has seen every path. Restarts change their kind each
# BLOCK rounds, so it takes two of those.
BLOCK = WARM = 25
MARKS = (25, 50, 100, 200)
# Growth after WARM rounds of each kind that counts as none.
RSS_KIB, DESCRIPTORS = 1024, 0
# Seconds after which something counts as never seen: a busy emulated node takes its time.
PATIENCE = 180.0

# What makes the node's HCAs at boot; it puts back what a run that was ended has left out.
HARDWARE = "/usr/local/libexec/lab-hardware"

PAIR, SINGLE = "rdma/pair", "rdma/single"
COUNTS = {PAIR: 10, SINGLE: 10}


def say(text):
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


def config(pair=COUNTS[PAIR], extra=False):
    """Two pools, of two HCAs and of one; a third one, of two, comes and goes with the config."""

    def entry(name, count, *netdevs, **more):
        selectors = {"ifNames": list(netdevs)}
        return {
            "resourceName": name,
            "rdmaHcaMax": count,
            "selectors": selectors,
            "softwareDevices": True,
            "linkUp": False,
            **more,
        }

    entries = [
        entry("pair", pair, "dm4", "dm5", allocation="spread"),
        entry("single", COUNTS[SINGLE], "dm7"),
    ]
    if extra:
        entries.append(entry("extra", 5, "dm2", "dm3"))
    return json.dumps({"periodicUpdateInterval": 300, "configList": entries}).encode()


class ConfigMap:
    """A folder as the kubelet mounts a ConfigMap: the file is a link through `..data`, which is swapped as a whole."""

    def __init__(self, folder, data):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        self._number = 0
        self.swap(data)
        (self.folder / "config.json").symlink_to("..data/config.json")

    def swap(self, data):
        self._number += 1
        version, link = self.folder / f"..{self._number}", self.folder / "..data"
        version.mkdir()
        (version / "config.json").write_bytes(data)
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(version.name)
        before = link.resolve() if link.is_symlink() else None
        os.rename(fresh, link)
        if before:
            shutil.rmtree(before)


class Uevents:
    """When the kernel told that an RDMA device came or went."""

    def __init__(self):
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 15)
        self._socket.bind((0, 1))
        self._seen = {}
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            message = self._socket.recv(1 << 16)
            now = time.monotonic()
            action, _at, path = message.partition(b"\0")[0].decode().partition("@")
            if "SUBSYSTEM=infiniband\0" in message.decode(errors="replace"):
                with self._news:
                    self._seen[action, path.rpartition("/")[2]] = now
                    self._news.notify_all()

    def at(self, action, hca, since):
        """The time of an event after `since`."""
        with self._news:
            assert self._news.wait_for(lambda: self._seen.get((action, hca), 0) > since, PATIENCE), (action, hca)
            return self._seen[action, hca]


def interface(name, up):
    """ip link set NAME up|down, without a process to start; when the kernel had done it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        request = struct.pack("16sh14x", name.encode(), 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(anything, 0x8913, request))[1]
        flags = flags | 1 if up else flags & ~1
        begun = time.monotonic()
        fcntl.ioctl(anything, 0x8914, struct.pack("16sh14x", name.encode(), flags))
        return begun


def rdma(*words):
    subprocess.run(["rdma", *words], check=True)


def files(hca):
    """What a container gets of an HCA: its own device, by whatever number it has now."""
    for path in pathlib.Path("/sys/class/infiniband_verbs").iterdir():
        if (path / "ibdev").is_file() and (path / "ibdev").read_text().strip() == hca:
            return [f"/dev/infiniband/{path.name}"]
    return []


class Process:
    """The plugin as the unit starts it."""

    def __init__(self, base, config_file, tracing=False):
        command = [sys.executable, "-m", "rdma_device_plugin"]
        if tracing:
            command = [sys.executable, str(HERE / "traced.py")]
        command += ["-config-file", str(config_file), "-kubelet-root", str(base)]
        command += ["-device-plugin-dir", f"{base}/device-plugins"]
        self.log = base / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=log, cwd=HERE, env=PLUGIN_ENVIRONMENT
            )
        self.pid = self._process.pid

    def figures(self):
        """What the process holds: KiB resident, KiB of it anonymous, descriptors, threads."""
        found = {}
        for line in pathlib.Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            name, _colon, value = line.partition(":")
            if name in ("Rss", "Anonymous"):
                found[name.lower()] = int(value.split()[0])
        # The least of a second: a scan has files open, a stream that ends a socket, and what leaks stays in the least.
        found["descriptors"] = min(self._descriptors() for _sample in range(20))
        found["threads"] = len(os.listdir(f"/proc/{self.pid}/task"))
        return found

    def _descriptors(self):
        time.sleep(0.05)
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def alive(self):
        return self._process.poll() is None

    def stop(self):
        """(exit code, seconds)"""
        begun = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return code, time.monotonic() - begun


class Series:
    """Times of rounds, by whether the kubelet watches plugins_registry; what was wrong in which round."""

    def __init__(self):
        self.times = {True: [], False: []}
        self.wrong = []


class Report:
    """The rows of the table."""

    def __init__(self):
        self.rows = []
        self.growth = []

    def row(self, what, wanted, seen, times=(), good=None):
        """good: None to compare wanted with seen."""
        good = wanted == seen if good is None else good
        self.rows.append({"what": what, "wanted": str(wanted), "seen": str(seen), "times": list(times), "good": good})
        say(f"{'ok  ' if good else 'MISS'} {what}: {seen}{spread(times)}")


def spread(times):
    if not times:
        return ""
    return f", {statistics.median(times):.3f} s (to {max(times):.3f} s)"


class Bench:
    """One plugin, one kubelet, one node."""

    def __init__(self, base, tracing=False):
        self.base = base
        self.report = Report()
        self.mount = ConfigMap(base / "config", config())
        self.kubelet = Kubelet(base).start()
        self.uevents = Uevents()
        begun = time.monotonic()
        self.plugin = Process(base, self.mount.folder / "config.json", tracing)
        right = self.settled(COUNTS)
        self.report.row("start: every pool allocatable", COUNTS, right or self.state(), [time.monotonic() - begun])

    def state(self):
        return {name: self.kubelet.allocatable(name) for name in sorted(self.kubelet.clients)}

    def settled(self, wanted, seconds=PATIENCE):
        """`wanted` when the kubelet knows exactly that before the time is over."""

        def right():
            clients = self.kubelet.clients
            here = {name for name, client in clients.items() if not client.stopped}
            return here == set(wanted) and all(self.kubelet.allocatable(name) == wanted[name] for name in wanted)

        return wanted if self.kubelet.wait(right, seconds) else None

    def granted(self, resource, unit):
        answer = self.kubelet.allocate(resource, [unit])
        paths = [device.host_path for device in answer.container_responses[0].devices]
        return [path for path in paths if path != "/dev/infiniband/rdma_cm"]

    def until_granted(self, resource, unit, wanted):
        """Whether Allocate comes to answer so. A file that is gone is refused until the plugin has looked again."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(grpc.RpcError):
                if self.granted(resource, unit) == wanted:
                    return True
            time.sleep(0.01)
        return False

    # What happens to a node.

    def hot_plug(self, rounds):
        gone, back, moved, returned, wrong = [], [], [], [], []
        for _round in range(rounds):
            begun = time.monotonic()
            rdma("link", "del", "rxe7")
            event = self.uevents.at("remove", "rxe7", begun)
            if not self.settled({**COUNTS, SINGLE: 0}):
                wrong.append(self.state())
            gone.append(time.monotonic() - event)
            begun = time.monotonic()
            rdma("link", "add", "rxe7", "type", "rxe", "netdev", "dm7")
            event = self.uevents.at("add", "rxe7", begun)
            if not self.settled(COUNTS):
                wrong.append(self.state())
            back.append(time.monotonic() - event)
            if not self.until_granted(SINGLE, "0", files("rxe7")):
                wrong.append(("rxe7", files("rxe7")))
        for _round in range(rounds):
            begun = time.monotonic()
            rdma("link", "del", "rxe5")
            event = self.uevents.at("remove", "rxe5", begun)
            if not self.until_granted(PAIR, "1", files("rxe4")):
                wrong.append(("rxe4", files("rxe4")))
            moved.append(time.monotonic() - event)
            begun = time.monotonic()
            rdma("link", "add", "rxe5", "type", "rxe", "netdev", "dm5")
            event = self.uevents.at("add", "rxe5", begun)
            if not self.until_granted(PAIR, "1", files("rxe5")):
                wrong.append(("rxe5", files("rxe5")))
            returned.append(time.monotonic() - event)
        row, right = self.report.row, "right each time"
        row(f"rdma link del, {rounds} times: Unhealthy, from the uevent", right, wrong[:3] or right, gone)
        row(f"rdma link add, {rounds} times: Healthy, from the uevent", right, wrong[:3] or right, back)
        row(f"rdma link del in a pool of two: the other one's file, {rounds} times", right, wrong[:3] or right, moved)
        row(f"rdma link add in a pool of two: its own file again, {rounds} times", right, wrong[:3] or right, returned)

    def links(self, rounds):
        down, up, wrong = [], [], []
        for _round in range(rounds):
            for netdev, wanted in (("dm7", {**COUNTS, SINGLE: 0}), ("dm5", {**COUNTS, PAIR: 5})):
                begun = interface(netdev, up=False)
                if not self.settled(wanted):
                    wrong.append(self.state())
                down.append(time.monotonic() - begun)
                begun = interface(netdev, up=True)
                if not self.settled(COUNTS):
                    wrong.append(self.state())
                up.append(time.monotonic() - begun)
        right = "right each time"
        self.report.row(f"link down, {2 * rounds} times: Unhealthy (downSeconds 0.3)", right, wrong[:3] or right, down)
        self.report.row(f"link up, {2 * rounds} times: Healthy (upSeconds 2)", right, wrong[:3] or right, up)

    # What happens to a kubelet and to a config, many times.

    def restarts(self, first, last, seen):
        """Kubelet restarts number first to last.

        BLOCK of them by a kubelet that watches plugins_registry, BLOCK by one that knows Register only, and so on. Each
        third kubelet was killed and left its socket behind.
        """
        for number in range(first, last + 1):
            watches = (number - 1) // BLOCK % 2 == 0
            self.kubelet.stop(unlink=number % 3 != 0)
            self.kubelet.watches = watches
            self.kubelet.start()
            begun = time.monotonic()
            if not self.settled(COUNTS):
                seen.wrong.append((number, self.state()))
            seen.times[watches].append(time.monotonic() - begun)
            self.mark("restarts", number)

    def swaps(self, first, last, seen):
        """Config swaps number first to last. The last one of a series leaves the config of the beginning."""
        for number in range(first, last + 1):
            pair = COUNTS[PAIR] if number == last else 1 + number % 60
            extra = number % 5 == 0 and number != last
            wanted = {**COUNTS, PAIR: pair, **({"rdma/extra": 5} if extra else {})}
            begun = time.monotonic()
            self.mount.swap(config(pair, extra))
            if not self.settled(wanted):
                seen.wrong.append((number, wanted, self.state()))
            seen.times[True].append(time.monotonic() - begun)
            self.mark("swaps", number)

    def burst(self, count):
        """Swaps faster than they can be followed: the last one counts."""
        for number in range(count):
            self.mount.swap(config(1 + number % 60, number % 2 == 0))
        begun = time.monotonic()
        self.mount.swap(config())
        right = self.settled(COUNTS)
        took = time.monotonic() - begun
        what = f"{count + 1} config swaps in one go: the last one counts"
        self.report.row(what, "right", "right" if right else self.state(), [took])

    def mark(self, what, number):
        if number in MARKS:
            self.note(what, number)

    def note(self, what, number):
        figures = {"after": what, "rounds": number, **self.plugin.figures()}
        self.report.growth.append(figures)
        say(
            f"     {number} {what}: RSS {figures['rss']} KiB ({figures['anonymous']} anonymous), "
            f"{figures['descriptors']} descriptors, {figures['threads']} threads"
        )
        return figures


def scenarios(base, rounds, tracing):
    bench = Bench(base, tracing)
    row, right = bench.report.row, "right each time"
    try:
        bench.note("start", 0)
        bench.hot_plug(5)
        bench.links(3)
        restarted, swapped = Series(), Series()
        warm = min(WARM, rounds)
        # Both kinds warm up before the figure that counts.
        bench.restarts(1, min(2 * BLOCK, rounds), restarted)
        bench.swaps(1, warm, swapped)
        before = bench.note("warm", warm)
        bench.restarts(min(2 * BLOCK, rounds) + 1, rounds, restarted)
        bench.swaps(warm + 1, rounds, swapped)
        bench.burst(20)
        after = bench.note("end", rounds)
        for watches, how in ((True, "it watches plugins_registry"), (False, "by kubelet.sock alone")):
            times = restarted.times[watches]
            what = f"kubelet restarted {len(times)} times, {how}: registered, all allocatable"
            row(what, right, restarted.wrong[:3] or right, times)
        what = f"config swapped {rounds} times: resources and counts of the new one"
        row(what, right, swapped.wrong[:3] or right, swapped.times[True])
        row("final state: every pool allocatable", COUNTS, bench.settled(COUNTS) or bench.state())
        grown = after["rss"] - before["rss"]
        row(
            "RSS growth after the warm-up",
            f"at most {RSS_KIB} KiB",
            f"{grown} KiB ({before['rss']} to {after['rss']})",
            good=grown <= RSS_KIB,
        )
        more = after["descriptors"] - before["descriptors"]
        row(
            "descriptors more than when warm",
            f"at most {DESCRIPTORS}",
            f"{more} ({before['descriptors']} to {after['descriptors']})",
            good=more <= DESCRIPTORS,
        )
        row("the plugin process is the first one still", True, bench.plugin.alive())
    finally:
        code, took = bench.plugin.stop()
        bench.kubelet.stop()
    row("SIGTERM: exit code", 0, code, [took])
    row("tracebacks in the log", 0, bench.plugin.log.read_text().count("Traceback"))
    return bench.report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--tracing", action="store_true", help="run the plugin with tracemalloc, figures on SIGUSR1")
    parser.add_argument("--keep-log", metavar="FILE", help="copy the plugin's log there")
    given = parser.parse_args()
    load = [os.getloadavg()[0]]
    subprocess.run([HARDWARE], check=True)
    base = pathlib.Path(tempfile.mkdtemp(prefix="dp", dir="/run"))
    try:
        report = scenarios(base, given.rounds, given.tracing)
    finally:
        if given.keep_log and (base / "log").exists():
            shutil.copy(base / "log", given.keep_log)
        shutil.rmtree(base)
        subprocess.run([HARDWARE], check=True)
    load.append(os.getloadavg()[0])
    sys.stdout.write(json.dumps({"rows": report.rows, "growth": report.growth, "load": load}) + "\n")
    return 0 if all(row["good"] for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
