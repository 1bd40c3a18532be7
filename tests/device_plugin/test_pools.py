"""Discovery over captured nodes, selectors, character devices, health: all decisions without a socket."""

import shutil

import pytest
from harness import Node, document, entry
from hypothesis import given
from hypothesis import strategies as st
from rdma_device_plugin import allocation, pools
from rdma_device_plugin.allocation import Refused
from rdma_device_plugin.config import Health, load
from rdma_device_plugin.hca import Tree
from rdma_device_plugin.pools import Debounced, Hca, Port


def pool(**more):
    return load(document(entry(**more))).pools[0]


def chosen(root, pkeys=False, **more):
    found = pools.discover(Tree(str(root)), pools.Wanted(pkeys))
    return [hca.name for hca in pools.members(pool(**more), found)]


@pytest.fixture
def laid_out(base):
    return lambda name, **more: Node(base / name, name, **more).root


def card(name="mlx5_0", **more):
    values = {
        "address": "0000:01:00.0",
        "vendor": "15b3",
        "device": "1021",
        "driver": "mlx5_core",
        "netdevs": ("eth0",),
        "link_types": ("ether",),
        "uverbs": ("uverbs0",),
        "umad": ("umad0",),
        "ports": (Port(1, "ACTIVE", "Ethernet", "eth0"),),
    }
    return Hca(name=name, **{**values, **more})


# Selectors.


@pytest.mark.parametrize(("selectors", "there", "told"), [
    ({"selectors": {"ifNames": ["eth0"]}}, [card(netdevs=())], True),
    ({"extraSelectors": {"ifNames": ["eth*"]}}, [card(netdevs=())], True),
    ({"selectors": {"ifNames": ["eth0"]}}, [card(netdevs=()), card("mlx5_1")], False),  # others are left
    ({"selectors": {"ifNames": ["eth9"]}}, [card()], False),  # a name that never existed
    ({"selectors": {"linkTypes": ["ether"]}}, [card(netdevs=(), link_types=("",))], True),
    ({"selectors": {"linkTypes": ["infiniband"]}}, [card(netdevs=(), link_types=("",))], False),
    ({"selectors": {"vendors": ["8086"], "ifNames": ["eth0"]}}, [card(netdevs=())], False),  # another card
    ({"extraSelectors": {"pciAddresses": ["0000:01:00.0"]}}, [card(netdevs=())], False),
])  # fmt: skip
def test_an_interface_that_a_pod_has_taken_is_missed(selectors, there, told):
    found = pools.moved(
        pool(**{"selectors": {}, **selectors}), pools.Inventory(hcas=tuple(there), common=frozenset(["rdma_cm"]))
    )
    assert bool(found) is told


def test_extra_selectors_take_patterns(laid_out):
    root = laid_out("h100-8x-cx7-ib")
    every = [f"mlx5_{number}" for number in range(8)]
    assert chosen(root, extraSelectors={"rdmaDevices": ["mlx5_[0-3]"]}) == every[:4]
    assert chosen(root, extraSelectors={"pciAddresses": ["0000:18:*", "0000:ca:00.0"]}) == ["mlx5_0", "mlx5_7"]
    assert chosen(root, extraSelectors={"ifNames": ["ibp*"], "numaNodes": [1]}) == every[4:]
    assert chosen(root, True, extraSelectors={"pKeys": ["0xffff"]}) == every
    assert chosen(root, True, extraSelectors={"pKeys": ["0x8001"]}) == []


# Discovery.


def test_one_function_that_cannot_be_read_hides_no_other(base):
    """ghw 0.24 returns nothing at all then; and no pci.ids is needed"""
    node = Node(base / "node", "two-cards-cx6dx")
    for path in node.root.glob("sys/devices/pci*/**/0000:3b:00.0/*"):
        if path.name in ("vendor", "device", "modalias", "class"):
            path.unlink()
    (node.root / "sys/bus/pci/devices/not-an-address").symlink_to("nowhere")
    assert chosen(node.root) == ["mlx5_1"]


NAMES = {"ifNames": ["eth0", "eth1", "eth2"]}
OVER_ALL = {"vendors": ["15b3", "8086"], "drivers": ["mlx5_core"], "linkTypes": ["ether"]}


