"""sriov_vfs as Ansible runs it: a process below a laid-out tree."""

import shutil
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import enabled
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import sriov
from ansible_collections.gpufabric.rdma.plugins.modules import sriov_vfs
from ansible_collections.gpufabric.rdma.tests.tools import running, tree


def call(module, root, check=False, **options):
    return running.module(module, check, root=str(root), **options)


@pytest.fixture
def node(tmp_path):
    return tree.lay_out(tree.load("vfs"), tmp_path / "vfs")


def test_below_a_tree_the_unit_is_written_and_the_kernel_is_left_alone(node):
    settings = [{"pci": "3b:00.0", "vfs": 4}]
    before = (node / "sys/bus/pci/devices/0000:3b:00.0").resolve()
    made = call(sriov_vfs, node, settings=settings)
    changes = [(change["object"], change["action"]) for change in made["changes"]]
    assert changes == [(sriov.SCRIPT, "write"), (sriov.UNIT, "write"), (enabled(sriov.UNIT)[0], "link")]
    assert "tree of files" in made["not_verified"][0]
    assert "not access" in made["notes"][0]
    assert "set_vfs 0000:3b:00.0 4\n" in (node / sriov.SCRIPT[1:]).read_text()
    assert "Before=network-online.target k3s.service k3s-agent.service" in (node / sriov.UNIT[1:]).read_text()
    assert (before / "sriov_numvfs").read_text().strip() == "2"
    assert call(sriov_vfs, node, settings=settings)["changed"] is False
    gone = call(sriov_vfs, node, settings=[])
    assert {change["action"] for change in gone["changes"]} == {"remove", "unlink"}
    assert not (node / sriov.UNIT[1:]).exists()


def facts(**device):
    described = {"total": 8, "enabled": 0, "virtual": False, **device}
    return {"node": {"container": None}, "devices": {"0000:3b:00.0": described}, "owned_files": {}, "enabled": []}


@pytest.mark.parametrize(("device", "vfs", "consent", "seen", "actions"), [
    ({"total": 0}, 4, None, "supports no VFs", 0),
    ({}, 9, None, "the firmware allows 8", 0),
    ({"virtual": True}, 1, None, "itself a VF", 0),
    ({"enabled": 2}, 4, None, "removes all of them first", 0),
    ({}, 8, None, "", 4),
    ({"enabled": 8}, 8, None, "", 3),
    ({"enabled": 2}, 8, True, "", 4),
    ({"enabled": 2}, 8, False, "", 3),
])  # fmt: skip
def test_what_firmware_or_kernel_would_refuse_is_refused_before_and_vfs_that_are_there_need_consent(
    device, vfs, consent, seen, actions
):
    made = sriov.plan(facts(**device), [{"pci": "0000:3b:00.0", "vfs": vfs}], consent)
    assert [seen in finding.seen for finding in made.findings] == ([True] if seen else [])
    assert (len(made.changes), bool(made.not_applied)) == (actions, consent is False)


def test_an_address_that_is_not_there_is_named_with_those_that_are():
    made = sriov.plan(facts(), [{"pci": "0000:99:00.0", "vfs": 1}], None)
    assert "0000:3b:00.0" in made.findings[0].seen


