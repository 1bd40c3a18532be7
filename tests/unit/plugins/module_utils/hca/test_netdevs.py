"""Netdevs, routes and counters. Lines of routes as kernel 6.1 prints them."""

from __future__ import annotations

import ipaddress

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, counters, routes
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.management import uses
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.netdevs import RXE_OVERHEAD, Network, ib_mtu
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
DEFAULT4 = "eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0"
LINK4 = "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"
BLACKHOLE4 = "*\t0000000A\t00000000\t0201\t0\t0\t0\t000000FF\t0\t0\t0"
DOWN4 = "eth3\t00000000\t010300C0\t0002\t0\t0\t0\t00000000\t0\t0\t0"
ZERO = "0" * 32
DEFAULT6 = f"{ZERO} 00 {ZERO} 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     ib0"
LINK6 = f"fd000000000000000000000000000000 40 {ZERO} 00 {ZERO} 00000100 00000001 00000000 00000001     eth0"
LOCAL6 = f"fd000000000000000000000000000002 80 {ZERO} 00 {ZERO} 00000000 00000003 00000000 80200001     eth0"
LINK_LOCAL6 = f"fe800000000000000000000000000000 40 {ZERO} 00 {ZERO} 00000100 00000002 00000000 00000001     eth0"
MULTICAST6 = f"ff000000000000000000000000000000 08 {ZERO} 00 {ZERO} 00000100 00000003 00000000 00000001     eth0"
LOOPBACK6 = f"00000000000000000000000000000001 80 {ZERO} 00 {ZERO} 00000000 00000002 00000000 80200001       lo"
UNREACHABLE6 = f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200       lo"
REJECT6 = f"{ZERO} 00 {ZERO} 00 {ZERO} 00000400 00000001 00000000 00000201     eth1"


@pytest.mark.parametrize(
    ("line", "netdev", "network", "gateway", "metric", "flags", "usable"),
    [
        pytest.param(DEFAULT4, "eth0", "0.0.0.0/0", "192.0.2.1", 100, 0x3, True, id="default"),
        pytest.param(LINK4, "eth0", "192.0.2.0/24", None, 0, 0x1, True, id="link"),
        pytest.param(BLACKHOLE4, "*", "10.0.0.0/8", None, 0, 0x201, False, id="blackhole"),
        pytest.param(DOWN4, "eth3", "0.0.0.0/0", "192.0.3.1", 0, 0x2, False, id="down"),
        pytest.param(DEFAULT6, "ib0", "::/0", "fd00::1", 1024, 0x3, True, id="default6"),
        pytest.param(LINK6, "eth0", "fd00::/64", None, 256, 0x1, True, id="link6"),
        pytest.param(LOOPBACK6, "lo", "::1/128", None, 0, 0x80200001, False, id="loopback6"),
        pytest.param(UNREACHABLE6, "lo", "::/0", None, 0xFFFFFFFF, 0x200200, False, id="the kernel's unreachable"),
        pytest.param(REJECT6, "eth1", "::/0", None, 1024, 0x201, False, id="reject6"),
    ],
)
def test_rows_of_routes(line, netdev, network, gateway, metric, flags, usable):
    via = ipaddress.ip_address(gateway) if gateway else None
    found = routes.ipv6(f"{line}\n") if ":" in network else routes.ipv4(f"{HEAD}\n{line}\n")
    wanted = routes.Route(netdev, ipaddress.ip_network(network), via, metric, flags)
    assert [(row, row.usable) for row in found] == [(wanted, usable)]


def test_a_row_that_makes_no_sense_hides_no_other():
    garbled = ["eth9", "eth9\tzz\t00000000\t0001\t0\t0\t0\t00000000", "eth9\t0000\t00000000\t0001\t0\t0\t0\t00000000"]
    assert [found.netdev for found in routes.ipv4("\n".join([HEAD, *garbled, DEFAULT4]))] == ["eth0"]
    six = routes.ipv6("\n".join(["fd00 40", f"{'z' * 32}{DEFAULT6[32:]}", LINK6]))
    assert [found.netdev for found in six] == ["eth0"]


def test_both_tables_of_a_node(node):
    assert (routes.usable(node.tree()), uses(node.tree(), Seams.none())) == ([], {})
    node.write("/proc/net/route", "\n".join([HEAD, DEFAULT4, LINK4, BLACKHOLE4, DOWN4]))
    six = [LINK6, LINK_LOCAL6, DEFAULT6, LOOPBACK6, LOCAL6, MULTICAST6, UNREACHABLE6, REJECT6]
    node.write("/proc/net/ipv6_route", "\n".join(six))
    assert set(uses(node.tree(), Seams.none())) == {"eth0", "ib0"}
    assert [(row["destination"], row["netdev"]) for row in routes.destinations(node.tree())] == [
        *(("0.0.0.0/0", "eth0"), ("192.0.2.0/24", "eth0")),
        *(("fd00::/64", "eth0"), ("::/0", "ib0"), ("fd00::2/128", "eth0")),
    ]


