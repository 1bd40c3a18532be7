"""Drives any shared device plugin as a process against the kubelet double, and times what the kubelet gets to know.

Nothing here depends on which plugin it is: a Subject is a command line; sockets, config and node are parameters. So the
plugin of this collection and the Go one can be measured in one run, on one tree, by one clock. Needs grpcio (for the
double) and the generated code of rdma_device_plugin/kubelet; not the plugin's rooms.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass, field, replace

from kubelet_double import Kubelet


@dataclass(frozen=True)
class Subject:
    """A plugin under measurement: its whole command line, and its environment (None: ours)."""

    name: str
    command: tuple
    env: dict = None


@dataclass(frozen=True)
class Plan:
    """What one round does.

    base: device-plugins and plugins_registry lie below it (a plugin with fixed paths: /var/lib/kubelet).
    rails: {resource: HCA}; each resource stands for one HCA, so that a change of one shows in one.
    units: rdmaHcaMax of each. node: has port(hca, state), unplug(hca), plug(hca).
    announce: called after each change of the node to make what the kernel would say; None: polls have to see it.
    calls: Allocate calls that are timed. rest: seconds of quiet before memory and idle processor time are read.
    patience: seconds after which an event counts as never seen (None in the result). start: the same for the beginning,
    which takes minutes on an emulated machine that is busy.
    """

    base: pathlib.Path
    rails: dict
    units: int
    node: object
    announce: object = None
    calls: int = 2000
    rest: float = 2.0
    patience: float = 20.0
    start: float = 60.0
    restarts: int = 1
    log: pathlib.Path = None
    notes: dict = field(default_factory=dict)


def config(rails, units, interval=60, key="ifNames", values=None, **more):
    """config.json that both plugins take: one entry a rail, chosen by `selectors.<key>` = values[resource].

    more: further keys of each entry; the Go plugin ignores what it does not know.
    """
    entries = []
    for resource in rails:
        prefix, _slash, name = resource.partition("/")
        entry = {"resourceName": name, "resourcePrefix": prefix, "rdmaHcaMax": units}
        if values:
            entry["selectors"] = {key: [values[resource]]}
        entry.update({name: value(resource) if callable(value) else value for name, value in more.items()})
        entries.append(entry)
    return json.dumps({"periodicUpdateInterval": interval, "configList": entries}, indent=1).encode()


class Process:
    """The subject while it runs."""

    def __init__(self, subject, log):
        self.begun = time.monotonic()
        with open(log, "wb") as out:
            self._process = subprocess.Popen(subject.command, env=subject.env, stdout=out, stderr=out)
        self.pid = self._process.pid

    def _status(self, key):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1])
        raise RuntimeError(f"process {self.pid} has ended (code {self._process.poll()})")

    def memory(self):
        """Resident set in MiB, the unit of a pod's limits."""
        return self._status("VmRSS") / 1024

    def threads(self):
        return self._status("Threads")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def processor(self):
        """Seconds of processor time used so far."""
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def running(self):
        return self._process.poll() is None

    def end(self, number=signal.SIGTERM, patience=10.0):
        """(exit code, seconds) of a signal; (None, None) when it had to be killed."""
        begun = time.monotonic()
        self._process.send_signal(number)
        try:
            return self._process.wait(patience), time.monotonic() - begun
        except subprocess.TimeoutExpired:
            self.kill()
            return None, None

    def kill(self):
        if self.running():
            self._process.kill()
            self._process.wait()


def _within(kubelet, plan, names, count, change=None):
    """Seconds from the beginning of `change` until the kubelet counts so many healthy units of each.

    None: not within plan.patience.
    """
    begun = time.monotonic()
    if change:
        change()
    seen = kubelet.wait(lambda: all(kubelet.allocatable(name) == count for name in names), plan.patience)
    return time.monotonic() - begun if seen else None


