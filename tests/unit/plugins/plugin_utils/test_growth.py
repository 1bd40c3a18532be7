"""What judges all nodes at once does four times the work for four times the nodes, counted in calls, not in seconds."""

from __future__ import annotations

import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import judge, pods
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_world import World

FEW, MANY = 20, 80
# Beyond what is linear: a judge has a part for the cluster as a whole, and sorts.
GENEROUS = 1.3


def work(action) -> int:
    """Calls of Python and C functions."""
    count = 0

    def see(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def growth(prepare) -> float:
    """How much more work there is for MANY nodes than FEW, as a multiple of how many more nodes there are."""
    prepare(FEW)()  # what is read and compiled once
    few, many = (work(prepare(count)) for count in (FEW, MANY))
    return many / few / (MANY / FEW)


@pytest.fixture
def world(captured):
    return lambda count: World(captured["gh200-cx7-roce"], captured["variables"], count)


def sound(_world):
    pass


def failing_alike(world):
    """The same port down on each node, which is also its own failure in the catalogue."""
    for facts in world.facts.values():
        facts["hcas"][0]["ports"][0].update(state="DOWN", phys_state="Polling")
    for probe in world.probes.values():
        probe["char_devices"]["uverbs0"]["mode"] = "0600"


@pytest.mark.parametrize("plant", [sound, failing_alike])
def test_the_judge_of_all_checks(world, plant):
    def prepare(count):
        made = world(count)
        plant(made)
        seen = made.seen()
        return lambda: judge.judge(seen, check_mode=False)

    assert growth(prepare) < GENEROUS


def test_the_plan_of_the_test_pods(world):
    def prepare(count):
        cluster = world(count).seen().cluster
        return lambda: pods.plan(cluster)

    assert growth(prepare) < GENEROUS


def test_the_networks_of_each_node(world):
    def prepare(count):
        seen = world(count).seen()
        for node in seen.nodes:
            node["read"]["networks"] = {"netdevs": {}, "files": {}}
        return lambda: pods.networks(seen.nodes, seen.cluster.read["cluster"])

    assert growth(prepare) < GENEROUS


def test_the_plan_of_test_pods_of_nodes_that_are_in_no_cluster_is_no_list_of_all_for_each(world):
    made = []
    for count in (FEW, MANY):
        cluster = world(count).seen().cluster
        for node in cluster.read["cluster"]["nodes"]:
            node.update(name=f"other-{node['name']}", addresses=[])
        left_out = pods.plan(cluster)["left_out"]
        made.append(max(map(len, left_out.values())))
    assert made[1] < made[0] * GENEROUS


def node(number: int, tool: str | None = None) -> dict:
    variables = {
        "k3s_node_ip": f"10.0.0.{number}",
        "k3s_api_address": "",
        "k3s_cluster_cidr": "10.42.0.0/16",
        "k3s_service_cidr": "10.43.0.0/16",
        "flannel_backend": "vxlan",
        "flannel_interface": "",
        "verification_fabric": True,
        "verification_port": 18515,
        "matrix_host": True,
        "matrix_port": 18600,
        "matrix_cuda": False,
        "node_firewall": "open",
        "node_firewall_api_clients": [],
    }
    return {
        "host": f"node{number}",
        "address": f"10.0.0.{number}",
        "member": True,
        "server": number == 0,
        "firewall": {
            "address": f"10.0.0.{number}",
            "addresses": {},
            "bound": {"tcp": [], "udp": []},
            "default_zone": "",
            "names_vrrp": True,
            "netdev": "eth0",
            "recorded": [],
            "rules": [],
            "tool": tool,
            "zones": {},
        },
        "facts": {
            "hcas": [
                {
                    "name": "mlx5_0",
                    "kind": "pci",
                    "netdevs": [{"name": "rail0", "addresses": [f"10.1.0.{number}/24"]}],
                    "ports": [{"gids": []}],
                }
            ],
            "rails": [{"index": 0, "hca": "mlx5_0", "netdev": "rail0"}],
        },
        "variables": variables,
    }


def test_who_asks_whom():
    def prepare(count):
        nodes = [node(number) for number in range(count)]

        def plan():
            firewall._network.cache_clear()
            firewall.plan(nodes)

        return plan

    assert growth(prepare) < GENEROUS


def test_where_all_open_their_firewalls_no_address_is_parsed_for_a_pair_of_nodes(monkeypatch):
    parse, parsed = firewall.netaddr.IPNetwork, []

    def counted(text):
        parsed.append(text)
        return parse(text)

    def times(count):
        firewall._network.cache_clear()
        firewall._sources.cache_clear()
        firewall._cidr.cache_clear()
        parsed.clear()
        firewall.plan([node(number, tool="ufw") for number in range(count)])
        return len(parsed)

    monkeypatch.setattr(firewall.netaddr, "IPNetwork", counted)
    assert times(MANY) / times(FEW) / (MANY / FEW) < GENEROUS
