"""Distances as `nvidia-smi topo -m` defines them, PCIe roots as Kubernetes' helper states them, and Data Direct."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import hcas, pci, roots, topology

BUS, PORT = "pci0000:10", "pci0000:10/0000:10:01.0"
SWITCH = f"{PORT}/0000:11:00.0"
GPU = f"{SWITCH}/0000:12:00.0/0000:13:00.0"
PLATFORM = "platform/ACPI0004:00/pci0002:00/0002:00:00"
CARD = ("15b3", "1021", "0x020000", "mlx5_core")
DIRECT = ("15b3", "2100", "0x088000")
SERIAL = "MT2501X00001"


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        pytest.param(f"{PORT}/0000:11:00.0", f"{PORT}/0000:11:00.1", "PIX", id="two functions of a card"),
        pytest.param(GPU, f"{SWITCH}/0000:12:01.0/0000:14:00.0", "PIX", id="one switch, two downstream ports"),
        pytest.param(GPU, f"{SWITCH}/0000:12:01.0/0000:14:00.0/0000:15:00.0/0000:16:00.0", "PXB", id="second switch"),
        pytest.param(GPU, f"{BUS}/0000:10:02.0/0000:20:00.0", "PHB", id="one host bridge, two root ports"),
        pytest.param(GPU, f"{BUS}/0000:10:03.0", "PHB", id="on the root bus"),
        pytest.param(f"{PLATFORM}.1", f"{PLATFORM}.2", "PHB", id="a host bridge below a platform device"),
        pytest.param(GPU, "pci0000:30/0000:30:01.0/0000:31:00.0", "NODE", id="two host bridges of one node"),
        pytest.param(GPU, None, None, id="what is not there"),
    ],
)
def test_distance(node, one, other, wanted):
    for chain in filter(None, (one, other)):
        node.pci(chain, "10de", "2330", "0x030200")
    addresses = [(chain or "0000:99:00.0").rpartition("/")[2] for chain in (one, other)]
    assert topology.distance(node.tree(), *addresses) == wanted
    assert topology.distance(node.tree(), *reversed(addresses)) == wanted


@pytest.mark.parametrize(
    ("first", "second", "online", "wanted"),
    [(0, 1, "0-1", "SYS"), (-1, -1, "0-1", "NODE"), (-1, 0, "0", "NODE"), (-1, 0, "0-1", "SYS"), (-1, 0, None, "NODE")],
)
def test_numa_node_decides_between_host_bridges(node, first, second, online, wanted):
    for bus, numa_node in ((10, first), (30, second)):
        path = node.pci(f"pci0000:{bus}/0000:{bus}:01.0", "10de", "2330", "0x030200")
        node.write(f"{path}/numa_node", str(numa_node))
    path = node.host("/sys/devices/system/node/online")
    path.write_text(online) if online else path.unlink()
    assert topology.distance(node.tree(), "0000:10:01.0", "0000:30:01.0") == wanted


def vpd(serial: str) -> bytes:
    """As lspci -vv shows a ConnectX: an identifier, then PN, SN and VU, then the end tag."""
    pairs = ((b"PN", b"900-9X81E"), (b"SN", serial.encode()), (b"VU", f"{serial}MLNXS0D0F0".encode()))
    fields = b"".join(key + bytes([len(value)]) + value for key, value in pairs)
    parts = ((0x82, b"NVIDIA ConnectX-8"), (0x90, fields))
    return b"".join(bytes([tag]) + len(body).to_bytes(2, "little") + body for tag, body in parts) + b"\x78"


@pytest.mark.parametrize(
    ("chain", "wanted"),
    [
        ("pci0009:3b/0009:3b:00.0", "pci0009:3b"),
        # VMD: the helper takes the outermost root, and knows domains of four digits only.
        ("pci0000:00/0000:00:0e.0/pci8000:00/8000:00:01.0", "pci0000:00"),
        ("pci0000:00/0000:00:0e.0/pci10000:00/10000:00:01.0", None),
        ("platform/ACPI0004:00/pci0002:00/0002:00:00.0", None),
    ],
)
def test_pcie_root(node, chain, wanted):
    node.pci(chain, *CARD)
    assert roots.pcie_root(node.tree(), chain.rpartition("/")[2]) == wanted


@pytest.mark.parametrize("address", [None, "mlx5_0", "0000:01:00.0", "0000:01:00.0/../x", "0000:02:00.0"])
def test_what_is_no_function_or_links_to_another_has_no_root(node, address):
    node.link("/sys/bus/pci/devices/0000:02:00.0", "/sys/devices/pci0000:00/0000:01:00.0")
    assert roots.pcie_root(node.tree(), address) is None


def root_of(node, name):
    tree = node.tree()
    functions = pci.classes(tree)
    fact = next(hca for hca in hcas.hcas(tree, functions=functions) if hca["name"] == name)
    return roots.hca_root(tree, fact, functions)


def test_a_software_hca_has_the_root_of_its_netdev_through_virtio_and_a_bond_on_one_card(node):
    for index, chain in enumerate(("pci0000:80/0000:80:01.0", "pci0000:80/0000:80:01.1", "pci0000:90/0000:90:01.0")):
        card = node.pci(chain, "1af4", "1041", "0x020000", "virtio-pci")
        node.netdev(f"eth{index}", f"{card}/virtio3", address=f"52:54:00:00:00:0{index}")
    node.netdev("bond0", address="52:54:00:00:00:0a")
    node.enslave("eth0", "bond0").enslave("eth1", "bond0")
    for name, netdev in (("rxe0", "eth0"), ("rxe1", "bond0")):
        node.write(f"{node.hca(name)}/parent", netdev)
    assert [root_of(node, name) for name in ("rxe0", "rxe1")] == ["pci0000:80"] * 2
    node.enslave("eth2", "bond0")
    assert root_of(node, "rxe1") is None


def test_the_root_of_the_data_direct_function_counts(node):
    """Two cards beside each other, each with its Data Direct function below another root; and a card without one."""
    node.hca("mlx5_0", node.pci("pci0003:00/0003:00:01.0/0003:01:00.0", *CARD))
    assert root_of(node, "mlx5_0") == "pci0003:00"
    for number in (1, 2):
        card = node.pci(f"pci0000:00/0000:00:0{number}.0/0000:0{number}:00.0", *CARD)
        node.hca(f"mlx5_{number}", card, layer="InfiniBand")
        direct = node.pci(f"pci000{number}:00/000{number}:00:00.0/000{number}:01:00.0", *DIRECT)
        node.write(f"{card}/vpd", vpd(f"MT{number}")).write(f"{direct}/vpd", vpd(f"MT{number}"))
    assert [root_of(node, name) for name in ("mlx5_1", "mlx5_2")] == ["pci0001:00", "pci0002:00"]


def test_several_functions_of_one_card_pair_up_by_rank_or_not_at_all(node):
    for index in (0, 1):
        card = node.pci(f"pci0000:00/0000:00:01.0/0000:01:00.{index}", *CARD)
        direct = node.pci(f"pci0001:00/0001:00:00.0/0001:01:00.{index}", *DIRECT)
        node.write(f"{card}/vpd", vpd(SERIAL)).write(f"{direct}/vpd", vpd(SERIAL))
    functions = pci.classes(node.tree())
    assert roots.data_direct(node.tree(), "0000:01:00.1", functions) == "0001:01:00.1"
    del functions["0000:01:00.0"]
    assert roots.data_direct(node.tree(), "0000:01:00.1", functions) is None


def test_vital_product_data_may_be_cut_off():
    whole = roots.vital_product_data(vpd(SERIAL))
    assert whole[b"SN"] == SERIAL.encode()
    assert all(set(roots.vital_product_data(vpd(SERIAL)[:cut])) <= set(whole) for cut in range(60))