def test_the_default_route_stands_on_everything_below_it(node):
    """A VLAN on a bond of two ports: all of them carry it, the third port does not."""
    for name in ("p0", "p1", "p2", "bond0", "bond0.7"):
        node.netdev(name)
    node.enslave("p0", "bond0").enslave("p1", "bond0")
    node.link("/sys/devices/virtual/net/bond0.7/lower_bond0", "/sys/devices/virtual/net/bond0")
    node.default_route("bond0.7")
    assert set(Network(node.tree()).management()) == {"bond0.7", "bond0", "p0", "p1"}


@pytest.mark.parametrize(
    ("mtu", "overhead", "wanted"),
    [
        *((1500, (), 1024), (9000, (), 4096), (4191, (), 2048), (4192, (), 4096), (352, (), 256), (351, (), None)),
        *((None, (), None), (4180, (), 2048), (4180, (RXE_OVERHEAD,), 4096)),
    ],
)
def test_ib_mtu_is_the_kernels_iboe_get_mtu(mtu, overhead, wanted):
    assert ib_mtu(mtu, *overhead) == wanted


def test_addresses_of_both_families(node):
    node.netdev("eth0")
    rows = ("fe800000000000005054000000000001 02 40 20 80     eth0", f"{ZERO[:-1]}1 01 80 10 80       lo")
    node.write("/proc/net/if_inet6", "\n".join(rows))
    network = Network(node.tree(), Seams.recorded({"addresses": {"eth0": ["10.0.0.2/24", "10.0.0.1/24"]}}))
    assert network.addresses("eth0") == ["10.0.0.1/24", "10.0.0.2/24", "fe80::5054:0:0:1/64"]
    assert network.addresses("eth1") == []
    assert Network(node.tree()).addresses("eth0").startswith("unknown: ")


def test_values_that_a_down_interface_refuses(node):
    path = node.netdev("eth0", operstate="down", speed=-1)
    node.host(f"{path}/carrier").unlink()
    node.refuse(f"{path}/carrier")
    found = Network(node.tree()).netdev("eth0")
    assert (found["carrier"], found["speed_mbps"], found["operstate"]) == (None, None, "down")
    assert Network(node.tree()).netdev("gone") is None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("p0", False), ("", False), ("pf0vf3", True), ("pf0sf88", True), ("c1pf0vf1", True), ("pf0", True), ("s0", False)],
)
def test_representors(node, name, wanted):
    node.netdev("eth0", phys_port_name=name)
    assert Network(node.tree()).representor("eth0") is wanted


def test_by_mac_wants_one_answer(node):
    for name, mac in (("eth0", "01"), ("eth1", "02"), ("eth1.5", "02")):
        node.netdev(name, address=f"52:54:00:00:00:{mac}")
    found = [Network(node.tree()).by_mac(f"52:54:00:00:00:{mac}") for mac in ("01", "02")]
    assert found == ["eth0", None]


def test_errors_of_port_hardware_and_netdev_are_read_and_traffic_is_not(node):
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    node.files(f"{port}/counters", symbol_error=3, port_xmit_data=10**12, port_rcv_errors="N/A (no PMA)")
    node.write(f"{port}/hw_counters/out_of_sequence", "7").write("/sys/class/net/eth2/statistics/rx_errors", "1")
    found = counters.read(node.tree(), "mlx5_0", 1, "eth2")
    assert found == {"symbol_error": 3, "out_of_sequence": 7, "netdev_rx_errors": 1}
    assert set(found) <= set(counters.KINDS)
    assert counters.read(node.tree(), "mlx5_9", 1) == {}


def test_rises_count_from_zero_after_a_reset_and_a_counter_at_its_end_is_reported():
    assert counters.rises({"a": 1, "b": 2, "c": 9}, {"a": 1, "b": 5, "c": 4, "d": 1}) == {"b": 3, "c": 4}
    values = {"symbol_error": 0xFFFF, "link_downed": 0xFE, "out_of_sequence": 10**9}
    assert counters.saturated(values) == ["symbol_error"]


def test_governors_are_counted(node):
    for number, governor in enumerate(("powersave", "powersave", "performance")):
        node.write(f"/sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", governor)
    node.write("/sys/devices/system/cpu/cpuidle/current_driver", "x")
    assert counters.governors(node.tree()) == {"powersave": 2, "performance": 1}
    assert counters.governors(Tree(str(node.root / "nothing"))) == {}
