"""ACS at boot: written files, refusals, and the way back."""

import functools
import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import settle
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.pcie import MENU, commands, plan, setpci, text
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import pcie_path
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.paths import (
    HEADER,
    OWN_ACS_GRUB,
    OWN_ACS_RECORD,
    OWN_READ_REQUEST,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.modules import pcie as module
from ansible_collections.gpufabric.rdma.tests.unit.plugins.module_utils.hca.conftest import Node
from ansible_collections.gpufabric.rdma.tests.unit.plugins.module_utils.hca.test_pcie import behind_a_switch

A, B = "0000:02:00.0", "0000:02:01.0"
PARAMETER = f"pci=config_acs=xx000x0@{A};xx000x0@{B}"
OLD = "pci=config_acs=xx000x0@0000:09:00.0"
TOPOLOGY, REPORT = ({"acs": acs, "read_request": None} for acs in ("topology", "report"))


def facts(
    cmdline="quiet", parameter=None, loader="update-grub", kernel="6.12.43", verdict="translated", on=0x1D, **more
):
    path = OWN_ACS_GRUB if loader == "update-grub" else OWN_ACS_RECORD
    masks = {A: "xx000x0", B: "xx000x0"}
    way = {"verdict": verdict, "masks": masks, "reason": "a reason"}
    acs = {"acs": {"capability": 0x5F, "control": on}}
    return {
        "node": {"kernel": kernel, "cmdline": cmdline, "container": None},
        "pcie": {"paths": [way], "iommu": True, "loader": loader, "functions": dict.fromkeys(masks, acs)},
        "owned_files": {path: {"mode": "0644", "content": text(loader, parameter)}} if parameter else {},
        **more,
    }


def outcome(made):
    return [(change.object, change.action) for change in made.changes], len(made.reboot_reasons)


WRITE, RECORD = (OWN_ACS_GRUB, "write"), (OWN_ACS_RECORD, "write")
SET, UNSET, REMOVE = (MENU, "set"), (MENU, "unset"), (OWN_ACS_GRUB, "remove")
EMPTIED = {OWN_ACS_GRUB: {"mode": "0644", "content": f"{HEADER}\n"}}


@pytest.mark.parametrize(("there", "wanted", "changes", "reboot"), [
    (facts(), REPORT, [], 0),
    (facts(), TOPOLOGY, [WRITE, SET], 1),
    (facts(loader="grubby"), TOPOLOGY, [SET, RECORD], 1),
    (facts(on=0), TOPOLOGY, [WRITE, SET], 0),
    (facts(parameter=PARAMETER), TOPOLOGY, [], 1),
    (facts(PARAMETER, PARAMETER), TOPOLOGY, [], 0),
    (facts(PARAMETER, PARAMETER, "grubby"), TOPOLOGY, [], 0),
    (facts(parameter=PARAMETER, acs_in_menu=False), TOPOLOGY, [SET], 1),
    (facts(OLD, OLD), TOPOLOGY, [WRITE, SET], 1),
    (facts(OLD, PARAMETER), TOPOLOGY, [], 1),
    (facts(PARAMETER, PARAMETER), REPORT, [WRITE, UNSET, REMOVE], 1),
    (facts(owned_files=EMPTIED), REPORT, [UNSET, REMOVE], 0),
    (facts(PARAMETER), TOPOLOGY, [WRITE, SET], 0),
    (facts(PARAMETER, PARAMETER, "grubby"), REPORT, [UNSET, (OWN_ACS_RECORD, "remove")], 1),
    (facts(PARAMETER, acs_before=PARAMETER), REPORT, [], 1),
    (facts(PARAMETER), REPORT, [], 0),
    (facts(PARAMETER, PARAMETER, verdict="unknown"), TOPOLOGY, [], 0),
    (facts(verdict="unknown"), TOPOLOGY, [], 0),
    (facts(kernel="6.14.0-15-generic"), TOPOLOGY, [], 0),
    (facts("pci=nomsi"), TOPOLOGY, [WRITE, SET], 1),
])  # fmt: skip
def test_the_plan(there, wanted, changes, reboot):
    made = plan(there, wanted)
    assert (outcome(made), made.findings) == ((changes, reboot), [])


@pytest.mark.parametrize(
    "there",
    [facts(OLD), facts("pci=nomsi", loader="grubby"), facts("pcie_acs_override=downstream"), facts(loader=None)],
)
def test_what_another_has_set_is_refused(there):
    made = plan(there, TOPOLOGY)
    assert (made.changes, len(made.findings)) == ([], 1)


def test_a_tree_of_files_gets_the_file_and_no_menu():
    made = plan(facts(), TOPOLOGY, "/mnt")
    assert (outcome(made)[0], len(made.not_verified)) == ([WRITE], 1)


NIC = "0000:03:00.0"


@pytest.mark.parametrize(("value", "rule", "root", "changes"), [
    (512, False, "/", [(f"MaxReadReq of {NIC}", "set"), (OWN_READ_REQUEST, "write")]),
    (4096, False, "/", [(OWN_READ_REQUEST, "write")]),
    (4096, True, "/", []),
    (512, True, "/mnt", []),
    (None, True, "/", []),
])  # fmt: skip
def test_max_read_request(value, rule, root, changes):
    there = facts(verdict="direct")
    there["pcie"]["functions"][NIC] = {"max_read_request": value}
    there["pcie"]["paths"][0]["function"] = NIC
    wanted = {"acs": "report", "read_request": 4096}
    written = next(change.after for change in plan(there, wanted).changes if change.object == OWN_READ_REQUEST)
    there["owned_files"] = {OWN_READ_REQUEST: {"mode": "0644", "content": written}} if rule else {}
    made = plan(there, wanted, root)
    assert outcome(made)[0] == changes
    there["pcie"]["lockdown"] = "integrity"
    assert len(plan(there, wanted, root).findings) == len([one for one in changes if one[1] == "set"])
    assert outcome(plan(there, REPORT))[0] == ([(OWN_READ_REQUEST, "remove")] if rule else [])
    assert (setpci(NIC, 4096)[-1], setpci(NIC, 512)[-1]) == ("CAP_EXP+08.w=5000:F000", "CAP_EXP+08.w=2000:F000")


@pytest.mark.parametrize("loader", ["update-grub", "grubby"])
def test_what_is_written_is_what_is_read(loader):
    there = facts(parameter=PARAMETER, loader=loader)
    assert pcie_path.persisted(there["owned_files"]) == PARAMETER
    assert pcie_path.parsed(PARAMETER) == {A: "xx000x0", B: "xx000x0"}
    assert pcie_path.parsed(f"pci=disable_acs_redir={A};{B}").keys() == {A, B}
    assert pcie_path.booted(f'ro "{PARAMETER}" quiet') == [PARAMETER]


@pytest.mark.parametrize(
    ("loader", "before", "after", "argv"),
    [
        ("update-grub", "", "new", ["update-grub"]),
        ("grubby", "", "new", ["grubby", '--args="new"']),
        ("grubby", "old", "new", ["grubby", '--remove-args="old"', "grubby", '--args="new"']),
        ("grubby", "old", "", ["grubby", '--remove-args="old"']),
    ],
)
def test_commands_of_the_boot_loaders(loader, before, after, argv):
    words = [word for command in commands(loader, before, after) for word in command]
    assert [word for word in words if word != "--update-kernel=ALL"] == argv


def machine(root):
    """A node of kernel 6.12 with GRUB, whose switch redirects."""
    node = behind_a_switch(Node(root), 0x1D)
    return node.write("/proc/sys/kernel/osrelease", "6.12.43+deb13-amd64").write("/usr/sbin/update-grub")


def test_set_booted_and_taken_back(tmp_path):
    node = machine(tmp_path)
    grub = node.host("/boot/grub/grub.cfg")

    def update_grub(argv):
        drop_in = node.host(OWN_ACS_GRUB)
        node.write("/boot/grub/grub.cfg", drop_in.read_text() if drop_in.exists() else "menuentry")
        return 0, "", ""

    def run(wanted, check=False):
        act = functools.partial(module.apply, loader="update-grub", root=str(tmp_path), run=update_grub)
        return settle(module.Reader(str(tmp_path), []), lambda facts: plan(facts, wanted), act, check)

    expected, _planned = run(TOPOLOGY, check=True)
    assert not grub.exists()
    decided, done = run(TOPOLOGY)
    assert (done, len(decided.reboot_reasons)) == (expected.changes, 1)
    assert run(TOPOLOGY)[1] == []
    assert len(node.facts()["reboot_reasons"]) == 1
    grub.write_text("menuentry")
    assert [change.object for change in run(TOPOLOGY)[1]] == [MENU]
    node.write("/proc/cmdline", PARAMETER)
    assert (run(TOPOLOGY)[0].reboot_reasons, node.facts()["reboot_reasons"]) == ([], [])
    decided, done = run(REPORT)
    assert ([change.object for change in done], len(decided.reboot_reasons)) == ([OWN_ACS_GRUB, MENU, OWN_ACS_GRUB], 1)
    assert "config_acs" not in grub.read_text()
    assert run(REPORT)[1] == []


SEAMS = [None, 5, [5], {"eth1": 5}, {"eth1": [None, 5]}, {"eth1": {"dscp": 5}}, {"eth1": {"dscp": {"26": [3]}}}]


def test_no_recorded_answer_makes_the_facts_raise(tmp_path):
    node = machine(tmp_path).write("/proc/cmdline", PARAMETER).write(OWN_ACS_GRUB, PARAMETER)
    for key in ("addresses", "modinfo", "rpm", "routes", "sessions", "egress", "qos", "machine"):
        for answer in SEAMS:
            node.write("/.seams.json", json.dumps({key: answer}))
            gather(node.tree(), Seams.of(node.tree()))
    node.write(f"/sys/bus/pci/devices/{A};halt/class", "0x020000").write("/sys/class/net/eth1/address", '"$(halt)"')
    assert "halt" not in json.dumps(node.facts(["all"]))
