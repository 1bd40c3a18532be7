"""ACS on a lab node whose HCA and GPU's double are below one PCIe switch: judged, set, over a reboot, and back.

Bridges, IOMMU, kernel and update-grub are the node's own. The GPU is QEMU's ATI adapter, the HCA a module of ours below
the PCI function of a NIC: soft-RoCE has no function, so no path to a GPU.
tests/run-driver-lab brings the node up with LAB_GPU.
"""

import json
import os

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import kernel_modules
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import Cluster

NODE = os.environ.get("DRIVER_LAB")
pytestmark = pytest.mark.skipif(not NODE, reason="not verified: needs a separate lab node (DRIVER_LAB=node1)")

REDIRECTS = 0x2C  # RR, CR, EC
PORTS = "for port in 42:00.0 42:01.0; do setpci -s $port ECAP_ACS+6.w; done"
PLUG = "insmod /root/hca_double.ko nic=eth2; udevadm settle"
DROP_IN = "/etc/default/grub.d/gpufabric-rdma-acs.cfg"


@pytest.fixture(scope="module")
def lab():
    made = Cluster()
    made.variables = ()
    kernel_modules.give(made, NODE, "hca_double")
    made.node(NODE, PLUG)
    yield made
    made.node(NODE, "rmmod hca_double")


def reset(lab):
    lab.labctl("power", NODE, "reset")
    lab.node(NODE, PLUG)


def redirects(lab):
    """The redirecting bits of the two ports below the switch, as the hardware has them."""
    return [int(text, 16) & REDIRECTS for text in lab.node(NODE, PORTS).split()]


def run(lab, acs):
    done = lab.run("host.yml", "-e", json.dumps({"pcie_acs": acs, "reboot_allowed": False, "cluster": False}))
    assert done.code == 0, done.text[-6000:]
    reasons = done.facts(NODE, "rdma_reboot_reasons")
    return done.changes(NODE), reasons[-1] if reasons else []


def judged(lab):
    """(verdict of the pair's path, whether the HCA's ATS is on, statuses of the path's and of ACS' checks)."""
    done = lab.run("verify.yml", "-e", json.dumps({"pcie_acs": "topology", "cluster": False}))
    pcie = [fact["pcie"] for fact in done.facts(NODE, "rdma") if "pcie" in fact][-1]
    checks = {
        check["id"].partition(":")[0]: status
        for status in ("passed", "failed", "not_verified")
        for check in done.checks(NODE, status)
    }
    (path,) = pcie["paths"]
    return path["verdict"], pcie["functions"][path["function"]]["ats"], checks["path"], checks.get("acs")


def test_acs_is_set_for_the_next_boot_read_back_after_it_and_taken_back(lab):
    assert redirects(lab) == [0x0C, 0x0C]
    assert judged(lab) == ("translated", False, "failed", None)

    changes, reasons = run(lab, "topology")
    assert ("boot menu", "set") in changes
    assert len(reasons) == 1
    assert redirects(lab) == [0x0C, 0x0C], "only a boot sets them"

    reset(lab)
    assert "pci=disable_acs_redir=0000:42:00.0;0000:42:01.0" in lab.node(NODE, "cat /proc/cmdline")
    assert redirects(lab) == [0, 0]
    assert judged(lab) == ("direct", False, "passed", "passed")
    assert run(lab, "topology") == (set(), [])

    changes, reasons = run(lab, "report")
    assert ("boot menu", "unset") in changes
    assert lab.node(NODE, f"test -e {DROP_IN} || echo absent") == "absent"
    assert len(reasons) == 1
    reset(lab)
    assert redirects(lab) == [0x0C, 0x0C]
    assert run(lab, "report") == (set(), [])