def measure(subject, plan, watches):
    """One round in one registration mode: {what: figure, or None where it did not happen in time}.

    watches: True the kubelet watches plugins_registry; False it knows Register only (that directory must not exist).
    """
    names = list(plan.rails)
    found = {}
    log = plan.log or pathlib.Path(plan.base, f"{subject.name}.log")
    with Kubelet(plan.base, watches=watches) as kubelet:
        process = Process(subject, log)
        try:
            _begin(kubelet, process, plan, names, found)
            _allocate(kubelet, plan, names, found)
            _idle(process, plan, found)
            _node_changes(kubelet, plan, names, found)
            _kubelet_restarts(kubelet, plan, names, found)
            found["RSS at the end (MiB)"] = process.memory() if process.running() else None
            found["descriptors at the end"] = process.descriptors() if process.running() else None
            code, took = process.end()
            found["SIGTERM to exit (s)"] = took
            plan.notes["exit code"] = code
        finally:
            process.kill()
    return found


def _begin(kubelet, process, plan, names, found):
    plan = replace(plan, patience=plan.start)
    kubelet.wait(lambda: names[0] in kubelet.clients or not process.running(), plan.patience)
    if not process.running():
        raise RuntimeError("the plugin ended at its start; its log says why")
    found["first resource registered (s)"] = time.monotonic() - process.begun
    ready = _within(kubelet, plan, names, plan.units)
    found["ready: all resources allocatable (s)"] = None if ready is None else time.monotonic() - process.begun
    found["processor time until then (s)"] = process.processor()
    time.sleep(plan.rest)
    found["RSS (MiB)"] = process.memory()
    found["threads"] = process.threads()
    if ready is None:
        raise RuntimeError(f"not all resources came in {plan.patience} s: {kubelet.log[-5:]}")


def latency(call, times):
    """(median, 99th percentile) in milliseconds of `call`, which gets the number of each time."""
    took = []
    for number in range(times):
        begun = time.perf_counter()
        call(number)
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


def _allocate(kubelet, plan, names, found):
    half, most = latency(lambda number: kubelet.allocate(names[number % len(names)], ["7"]), plan.calls)
    found["Allocate p50 (ms)"] = half
    found["Allocate p99 (ms)"] = most


def _idle(process, plan, found):
    before, begun = process.processor(), time.monotonic()
    time.sleep(plan.rest)
    found["idle processor (%)"] = (process.processor() - before) / (time.monotonic() - begun) * 100


def _node_changes(kubelet, plan, names, found):
    node = plan.node

    def told(change, hca):
        change(hca)
        if plan.announce:
            plan.announce()

    name = names[min(3, len(names) - 1)]
    hca = plan.rails[name]
    down = _within(kubelet, plan, [name], 0, lambda: node.port(hca, "1: DOWN"))
    found["link down to Unhealthy (s)"] = down
    up = _within(kubelet, plan, [name], plan.units, lambda: node.port(hca, "4: ACTIVE"))
    found["link up to Healthy (s)"] = None if down is None else up
    name = names[min(5, len(names) - 1)]
    hca = plan.rails[name]
    gone = _within(kubelet, plan, [name], 0, lambda: told(node.unplug, hca))
    found["HCA unplugged (s)"] = gone
    back = _within(kubelet, plan, [name], plan.units, lambda: told(node.plug, hca))
    found["HCA plugged (s)"] = None if gone is None else back


def _kubelet_restarts(kubelet, plan, names, found):
    took = []
    for _restart in range(plan.restarts):
        kubelet.stop()
        took.append(_within(kubelet, plan, names, plan.units, kubelet.start))
    found["all back after a kubelet restart (s)"] = None if None in took else max(took)


def table(title, rounds, goals=None):
    """Lines: min, median and max of each figure over the rounds; None counts as `never` and shows as such."""
    goals = goals or {}
    lines = [f"{title}, {len(rounds)} rounds", f"  {'':42} {'min':>9} {'median':>9} {'max':>9}  goal"]
    for name in rounds[0]:
        values = [one.get(name) for one in rounds]
        seen = sorted(value for value in values if value is not None)
        if len(seen) < len(values):
            shown = f"{'never in ' + str(len(values) - len(seen)) + ' of ' + str(len(values)):>29}"
        else:
            shown = " ".join(f"{value:9.3f}" for value in (seen[0], statistics.median(seen), seen[-1]))
        goal = goals.get(name)
        verdict = "" if goal is None else f"  ≤ {goal:g} {_met(seen, values, goal)}"
        lines.append(f"  {name:42} {shown}{verdict}")
    return lines


def _met(seen, values, goal):
    if len(seen) < len(values):
        return "NOT MET"
    return "met" if statistics.median(seen) <= goal else "NOT MET"
