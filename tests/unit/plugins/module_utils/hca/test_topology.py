# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The definitions that `nvidia-smi topo -m` prints below its matrix, each on the smallest tree that shows it."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import topology

GPU = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0"
CASES = {
    "two functions of a card": ("pci0000:10/0000:10:01.0/0000:11:00.0", "pci0000:10/0000:10:01.0/0000:11:00.1", "PIX"),
    "one switch, two downstream ports": (GPU, "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", "PIX"),
    "a second switch below the first": (
        GPU,
        "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0/0000:15:00.0/0000:16:00.0",
        "PXB",
    ),
    "one host bridge, two root ports": (GPU, "pci0000:10/0000:10:02.0/0000:20:00.0", "PHB"),
    "on the root bus": (GPU, "pci0000:10/0000:10:03.0", "PHB"),
    "two host bridges of one node": (GPU, "pci0000:30/0000:30:01.0/0000:31:00.0", "NODE"),
    "another domain of one node": (GPU, "pci0009:00/0009:00:00.0/0009:01:00.0", "NODE"),
}


@pytest.mark.parametrize(("one", "other", "wanted"), CASES.values(), ids=CASES)
def test_distance(node, one, other, wanted):
    for chain in (one, other):
        node.pci(chain, "10de", "2330", "0x030200")
    addresses = [chain.rpartition("/")[2] for chain in (one, other)]
    assert topology.distance(node.tree(), *addresses) == wanted
    assert topology.distance(node.tree(), *reversed(addresses)) == wanted


@pytest.mark.parametrize(
    ("first", "second", "online", "wanted"),
    [
        (0, 1, "0-1", "SYS"),
        (0, 0, "0-1", "NODE"),
        (-1, -1, "0-1", "NODE"),
        (-1, 0, "0", "NODE"),
        (-1, 0, "0-1", "SYS"),
        (-1, 0, None, "NODE"),
    ],
)
def test_numa_node_decides_between_host_bridges(node, first, second, online, wanted):
    node.pci("pci0000:10/0000:10:01.0", "10de", "2330", "0x030200")
    node.pci("pci0000:30/0000:30:01.0", "10de", "2330", "0x030200")
    node.write("/sys/bus/pci/devices/0000:10:01.0/numa_node", str(first))
    node.write("/sys/bus/pci/devices/0000:30:01.0/numa_node", str(second))
    path = node.host("/sys/devices/system/node/online")
    path.write_text(online) if online else path.unlink()
    assert topology.distance(node.tree(), "0000:10:01.0", "0000:30:01.0") == wanted


def test_a_host_bridge_below_a_platform_device(node):
    """Arm servers and Hyper-V hang the host bridge below something else than /sys/devices itself."""
    for number in (1, 2):
        node.pci(f"platform/ACPI0004:00/pci0002:00/0002:00:00.{number}", "10de", "2342", "0x030200")
        node.link(f"/sys/bus/pci/devices/x{number}", "/sys/devices/platform")
    assert topology.distance(node.tree(), "0002:00:00.1", "0002:00:00.2") == "PHB"


def test_what_is_not_there_has_no_distance(node):
    node.pci("pci0000:10/0000:10:01.0", "10de", "2330", "0x030200")
    assert topology.distance(node.tree(), "0000:10:01.0", "0000:99:00.0") is None


def test_nearest_keeps_one_class_in_pci_order(node):
    here = "0000:13:00.0"
    for chain in (GPU, *(case[1] for case in CASES.values())):
        node.pci(chain, "10de", "2330", "0x030200")
    where = topology.Topology(node.tree())
    others = ["0000:31:00.0", "0000:20:00.0", "0000:10:03.0", "0009:01:00.0"]
    assert where.nearest(here, others) == [
        {"address": "0000:10:03.0", "distance": "PHB"},
        {"address": "0000:20:00.0", "distance": "PHB"},
    ]
    assert where.nearest(here, []) == []
