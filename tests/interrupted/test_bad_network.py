"""A first run over a bad management link: 100 ms, 2 % of the packets lost, 1 Mbit/s, each way."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile
import time

import pytest
import slow_link
from ansible_collections.gpufabric.rdma.tests.tools.lab_nodes import CHECKOUT

HERE, THERE = "198.18.83.1", "198.18.83.2"
BAD = slow_link.Link(delay=0.1, loss=0.02, rate=1e6)
HOME = CHECKOUT / ".lab/nspawn"
SEED = "27"


def node_pid() -> int:
    """A process of the one node, by the machine ID that this checkout gave it."""
    wanted = (HOME / "nodes/node1/seed/etc/machine-id").read_text()
    for root in pathlib.Path("/proc").glob("[0-9]*/root"):
        try:
            if (root / "etc/machine-id").read_text() == wanted:
                return int(root.parent.name)
        except OSError:  # the process is gone, or has no such file
            continue
    raise LookupError("no process of the fast node runs")


@pytest.fixture
def over_the_link(node, tmp_path):
    """The node over the link only: (variables of a run, the link's two ways)."""
    config = tmp_path / "ssh_config"
    text = (HOME / "ssh/config").read_text()
    (address,) = [line.split()[1] for line in text.splitlines() if line.strip().startswith("HostName ")]
    config.write_text(text.replace(f"HostName {address}", f"HostName {THERE}\n  HostKeyAlias node1"))
    with tempfile.TemporaryDirectory() as sockets, slow_link.between(HERE, THERE, node_pid(), BAD, SEED) as ways:
        yield {"ansible_ssh_common_args": f"-F {config}", "ansible_control_path": f"{sockets}/%%h"}, ways
        # A connection that is cut off keeps the node's network for minutes, and its bridge on this machine.
        end = ["ssh", "-F", config, "-o", f"ControlPath={sockets}/%h", "-O", "exit", "node1"]
        subprocess.run(end, check=False, capture_output=True)
        time.sleep(3)


def test_a_first_run_over_a_bad_link_converges(node, undisturbed, over_the_link, note):
    variables, ways = over_the_link

    run = node.start(words=("-e", json.dumps(variables)))

    lost, sent = sum(way.lost for way in ways), sum(way.sent for way in ways)
    note(
        f"{run.seconds:7.1f} s  first run over {BAD.delay * 1000:.0f} ms, {BAD.loss:.0%} loss, {BAD.rate / 1e6:.0f} "
        f"Mbit/s: {sent / 1e6:.1f} MB, {lost} packets lost; undisturbed {undisturbed.seconds:.1f} s"
    )
    assert lost > 0
    assert run.code == 0, run.last()
    assert run.passed >= undisturbed.passed
    assert sorted(node.look() ^ undisturbed.look) == []
