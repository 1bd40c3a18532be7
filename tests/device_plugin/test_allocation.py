"""Units and what they stand for."""

from __future__ import annotations

import pytest
from harness import document, entry
from hypothesis import given
from hypothesis import strategies as st
from rdma_device_plugin import allocation
from rdma_device_plugin.allocation import Refused
from rdma_device_plugin.config import load
from rdma_device_plugin.pools import Hca, Port


def hca(number, node=0, ports=1):
    return Hca(
        name=f"mlx5_{number}",
        address=f"0000:{number:02x}:00.0",
        numa_node=node,
        uverbs=(f"uverbs{number}",),
        umad=(f"umad{number}",),
        ports=tuple(Port(one + 1, "ACTIVE", "InfiniBand", None) for one in range(ports)),
    )


def offer(hcas, healthy=None, known=0, exclusive=False, active=None, **more):
    pool = load(document(entry("a-b.c", **more))).pools[0]
    states = {one.name: True for one in hcas} if healthy is None else healthy
    return allocation.offer(pool, tuple(hcas), states, exclusive=exclusive, known=known, active=active)


def names(found):
    return [one.name for one in found]


EIGHT = [hca(number, number // 4) for number in range(8)]


def test_every_unit_is_all_hcas():
    found = offer(EIGHT, count=3)
    assert [unit for unit, _healthy, _nodes in found.devices()] == ["0", "1", "2"]
    assert names(found.hcas_of(["1"])) == names(EIGHT)
    assert found.files(found.members)[-2:] == ["/dev/infiniband/uverbs7", "/dev/infiniband/rdma_cm"]
    assert found.files(found.members).count("/dev/infiniband/rdma_cm") == 1


def test_spread_gives_each_unit_hcas_of_its_own():
    """Pitfall 10"""
    found = offer(EIGHT, count=16, allocation="spread")
    assert [names(found.hcas_of([str(unit)])) for unit in range(16)] == [[f"mlx5_{unit % 8}"] for unit in range(16)]
    assert names(found.hcas_of(["0", "9"])) == ["mlx5_0", "mlx5_1"]
    two = offer(EIGHT, count=16, allocation="spread", hcasPerUnit=2)
    assert names(two.hcas_of(["1"])) == ["mlx5_2", "mlx5_3"]
    assert names(offer(EIGHT[:3], count=9, allocation="spread", hcasPerUnit=9).hcas_of(["5"])) == names(EIGHT[:3])


def test_numa_gives_each_unit_one_nodes_hcas():
    found = offer(EIGHT, count=4, allocation="numa", topology="auto")
    assert names(found.hcas_of(["0"])) == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert names(found.hcas_of(["1"])) == ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]
    assert [nodes for _unit, _healthy, nodes in found.devices()] == [(0,), (1,), (0,), (1,)]


@given(st.integers(1, 12), st.integers(1, 14), st.sampled_from(["spread", "numa"]), st.integers(1, 3))
def test_units_use_all_hcas_alike(count, size, how, nodes):
    hcas = [hca(number, number % nodes) for number in range(count)]
    found = offer(hcas, count=1000, allocation=how, hcasPerUnit=size)
    used = [one.name for group in found.groups for one in group.hcas]
    assert set(used) == set(names(hcas))
    assert all(len(set(names(group.hcas))) == len(group.hcas) <= size for group in found.groups)
    if how == "spread":
        assert len({used.count(name) for name in used}) == 1
    else:
        assert all(len({one.numa_node for one in group.hcas}) == 1 for group in found.groups)


def test_topology_is_opt_in_and_all_or_nothing():
    """Pitfall 9, 4.3: units without a node count as unaligned once another has one"""
    assert {nodes for _unit, _healthy, nodes in offer(EIGHT, count=8, allocation="spread").devices()} == {()}
    hinted = offer(EIGHT, count=8, allocation="spread", topology="auto")
    assert [nodes for _unit, _healthy, nodes in hinted.devices()] == [(0,)] * 4 + [(1,)] * 4
    assert {nodes for _unit, _healthy, nodes in offer(EIGHT, count=2, topology="auto").devices()} == {(0, 1)}
    unplaced = [*EIGHT, hca(9, -1)]
    assert {nodes for _unit, _healthy, nodes in offer(unplaced, count=9, topology="auto").devices()} == {()}


def test_health_is_that_of_the_units_hcas():
    """Pitfall 11"""
    states = {**{one.name: True for one in EIGHT}, "mlx5_3": False}
    assert offer(EIGHT, states, count=16).healthy == 16
    spread = offer(EIGHT, states, count=16, allocation="spread")
    assert [unit for unit, healthy, _nodes in spread.devices() if not healthy] == ["3", "11"]
    assert spread.healthy == 14
    assert offer(EIGHT, states, count=16, health={"ports": "all"}).healthy == 0
    assert offer(EIGHT, exclusive=True, count=16).healthy == 0


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(0, 50))
def test_the_number_of_healthy_units_is_their_number(states, count):
    hcas = [hca(number) for number in range(len(states))]
    healthy = {one.name: state for one, state in zip(hcas, states)}
    found = offer(hcas, healthy, count=count, allocation="spread")
    assert found.healthy == sum(state for _unit, state, _nodes in found.devices())


