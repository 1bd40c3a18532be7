"""What an idle plugin does, counted: a count of work says the same on a busy machine, a time does not."""

from __future__ import annotations

import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from harness import SOON, Node, Process, Running, document, entry
from kubelet_double import Kubelet
from rdma_device_plugin.hca import Tree
from rdma_device_plugin.lifecycle import Timing

FIXTURE = "h100-8x-cx7-ib"
RAILS = [
    entry(f"rail{number}", 100, extraSelectors={"rdmaDevices": [f"mlx5_{number}"]}, health={"upSeconds": 0.1})
    for number in range(8)
]
# Wake-ups a minute of the threads that run Python, and of the event loop's; 216 and 25 were seen, and 514 and 336 while
# each look at the ports turned the loop. grpc's own threads make another 500, whatever the plugin does.
MOST, MOST_OF_LOOP = 420, 80


def wakes(pid):
    """(of the event loop, of all threads that are not grpc's): how often each has gone to sleep so far."""
    found = {}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found[int(task.name)] = status["Name"], int(status["voluntary_ctxt_switches"])
    own = found[pid][0]
    return found[pid][1], sum(count for name, count in found.values() if name == own)


def test_an_idle_plugin_seldom_wakes_up(base):
    """8 HCAs, nothing happens: the loop turns for its backstops, one thread looks at the ports"""
    alone = ["unshare", "--net"]
    if not shutil.which("unshare") or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("not verified: no network namespace of its own, and the links of this machine change")
    node = Node(base / "node", FIXTURE)
    with Kubelet(base) as kubelet, Process(base, document(*RAILS), node.root, under=alone) as plugin:
        for rail in RAILS:
            kubelet.wait_allocatable(f"rdma/{rail['resourceName']}", 100)
        time.sleep(2)
        pid, begun = plugin.process.pid, time.monotonic()
        loop, everything = wakes(pid)
        time.sleep(15)
        later, minutes = wakes(pid), (time.monotonic() - begun) / 60
        assert (later[0] - loop) / minutes <= MOST_OF_LOOP
        assert (later[1] - everything) / minutes <= MOST
        node.port("mlx5_3", "1: DOWN")
        kubelet.wait_allocatable("rdma/rail3", 0, SOON)
        assert plugin.end(signal.SIGTERM)[0] == 0


def test_ports_are_looked_at_twice_a_second_and_told_of_once(base):
    """A change is seen within half a second and downSeconds; without one, the loop hears of nothing but backstops"""
    node = Node(base / "node", FIXTURE)
    reads, told = [], []

    def record(_operation, path):
        if path.endswith("mlx5_3/ports/1/state"):
            reads.append(time.monotonic())

    tree = Tree(str(node.root), record)
    with (
        Kubelet(base) as kubelet,
        Running(base, document(*RAILS), node.root, timing=Timing(), tree=tree, port_poll=0.5) as plugin,
    ):
        kubelet.wait_allocatable("rdma/rail3", 100)
        polled = plugin.plugin.ports.polled
        plugin.plugin.ports.polled = lambda states: told.append(states) or polled(states)
        del reads[:]
        time.sleep(6)
        looked, heard = len(reads), len(told)
        assert 6 <= looked <= 14, "twice a second"
        assert heard <= 3, "the backstops of 6 s, and a scan"
        node.port("mlx5_3", "1: DOWN")
        kubelet.wait_allocatable("rdma/rail3", 0, SOON)
        node.port("mlx5_3", "4: ACTIVE")
        kubelet.wait_allocatable("rdma/rail3", 100, SOON)


def test_a_state_that_a_scan_saw_first_is_not_forgotten(base):
    """A scan sees the port down; it is up again before the next look, which finds what it knew before"""
    node = Node(base / "node", FIXTURE)
    with (
        Kubelet(base) as kubelet,
        Running(base, document(*RAILS), node.root, timing=Timing(backstop=60), port_poll=30) as plugin,
    ):
        kubelet.wait_allocatable("rdma/rail3", 100)
        node.port("mlx5_3", "1: DOWN")
        scans = plugin.plugin.scans
        plugin.rescan()
        assert plugin.until(lambda: plugin.plugin.scans > scans)
        node.port("mlx5_3", "4: ACTIVE")
        plugin.call(plugin.plugin.poll_ports)
        assert plugin.until(lambda: plugin.plugin.ports.states["mlx5_3", 1] == "ACTIVE", SOON)
        kubelet.wait_allocatable("rdma/rail3", 100, SOON)
