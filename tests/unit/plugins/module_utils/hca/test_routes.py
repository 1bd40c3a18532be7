# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import ipaddress

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import routes

# Lines as kernel 6.1 prints them.
HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
DEFAULT4 = "eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0"
LINK4 = "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"
HOST4 = "eth2\t2A0212C6\t010212C6\t0007\t0\t0\t0\tFFFFFFFF\t0\t0\t0"
BLACKHOLE4 = "*\t0000000A\t00000000\t0201\t0\t0\t0\t000000FF\t0\t0\t0"
DOWN4 = "eth3\t00000000\t010300C0\t0002\t0\t0\t0\t00000000\t0\t0\t0"
ZERO = "0" * 32
DEFAULT6 = f"{ZERO} 00 {ZERO} 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     eth0"
LINK6 = f"fd000000000000000000000000000000 40 {ZERO} 00 {ZERO} 00000100 00000001 00000000 00000001     eth0"
LOCAL6 = f"fd000000000000000000000000000002 80 {ZERO} 00 {ZERO} 00000000 00000003 00000000 80200001     eth0"
LINK_LOCAL6 = f"fe800000000000000000000000000000 40 {ZERO} 00 {ZERO} 00000100 00000002 00000000 00000001     eth0"
MULTICAST6 = f"ff000000000000000000000000000000 08 {ZERO} 00 {ZERO} 00000100 00000003 00000000 00000001     eth0"
LOOPBACK6 = f"00000000000000000000000000000001 80 {ZERO} 00 {ZERO} 00000000 00000002 00000000 80200001       lo"
UNREACHABLE6 = f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200       lo"
REJECT6 = f"{ZERO} 00 {ZERO} 00 {ZERO} 00000400 00000001 00000000 00000201     eth1"


def route(netdev, network, gateway, metric, flags):
    via = ipaddress.ip_address(gateway) if gateway else None
    return routes.Route(netdev, ipaddress.ip_network(network), via, metric, flags)


@pytest.mark.parametrize(
    ("line", "wanted", "usable"),
    [
        (DEFAULT4, route("eth0", "0.0.0.0/0", "192.0.2.1", 100, 0x3), True),
        (LINK4, route("eth0", "192.0.2.0/24", None, 0, 0x1), True),
        (HOST4, route("eth2", "198.18.2.42/32", "198.18.2.1", 0, 0x7), True),
        (BLACKHOLE4, route("*", "10.0.0.0/8", None, 0, 0x201), False),
        (DOWN4, route("eth3", "0.0.0.0/0", "192.0.3.1", 0, 0x2), False),
    ],
    ids=["default", "link", "host", "blackhole", "down"],
)
def test_rows_of_ipv4(line, wanted, usable):
    assert [(found, found.usable) for found in routes.ipv4(f"{HEAD}\n{line}\n")] == [(wanted, usable)]


@pytest.mark.parametrize(
    ("line", "wanted", "usable"),
    [
        (DEFAULT6, route("eth0", "::/0", "fd00::1", 1024, 0x3), True),
        (LINK6, route("eth0", "fd00::/64", None, 256, 0x1), True),
        (LOCAL6, route("eth0", "fd00::2/128", None, 0, 0x80200001), True),
        (LOOPBACK6, route("lo", "::1/128", None, 0, 0x80200001), False),
        (UNREACHABLE6, route("lo", "::/0", None, 0xFFFFFFFF, 0x200200), False),
        (REJECT6, route("eth1", "::/0", None, 1024, 0x201), False),
    ],
    ids=["default", "link", "local", "loopback", "the kernel's unreachable", "reject"],
)
def test_rows_of_ipv6(line, wanted, usable):
    assert [(found, found.usable) for found in routes.ipv6(f"{line}\n")] == [(wanted, usable)]


def test_a_row_that_makes_no_sense_hides_no_other():
    garbled = ["eth9", "eth9\tzz\t00000000\t0001\t0\t0\t0\t00000000", "eth9\t0000\t00000000\t0001\t0\t0\t0\t00000000"]
    assert [found.netdev for found in routes.ipv4("\n".join([HEAD, *garbled, DEFAULT4]))] == ["eth0"]
    assert [found.netdev for found in routes.ipv6("\n".join(["fd00 40", f"{'z' * 32}{DEFAULT6[32:]}", LINK6]))] == [
        "eth0"
    ]
    assert [*routes.ipv4(""), *routes.ipv6("")] == []


def test_both_tables_of_a_node(node):
    node.write("/proc/net/route", "\n".join([HEAD, DEFAULT4, LINK4, BLACKHOLE4, DOWN4]))
    six = [LINK6, LINK_LOCAL6, f"{DEFAULT6[:-4]}ib0", LOOPBACK6, LOCAL6, MULTICAST6, UNREACHABLE6, REJECT6]
    node.write("/proc/net/ipv6_route", "\n".join(six))
    assert routes.default_netdevs(node.tree()) == {"eth0", "ib0"}
    assert routes.destinations(node.tree()) == [
        {"destination": "0.0.0.0/0", "netdev": "eth0"},
        {"destination": "192.0.2.0/24", "netdev": "eth0"},
        {"destination": "fd00::/64", "netdev": "eth0"},
        {"destination": "::/0", "netdev": "ib0"},
        {"destination": "fd00::2/128", "netdev": "eth0"},
    ]


def test_a_node_without_the_tables_has_no_routes(node):
    assert (routes.usable(node.tree()), routes.default_netdevs(node.tree())) == ([], set())
