"""The modules that a reload unloads, in order, those that it loads again, and the restored settings."""

import shutil

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.reload import (
    BOOT,
    outlived,
    plan,
    reload,
    restoration,
    restore,
    save,
    wait_for,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import paths
from ansible_collections.gpufabric.rdma.plugins.modules import driver_reload
from ansible_collections.gpufabric.rdma.tests.unit.plugins.module_utils.hca.conftest import Node

MAC = "a0:88:c2:b0:00:00"


class Kernel(Node):
    """A tree with loaded modules, and a modprobe that removes and adds them."""

    def __init__(self, root, *modules, held=()):
        super().__init__(root)
        self.held, self.calls = held, []
        for name in modules:
            self.module(name)

    def run(self, argv):
        self.calls.append(" ".join(argv))
        if argv[0] == "modprobe" and argv[1] == "--remove":
            if argv[2] in self.held:
                return 1, "", f"modprobe: FATAL: Module {argv[2]} is in use.\n"
            shutil.rmtree(self.root / f"sys/module/{argv[2]}")
        elif argv[0] == "modprobe":
            self.module(argv[1])
        return 0, "", ""

    def interface(self, name, **values):
        self.files(f"/sys/class/net/{name}", **{"address": MAC, "mtu": "1500", "flags": "0x1002", **values})
        self.write(f"/sys/class/net/{name}/mode", "datagram")
        self.link(f"/sys/class/net/{name}/device", "/sys/bus/pci/devices/0000:3b:00.0")


STACK = ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "mlx_compat")


def test_users_go_before_providers_and_come_back_after_them(tmp_path):
    kernel = Kernel(tmp_path, *STACK, "nvidia_peermem")
    reload(kernel.tree(), kernel.run)
    gone = ["nvidia_peermem", "mlx5_ib", "ib_uverbs", "ib_core", "mlx5_core", "mlx_compat"]
    back = ["mlx5_core", "ib_core", "ib_uverbs", "mlx5_ib", "nvidia_peermem"]
    assert kernel.calls == [*(f"modprobe --remove {name}" for name in gone), *(f"modprobe {name}" for name in back)]


def test_openibd_reloads_its_own_stack(tmp_path):
    kernel = Kernel(tmp_path, *STACK, "nvidia_peermem")
    kernel.write("/etc/init.d/openibd", "#!/bin/bash")
    reload(kernel.tree(), kernel.run)
    around = ("modprobe --remove nvidia_peermem", "modprobe nvidia_peermem")
    assert kernel.calls == [around[0], "systemctl restart openibd.service", around[1]]


def test_a_module_that_is_held_ends_the_reload_with_everything_loaded_again(tmp_path):
    kernel = Kernel(tmp_path, *STACK, held=("ib_core",))
    with pytest.raises(Refused) as refused:
        reload(kernel.tree(), kernel.run)
    (finding,) = refused.value.findings
    assert (finding.object, finding.seen) == ("module ib_core", "modprobe: FATAL: Module ib_core is in use.")
    assert kernel.calls[-2:] == ["modprobe ib_uverbs", "modprobe mlx5_ib"]
    assert all(kernel.tree().isdir(f"/sys/module/{name}") for name in STACK)


MODE = "/sys/class/net/new0/mode"
NUMVFS, VF_MAC = (f"/sys/bus/pci/devices/0000:3b:00.0/{name}" for name in ("sriov_numvfs", "sriov/0/mac"))
ROUTE = "-4 route replace 198.19.0.0/16 via 198.18.0.254 table 101"
SETTINGS = ["ip link set dev new0 mtu 9000", "ip link set dev new0 up", "ip address replace 198.18.0.1/24 dev new0"]
SETTINGS += [f"ip {ROUTE} dev new0"]
SAVED = {
    "netdevs": [{"name": "old0", "mac": MAC, "mtu": 9000, "up": True, "addresses": ["198.18.0.1/24", "fe80::1/64"]}],
    "virtual_functions": [{"address": "0000:3b:00.0", "enabled": 2, "settings": [{"mac": "02:00:00:00:00:01"}, {}]}],
}


SAVED["netdevs"][0].update(mode="connected", routes=[{"words": ROUTE.split()}])
NO_VFS = {**SAVED, "virtual_functions": []}


