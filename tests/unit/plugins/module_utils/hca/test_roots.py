# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PCIe roots as Kubernetes' helper states them, and the Data Direct function of a ConnectX-8."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, hcas, pci, roots
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixtures

CARD = ("15b3", "1021", "0x020000", "mlx5_core")
DIRECT = ("15b3", "2100", "0x088000")


def vpd(serial: str) -> bytes:
    """As lspci -vv shows a ConnectX: an identifier, then PN, SN and VU, then the end tag."""
    name = b"NVIDIA ConnectX-8"
    fields = b"".join(
        key + bytes([len(value)]) + value
        for key, value in ((b"PN", b"900-9X81E"), (b"SN", serial.encode()), (b"VU", f"{serial}MLNXS0D0F0".encode()))
    )
    parts = ((0x82, name), (0x90, fields))
    return b"".join(bytes([tag]) + len(body).to_bytes(2, "little") + body for tag, body in parts) + b"\x78"


@pytest.mark.parametrize(
    ("chain", "wanted"),
    [
        ("pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:00"),
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


@pytest.mark.parametrize("address", [None, "", "mlx5_0", "0000:01:00.0", "0000:01:00.0/../x"])
def test_what_is_no_function_has_no_root(node, address):
    assert roots.pcie_root(node.tree(), address) is None


def test_a_link_to_another_function_is_no_answer(node):
    node.link("/sys/bus/pci/devices/0000:02:00.0", "/sys/devices/pci0000:00/0000:01:00.0")
    assert roots.pcie_root(node.tree(), "0000:02:00.0") is None


def root_of(node, name):
    tree = node.tree()
    functions = pci.classes(tree)
    fact = next(hca for hca in hcas.hcas(tree, functions=functions) if hca["name"] == name)
    return roots.hca_root(tree, fact, functions)


def test_a_software_hca_has_the_root_of_its_netdev_through_virtio(node):
    card = node.pci("pci0000:80/0000:80:01.0", "1af4", "1041", "0x020000", "virtio-pci")
    path = f"{card}/virtio3"
    node.netdev("eth1", path, address="52:54:00:00:00:01")
    hca = node.hca("rxe0")
    node.write(f"{hca}/parent", "eth1")
    assert root_of(node, "rxe0") == "pci0000:80"


def test_a_software_hca_on_a_bond_has_a_root_only_on_one_card(node):
    for index, chain in enumerate(("pci0000:80/0000:80:01.0", "pci0000:80/0000:80:01.1", "pci0000:90/0000:90:01.0")):
        node.netdev(f"eth{index}", node.pci(chain, "1af4", "1041", "0x020000"), address=f"52:54:00:00:00:0{index}")
    node.netdev("bond0", address="52:54:00:00:00:0a")
    node.enslave("eth0", "bond0").enslave("eth1", "bond0")
    hca = node.hca("rxe0")
    node.write(f"{hca}/parent", "bond0")
    assert root_of(node, "rxe0") == "pci0000:80"
    node.enslave("eth2", "bond0")
    assert root_of(node, "rxe0") is None


def test_the_root_of_the_data_direct_function_counts(node):
    """Two cards beside each other, each with its Data Direct function below another root."""
    for number, serial in ((1, "MT2501X00001"), (2, "MT2501X00002")):
        card = node.pci(f"pci0000:00/0000:00:0{number}.0/0000:0{number}:00.0", "15b3", "1023", "0x020700", "mlx5_core")
        node.write(f"{card}/vpd", vpd(serial))
        node.hca(f"mlx5_{number}", card, layer="InfiniBand")
        direct = node.pci(f"pci000{number}:00/000{number}:00:00.0/000{number}:01:00.0", *DIRECT)
        node.write(f"{direct}/vpd", vpd(serial))
    assert [root_of(node, name) for name in ("mlx5_1", "mlx5_2")] == ["pci0001:00", "pci0002:00"]


def test_several_functions_of_one_card_pair_up_by_rank_or_not_at_all(node):
    tree = node.tree()
    for index in (0, 1):
        for chain, kind in (
            (f"pci0000:00/0000:00:01.0/0000:01:00.{index}", ("15b3", "1023", "0x020700", "mlx5_core")),
            (f"pci0001:00/0001:00:00.0/0001:01:00.{index}", DIRECT),
        ):
            node.write(f"{node.pci(chain, *kind)}/vpd", vpd("MT2501X00001"))
    functions = pci.classes(tree)
    assert roots.data_direct(tree, "0000:01:00.1", functions) == "0001:01:00.1"
    del functions["0000:01:00.0"]
    assert roots.data_direct(tree, "0000:01:00.1", functions) is None


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_vital_product_data_may_be_cut_off(cut):
    whole = roots.vital_product_data(vpd("MT2501X00001"))
    assert whole[b"SN"] == b"MT2501X00001"
    assert set(roots.vital_product_data(vpd("MT2501X00001")[:cut])) <= set(whole)


def test_every_hca_on_pci_of_the_fixtures_has_a_root(fixture_trees):
    for name, tree in fixture_trees:
        functions = pci.classes(tree)
        for fact in hcas.hcas(tree, gids=False, functions=functions):
            if fact["pci"]:
                chain = tree.realpath(f"/sys/bus/pci/devices/{fact['pci']['address']}").split("/")
                assert roots.hca_root(tree, fact, functions) == chain[3], name


@pytest.fixture
def fixture_trees(tmp_path):
    return [(name, Tree(str(fixtures.lay_out(fixtures.load(name), tmp_path / name)))) for name in fixtures.names()]
