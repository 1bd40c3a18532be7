"""python soak.py [MINUTES] [--seed N] [--legacy] [--json FILE]: everything at once, for minutes or hours.

The plugin is a process with its real times on a laid-out node, mode both, against doubles of kubelet and API server. In
bursts of a length that the seed decides, at the same time: Allocate from three clients, port flaps, HCAs unplugged and
plugged, kubelet restarts with refusals, config changes (by rename, in place, invalid, SIGHUP), scrapes, DRA claims, an
API server that goes away, wall clock steps (see stepped.py), a file system that is full and free again.

After each burst all holds its breath: within --bound seconds the kubelet, the slices, the CDI specs, the checkpoint and
the sockets have to be what the node and the config say. Then single events are timed. The first violation ends the run
with exit code 1.

python soak.py --restarts ROUNDS: only kubelet.sock recreated again and again, with refusals, by each way of
registering. Each round stops the kubelet and restarts it at the same path; every second one refuses first. Growth is
read after the first quarter, when caches and arenas are filled.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "device_plugin"
sys.path[:0] = [str(PACKAGE), str(HERE)]
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import bench  # noqa: E402
import measure  # noqa: E402
import slopes  # noqa: E402
from kubelet_double import Kubelet  # noqa: E402
from node import Node  # noqa: E402
from soak_bed import Bed, Load, Log, Violation, actors, loopback_up  # noqa: E402

RAILS = {f"rdma/rail{number}": f"mlx5_{number}" for number in range(2)}
UNITS = 100
# Seconds: of load between two moments of calm, of silence at the end, between samples; from which a slope is judged;
# the longest start, which takes the DRA libraries' import.
BURST, SILENCE, SAMPLE, JUDGED, START = (6, 25), 6.0, 1.0, 300, 60
# What a calm process may have more of at the end than after its warm-up, and by how much it may grow in an hour.
SERIES = {"RSS (MiB)": (8.0, 1.0), "descriptors": (8, 1.0), "threads": (8, 1.0)}
BLOCKS = 30


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


def restarts(base, rounds, watches, tell=lambda _line: None):
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


class Samples:
    """RSS, descriptors and threads of a process, each second."""

    def __init__(self, process):
        self.rows, self._process = [], process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = time.monotonic()
        self._thread.start()

    def now(self):
        return (self._process.memory(), self._process.descriptors(), self._process.threads())

    def _run(self):
        while not self._over.wait(SAMPLE):
            with contextlib.suppress(RuntimeError, OSError):  # the process has ended
                self.rows.append((time.monotonic() - self._begun, *self.now()))

    def end(self):
        self._over.set()
        self._thread.join()

    def slopes(self, warm):
        """{series: (a hour, low, high, limit, verdict)} from `warm` seconds on."""
        rows = [row for row in self.rows if row[0] >= warm]
        if len(rows) < 3 * BLOCKS:
            return {}
        found = {}
        for column, (name, (_most, limit)) in enumerate(SERIES.items(), 1):
            hours = [row[0] / 3600 for row in rows]
            slope, low, high = slopes.theil_sen(*slopes.blocks(hours, [row[column] for row in rows], BLOCKS))
            long = rows[-1][0] - rows[0][0] >= JUDGED
            found[name] = (slope, low, high, limit, slopes.verdict(low, high, limit) if long else slopes.OPEN)
        return found


class Run:
    """One soak over a bed."""

    def __init__(self, bed, seed, tell):
        self.bed, self.tell, self.chance = bed, tell, random.Random(f"{seed}/run")
        self.log = Log(bed.log, bed.truth)
        self.samples = Samples(bed.process)
        # How often after what, and how long it took where the first look found something to wait for.
        self.looked, self.took = Counter(), defaultdict(list)
        self.begun, self.cpu = time.monotonic(), 0.0
        self.settle("start", self.begun, START)
        self.load = Load(bed, seed)

    def settle(self, what, since, bound=0):
        """Wait until all is right; how long that took belongs to `what`."""
        bound = bound or self.bed.truth.bound
        deadline = time.monotonic() + bound
        at_once = True
        while True:
            wrong = self.bed.differences()
            self.check()
            if not wrong:
                break
            at_once = False
            if time.monotonic() > deadline:
                raise Violation(f"{bound:.0f} s after `{what}`: " + "; ".join(wrong))
            time.sleep(0.01)
        self.looked[what] += 1
        if not at_once:
            self.took[what].append(time.monotonic() - since)
        self.bed.truth.settled()

    def check(self):
        if not self.bed.process.running():
            raise Violation("the plugin has ended")
        self.log.read()
        load = getattr(self, "load", None)
        if load and load.failure:
            raise load.failure

    def go(self, seconds):
        """Bursts and single events until the time is over, then the end: (calm after the warm-up, calm at the end)."""
        warm, first = seconds * 0.25, None
        single = [step for step, _short, _long in actors(self.bed).values()]
        self.chance.shuffle(single)
        turns = itertools.cycle(single)
        while time.monotonic() - self.begun < seconds:
            self.load.gate.open()
            until = time.monotonic() + min(self.chance.uniform(*BURST), seconds / 4)
            while time.monotonic() < until:
                time.sleep(0.2)
                self.check()
            self.load.gate.close()
            self.settle("burst of all", time.monotonic())
            for step in itertools.islice(turns, 3):
                self.settle(*step(self.chance))
            now = time.monotonic() - self.begun
            if first is None and now >= warm:
                first = (now, self.samples.now())
            memory, descriptors, threads = self.samples.now()
            events = self.events()
            self.tell(f"{now:6.0f} s: {events} events, {memory:.1f} MiB, {descriptors} descriptors, {threads} threads")
        return first, self.end()

    def events(self):
        truth = self.bed.truth
        return truth.count("port", "plug", "kubelet", "config", "clock", "disk", "api")

    def silent(self):
        """Wait until the log has nothing to say. A registration that an earlier event led to may be repeated late, as
        when both ways came to work; what is said again and again is a violation.
        """
        deadline, lines, since = time.monotonic() + self.bed.truth.bound, self.log.lines, time.monotonic()
        while time.monotonic() - since < SILENCE:
            time.sleep(0.2)
            self.check()
            if self.log.lines != lines:
                lines, since = self.log.lines, time.monotonic()
                if since > deadline:
                    raise Violation(
                        f"log: no {SILENCE:.0f} s without a line, {self.bed.truth.bound:.0f} s after all events"
                    )

    def end(self):
        """All back as it was, nothing left of the claims, no line without an event, exit code 0, no file left."""
        bed = self.bed
        for uid in list(bed.claims):
            bed.unprepare(uid)
        self.settle("claims ended", time.monotonic())
        self.load.end_clients()
        self.silent()
        last = self.samples.now()
        self.samples.end()
        self.cpu = bed.process.processor()
        code, took = bed.process.end()
        if code != 0:
            raise Violation(f"SIGTERM: wanted exit code 0, got {code}")
        self.looked["SIGTERM to exit"] += 1
        self.took["SIGTERM to exit"].append(took)
        left = bed.left_behind()
        if left:
            raise Violation(f"left behind after SIGTERM: {', '.join(left)}")
        return last


def report(run, first, last):
    """(lines, document, whether nothing grows)."""
    seconds = time.monotonic() - run.begun
    events, truth = run.events(), run.bed.truth
    kinds = ("port", "plug", "kubelet", "config", "clock", "disk", "api", "claim", "allocate")
    document = {
        "seconds": round(seconds),
        "events": {kind: truth.count(kind) for kind in kinds},
        "answers": dict(run.bed.answers),
        "right again after (s)": {},
        "log": {"lines": run.log.lines, "events": events, "most of one text": run.log.texts.most_common(3)},
        "processor (s a minute)": round(run.cpu / seconds * 60, 2),
        "series": {},
    }
    lines = ["  " + ", ".join(f"{count} {kind}" for kind, count in document["events"].items())]
    lines.append("  " + ", ".join(f"{count} {answer}" for answer, count in sorted(run.bed.answers.items())))
    lines.append(f"  {'right again after':36} {'times':>6} {'waited':>6} {'min s':>7} {'median':>7} {'max':>7}")
    for what, times in sorted(run.looked.items()):
        took = run.took[what]
        figures = [round(value, 3) for value in (min(took), statistics.median(took), max(took))] if took else []
        document["right again after (s)"][what] = [times, len(took), *figures]
        lines.append(f"  {what:36} {times:6d} {len(took):6d} " + " ".join(f"{value:7.2f}" for value in figures))
    lines.append(f"  log: {run.log.lines} lines for {events} events; none more often than its events")
    found, well = run.samples.slopes(first[0]), True
    for column, (name, (most, _limit)) in enumerate(SERIES.items()):
        before, after = first[1][column], last[column]
        stepped_up = after - before > most
        slope, low, high, limit, verdict = found.get(name, (None, None, None, SERIES[name][1], slopes.OPEN))
        interval = "" if slope is None else f"; {slope:+.2f} an hour [{low:+.2f}, {high:+.2f}], at most {limit:g}"
        verdict = slopes.GROWS if stepped_up else verdict
        well = well and verdict != slopes.GROWS
        document["series"][name] = {
            "calm": [before, after],
            "a hour": slope,
            "95 %": [low, high],
            "limit": limit,
            "verdict": verdict,
        }
        lines.append(f"  {name}: calm {before:.1f} to {after:.1f} (at most {most:g} more){interval}: {verdict}")
    return lines, document, well


def one_run(seconds, seed, bound, over_dra, announce, tell):
    """(document, exit code)"""
    base = pathlib.Path(tempfile.mkdtemp(prefix="dp", dir="/dev/shm"))
    bed = run = None
    try:
        bed = Bed(base, bound, over_dra, announce)
        if bed.no_disk:
            tell(f"disk full and free: not verified, no tmpfs can be mounted here ({bed.no_disk})")
        run = Run(bed, seed, tell)
        lines, document, well = report(run, *run.go(seconds))
        tell("\n".join(lines))
        return document, 0 if well else 1
    except (Exception, KeyboardInterrupt) as error:
        what = str(error) if isinstance(error, Violation) else repr(error)
        tell(f"VIOLATED: {what}\nlast events: {list(bed.truth.last)[-8:] if bed else []}")
        if bed:
            tell("".join(bed.log.read_text().splitlines(keepends=True)[-15:]))
        if not isinstance(error, (Violation, OSError, RuntimeError)):
            raise
        return {"violated": what}, 1
    finally:
        if bed:
            bed.close()
        shutil.rmtree(base, ignore_errors=True)


def alone():
    """In a network namespace of our own, if one can be had: real uevents. And mounts that end with this process."""
    if bench.ALONE not in os.environ and shutil.which("unshare"):
        probe = ["unshare", "--net", "--mount", sys.executable, "-c", "open('/dev/net/tun', 'r+b', 0)"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            os.environ[bench.ALONE] = "1"
            os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *sys.argv])
    if bench.ALONE not in os.environ:
        return None
    loopback_up()
    return bench.event


def restart_rounds(rounds):
    for watches in (False, True):
        base = pathlib.Path(tempfile.mkdtemp(prefix="dp", dir="/dev/shm"))
        try:
            sys.stdout.write(f"{'watch' if watches else 'legacy'}, {rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
            begun = time.monotonic()
            seen = restarts(base, rounds, watches, lambda line: sys.stdout.write(f"  {line}\n"))
            memory, descriptors = growth(seen)
            took = time.monotonic() - begun
            sys.stdout.write(f"  growth {memory:+.2f} MiB, {descriptors:+d} descriptors; {took:.0f} s\n")
        finally:
            shutil.rmtree(base)
    return 0


def main():
    parser = argparse.ArgumentParser(description="The device plugin under everything at once.")
    parser.add_argument("minutes", nargs="?", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="printed by each run; the same seed, the same events")
    parser.add_argument("--legacy", action="store_true", help="mode device-plugin by Register, without DRA")
    parser.add_argument("--bound", type=float, default=15, help="seconds within which all has to be right again")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures here too")
    parser.add_argument("--restarts", type=int, metavar="ROUNDS", help="only restarts of the kubelet")
    chosen = parser.parse_args()
    if chosen.restarts:
        return restart_rounds(chosen.restarts)
    announce = alone()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the bed is taken down as after Ctrl-C
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(1 << 32)
    load = os.getloadavg()[0]
    way = "mode device-plugin, Register" if chosen.legacy else "mode both, plugins_registry"
    tell = _tell
    plug = "a kernel event" if announce else "the scan each second (no network namespace here)"
    tell(f"soak: {chosen.minutes:g} minutes, seed {seed}, {way}; a plug is seen by {plug}")
    tell(f"bound {chosen.bound:g} s, {os.cpu_count()} processors, load {load:.1f}")
    document, code = one_run(chosen.minutes * 60, seed, chosen.bound, not chosen.legacy, announce, tell)
    document.update(
        seed=seed, bound=chosen.bound, minutes=chosen.minutes, legacy=chosen.legacy, load=[load, os.getloadavg()[0]]
    )
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")
    tell("soak: " + ("passed" if code == 0 else "FAILED"))
    return code


def _tell(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
