"""Which modules are unloaded in which order, which are loaded again, and what is restored with them."""

from __future__ import annotations

import shutil

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.reload import plan, reload, restoration, wait_for
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

MAC = "a0:88:c2:b0:00:00"


class Kernel:
    """A tree with loaded modules, and a modprobe that takes them out and puts them in."""

    def __init__(self, root, *modules, held=()):
        self.root, self.held, self.calls = root, held, []
        for name in modules:
            self.write(f"/sys/module/{name}/refcnt", "0")
        self.tree = Tree(str(root))

    def write(self, path, text):
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text + "\n")

    def run(self, argv):
        self.calls.append(" ".join(argv))
        if argv[0] == "modprobe" and argv[1] == "--remove":
            if argv[2] in self.held:
                return 1, "", f"modprobe: FATAL: Module {argv[2]} is in use.\n"
            shutil.rmtree(self.root / f"sys/module/{argv[2]}")
        elif argv[0] == "modprobe":
            self.write(f"/sys/module/{argv[1]}/refcnt", "0")
        return 0, "", ""

    def interface(self, name, **values):
        for key, value in {"address": MAC, "mtu": "1500", "flags": "0x1002", **values}.items():
            self.write(f"/sys/class/net/{name}/{key}", value)
        (self.root / f"sys/class/net/{name}/device").symlink_to("../../../bus/pci/devices/0000:3b:00.0")


STACK = ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "mlx_compat")


def test_users_go_before_providers_and_come_back_after_them(tmp_path):
    kernel = Kernel(tmp_path, *STACK, "nvidia_peermem")
    reload(kernel.tree, kernel.run)
    assert kernel.calls == [
        "modprobe --remove nvidia_peermem",
        "modprobe --remove mlx5_ib",
        "modprobe --remove ib_uverbs",
        "modprobe --remove ib_core",
        "modprobe --remove mlx5_core",
        "modprobe --remove mlx_compat",
        "modprobe mlx5_core",
        "modprobe ib_core",
        "modprobe ib_uverbs",
        "modprobe mlx5_ib",
        "modprobe nvidia_peermem",
    ]


def test_openibd_reloads_its_own_stack(tmp_path):
    kernel = Kernel(tmp_path, *STACK, "nvidia_peermem")
    kernel.write("/etc/init.d/openibd", "#!/bin/bash")
    reload(kernel.tree, kernel.run)
    assert kernel.calls == [
        "modprobe --remove nvidia_peermem",
        "systemctl restart openibd.service",
        "modprobe nvidia_peermem",
    ]


def test_a_module_that_is_held_ends_the_reload_with_everything_loaded_again(tmp_path):
    kernel = Kernel(tmp_path, *STACK, held=("ib_core",))
    with pytest.raises(Refused) as refused:
        reload(kernel.tree, kernel.run)
    (finding,) = refused.value.findings
    assert (finding.object, finding.seen) == ("module ib_core", "modprobe: FATAL: Module ib_core is in use.")
    assert kernel.calls[-2:] == ["modprobe ib_uverbs", "modprobe mlx5_ib"]
    assert all(kernel.tree.isdir(f"/sys/module/{name}") for name in STACK)


SAVED = {
    "netdevs": [
        {"name": "old0", "mac": MAC, "mtu": 9000, "up": True, "addresses": ["198.18.0.1/24", "fe80::1/64"]},
    ],
    "virtual_functions": [{"address": "0000:3b:00.0", "enabled": 2, "settings": [{"mac": "02:00:00:00:00:01"}, {}]}],
}


def test_settings_are_put_back_under_the_present_name(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.interface("new0")
    kernel.write("/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "0")
    commands = restoration(kernel.tree, SAVED, {MAC: "new0"})
    device = "/sys/bus/pci/devices/0000:3b:00.0"
    assert [(command.path, command.text) for command in commands[:2]] == [
        (f"{device}/sriov_numvfs", "2"),
        (f"{device}/sriov/0/mac", "02:00:00:00:00:01"),
    ]
    assert [" ".join(command.argv) for command in commands[2:]] == [
        "ip link set dev new0 mtu 9000",
        "ip link set dev new0 up",
        "ip address replace 198.18.0.1/24 dev new0",
    ]


def test_what_is_as_it_was_is_left_alone(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.interface("new0", mtu="9000", flags="0x1003")
    kernel.write("/sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs", "2")
    kernel.write("/sys/bus/pci/devices/0000:3b:00.0/sriov/0/mac", "02:00:00:00:00:01")
    assert [" ".join(command.argv) for command in restoration(kernel.tree, SAVED, {MAC: "new0"})] == [
        "ip address replace 198.18.0.1/24 dev new0"
    ]
    assert restoration(kernel.tree, {**SAVED, "virtual_functions": []}, {MAC: None}) == []


def test_a_name_counts_once_it_has_settled(tmp_path):
    kernel = Kernel(tmp_path)
    names = iter(["eth0", "enp59s0"])

    def sleep(_seconds):
        shutil.rmtree(tmp_path / "sys/class/net", ignore_errors=True)
        name = next(names, "enp59s0")
        kernel.interface(name)

    assert wait_for(kernel.tree, [MAC], 60, sleep) == {MAC: "enp59s0"}


def test_an_interface_that_stays_away_is_reported(tmp_path):
    assert wait_for(Kernel(tmp_path).tree, [MAC], -1, lambda seconds: None) == {MAC: None}


def test_only_a_difference_is_a_reason(tmp_path):
    part = {"flavor": "doca", "version": "25.10", "srcversion": "A"}
    assert plan({"driver": {"agree": True}}).changes == []
    assert plan({"driver": {"agree": "unknown: no module"}}).changes == []
    made = plan({"driver": {"agree": False, "loaded": part, "on_disk": {**part, "version": None, "srcversion": None}}})
    assert made.changes[0].before == "doca 25.10, mlx5_core A"
    assert made.changes[0].after == "doca, mlx5_core without srcversion"
