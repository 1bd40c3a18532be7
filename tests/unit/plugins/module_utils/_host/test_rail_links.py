"""MTU and link-up by PCI address or MAC: what is set, what is refused, what the script does at boot."""

from __future__ import annotations

import copy
import os
import subprocess
import threading

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.rail_links import ENABLED, LINK_TARGET, plan, script
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths

MAC = "b8:3f:d2:00:00:01"
SETTING = {"pci": "0000:3b:00.0", "mac": None, "mtu": 9000, "up": True}
NETDEV = {"name": "eth2", "mac": MAC, "mtu": 1500, "carrier": None, "master": None, "default_route": False}


def hca(address: str, *netdevs: dict) -> dict:
    return {"name": "mlx5_0", "pci": {"address": address} if address else None, "netdevs": list(netdevs)}


def wanted(*settings: dict) -> dict:
    return {"settings": list(settings)}


@pytest.fixture
def facts() -> dict:
    return {"node": {"container": None}, "hcas": [hca("0000:3b:00.0", copy.deepcopy(NETDEV))], "owned_files": {}}


def settled(facts: dict, *settings: dict) -> dict:
    """The same node after the plan has been carried out."""
    for change in plan(facts, wanted(*settings)).changes:
        if change.action == "write":
            facts["owned_files"][change.object] = {"mode": "0644", "content": change.after}
    facts["hcas"][0]["netdevs"][0].update(mtu=9000, carrier=1)
    facts["links_enabled"] = True
    return facts


def test_an_empty_list_does_nothing(facts):
    assert plan(facts, wanted()).changes == []


def test_running_values_and_boot_are_both_set(facts):
    made = plan(facts, wanted(SETTING))
    assert [(change.object, change.action, change.after) for change in made.changes if change.action != "write"] == [
        ("NIC eth2 MTU", "set", "9000"),
        ("NIC eth2 link", "set", "up"),
        (ENABLED, "link", LINK_TARGET),
    ]
    assert [change.object for change in made.changes if change.action == "write"] == [
        paths.OWN_LINKS_SCRIPT,
        paths.OWN_LINKS_UNIT,
    ]


def test_no_link_file_is_ever_written(facts):
    assert not any(change.object.endswith(".link") for change in plan(facts, wanted(SETTING)).changes)


def test_a_second_run_changes_nothing(facts):
    assert plan(settled(facts, SETTING), wanted(SETTING)).changes == []


def test_unit_and_script_go_with_the_last_setting(facts):
    made = plan(settled(facts, SETTING), wanted())
    assert [(change.object, change.action) for change in made.changes] == [
        (ENABLED, "unlink"),
        (paths.OWN_LINKS_UNIT, "remove"),
        (paths.OWN_LINKS_SCRIPT, "remove"),
    ]


@pytest.mark.parametrize(
    "key",
    [
        {"pci": "3b:00.0"},
        {"pci": "0000:3B:00.0"},
        {"mac": MAC},
        {"mac": MAC.upper()},
    ],
)
def test_keys_are_found_as_people_write_them(facts, key):
    assert "NIC eth2 MTU" in [change.object for change in plan(facts, wanted({**key, "mtu": 9000})).changes]


def test_up_is_only_set_when_asked_for_and_never_taken_down(facts):
    objects = [change.object for change in plan(facts, wanted({"pci": "0000:3b:00.0", "mtu": 9000})).changes]
    assert "NIC eth2 link" not in objects
    facts["hcas"][0]["netdevs"][0]["carrier"] = 0
    objects = [change.object for change in plan(facts, wanted(SETTING)).changes]
    assert "NIC eth2 link" not in objects, "no cable is not the same as administratively down"


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({"default_route": True}, {}),
        ({}, {"eth2": "the SSH session of this run comes in on eth2 (10.0.0.4)"}),
        ({"master": "bond0"}, {"bond0": "the default route uses bond0"}),
    ],
)
def test_a_nic_that_management_depends_on_is_refused(facts, change, reasons):
    facts["hcas"][0]["netdevs"][0].update(change)
    made = plan(facts, wanted(SETTING), protected=reasons)
    assert made.changes == []
    assert made.findings[0].object == "NIC eth2 (PCI 0000:3b:00.0)"
    assert "route" in made.findings[0].seen or "SSH" in made.findings[0].seen


