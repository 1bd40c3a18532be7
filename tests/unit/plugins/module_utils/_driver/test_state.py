"""What is read of a node's disk before anything is planned: packages, our files to the last byte, kernels, headers."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import packages
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import state as driver_state
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.plan import plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.tests.tools import overlays
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixtures

STATUS = """Package: dkms
Status: install ok installed
Version: 3.0.11

Package: mlnx-ofed-kernel-dkms
Status: install ok half-configured
Version: 25.10-1

Package: linux-image-generic
Status: hold ok installed
Version: 1
"""


def read(folder, fixture=overlays.STALE, over=None):
    fixtures.lay_out(fixtures.load(fixture), folder)
    overlays.lay_over(over or overlays.Over(), folder)
    tree = Tree(str(folder))
    seams = Seams.of(tree)
    return driver_state.read(tree, gather(tree, seams, ["driver", "initramfs"]), seams, lambda argv: (1, "", ""))


def test_packages_files_and_kernels_of_an_apt_node(tmp_path):
    text = packages.pins_file("DOCA-HOST*")
    over = overlays.Over({"/var/lib/dpkg/status": STATUS, packages.PINS: text.rstrip("\n")})
    over += overlays.newer_kernel("kernel/mlx5_core.ko") + overlays.file("/etc/apt/sources.list.d/x.list", "deb x")
    over += overlays.file("/etc/apt/sources.list.d/doca.list", "deb https://linux.mellanox.com/public/repo/doca ./")
    state = read(tmp_path, over=over)
    assert state["manager"] == "apt"
    assert state["packages"] == {"dkms": "3.0.11", "linux-image-generic": "1"}
    assert state["unfinished"] == {"mlnx-ofed-kernel-dkms": "half-configured"}
    assert state["held"] == {"linux-image-generic"}
    assert state["files"][packages.PINS] == text
    assert state["files"][packages.SERVICE] is None
    assert state["files"].keys() >= {packages.KEYS["apt"], packages.REPOSITORIES["apt"]}
    assert state["kernels"] == [overlays.KERNEL, overlays.NEWER]
    assert state["headers"][overlays.NEWER] is False
    assert state["foreign_repositories"] == ["/etc/apt/sources.list.d/doca.list"]


@pytest.mark.parametrize("fixture", fixtures.names())
def test_every_captured_node_can_be_read_and_none_is_changed_from_afar(fixture, tmp_path):
    state = read(tmp_path, fixture)
    made = plan(state, {"flavor": "inbox", "remove_allowed": True}, str(tmp_path))
    assert made.changes == []
    assert made.findings or made.not_verified[0].startswith("the driver is left as it is: ")