@pytest.mark.parametrize(("fixture", "more", "wanted"), [
    ("names-persistent", {"selectors": {"ifNames": ["enp1s0f1np1", "ibp24s0"]}}, "rocep1s0f1 ibp24s0"),
    ("names-persistent", {"selectors": OVER_ALL}, "rocep1s0f0 rocep1s0f1"),
    # Upstream cannot see the auxiliary bus.
    ("sfs", {}, "mlx5_0 mlx5_2 mlx5_3"),
    ("sfs", {"selectors": {"ifNames": ["enp8s0f0s88"]}}, "mlx5_2"),
    ("vfs", {"selectors": {"drivers": ["mlx5_core"]}}, "mlx5_0 mlx5_1"),
    # Software HCAs on request only.
    ("rxe-and-siw", {"selectors": NAMES}, ""),
    ("rxe-and-siw", {"selectors": NAMES, "softwareDevices": True}, "rxe0 rxe1 siw_eth2"),
    ("rxe-and-siw", {"selectors": {"vendors": ["15b3"]}, "softwareDevices": True}, ""),
    # Upstream compares only the first name of a function and warns about the others.
    ("mlx4-two-ports", {"selectors": {"ifNames": ["ens3d1"]}}, "mlx4_0"),
    ("mlx4-two-ports", {"selectors": {"linkTypes": ["infiniband"]}}, "mlx4_0"),
    # Upstream refuses iWARP and EFA because they lack umad.
    ("efa", {"selectors": {"vendors": ["1d0f"]}}, "rdmap0s6"),
    ("irdma", {"selectors": {"vendors": ["8086"]}}, "rocep101s0f0 rocep101s0f1"),
])  # fmt: skip
def test_what_is_chosen_of_a_node(laid_out, fixture, more, wanted):
    assert chosen(laid_out(fixture), **more) == wanted.split()