def test_a_key_that_no_hca_has_lists_those_there_are(facts):
    (finding,) = plan(facts, wanted({"pci": "0000:99:00.0", "mtu": 9000})).findings
    assert finding.object == "rail_links_settings PCI 0000:99:00.0"
    assert f"eth2 (PCI 0000:3b:00.0, MAC {MAC})" in finding.seen


def test_one_function_with_two_netdevs_asks_for_the_mac(facts):
    facts["hcas"][0]["netdevs"].append({**NETDEV, "name": "eth3", "mac": "b8:3f:d2:00:00:02"})
    (finding,) = plan(facts, wanted(SETTING)).findings
    assert "eth3" in finding.seen
    assert "MAC" in finding.next_step


def test_two_settings_for_one_nic_are_refused(facts):
    (finding,) = plan(facts, wanted(SETTING, {"mac": MAC, "mtu": 4200})).findings
    assert finding.object == "NIC eth2"
    assert "PCI 0000:3b:00.0 and MAC" in finding.seen


def test_all_problems_are_reported_at_once(facts):
    made = plan(facts, wanted({"pci": "0000:98:00.0"}, {"pci": "0000:99:00.0"}))
    assert len(made.findings) == 2


def test_in_a_container_only_files_are_written(facts):
    facts["node"]["container"] = "systemd-nspawn"
    made = plan(facts, wanted(SETTING))
    assert not any(change.object.startswith("NIC") for change in made.changes)
    assert "eth2" in made.not_verified[0]


@pytest.fixture
def boot(tmp_path):
    """Runs the script that a unit would run at boot, with /sys below tmp_path."""
    for name, address in (("eth2", MAC), ("vlan7", MAC), ("eth3", "b8:3f:d2:00:00:02")):
        directory = tmp_path / "sys/class/net" / name
        directory.mkdir(parents=True)
        for file, text in (("address", address), ("mtu", "1500"), ("flags", "0x1002")):
            (directory / file).write_text(f"{text}\n")
    (tmp_path / "sys/class/net/vlan7/lower_eth2").mkdir()
    (tmp_path / "sys/bus/pci/devices/0000:3b:00.0/net/eth3").mkdir(parents=True)

    def run(*settings: dict, wait: str = "0"):
        text = script([{"pci": "", "mac": "", "mtu": None, "up": False, **setting} for setting in settings])
        return subprocess.run(
            ["sh", "-c", text.replace("/sys/", f"{tmp_path}/sys/")],
            env={"PATH": os.environ["PATH"], "LINK_WAIT_SECONDS": wait},
            capture_output=True,
            text=True,
            check=False,
        )

    def value(name: str, file: str) -> str:
        return (tmp_path / "sys/class/net" / name / file).read_text().strip()

    run.value = value
    return run


def test_the_script_sets_the_nic_of_a_pci_address(boot):
    done = boot({"pci": "0000:3b:00.0", "mtu": 9000, "up": True})
    assert (done.returncode, done.stderr) == (0, "")
    assert (boot.value("eth3", "mtu"), boot.value("eth3", "flags")) == ("9000", str(0x1003))
    assert (boot.value("eth2", "mtu"), boot.value("vlan7", "mtu")) == ("1500", "1500")


def test_the_script_sets_the_nic_of_a_mac_and_not_what_is_above_it(boot):
    done = boot({"mac": MAC, "mtu": 4200})
    assert (done.returncode, done.stderr) == (0, "")
    assert (boot.value("eth2", "mtu"), boot.value("eth2", "flags")) == ("4200", "0x1002")
    assert boot.value("vlan7", "mtu") == "1500"


def test_a_nic_that_comes_late_is_waited_for(boot, tmp_path):
    late = tmp_path / "sys/bus/pci/devices/0000:99:00.0/net/eth2"
    timer = threading.Timer(0.3, lambda: late.mkdir(parents=True))
    timer.start()
    done = boot({"pci": "0000:99:00.0", "mtu": 9000}, wait="30")
    timer.join()
    assert (done.returncode, boot.value("eth2", "mtu")) == (0, "9000")


def test_a_nic_that_is_gone_fails_the_script_and_not_the_others(boot):
    done = boot({"pci": "0000:99:00.0", "mtu": 9000}, {"mac": MAC, "mtu": 4200})
    assert done.returncode == 1
    assert "0000:99:00.0" in done.stderr
    assert boot.value("eth2", "mtu") == "4200"
