"""Who sends to whom: chains by rail and subnet, and a reason for every rail without a peer."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pairs


def rail(number, address=None, state="ACTIVE", layer="Ethernet", kind="software", gids=None):
    """One rail with its HCA, as the facts have it."""
    ip = address.partition("/")[0] if address else None
    if gids is None:
        gids = [{"index": 0, "gid": "fe80:0000:0000:0000:5054:00ff:fe00:0001", "type": "RoCE v2", "netdev": "eth2"}]
        if ip and ":" not in ip:
            a, b, c, d = (int(part) for part in ip.split("."))
            mapped = f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
            gids.append({"index": 3, "gid": mapped, "type": "RoCE v2", "netdev": "eth2"})
    link = {"speed_gts": 32.0, "width": 16}
    return {
        "rail": {"index": number, "hca": f"hca{number}", "port": 1, "netdev": f"eth{number}"},
        "hca": {
            "name": f"hca{number}",
            "kind": kind,
            "pci": {"address": f"0000:0{number}:00.0", "link": link} if kind == "pci" else None,
            "netdevs": [{"name": f"eth{number}", "addresses": [address] if address else []}],
            "ports": [{"number": 1, "state": state, "link_layer": layer, "rate_gbps": 400.0, "gids": gids}],
        },
    }


def node(name, *rails, tools=pairs.TOOLS, runs=True):
    return {
        "host": name,
        "address": f"{name}.mgmt",
        "tools": list(tools),
        "base_port": 18600,
        "runs": runs,
        "facts": {"rails": [item["rail"] for item in rails], "hcas": [item["hca"] for item in rails]},
    }


def sides(plan, tool="rping"):
    return [(t["rail"], t["client"]["host"], t["server"]["host"]) for t in plan["tests"] if t["tool"] == tool]


def test_two_nodes_are_paired_on_each_rail_with_a_common_subnet():
    plan = pairs.plan(
        [
            node("node1", rail(0, "10.77.1.1/24"), rail(1, "10.77.2.1/24")),
            node("node2", rail(0, "10.77.1.2/24"), rail(1, "10.77.2.2/24")),
        ]
    )
    assert sides(plan) == [(0, "node1", "node2"), (1, "node1", "node2")] == sides(plan, "ib_write_bw")
    assert plan["unpaired"] == plan["clashes"] == []
    first, second = plan["tests"][:2]
    assert (first["address"], first["network"]) == ("10.77.1.2", "10.77.1.0/24")
    assert second["server"]["gid"] == second["client"]["gid"] == 3, "the GID of the rail's own address"
    ports = [test["tcp_port"] for test in plan["tests"]]
    assert sorted(set(ports)) == ports == [18600, 18601, 18602, 18603]


NO_ADDRESS = "eth0 has no IPv4 or routable IPv6 address, so no peer can address it"


@pytest.mark.parametrize("number", [3, 9])
def test_more_nodes_make_a_chain_in_which_each_takes_part(number):
    plan = pairs.plan([node(f"n{i}", rail(0, f"10.0.0.{i + 1}/24")) for i in range(number)])
    assert sides(plan) == [(0, f"n{i}", f"n{i + 1}") for i in range(number - 1)]
    assert plan["unpaired"] == []


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([rail(0, "10.0.0.1/24"), rail(1, "10.0.0.2/24")], "no peer: no other node has a rail 0"),
        ([rail(0, "10.0.0.1/24")], "no peer: this play has one node only"),
        ([rail(0, "10.0.0.1/24"), rail(0, "10.0.0.2/24", state="DOWN")], "no peer: rail 0 of b: the port is DOWN"),
        ([rail(0, "10.0.0.1/24"), rail(0, "10.0.9.2/24")], "no peer in 10.0.0.0/24: rail 0 of b 10.0.9.0/24"),
        ([rail(0), rail(0, "10.0.0.2/24")], NO_ADDRESS),
        ([rail(0, "fe80::1/64"), rail(0, "10.0.0.2/24")], NO_ADDRESS),
        ([rail(0, "10.0.0.1/24", state="INIT"), rail(0, "10.0.0.2/24")], "the port is INIT"),
    ],
)
def test_a_rail_without_a_peer_says_why(nodes, reason):
    plan = pairs.plan([node(name, one) for name, one in zip("ab", nodes)])
    assert plan["tests"] == []
    assert [end["reason"] for end in plan["unpaired"] if end["host"] == "a"] == [reason]


def test_facts_from_a_tree_of_files_send_nothing():
    plan = pairs.plan([node(name, rail(0, f"10.0.0.{n}/24"), runs=False) for n, name in enumerate("ab", 1)])
    assert (plan["tests"], len(plan["unpaired"])) == ([], 2)


def test_a_node_in_the_middle_that_is_down_does_not_break_the_chain():
    down = rail(0, "10.0.0.2/24", state="DOWN")
    plan = pairs.plan([node("a", rail(0, "10.0.0.1/24")), node("b", down), node("c", rail(0, "10.0.0.3/24"))])
    assert sides(plan) == [(0, "a", "c")]
    assert [end["host"] for end in plan["unpaired"]] == ["b"]


def test_an_address_that_two_nodes_have_is_reported_and_not_tested_against_itself():
    plan = pairs.plan([node("a", rail(0, "10.0.0.1/24")), node("b", rail(0, "10.0.0.1/24"))])
    assert plan["tests"] == []
    ((clash),) = plan["clashes"]
    assert (clash["address"], [end["host"] for end in clash["ends"]]) == ("10.0.0.1", ["a", "b"])


def infiniband(number, prefix="fe80:0000:0000:0000", address=None):
    gids = [{"index": 0, "gid": f"{prefix}:0002:c903:0000:000{number}", "type": "IB/RoCE v1", "netdev": None}]
    return rail(number, address, layer="InfiniBand", kind="pci", gids=gids)


def test_infiniband_without_addresses_shakes_hands_over_the_management_network():
    plan = pairs.plan([node("a", infiniband(0)), node("b", infiniband(0))])
    (test,) = plan["tests"]
    assert (test["tool"], test["address"], test["server"]["gid"]) == ("ib_write_bw", "b.mgmt", None)
    assert test["network"] == "InfiniBand subnet fe80000000000000"
    assert pairs.plan([node("a", infiniband(0)), node("b", infiniband(0, "fe80:0000:0000:0001"))])["tests"] == []


@pytest.mark.parametrize(
    ("net", "tools", "tests"),
    [
        ("2001:db8::", pairs.TOOLS, {"rping": ("2001:db8::2", []), "ib_write_bw": ("b.mgmt", [])}),
        ("10.0.0.", ["rping"], {"rping": ("10.0.0.2", []), "ib_write_bw": ("10.0.0.2", ["a"])}),
    ],
)
def test_ipv6_shakes_hands_over_management_and_a_missing_tool_is_named(net, tools, tests):
    size = "64" if ":" in net else "24"
    plan = pairs.plan([node("a", rail(0, f"{net}1/{size}"), tools=tools), node("b", rail(0, f"{net}2/{size}"))])
    assert {test["tool"]: (test["address"], test["missing"]) for test in plan["tests"]} == tests


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ({"speed_gts": 32.0, "width": 16}, 400.0),
        ({"speed_gts": 16.0, "width": 16}, 226.9),
        ({}, 400.0),
    ],
)
def test_a_port_carries_what_its_link_and_its_slot_both_do(link, expected):
    end = rail(0, "10.0.0.1/24", kind="pci")
    end["hca"]["pci"]["link"] = link
    assert pairs.ends(node("a", end))[0]["gbps"] == expected
    assert pairs.ends(node("a", rail(0, "10.0.0.1/24")))[0]["gbps"] is None, "software HCAs carry no promise"