def test_a_software_hca_lies_where_its_nic_does(laid_out):
    root = laid_out("rxe-and-siw")
    assert {hca.numa_node for hca in pools.discover(Tree(str(root))).hcas} == {-1}
    function = "sys/devices/pci0000:80/0000:80:00.0/0000:81:00.0"
    (root / function / "virtio4/net").mkdir(parents=True)
    (root / "sys/bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (root / "sys/bus/pci/devices/0000:81:00.0").symlink_to(f"/{function}")
    (root / function / "numa_node").write_text("1\n")
    device = root / "sys/class/net/eth1/device"
    if device.is_symlink():
        device.unlink()
    device.symlink_to(f"/{function}/virtio4")
    nodes = {hca.name: hca.numa_node for hca in pools.discover(Tree(str(root))).hcas}
    assert nodes == {"rxe0": -1, "rxe1": 1, "siw_eth2": -1}


# Character devices.


@pytest.mark.parametrize(("layer", "missing", "code"), [
    ("Ethernet", {"umad": ()}, None),
    ("InfiniBand", {"umad": ()}, "no-umad"),
    ("Ethernet", {"uverbs": ()}, "no-uverbs"),
    ("Ethernet", {"issm": ()}, None),
])  # fmt: skip
def test_what_is_required_follows_from_the_link_layer(layer, missing, code):
    """Upstream refuses iWARP and EFA because they lack umad"""
    out = pools.judge(pool(), card(ports=(Port(1, "ACTIVE", layer, None),), **missing))
    assert (out.code if out else None) == code


def test_a_missing_device_is_reported_with_its_module(base):
    node = Node(base / "node", "h100-8x-cx7-ib").unload("ib_umad").unload("rdma_ucm")
    found = pools.discover(Tree(str(node.root)))
    out = pools.judge(pool(), found.hcas[0], found.common)
    assert out.code == "no-umad"
    assert "umad, rdma_cm: load ib_umad rdma_ucm" in out.text
    node.load("ib_umad")
    node.load("rdma_ucm")
    assert len(chosen(node.root)) == 8


def test_the_config_overrules_what_is_required():
    without = card(umad=())
    assert pools.judge(pool(charDevices={"umad": "required"}), without).code == "no-umad"
    assert pools.judge(pool(charDevices={"rdma_cm": "optional"}), without, frozenset()) is None
    never = pool(charDevices={"umad": "never", "rdma_cm": "never"})
    assert pools.files(never, card()) == ("/dev/infiniband/uverbs0",)
    assert pools.common_files(never, (card(),), frozenset(pools.COMMON)) == []
    gdrcopy = pool(charDevices={"gdrdrv": "required"})
    assert pools.judge(gdrcopy, card(), frozenset(["rdma_cm"])).code == "no-gdrdrv"
    assert pools.common_files(gdrcopy, (card(),), frozenset(pools.COMMON)) == [*pools.COMMON.values()]


def test_gdrdrv_is_there_by_its_device_and_in_a_container_by_its_module(base):
    node = Node(base / "node", "h100-8x-cx7-ib")
    (node.root / "sys/module/gdrdrv").mkdir(parents=True)
    (node.root / "dev/infiniband").mkdir(parents=True)
    assert "gdrdrv" not in pools.discover(Tree(str(node.root))).common
    (node.root / "dev/gdrdrv").touch()
    assert "gdrdrv" in pools.discover(Tree(str(node.root))).common
    shutil.rmtree(node.root / "dev")
    assert "gdrdrv" in pools.discover(Tree(str(node.root))).common


# Health.


def test_a_port_must_be_otherwise_for_a_while():
    """Hysteresis and recovery"""
    health = Health("any", downSeconds=1, upSeconds=5)
    state = pools.debounce(None, True, 0, health)
    assert state == Debounced(True), "the first observation counts at once"
    state = pools.debounce(state, False, 10, health)
    assert state == Debounced(True, 10)
    assert state.due(health) == 11
    assert pools.debounce(state, True, 10.5, health) == Debounced(True), "a blip is none"
    state = pools.debounce(state, False, 10.5, health)
    assert state == Debounced(True, 10), "waiting does not begin again"
    state = pools.debounce(state, False, 11, health)
    assert state == Debounced(False)
    state = pools.debounce(state, True, 12, health)
    assert state.due(health) == 17
    assert pools.debounce(state, True, 16.9, health).up is False
    assert pools.debounce(state, True, 17, health) == Debounced(True)


@pytest.mark.parametrize(("flaps", "up_again"), [(0, [11, 31, 51]), (2, [11, 110]), (3, [11, 31, 110])])
def test_a_port_that_goes_down_too_often_stays_down_until_it_has_been_steady(flaps, up_again):
    """Not ACTIVE for 10 s from 0, 20 and 40 on, then steady."""
    health = Health("any", downSeconds=0, upSeconds=1, flaps=flaps, flapSeconds=110)
    state, ups = Debounced(True), []
    for now in range(200):
        before, state = state, pools.debounce(state, not (now < 60 and now % 20 < 10), now, health)
        ups += [now] if state.up and not before.up else []
    assert ups == up_again


@pytest.mark.parametrize(("ports", "states", "healthy"), [
    ("any", [True, False], True),
    ("all", [True, False], False),
    ("ignore", [False, False], True),
    ("all", [], True),
])  # fmt: skip
def test_which_ports_count(ports, states, healthy):
    assert pools.hca_healthy(Health(ports), states) is healthy


# --- units and their HCAs ---------------------------------------------------------------------------------------------


def numbered(number, node=0, ports=1):
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


EIGHT = [numbered(number, number // 4) for number in range(8)]


@given(st.integers(1, 12), st.integers(1, 14), st.sampled_from(["spread", "numa"]), st.integers(1, 3))
def test_units_use_all_hcas_alike(count, size, how, nodes):
    hcas = [numbered(number, number % nodes) for number in range(count)]
    found = offer(hcas, count=1000, allocation=how, hcasPerUnit=size)
    used = [one.name for group in found.groups for one in group.hcas]
    assert set(used) == set(names(hcas))
    assert all(len(set(names(group.hcas))) == len(group.hcas) <= size for group in found.groups)
    if how == "spread":
        assert len({used.count(name) for name in used}) == 1
    else:
        assert all(len({one.numa_node for one in group.hcas}) == 1 for group in found.groups)


def test_topology_is_opt_in_and_all_or_nothing():
    """Units without a node count as unaligned once another has one"""
    assert {nodes for _unit, _healthy, nodes in offer(EIGHT, count=8, allocation="spread").devices()} == {()}
    hinted = offer(EIGHT, count=8, allocation="spread", topology="auto")
    assert [nodes for _unit, _healthy, nodes in hinted.devices()] == [(0,)] * 4 + [(1,)] * 4
    assert {nodes for _unit, _healthy, nodes in offer(EIGHT, count=2, topology="auto").devices()} == {(0, 1)}
    unplaced = [*EIGHT, numbered(9, -1)]
    assert {nodes for _unit, _healthy, nodes in offer(unplaced, count=9, topology="auto").devices()} == {()}


def test_health_is_that_of_the_units_hcas():
    states = {**{one.name: True for one in EIGHT}, "mlx5_3": False}
    assert offer(EIGHT, states, count=16).healthy == 16
    spread = offer(EIGHT, states, count=16, allocation="spread")
    assert [unit for unit, healthy, _nodes in spread.devices() if not healthy] == ["3", "11"]
    assert spread.healthy == 14
    assert offer(EIGHT, states, count=16, health={"ports": "all"}).healthy == 0
    assert offer(EIGHT, exclusive=True, count=16).healthy == 0


def test_refusals_name_what_is_refused():
    found = offer(EIGHT, count=3, maxPerContainer=2)
    for strange in ("3", "-1", "x", "", "1.0", "\u0663", "9" * 5000):
        with pytest.raises(Refused, match="never advertised") as refused:
            found.hcas_of(["0", strange])
        assert len(str(refused.value)) < 500
    with pytest.raises(Refused, match="maxPerContainer is 2"):
        found.hcas_of(["0", "1", "2"])
    with pytest.raises(Refused, match="no HCA"):
        offer([], known=3, count=3).hcas_of(["0"])


def test_environment():
    """Which HCAs a container may use; never a GID index"""
    two = [numbered(1, ports=2), numbered(10)]
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
    """Upstream dies of the call"""
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
