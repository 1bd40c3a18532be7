# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.netdevs import RXE_OVERHEAD, Network, ib_mtu


@pytest.mark.parametrize(
    ("mtu", "wanted"),
    [
        (1500, 1024),
        (4200, 4096),
        (9000, 4096),
        (4191, 2048),
        (4192, 4096),
        (1119, 512),
        (1120, 1024),
        (352, 256),
        (351, None),
        (None, None),
    ],
)
def test_ib_mtu_is_the_kernels_iboe_get_mtu(mtu, wanted):
    assert ib_mtu(mtu) == wanted


def test_rxe_takes_off_less():
    assert (ib_mtu(4180), ib_mtu(4180, RXE_OVERHEAD)) == (2048, 4096)


def test_the_default_route_of_ipv4(node):
    node.netdev("eth0")
    node.netdev("eth1")
    node.default_route("eth0")
    assert Network(node.tree()).default_route_netdevs() == {"eth0"}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            "0" * 32 + " 00 " + "0" * 32 + " 00 fe80" + "0" * 28 + " 00000400 00000001 00000000 00000003     eth0",
            {"eth0"},
        ),
        ("0" * 32 + " 00 " + "0" * 32 + " 00 " + "0" * 32 + " ffffffff 00000001 00000000 00200200       lo", set()),
        ("0" * 32 + " 00 " + "0" * 32 + " 00 " + "0" * 32 + " ffffffff 00000001 00000000 00000201     eth0", set()),
        (
            "fd" + "0" * 30 + " 40 " + "0" * 32 + " 00 " + "0" * 32 + " 00000100 00000001 00000000 00000001     eth0",
            set(),
        ),
    ],
    ids=["default", "the unreachable one of lo", "reject", "a prefix"],
)
def test_the_default_route_of_ipv6(node, line, wanted):
    node.netdev("eth0")
    node.write("/proc/net/ipv6_route", line)
    assert Network(node.tree()).default_route_netdevs() == wanted


def test_the_default_route_stands_on_everything_below_it(node):
    """A VLAN on a bond of two ports: all of them carry it, the third port does not."""
    for name in ("p0", "p1", "p2", "bond0", "bond0.7"):
        node.netdev(name)
    node.enslave("p0", "bond0").enslave("p1", "bond0")
    node.link("/sys/devices/virtual/net/bond0.7/lower_bond0", "/sys/devices/virtual/net/bond0")
    node.default_route("bond0.7")
    assert Network(node.tree()).default_route_netdevs() == {"bond0.7", "bond0", "p0", "p1"}


def test_addresses_of_both_families(node):
    node.netdev("eth0")
    node.write(
        "/proc/net/if_inet6",
        "fe800000000000005054000000000001 02 40 20 80     eth0\n00000000000000000000000000000001 01 80 10 80       lo",
    )
    network = Network(node.tree(), {"eth0": ["10.0.0.2/24", "10.0.0.1/24"]})
    assert network.addresses("eth0") == ["10.0.0.1/24", "10.0.0.2/24", "fe80::5054:0:0:1/64"]
    assert network.addresses("eth1") == []
    assert Network(node.tree()).addresses("eth0").startswith("unknown: ")


def test_values_that_a_down_interface_refuses(node):
    path = node.netdev("eth0", operstate="down", speed=-1)
    node.host(f"{path}/carrier").unlink()
    node.refuse(f"{path}/carrier")
    found = Network(node.tree(), {}).netdev("eth0")
    assert (found["carrier"], found["speed_mbps"], found["operstate"]) == (None, None, "down")
    assert Network(node.tree(), {}).netdev("gone") is None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("p0", False), ("", False), ("pf0vf3", True), ("pf0sf88", True), ("c1pf0vf1", True), ("pf0", True), ("s0", False)],
)
def test_representors(node, name, wanted):
    node.netdev("eth0", phys_port_name=name)
    assert Network(node.tree()).representor("eth0") is wanted


def test_by_mac_wants_one_answer(node):
    node.netdev("eth0", address="52:54:00:00:00:01")
    node.netdev("eth1", address="52:54:00:00:00:02")
    node.netdev("eth1.5", address="52:54:00:00:00:02")
    network = Network(node.tree())
    assert network.by_mac("52:54:00:00:00:01") == "eth0"
    assert network.by_mac("52:54:00:00:00:02") is None
