"""The fast nodes' decisions that need no root: how a captured machine is laid, linked, addressed and kept apart."""

from __future__ import annotations

import json
import pathlib
import sys

import pytest

CHECKOUT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(CHECKOUT / "lab"))

from lab.settings import LabError  # noqa: E402
from nspawn import cgroup, lab, machine, network  # noqa: E402

HYBRID = """\
24 20 0:21 / /sys rw,nosuid - sysfs sysfs rw
30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
31 24 0:27 / /sys/fs/cgroup/systemd rw,nosuid shared:10 - cgroup cgroup rw,xattr,name=systemd
32 24 0:28 / /sys/fs/cgroup/cpuset rw,nosuid shared:11 - cgroup cgroup rw,cpuset
33 24 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:12 - cgroup cgroup rw,cpu,cpuacct
"""


@pytest.fixture
def image(tmp_path):
    """An image with merged /usr, as every release we support has it."""
    root = tmp_path / "image"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/dbus-daemon").touch()
    (root / "lib").symlink_to("usr/lib")
    return root


@pytest.fixture
def lay(tmp_path, image):
    def lay(**sections):
        captured = tmp_path / "captured.yml"
        captured.write_text(json.dumps({"name": "captured", **sections}))
        return machine.Machine(tmp_path / "machines", captured, image)

    return lay


def test_a_captured_lib_moves_where_the_images_link_points(lay):
    tree = lay(files={"/lib/modules/6.8.0/modules.dep": "kernel/a.ko:"}).tree
    assert (tree / "usr/lib/modules/6.8.0/modules.dep").read_text() == "kernel/a.ko:\n"
    assert not (tree / "lib").exists(), "a real /lib above the image's link would hide the loader"


def test_a_tree_is_laid_out_once_for_the_same_content(lay):
    tree = lay(files={"/etc/a": "1"}).tree
    (tree / "etc/mark").touch()
    assert lay(files={"/etc/a": "1"}).tree == tree
    assert (tree / "etc/mark").exists()
    assert lay(files={"/etc/a": "2"}).tree != tree


def test_links_carry_what_the_capture_says_and_leave_lo_to_the_node(lay):
    pci = "/sys/devices/pci0000:00/0000:00:01.0/net"
    captured = lay(
        files={
            f"{pci}/ens1/address": "02:00:5e:00:53:01",
            f"{pci}/ens1/mtu": "9000",
            f"{pci}/ens1/operstate": "down",
            "/proc/net/if_inet6": "20010db8000000000000000000000007 02 40 00 80     ens1",
        },
        directories=["/sys/class/net/lo", f"{pci}/ib0"],
        links={
            f"/sys/class/net/{name}": f"../../devices/pci0000:00/0000:00:01.0/net/{name}" for name in ("ens1", "ib0")
        },
        seams={"addresses": {"ens1": ["192.0.2.7/24"]}},
    )
    assert captured.links() == [
        {
            "name": "ens1",
            "mac": "02:00:5e:00:53:01",
            "mtu": 9000,
            "up": False,
            "addresses": ["192.0.2.7/24", "2001:db8::7/64"],
        },
        {"name": "ib0", "mac": "", "mtu": 0, "up": True, "addresses": []},
    ]


def test_addresses_that_the_capture_could_not_know_are_left_out(lay):
    captured = lay(directories=["/sys/class/net/ens1"], seams={"addresses": "unknown: no ioctl"})
    assert captured.links()[0]["addresses"] == []


def test_the_default_route_is_read_from_the_kernels_table(lay):
    table = (
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "ens1\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "ens1\t000200C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
    )
    captured = lay(files={"/proc/net/route": table})
    assert captured.default_routes() == [{"netdev": "ens1", "via": "192.0.2.1", "metric": "100"}]


def test_a_captured_service_gets_a_program_only_where_none_is(lay):
    tree = lay(
        files={
            "/etc/systemd/system/k3s.service": "[Service]\nType=notify\nExecStart=/usr/local/bin/k3s server",
            "/usr/lib/systemd/system/dbus.service": "[Service]\nExecStart=@/usr/bin/dbus-daemon dbus-daemon",
        }
    ).tree
    assert (tree / "usr/local/bin/k3s").stat().st_mode & 0o111
    compile((tree / "usr/local/bin/k3s").read_text(), "stand-in", "exec")
    assert not (tree / "usr/bin/dbus-daemon").exists()


def test_an_unknown_fixture_is_refused_with_the_known_ones():
    with pytest.raises(LabError, match=r"fixture gh201\n(.|\n)*gh200-cx7-roce"):
        machine.fixture_path("gh201")


def test_every_hierarchy_but_cpuset_is_ours_to_enter_and_every_one_to_clear():
    entered, cleared = ([mount.name for mount in cgroup.hierarchies(HYBRID, cpuset=there)] for there in (False, True))
    assert entered == ["unified", "systemd", "cpu,cpuacct"]
    assert cleared == ["unified", "systemd", "cpuset", "cpu,cpuacct"]


def test_nodes_are_numbered_into_the_subnet_until_it_is_full():
    bridge = network.Bridge("gfr-test", "10.78.0.0/28")
    assert [str(bridge.node_address(number)) for number in (1, 4)] == ["10.78.0.11/28", "10.78.0.14/28"]
    with pytest.raises(LabError, match="room for 4"):
        bridge.node_address(5)


def test_the_inventory_groups_nodes_by_fixture_and_is_empty_without_any(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "STATE", tmp_path / "state.json")
    assert lab.inventory()["gpu_nodes"]["hosts"] == []
    roles = {"node1": ("gh200-cx7-roce", "gpu_nodes"), "node2": ("efa", "spare_nodes")}
    nodes = {name: {"fixture": fixture, "group": group} for name, (fixture, group) in roles.items()}
    lab.STATE.write_text(json.dumps({"nodes": nodes}))
    hosts = {name: group["hosts"] for name, group in lab.inventory().items() if "hosts" in group}
    assert hosts == {
        "gpu_nodes": ["node1"],
        "spare_nodes": ["node2"],
        "playing_gh200_cx7_roce": ["node1"],
        "playing_efa": ["node2"],
    }


def test_a_shared_connection_is_that_of_this_checkout_and_this_boot(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "STATE", tmp_path / "state.json")
    paths = []
    for checkout, boot in (("gfr-0001", "aa"), ("gfr-0001", "bb"), ("gfr-0002", "aa")):
        monkeypatch.setattr(lab, "LAB_ID", checkout)
        lab.STATE.write_text(json.dumps({"boot": boot, "nodes": {}}))
        paths.append(lab.inventory()["all"]["vars"]["ansible_control_path"] % {"directory": "/d"})
    assert paths == ["/d/gfr-0001-aa-%h", "/d/gfr-0001-bb-%h", "/d/gfr-0002-aa-%h"]
