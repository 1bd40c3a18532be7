"""What kernel_modules makes of the doctor's verdicts, from facts as they reach the controller: real module files in."""

from __future__ import annotations

import json
import shutil

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import REFUSED, complete
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.kernel_modules import plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.modules.kernel_modules import SUBSET
from ansible_collections.gpufabric.rdma.tests.tools.gpu_node import DKMS, GPU, OFED, OPEN, Node

PEERMEM = "module nvidia_peermem"


@pytest.fixture
def node(tmp_path, kernel):
    return Node(tmp_path, kernel)


def stub(node, built):
    node.module(built["inbox"] / "ib_core.ko", "kernel/ib_core.ko").module(built["inbox"] / "nvidia-peermem.ko", DKMS)


def crc_mismatch(node, built):
    node.module(built["new"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)


def missing_symbol(node, built):
    node.module(built["inbox"] / "ib_core.ko", "kernel/ib_core.ko").module(built["old"] / "nvidia-peermem.ko", DKMS)


def wrong_tree(node, built):
    crc_mismatch(node, built)
    shutil.copytree(built["old"], node.host("/usr/src/ofa_kernel/x86_64/5.15.0-1-generic"))
    node.host("/usr/src/ofa_kernel/default").symlink_to("x86_64/5.15.0-1-generic")


def legacy(node, built):
    fits(node, built)
    node.module(built["old"] / "nvidia-peermem.ko", "updates/dkms/nv_peer_mem.ko")


def fits(node, built):
    node.module(built["old"] / "ib_core.ko", OFED).module(built["old"] / "nvidia-peermem.ko", DKMS)


def decided(node, gpudirect="auto", **more):
    tree = Tree(str(node.root))
    facts = json.loads(json.dumps(complete(gather(tree, Seams.none(), SUBSET), tree)))
    return facts["gpudirect"], plan(facts, {"required": [], "ipoib": "never", "gpudirect": gpudirect, **more})


def loads(made):
    return [change.object for change in made.changes if change.action == "load"]


def listed(made):
    return next((change.after for change in made.changes if change.object == paths.OWN_MODULES_LOAD), "")


@pytest.mark.parametrize("choice", ["auto", "peermem"])
@pytest.mark.parametrize("plant", [stub, crc_mismatch, missing_symbol, wrong_tree, legacy])
def test_a_module_that_cannot_load_is_refused_with_verdict_and_action(node, built, plant, choice):
    plant(node, built)
    gpudirect, made = decided(node, choice)
    (finding,) = made.findings
    verdict = plant.__name__.replace("_", "-")
    assert verdict in REFUSED
    assert finding.object == PEERMEM
    assert finding.seen.startswith(f"{verdict}: {gpudirect['verdict']}")
    assert finding.next_step == f"{gpudirect['action']} To continue without it, set kernel_modules_gpudirect: off"
    assert loads(made) == []
    assert "nvidia_peermem" not in listed(made)


@pytest.mark.parametrize("choice", ["dmabuf", "off"])
def test_who_does_not_ask_for_it_is_not_stopped(node, built, choice):
    stub(node, built)
    _gpudirect, made = decided(node, choice)
    assert (made.findings, loads(made)) == ([], [])


def test_a_run_that_changes_the_driver_first_is_not_stopped_beforehand(node, built):
    stub(node, built)
    _gpudirect, made = decided(node, driver_changes=True)
    assert (made.findings, loads(made)) == ([], [])
    assert "is a stub" in made.not_verified[0]


def test_one_that_fits_is_loaded_and_listed(node, built):
    fits(node, built)
    _gpudirect, made = decided(node)
    assert (made.findings, loads(made)) == ([], [PEERMEM])
    assert "\nnvidia_peermem\n" in listed(made)


def test_one_that_is_not_needed_is_left_out_in_silence(node, built):
    stub(node, built)
    node.write("/proc/driver/nvidia/version", OPEN)
    gpudirect, made = decided(node)
    assert gpudirect["mode"] == "dmabuf"
    assert (made.findings, made.notes, loads(made)) == ([], [], [])
    assert "nvidia_peermem" not in listed(made)


def test_one_that_fits_the_disk_only_waits_for_the_next_boot(node, built):
    fits(node, built)
    node.write("/sys/module/ib_core/srcversion", "0123456789ABCDEF0123456")
    _gpudirect, made = decided(node)
    assert (made.findings, loads(made)) == ([], [])
    assert "\nnvidia_peermem\n" in listed(made)
    assert made.not_applied[0].startswith("nvidia_peermem is loaded at the next boot, not now")


def test_a_driver_of_another_version_is_a_remark_or_where_it_is_asked_for_a_problem(node, built):
    fits(node, built)
    node.write("/sys/module/nvidia/version", "580.65.06")
    _gpudirect, made = decided(node)
    assert (made.findings, loads(made)) == ([], [])
    assert "is from NVIDIA driver 570.172.08, but 580.65.06 is in use" in made.notes[0]
    (finding,) = decided(node, "peermem")[1].findings
    assert finding.seen.startswith("version-mismatch: ")


def test_the_nvidia_driver_is_not_loaded_as_a_side_effect(node, built):
    fits(node, built)
    node.module(built["old"] / "ib_core.ko", "updates/dkms/nvidia.ko")
    shutil.rmtree(node.host("/sys/module/nvidia"))
    _gpudirect, made = decided(node)
    assert loads(made) == []
    assert "GPUDirect: The nvidia module is not loaded." in made.notes[0]


def test_a_node_without_a_gpu_is_not_examined(node):
    node.write(f"{GPU}/vendor", "0x1002")
    gpudirect, made = decided(node)
    assert gpudirect["evidence"] is None
    assert made.findings == []
