"""python bench_peer.py [--rounds N] [--rest SECONDS] [--before CHECKOUT]: this plugin and the Go one on one lab node.

In one run; with --before also that of another checkout of this repository.

The Go plugin (Mellanox/k8s-rdma-shared-dev-plugin, version in lab/testbed/peer-plugin/go.mod) is built from its Go
module. Both get the same config.json, the same laid-over sysfs tree of 8 HCAs and the same kubelet double. The node is
emulated, so only the ratios mean something; tests/device_plugin/bench.py gives absolute figures.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import labnode
from plugin_lab import table

sys.path.insert(0, str(labnode.CHECKOUT / "tests/tools"))
import tree

SOURCE = labnode.CHECKOUT / "lab/testbed/peer-plugin"
PACKAGE = "github.com/Mellanox/k8s-rdma-shared-dev-plugin/cmd/k8s-rdma-shared-dp"
FIXTURE = "h100-8x-cx7-ib"
PLACE = "/run/bench-peer"
EXTRA = "/opt/plugin-lab-peer"
OURS, THEIRS, BEFORE = "ours", "theirs", "before"


def peer():
    """The Go plugin's program, built once for each go.sum."""
    if not shutil.which("go"):
        raise labnode.Failed(
            "no `go` on PATH; wanted: Go as go.mod of lab/testbed/peer-plugin says, to build the Go plugin"
        )
    digest = hashlib.sha256(b"".join((SOURCE / name).read_bytes() for name in ("go.mod", "go.sum"))).hexdigest()
    folder = labnode.CACHE / f"peer-{digest[:12]}"
    program = folder / "k8s-rdma-shared-dp"
    if not program.is_file():
        with tempfile.TemporaryDirectory(dir=labnode.CACHE) as work:
            for name in ("go.mod", "go.sum"):
                shutil.copyfile(SOURCE / name, pathlib.Path(work, name))
            command = [
                "go",
                "build",
                "-mod=mod",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags=-s -w",
                "-o",
                "built",
                PACKAGE,
            ]
            done = subprocess.run(command, cwd=work, env={**os.environ, "CGO_ENABLED": "0"}, check=False)
            if done.returncode:
                raise labnode.Failed(f"go build of {PACKAGE}: exit code {done.returncode}, see above")
            folder.mkdir(exist_ok=True)
            os.replace(pathlib.Path(work, "built"), program)
    return program


def laid_out(packed):
    """A tar of the fixture as a node's /sys and /dev/infiniband, with what the Go plugin reads beyond it."""
    with tempfile.TemporaryDirectory(dir=labnode.CACHE) as work:
        root = tree.lay_out(tree.load(FIXTURE), work)
        tree.add_modalias(root)
        (root / "sys/module/rdma_ucm").mkdir(parents=True, exist_ok=True)
        files = root / "dev/infiniband"
        files.mkdir(parents=True)
        for name in ("rdma_cm", *(f"{kind}{number}" for kind in ("uverbs", "umad", "issm") for number in range(8))):
            (files / name).touch()
        command = ["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-C", work, "-cf", str(packed)]
        subprocess.run([*command, "sys", "dev"], check=True)


def show(mode, results):
    """Lines: the median of each figure for each plugin, and that of each other one in ours."""
    others = [who for who in results if who != OURS]
    rows = [(mode, OURS, *(head for who in others for head in (who, f"{who.upper()} / OURS")))]
    for name in results[OURS][0]:
        ours = middle([one[name] for one in results[OURS]])
        row = [name, shown(ours)]
        for who in others:
            value = middle([one[name] for one in results[who]])
            row += [shown(value), f"{value / ours:.2f}" if ours and value is not None else ""]
        rows.append(tuple(row))
    return table(rows)


def middle(values):
    """The median; None where it did not happen in one of the rounds."""
    return None if None in values else statistics.median(values)


def shown(value):
    return "never" if value is None else f"{value:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each plugin and registration mode")
    parser.add_argument("--rest", type=float, default=3.0, help="seconds in which an idle plugin is watched")
    parser.add_argument("--before", type=pathlib.Path, help="a checkout whose plugin is measured too")
    given = parser.parse_args()
    try:
        folder = labnode.payload()
        extra = labnode.CACHE / "payload-peer"
        extra.mkdir(exist_ok=True)
        shutil.copy(peer(), extra)
        shutil.rmtree(extra / BEFORE, ignore_errors=True)
        if given.before:
            labnode.package(given.before, extra / BEFORE)
        laid_out(extra / "tree.tar")
        with labnode.running():
            labnode.bring(folder)
            labnode.bring(extra, EXTRA)
            script = (
                f"rm -rf {PLACE} && mkdir {PLACE} && tar -C {PLACE} -xf {EXTRA}/tree.tar && cd {labnode.TARGET} && "
                f"exec {labnode.PYTHON} peer_node.py {PLACE} {EXTRA} {given.rounds} {given.rest}"
            )
            done = labnode.on_node(script, stdout=subprocess.PIPE)
    except labnode.Failed as error:
        sys.stderr.write(f"bench-peer: {error}\n")
        return 1
    if done.returncode or not done.stdout.strip():
        sys.stderr.write(f"bench-peer: peer_node.py ended with {done.returncode}, see above\n")
        return 1
    result = json.loads(done.stdout)
    for mode, figures in result["figures"].items():
        sys.stdout.write("\n" + "\n".join(show(f"{mode}, median of {given.rounds}", figures)) + "\n")
    sys.stdout.write(
        "\nBoth: 8 resources of 1,000 on 8 HCAs, one config.json, one emulated node: for the ratios only.\n"
        f"The Go plugin sees a plug in its interval only ({result['interval']} s here, 60 s by default) and no link at "
        f"all. never: not within 30 s (SIGTERM: 10 s).\n"
        f"load average: node {result['load']:.1f}, this machine {os.getloadavg()[0]:.1f}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
