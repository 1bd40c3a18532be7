"""The PCIe roots that Kubernetes' own helper finds on the trees of tests/fixtures/hosts and on a few odd ones.

    python tests/dra_judge/pcie_roots.py    writes tests/fixtures/pcie_roots.json; needs Go, and root for chroot

The helper (k8s.io/dynamic-resource-allocation/deviceattribute) reads /sys and nothing else, so each tree becomes a
thread's root while it reads.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(CHECKOUT / "lab"), str(CHECKOUT / "tests/tools")]

import tree  # noqa: E402

from lab import programs  # noqa: E402

TABLE = CHECKOUT / "tests/fixtures/pcie_roots.json"
PCI = "/sys/bus/pci/devices"
# What no fixture has: {address: where its link leads}.
ODD = {
    "0000:01:00.0": "../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0",
    "0000:02:00.0": "/sys/devices/pci0000:00/0000:00:02.0/0000:02:00.0",
    "0009:3b:00.0": "../../../devices/pci0009:3b/0009:3b:00.0",
    # Intel VMD: a root below a root, with a domain of four digits and of five.
    "8000:00:01.0": "../../../devices/pci0000:00/0000:00:0e.0/pci8000:00/8000:00:01.0",
    "10000:00:01.0": "../../../devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:01.0",
    # Arm's host bridges below a platform device.
    "0002:00:00.0": "../../../devices/platform/ACPI0004:00/pci0002:00/0002:00:00.0",
    "0000:04:00.0": "../../../devices/pci0000:00/0000:05:00.0",
    "0000:06:00.0": "../../../devices/pci0000:00/../pci0000:40/0000:06:00.0",
    "0000:07:00.A": "../../../devices/pci0000:00/0000:07:00.A",
    "virtio0": "../../../devices/pci0000:00/0000:00:03.0/virtio0",
}


def fixtures() -> dict[str, dict]:
    """{name: a tree in the form of tests/tools/tree.py} of everything that the table is about."""
    odd = {"links": {f"{PCI}/{address}": goal for address, goal in ODD.items()}}
    return {**{name: tree.load(name) for name in tree.names()}, "odd": odd}


def answers(program: pathlib.Path) -> dict[str, dict[str, str | None]]:
    """{tree: {address of a PCI function: root, or None where the helper refuses}}."""
    made = fixtures()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        for name, fixture in made.items():
            tree.lay_out(fixture, pathlib.Path(folder, name))
        command = [str(program), *(f"{folder}/{name}" for name in made)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[str, str | None]] = {name: {} for name in made}
    for line in said.splitlines():
        name, address, root, _why = line.split("\t")
        found[name][address] = root or None
    return found


def main() -> None:
    program = programs.ensure(["dra"])["dra"] / "pcieroot"
    document = {
        "made_by": "python tests/dra_judge/pcie_roots.py",
        "helper": f"k8s.io/dynamic-resource-allocation/deviceattribute of Kubernetes {programs.PARTS['dra'].version}",
        "roots": answers(program),
    }
    TABLE.write_text(json.dumps(document, indent=1) + "\n")
    count = sum(map(len, document["roots"].values()))
    sys.stdout.write(f"{count} functions of {len(document['roots'])} trees in {TABLE.relative_to(CHECKOUT)}\n")


if __name__ == "__main__":
    main()
