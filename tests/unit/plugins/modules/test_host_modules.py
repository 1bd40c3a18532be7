"""The changing modules of the host layer, run by Ansible (processes below a captured root), and their seams."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import enabled
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import sriov
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths
from ansible_collections.gpufabric.rdma.plugins.modules import (
    initramfs,
    kernel_modules,
    nic_settings,
    rail_links,
    rdma_netns,
    service_limits,
    sriov_vfs,
)
from ansible_collections.gpufabric.rdma.tests.tools import running, tree


@pytest.fixture
def root(tmp_path):
    return tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "node")


def call(module, root, check: bool = False, **options) -> dict:
    return running.module(module, check, root=str(root), **options)


@pytest.mark.parametrize(
    ("module", "options", "seen"),
    [
        (service_limits, {"memlock": "plenty"}, "'plenty'"),
        (rail_links, {"settings": [{"pci": "0000:01:00.0", "mtu": 9000}]}, "default route"),
    ],
)
def test_what_cannot_work_is_refused(root, module, options, seen):
    result = call(module, root, **options)
    assert (result["failed"], seen in result["msg"]) == (True, True)


def load(name: str) -> Change:
    return Change(f"module {name}", "load", "absent", "loaded")


def test_all_modules_are_loaded_by_one_fork_after_the_files_are_written_and_a_refusal_is_passed_on(tmp_path):
    write = Change(paths.OWN_MODULES_LOAD, "write", "", "ib_umad\n")
    ran = []

    def run(argv):
        assert (tmp_path / paths.OWN_MODULES_LOAD.lstrip("/")).exists()
        ran.append(argv)
        return 0, "", ""

    done = list(kernel_modules.apply([load("ib_umad"), write, load("rdma_ucm")], str(tmp_path), run))
    assert ran == [["modprobe", "-a", "--", "ib_umad", "rdma_ucm"]]
    assert done == [write, load("ib_umad"), load("rdma_ucm")]
    said = "modprobe: ERROR: could not insert 'mlx5_ib': Key was rejected by service\n"
    with pytest.raises(Refused, match="Key was rejected by service") as caught:
        list(kernel_modules.apply([load("mlx5_ib")], str(tmp_path), lambda _argv: (1, "", said)))
    assert caught.value.findings[0].object == "module mlx5_ib"


def test_only_stale_images_are_rebuilt_and_a_failure_names_the_image(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("image")
    images = [{"path": f"{tmp_path}/a", "kernel": "1"}, {"path": f"{tmp_path}/b", "kernel": "2"}]
    facts = {"initramfs": {"generator": "update-initramfs", "images": images}}
    changes = [Change(f"{tmp_path}/{name}", "rebuild", "older", "newer") for name in "ab"]
    ran = []

    def run(argv):
        ran.append(argv[-1])
        return (0, "", "") if argv[-1] == "1" else (1, "", "No space left on device")

    done = []
    with pytest.raises(Refused, match=r"/b: .*No space left on device"):
        done.extend(initramfs.apply(changes, facts, run))
    assert ran == ["1", "2"]
    assert done == changes[:1], "what was rebuilt before counts as done"


class Kernel:
    """Refuses the mode this many times, on a clock that only sleeping moves."""

    def __init__(self, refusals: int, code: int = errno.EBUSY):
        self.refusals, self.code, self.now, self.asked = refusals, code, 0.0, 0

    def set_mode(self, _mode):
        self.asked += 1
        if self.asked <= self.refusals:
            raise OSError(self.code, os.strerror(self.code))

    def sleep(self, seconds):
        self.now += seconds

    def setter(self, retry_seconds: int) -> rdma_netns.Setter:
        return rdma_netns.Setter(retry_seconds, self.set_mode, lambda: self.now, self.sleep)


@pytest.mark.parametrize(
    ("refusals", "code", "done", "busy", "asked", "now"),
    [
        (3, errno.EBUSY, True, False, 4, 3.0),
        (99, errno.EBUSY, False, True, 36, 35.0),
        (1, errno.EPERM, None, False, 1, 0.0),
    ],
)
def test_a_busy_kernel_is_asked_again_in_time_and_any_other_refusal_is_an_error(refusals, code, done, busy, asked, now):
    kernel = Kernel(refusals, code)
    setter = kernel.setter(35)
    with pytest.raises(PermissionError) if done is None else contextlib.nullcontext():
        assert setter("shared") is done
    assert (setter.busy, kernel.asked, kernel.now) == (busy, asked, now)


def test_the_file_is_written_before_the_mode_is_tried(tmp_path):
    kernel = Kernel(refusals=99)
    running = Change("RDMA netns mode", "set", "exclusive", "shared")
    file = Change(paths.OWN_MODPROBE, "write", "", "options ib_core netns_mode=1\n")
    done = list(rdma_netns.apply([running, file], str(tmp_path), kernel.setter(0)))
    assert done == [file]
    assert (tmp_path / paths.OWN_MODPROBE.lstrip("/")).exists()


def test_a_running_nic_is_set_through_sysfs(tmp_path, put):
    mtu, flags = put("sys/class/net/eth2/mtu", "1500\n"), put("sys/class/net/eth2/flags", "0x1002\n")
    rail_links.set_running(Change("NIC eth2 MTU", "set", "1500", "9000"), str(tmp_path))
    rail_links.set_running(Change("NIC eth2 link", "set", "down", "up"), str(tmp_path))
    assert (mtu.read_text(), flags.read_text()) == ("9000", "0x1003")


WRITE, SOURCE = Change(paths.OWN_LINKS_SCRIPT, "write", "", "x"), Change("NIC eth2 source route", "set", "", "")
NO_ROUTES = Change(*rail_links._NO_ROUTES, "", "")


@pytest.mark.parametrize(("there", "changes", "words"), [
    (True, [WRITE], ["stop", "restart"]),
    (True, [WRITE, SOURCE], ["stop", "restart"]),
    (True, [NO_ROUTES, WRITE], ["stop"]),
    (False, [WRITE], []),
    (False, [WRITE, SOURCE], ["restart"]),
])  # fmt: skip
def test_routes_of_the_script_before_go_before_it(tmp_path, put, monkeypatch, there, changes, words):
    monkeypatch.setattr(rail_links, "running", lambda root: True)
    put(enabled(paths.OWN_ROUTES_UNIT)[0].lstrip("/"), "")
    if there:
        put(paths.OWN_ROUTES_UNIT.lstrip("/"), "")
    ran = []
    done = list(rail_links.apply(changes, str(tmp_path), lambda argv: (ran.append(argv[1]), (0, "", ""))[1]))
    assert (done, ran) == (changes, words)


@pytest.mark.parametrize(("before", "after", "done"), [("1", "1", 2), ("1", "0", 0), ("0", "0", 2)])
def test_the_link_has_to_come_back_before_the_next_one_may_go_down(tmp_path, put, monkeypatch, before, after, done):
    put("sys/devices/pci0/net/eth2/carrier", f"{before}\n")
    (tmp_path / "sys/class/net").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth2").symlink_to("../../devices/pci0/net/eth2")
    monkeypatch.setattr(nic_settings, "LINK_SECONDS", 0)
    ran, changes = [], [Change(f"NIC eth2 {name}", "set", "", "") for name in ("dscp", "pfc")]

    def run(argv):
        ran.append(argv)
        put("sys/devices/pci0/net/eth2/carrier", f"{after}\n")
        return 0, "", ""

    made = nic_settings.apply(changes, str(tmp_path), run)
    with contextlib.nullcontext() if done else pytest.raises(Refused):
        assert list(made) == changes[:done]
    assert [words[:2] for words in ran] == [["systemctl", "restart"]]
    assert ran[0][2].endswith("-sys-devices-pci0-net-eth2.service")


def test_the_ssh_session_is_found_through_the_parents_that_sudo_keeps():
    code = (
        "from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Tree, own_session;"
        "print(own_session(Tree('/')))"
    )
    # env -i replaces sudo: the child loses the variable, the shell above it does not.
    shell = f'env -i PYTHONPATH={":".join(sys.path)} {sys.executable} -c "{code}"; true'
    session = {"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.4 22", "PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "-c", shell], env=session, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(("10.0.0.4", 22))


OLD, FAILED = b"old" * 33_000, 'rm -f -- "$2"\necho "dracut: creation of $2 failed" >&2\nexit 1'


@pytest.mark.parametrize(
    ("text", "match"),
    [
        pytest.param(FAILED, "the old image is still in place", id="as dracut ends where /boot is full"),
        ("exit 0", "an empty file or none"),
        (': >"$2"', "an empty file or none"),
        ('[ "$1" = --force ] && echo new >"$2"', None),
    ],
)
def test_an_image_is_replaced_in_one_step_by_a_whole_one_only(tmp_path, script, text, match):
    image = tmp_path / "boot/initramfs-5.14.img"
    image.parent.mkdir()
    image.write_bytes(OLD)
    script("dracut", text)
    facts = {"initramfs": {"generator": "dracut", "images": [{"path": str(image), "kernel": "5.14"}]}}

    def run(argv):
        done = subprocess.run([str(tmp_path / argv[0]), *argv[1:]], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    outcome = pytest.raises(Refused, match=match) if match else contextlib.nullcontext()
    with outcome, open(image, "rb") as held:
        assert len(list(initramfs.apply([Change(str(image), "rebuild", "older", "newer")], facts, run))) == 1
        assert held.read() == OLD, "the old image is never written over"
    assert {path.name: path.read_bytes() for path in image.parent.iterdir()} == {image.name: OLD if match else b"new\n"}


# --- VFs --------------------------------------------------------------------------------------------------------------


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
    ({"total": 0}, 0, None, "", 3),
    ({}, 9, None, "the firmware allows 8", 0),
    ({"virtual": True}, 1, None, "itself a VF", 0),
    ({"at": "0000:99:00.0"}, 1, None, "0000:3b:00.0", 0),
    ({"enabled": 2}, 4, None, "removes all of them first", 0),
    ({"enabled": 2, "held": ["a VM has it"]}, 4, True, "a VM has it", 0),
    ({"enabled": 2, "held": ["a VM has it"]}, 4, False, "", 3),
    ({"lag": "mlx5_bond_0 of bond0"}, 4, None, "mlx5_bond_0 of bond0", 0),
    ({"enabled": 4, "lag": "mlx5_bond_0 of bond0"}, 4, None, "", 3),
    ({}, 8, None, "", 4),
    ({"enabled": 8}, 8, None, "", 3),
    ({"enabled": 2}, 8, True, "", 4),
    ({"enabled": 2}, 8, False, "", 3),
])  # fmt: skip
def test_what_firmware_or_kernel_would_refuse_is_refused_before_and_vfs_that_are_there_need_consent(
    device, vfs, consent, seen, actions
):
    made = sriov.plan(facts(**device), [{"pci": device.get("at", "0000:3b:00.0"), "vfs": vfs}], consent)
    assert [seen in finding.seen for finding in made.findings] == ([True] if seen else [])
    assert (len(made.changes), bool(made.not_applied)) == (actions, consent is False)


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
    done = boot(tmp_path, {"0000:3b:00.0": 8, "0000:d8:00.0": 8, "0000:ee:00.0": 0, "0000:ff:00.0": 1})
    assert done == (1, "gpufabric-rdma-vfs: 0000:ff:00.0 has no SR-IOV\n")
    assert (devices / "0000:3b:00.0/sriov_numvfs").read_text() == "8\n"
    assert (devices / "0000:d8:00.0/sriov_numvfs").read_text() == "2"


PORT_GUID = "a088:c203:0030:0000"
OWN = [sriov.guid(PORT_GUID, number) for number in range(3)]


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
    assert [len({*OWN}), *{own[:3] for own in OWN}] == [3, "02:"], "locally administered"
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
    assert "0000:3b:00.3" in device["held"][0]
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
    (port / "net/a8001/parent").mkdir(parents=True)
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
