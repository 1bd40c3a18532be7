"""Our driver under the kubelet's own code, in both forms of sharing; the cases are in lab/testbed/dra/kubelet-judge."""

from __future__ import annotations

import os
import subprocess

import dra_bed

POOLS = [{"resourceName": "rails", "rdmaHcaMax": 8, "selectors": {"vendors": ["15b3"], "linkTypes": ["infiniband"]}}]
ROUNDS = os.environ.get("DRA_ROUNDS") or "5"
CASES = os.environ.get("DRA_CASES") or ""  # of these words in their names only


def test_the_kubelet_and_the_driver_agree_in_every_case(bed):
    node = bed.node("judged", "a100-8x-cx6")
    ports = sorted((node.tree / "sys/class/infiniband").glob("*/ports/1/state"))
    command = [
        *(bed.built / "kubelet-judge", "-kubeconfig", bed.plane.kubeconfig, "-base", node.base, "-cdi-dir", node.cdi),
        *("-node-name", node.name, "-rounds", ROUNDS, "-feature-gates", ",".join(bed.gates)),
        *("-only", CASES, "-port-state", ports[0], "--", *node.daemon_command(POOLS)),
    ]
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, "PYTHONPATH": str(dra_bed.PACKAGE)},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    bed.figures += [f"{bed.form}: the kubelet's code over the driver", *done.stdout.splitlines()]
    log = (node.base / "driver.log").read_text()
    bed.remove(node.name)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{log[-4000:]}"
    assert "Traceback" not in log, log[-4000:]


def test_slices_go_with_the_node(bed):
    """Their owner is the Node object: the garbage collector takes them."""
    node = bed.node("leaving", "gh200-cx7-roce")
    node.kubelet()
    node.daemon([{"resourceName": "rails", "rdmaHcaMax": 8, "selectors": {"vendors": ["15b3"]}}])
    bed.wait(lambda: node.devices(dra_bed.DRIVER), "slices")
    bed.remove("leaving")