def test_the_kernel_is_asked_for_none_before_another_number(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(sriov_vfs, "set_attribute", lambda _path, value: written.append(value))
    sriov_vfs.set_vfs(Change("PCI 0000:3b:00.0 sriov_numvfs", "set", "2", "8"), str(tmp_path))
    sriov_vfs.set_vfs(Change("PCI 0000:3b:00.0 sriov_numvfs", "set", "0", "8"), str(tmp_path))
    assert written == ["0", "8", "8"]


def boot(tmp_path, *given):
    script = tmp_path / "script"
    script.write_text(sriov.script(*given).replace("/sys/bus/pci", str(tmp_path / "sys/bus/pci")))
    environment = {"VF_WAIT_SECONDS": "0", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", script], capture_output=True, text=True, check=False, env=environment)
    return done.returncode, done.stderr


def test_the_boot_script_makes_vfs_once_and_names_what_is_missing(tmp_path):
    devices = tmp_path / "sys/bus/pci/devices"
    for address, number in (("0000:3b:00.0", "0"), ("0000:d8:00.0", "2")):
        (devices / address).mkdir(parents=True)
        (devices / address / "sriov_numvfs").write_text(number)
    done = boot(tmp_path, {"0000:3b:00.0": 8, "0000:d8:00.0": 8, "0000:ff:00.0": 1})
    assert done == (1, "gpufabric-rdma-vfs: 0000:ff:00.0 has no SR-IOV\n")
    assert (devices / "0000:3b:00.0/sriov_numvfs").read_text() == "8\n"
    assert (devices / "0000:d8:00.0/sriov_numvfs").read_text() == "2"


PORT_GUID = "a088:c203:0030:0000"
OWN = [sriov.guid(PORT_GUID, number) for number in range(3)]


def test_a_guid_is_the_same_at_each_boot_and_no_other_vf_s():
    others = [sriov.guid(f"a088:c203:0030:{port:04x}", number) for port in range(16) for number in range(128)]
    assert len(set(others)) == len(others)
    assert {guid[:3] for guid in others} == {"02:"}, "locally administered"


@pytest.mark.parametrize(("device", "settings", "missing"), [
    ({"vf_guids": [None, None]}, {"vfs": 2}, OWN[:2]),
    ({"vf_guids": ["0a11:2203:0030:0002", None]}, {"vfs": 2}, OWN[1:2]),
    ({"vf_guids": ["", None]}, {"vfs": 2}, OWN[1:2]),  # the first is another driver's
    ({"vf_guids": ["0a11:2203:0030:0002", "0a11:2203:0030:0003"]}, {"vfs": 2}, []),
    ({"enabled": 0, "vf_guids": []}, {"vfs": 3}, OWN),
    ({"vf_guids": [None, None]}, {"vfs": 2, "guids": False}, []),
    ({"vf_guids": [None, None], "infiniband": False}, {"vfs": 2}, []),
])  # fmt: skip
def test_vfs_of_an_infiniband_port_without_a_guid_get_one(device, settings, missing):
    known = facts(**{"enabled": 2, "infiniband": True, "node_guid": PORT_GUID, **device})
    made = sriov.plan(known, [{"pci": "0000:3b:00.0", **settings}], None)
    ran = [change.after for change in made.changes if change.action == "run"]
    assert ran == ([" ".join(missing)] if missing else [])
    text = next(change.after for change in made.changes if change.object == sriov.SCRIPT)
    given = settings.get("guids", True) and known["devices"]["0000:3b:00.0"]["infiniband"]
    assert ("set_guids 0000:3b:00.0 " + " ".join(OWN[: settings["vfs"]]) in text) is bool(given)


def test_the_facts_say_which_vfs_have_no_guid(node):
    port, vf = (node / f"sys/class/infiniband/mlx5_{number}" for number in (0, 1))
    (port / "ports/1/link_layer").write_text("InfiniBand\n")
    device = sriov_vfs.read(str(node))["devices"]["0000:3b:00.0"]
    assert (device["infiniband"], device["node_guid"]) == (True, PORT_GUID)
    assert device["vf_guids"][0] == "0a11:2203:0030:0002"
    (vf / "node_guid").write_text("0000:0000:0000:0000\n")
    assert sriov_vfs.read(str(node))["devices"]["0000:3b:00.0"]["vf_guids"][0] is None


@pytest.fixture
def infiniband(tmp_path, script):
    """An InfiniBand port with three VFs: without a GUID, with one, and another driver's; and a double of ip."""
    pci = tmp_path / "sys/bus/pci"
    for driver in ("mlx5_core", "vfio-pci"):
        (pci / "drivers" / driver).mkdir(parents=True)
    port = pci / "devices/0000:3b:00.0"
    (port / "net/ibs1").mkdir(parents=True)
    (port / "sriov_numvfs").write_text("3")
    described = (("mlx5_core", "0000:0000:0000:0000"), ("mlx5_core", "0211:2233:4455:6677"), ("vfio-pci", None))
    for number, (driver, guid) in enumerate(described):
        vf = pci / f"devices/0000:3b:00.{number + 1}"
        vf.mkdir()
        (vf / "driver").symlink_to(f"../../drivers/{driver}")
        (port / f"virtfn{number}").symlink_to(f"../{vf.name}")
        if guid:
            (vf / f"infiniband/mlx5_{number + 1}").mkdir(parents=True)
            (vf / f"infiniband/mlx5_{number + 1}/node_guid").write_text(guid + "\n")
    script("ip", f'echo "$*" >>{tmp_path}/calls')
    return port


def boot_with(tmp_path, guids):
    return boot(tmp_path, {"0000:3b:00.0": 3}, {"0000:3b:00.0": guids})


def test_the_boot_script_gives_a_guid_to_the_vf_without_one_and_binds_it_again(infiniband, tmp_path):
    assert boot_with(tmp_path, OWN) == (0, "")
    settings = (f"node_guid {OWN[0]}", f"port_guid {OWN[0]}", "state auto")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [f"link set dev ibs1 vf 0 {setting}" for setting in settings]
    driver = tmp_path / "sys/bus/pci/drivers/mlx5_core"
    assert [(driver / name).read_text() for name in ("unbind", "bind")] == ["0000:3b:00.1\n", "0000:3b:00.1\n"]
    missing = boot_with(tmp_path, [*OWN, "02:00:00:00:00:00:00:01"])
    assert missing == (1, "gpufabric-rdma-vfs: 0000:3b:00.0 has no VF 3\n")


def test_the_files_of_doca_s_driver_come_first_and_need_no_interface(infiniband, tmp_path):
    shutil.rmtree(infiniband / "net")
    code, said = boot_with(tmp_path, OWN)
    assert (code, "no interface to set the GUID of VF 0 on" in said) == (1, True)
    (infiniband / "sriov/0").mkdir(parents=True)
    assert boot_with(tmp_path, OWN)[0] == 0
    files = {path.name: path.read_text().strip() for path in (infiniband / "sriov/0").iterdir()}
    assert files == {"node": OWN[0], "port": OWN[0], "policy": "Follow"}
    assert not (tmp_path / "calls").exists()