def test_an_empty_pool_has_no_units_and_one_that_lost_its_hcas_keeps_them():
    """A21, 4.3"""
    assert list(offer([], count=3).devices()) == []
    assert list(offer([], known=3, count=3).devices()) == [(str(unit), False, ()) for unit in range(3)]


def test_refusals_name_what_is_refused():
    """A39"""
    found = offer(EIGHT, count=3, maxPerContainer=2)
    for strange in ("3", "-1", "x", "", "1.0", "\u0663"):
        with pytest.raises(Refused, match="never advertised"):
            found.hcas_of(["0", strange])
    with pytest.raises(Refused, match="maxPerContainer is 2"):
        found.hcas_of(["0", "1", "2"])
    with pytest.raises(Refused, match="no HCA"):
        offer([], known=3, count=3).hcas_of(["0"])


def test_a_unit_from_before_the_pool_shrank_still_works():
    """A39"""
    assert names(offer(EIGHT, known=10, count=3).hcas_of(["9"])) == names(EIGHT)


def test_environment():
    """Pitfall 10: which HCAs a container may use; never a GID index"""
    two = [hca(1, ports=2), hca(10)]
    assert offer(two).env(tuple(two)) == {}
    assert offer(two, env="generic").env(tuple(two)) == {"RDMA_A_B_C_DEVICES": "mlx5_1,mlx5_10"}
    found = offer(two, env=["nccl", "ucx"], active={"mlx5_1": (2,), "mlx5_10": (1,)}).env(tuple(two))
    assert found == {
        "RDMA_A_B_C_DEVICES": "mlx5_1,mlx5_10",
        "NCCL_IB_HCA": "=mlx5_1:2,mlx5_10:1",
        "UCX_NET_DEVICES": "mlx5_1:2,mlx5_10:1",
    }
    down = offer(two, env="nccl").env((two[0],))
    assert down["NCCL_IB_HCA"] == "=mlx5_1:1,mlx5_1:2"


def test_preferred_units_lie_on_different_hcas_and_on_one_node():
    """1.8: upstream dies of the call"""
    found = offer(EIGHT, count=16, allocation="spread", topology="auto")
    everything = [str(unit) for unit in range(16)]
    picked = found.prefer(everything, [], 4)
    assert names(found.hcas_of(picked)) == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]
    assert names(found.hcas_of(found.prefer(everything, ["5"], 3))) == ["mlx5_4", "mlx5_5", "mlx5_6"]
    # Units 0 and 8 of mlx5_0 are taken, one of each other: the least used come first.
    assert found.prefer([unit for unit in everything if unit not in ("0", "1", "2", "8")], [], 1) == ["3"]


@given(st.data())
def test_preferred_units_are_available_ones_and_enough(data):
    how = data.draw(st.sampled_from(["all", "spread", "numa"]))
    found = offer(EIGHT[: data.draw(st.integers(0, 8))], count=20, known=20, allocation=how)
    available = data.draw(st.lists(st.integers(0, 19), unique=True).map(lambda units: [str(unit) for unit in units]))
    required = data.draw(st.lists(st.sampled_from(available), unique=True, max_size=3)) if available else []
    size = data.draw(st.integers(len(required), max(len(required), len(available))))
    picked = found.prefer(available, required, size)
    assert len(picked) == len(set(picked)) == size
    assert set(required) <= set(picked) <= set(available)