def test_what_is_as_it_was_is_left_alone(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.interface("new0", mtu="9000", flags="0x1003")
    kernel.write(NUMVFS, "2")
    kernel.write(VF_MAC, "02:00:00:00:00:01")
    kernel.write(MODE, "connected")
    assert [" ".join(command) for command in restoration(kernel.tree(), SAVED, {MAC: "new0"})] == SETTINGS[2:]
    assert restoration(kernel.tree(), NO_VFS, {MAC: None}) == []


def test_a_name_counts_once_it_has_settled(tmp_path):
    kernel = Kernel(tmp_path)
    names = iter(["eth0", "enp59s0"])

    def sleep(_seconds):
        shutil.rmtree(tmp_path / "sys/class/net", ignore_errors=True)
        kernel.interface(next(names, "enp59s0"))

    assert wait_for(kernel.tree(), [MAC], -1, sleep) == {MAC: None}
    assert wait_for(kernel.tree(), [MAC], 60, sleep) == {MAC: "enp59s0"}


def again(kernel, given=None, agree=True, allowed=True):
    """One run of the module on the node; its commands, and its failures."""
    kernel.calls, part = [], {"flavor": "doca", "version": "25.10", "srcversion": "A"}
    facts = {"driver": {"agree": agree, "loaded": part, "on_disk": part}}
    facts["unfinished"] = [name for name, path in paths.RECORDS.items() if kernel.tree().exists(path)]
    made = plan(facts, given is not None, outlived(kernel.tree()), allowed)
    changes = made.changes
    if made.findings:
        return kernel.calls, [finding.object for finding in made.findings]
    try:
        assert list(driver_reload.apply(changes, given, -1, kernel.run, str(kernel.root))) == changes
    except Refused as refused:
        return kernel.calls, [finding.object for finding in refused.findings]
    return kernel.calls, []


@pytest.fixture
def kernel(tmp_path):
    found = Kernel(tmp_path, *STACK)
    found.interface("new0")
    found.write(BOOT, "this boot")
    return found


def test_a_vf_write_that_fails_loses_nothing(kernel):
    (kernel.root / NUMVFS.lstrip("/")).mkdir(parents=True)  # refuses to be written
    calls, failed = again(kernel, SAVED, agree=False)
    assert failed[0] == NUMVFS
    assert (calls[-4:], kernel.tree().read(MODE)) == (SETTINGS, "connected"), "what can be restored is"
    (kernel.root / NUMVFS.lstrip("/")).rmdir()
    kernel.write(NUMVFS, "0")
    kernel.write(VF_MAC, "00:00:00:00:00:00")

    # Memory and disk agree by now, and the gate has nothing to say: any later run restores.
    calls, failed = again(kernel)
    assert (calls, failed) == (SETTINGS, [])
    assert kernel.tree().read(NUMVFS) == "2"
    assert kernel.tree().read(VF_MAC) == "02:00:00:00:00:01"
    assert again(kernel) == ([], [])
    assert [path for path in paths.RECORDS.values() if kernel.tree().exists(path)] == []


def test_the_first_record_is_how_the_node_was(kernel):
    kernel.held = ("ib_core",)
    calls, failed = again(kernel, NO_VFS, agree=False)
    assert (calls[-4:], failed) == (SETTINGS, ["module ib_core"]), "a reload that stops restores too"
    shutil.rmtree(kernel.root / "sys/class/net")
    assert again(kernel, NO_VFS, agree=False)[1] == ["module ib_core", "interfaces old0"]
    kernel.interface("new0")
    kernel.held = ()
    bare = {**SAVED["netdevs"][0], "mtu": 1500, "up": False, "addresses": [], "routes": []}
    calls, failed = again(kernel, {**NO_VFS, "netdevs": [bare]}, agree=False)
    assert (calls[-4:], failed) == (SETTINGS, [])


def test_a_damaged_record_is_said_and_without_one_nothing_is_reloaded(kernel):
    assert again(kernel, None, agree=False) == ([], [])
    kernel.write(paths.RECORDS["driver_reload"], "{")
    assert again(kernel)[1] == [paths.RECORDS["driver_reload"]]


@pytest.mark.parametrize(("allowed", "calls", "failed", "kept"), [
    (True, SETTINGS, [], False),
    (None, [], ["driver_reload_allowed"], True),
    (False, [], [], True),
])  # fmt: skip
def test_what_a_reload_left_is_restored_with_consent_and_in_its_own_boot(kernel, allowed, calls, failed, kept):
    shutil.rmtree(kernel.root / "sys/class/net")
    assert again(kernel, NO_VFS, agree=False)[1] == ["interfaces old0"]
    kernel.interface("new0")
    assert again(kernel, allowed=allowed) == (calls, failed)
    assert kernel.tree().exists(paths.RECORDS["driver_reload"]) is kept
    kernel.write(BOOT, "the next boot")
    assert again(kernel, allowed=allowed) == ([], [])
    assert not kernel.tree().exists(paths.RECORDS["driver_reload"])


def test_modules_that_a_killed_reload_left_unloaded_come_back_first(kernel):
    save(kernel.tree(), str(kernel.root), NO_VFS)
    shutil.rmtree(kernel.root / "sys/module")
    back = [f"modprobe {name}" for name in ("mlx5_core", "ib_core", "ib_uverbs", "mlx5_ib")]
    assert again(kernel) == ([*back, *SETTINGS], [])


@pytest.mark.parametrize(("boot", "kept"), [("this boot", [MAC]), ("another", [])])
def test_a_reload_takes_up_the_record_of_its_own_boot_only(kernel, boot, kept):
    kernel.write(BOOT, boot)
    save(kernel.tree(), str(kernel.root), NO_VFS)
    kernel.write(BOOT, "this boot")
    both = save(kernel.tree(), str(kernel.root), {"netdevs": [], "virtual_functions": []})
    assert [entry["mac"] for entry in both["netdevs"]] == kept


@pytest.mark.parametrize(("present", "enabled"), [(MAC, "2"), ("a0:88:c2:b0:00:99", "0"), (None, "2")])
def test_virtual_functions_are_those_of_the_card_that_had_them(kernel, present, enabled):
    address = NUMVFS.replace("sriov_numvfs", "net/x/address")
    kernel.write(address, MAC)
    kept = save(kernel.tree(), str(kernel.root), SAVED)
    kernel.write(NUMVFS, "0")
    kernel.write(VF_MAC, "00:00:00:00:00:00")
    (kernel.root / address[1:]).unlink()
    (kernel.root / address[1:]).parent.rmdir()
    if present:
        kernel.write(address, present)
    restore(kernel.tree(), str(kernel.root), kept, -1, kernel.run)
    assert kernel.tree().read(NUMVFS) == enabled
