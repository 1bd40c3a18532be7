# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

RAILS = ["rails"]


def card(node, number, ports=1, switch=None):
    """A card with its own switch (or below another one's), as many functions as it has ports."""
    made = []
    for function in range(ports):
        bus = f"{number:02x}"
        above = f"pci0000:{switch or bus}/0000:{switch or bus}:01.0/0000:f{switch or bus}:00.0"
        chain = f"{above}/0000:f{switch or bus}:{number:02x}.0/0000:1{bus}:00.{function}"
        path = node.pci(
            chain.replace("0000:f", "0000:").replace("0000:1", "0001:"), "15b3", "1021", "0x020000", "mlx5_core"
        )
        name = f"mlx5_{number}" if ports == 1 else f"mlx5_{number}_{function}"
        node.hca(name, path)
        node.netdev(f"net{number}_{function}", path, address=f"00:00:00:00:{number:02x}:{function:02x}")
        made.append(f"/sys/class/infiniband/{name}")
    return made


def gpu(node, number, switch):
    chain = f"pci0000:{switch}/0000:{switch}:01.0/0000:{switch}:00.0/0000:{switch}:1{number}.0/0002:{number:02x}:00.0"
    node.pci(chain, "10de", "2330", "0x030200", "nvidia")


def pull(node, hca):
    """The cable is out."""
    node.port(hca, 1, state="1: DOWN", phys_state="3: Disabled")


def numbered(facts):
    return [(rail["index"], rail["hca"], rail["gpu"]) for rail in facts["rails"]]


def test_pci_order_without_gpus(node):
    for number in (2, 1, 3):
        card(node, number)
    assert numbered(node.facts(RAILS)) == [(0, "mlx5_1", None), (1, "mlx5_2", None), (2, "mlx5_3", None)]
    assert node.facts(RAILS)["rails"][0] == {
        "index": 0,
        "hca": "mlx5_1",
        "port": 1,
        "netdev": "net1_0",
        "pci": "0001:01:00.0",
        "gpu": None,
        "distance": None,
        "reason": "automatic",
    }


def test_gpu_order_where_each_gpu_has_its_card(node):
    """GPU 0 sits with the second card, GPU 1 with the first."""
    card(node, 1, switch="a1")
    card(node, 2, switch="a2")
    gpu(node, 1, "a2")
    gpu(node, 2, "a1")
    facts = node.facts(RAILS)
    assert numbered(facts) == [(0, "mlx5_2", "0002:01:00.0"), (1, "mlx5_1", "0002:02:00.0")]
    assert [rail["distance"] for rail in facts["rails"]] == ["PIX", "PIX"]


def test_two_gpus_and_two_cards_below_one_switch_pair_in_pci_order(node):
    for number in (1, 2):
        card(node, number, switch="a1")
        gpu(node, number, "a1")
    assert numbered(node.facts(RAILS)) == [(0, "mlx5_1", "0002:01:00.0"), (1, "mlx5_2", "0002:02:00.0")]


def test_a_card_that_no_gpu_is_near_to_is_left_out(node):
    for number in (1, 2):
        card(node, number, switch=f"a{number}")
        gpu(node, number, f"a{number}")
    card(node, 9)
    facts = node.facts(RAILS)
    assert [rail["hca"] for rail in facts["rails"]] == ["mlx5_1", "mlx5_2"]
    assert facts["rails_excluded"] == [
        {"hca": "mlx5_9", "reason": "Every GPU is nearer to another card; name this one to use it."}
    ]


def test_more_near_cards_than_gpus_is_not_a_pairing(node):
    """Which of the two would be the GPU's is a guess, so PCI order it is."""
    for number in (1, 2):
        card(node, number, switch="a1")
    gpu(node, 1, "a1")
    assert numbered(node.facts(RAILS)) == [(0, "mlx5_1", "0002:01:00.0"), (1, "mlx5_2", "0002:01:00.0")]


def test_gpus_that_share_a_card_are_not_a_pairing(node):
    card(node, 1, switch="a1")
    for number in (1, 2):
        gpu(node, number, "a1")
    assert numbered(node.facts(RAILS)) == [(0, "mlx5_1", None)]


@pytest.mark.parametrize("out", range(4))
@pytest.mark.parametrize("gpus", [True, False])
def test_numbers_stay_when_a_cable_is_out(node, out, gpus):
    hcas = [card(node, number, switch=f"a{number}")[0] for number in range(1, 5)]
    for number in range(1, 5) if gpus else ():
        gpu(node, number, f"a{number}")
    before = numbered(node.facts(RAILS))
    pull(node, hcas[out])
    assert numbered(node.facts(RAILS)) == before
    assert len(before) == 4


def test_the_second_port_without_a_cable_is_unused_and_its_number_stays_empty(node):
    cards = [card(node, number, ports=2) for number in (1, 2)]
    for _first, second in cards:
        pull(node, second)
    facts = node.facts(RAILS)
    assert [(rail["index"], rail["hca"]) for rail in facts["rails"]] == [(0, "mlx5_1_0"), (2, "mlx5_2_0")]
    assert facts["rails_excluded"][0] == {
        "hca": "mlx5_1_1",
        "reason": "Port 1 is down and has no address, while mlx5_1_0/1 of the same card is in use; name it to use it.",
    }


def test_a_port_that_is_down_but_has_an_address_is_meant(node):
    """It was set up once: that its cable is out now is a fault, not a choice."""
    _first, second = card(node, 1, ports=2)
    pull(node, second)
    node.addresses = {"net1_1": ["10.0.0.1/24"]}
    assert [rail["hca"] for rail in node.facts(RAILS)["rails"]] == ["mlx5_1_0", "mlx5_1_1"]


def test_a_card_with_both_ports_down_keeps_its_rails(node):
    for hca in card(node, 1, ports=2):
        pull(node, hca)
    assert [rail["index"] for rail in node.facts(RAILS)["rails"]] == [0, 1]


def test_the_default_route_is_left_out_and_its_spare_port_too(gh200):
    facts = gh200.facts()
    assert facts["rails"] == []
    first, second = facts["rails_excluded"]
    assert first["reason"] == "enp1s0f0np0 carries the default route; name it to use it anyway."
    assert second["reason"].startswith("Port 1 is down and has no address, while mlx5_0/1 of the same card is in use")


def test_software_hcas_on_request_only(node):
    node.netdev("eth1")
    node.hca("rxe0", parent=None)
    node.write("/sys/class/infiniband/rxe0/parent", "eth1")
    assert node.facts(RAILS)["rails"] == []
    assert "software" in node.facts(RAILS)["rails_excluded"][0]["reason"]
    (rail,) = node.facts(RAILS, software_hcas=True)["rails"]
    assert (rail["hca"], rail["netdev"], rail["pci"]) == ("rxe0", "eth1", None)


def test_virtual_functions_are_left_out_unless_named(node):
    (physical,) = card(node, 1)
    card(node, 2)
    node.link("/sys/bus/pci/devices/0001:02:00.0/physfn", "/sys/bus/pci/devices/0001:01:00.0")
    assert physical.endswith("mlx5_1")
    facts = node.facts(RAILS)
    assert [rail["hca"] for rail in facts["rails"]] == ["mlx5_1"]
    assert facts["rails_excluded"] == [{"hca": "mlx5_2", "reason": "It is a virtual function of 0001:01:00.0."}]
    named = node.facts(RAILS, rails=[{"hca": "mlx5_2"}])
    assert [(rail["hca"], rail["reason"]) for rail in named["rails"]] == [("mlx5_2", "named")]


@pytest.mark.parametrize(
    "name",
    [{"hca": "mlx5_2"}, {"hca": "MLX5_2"}, {"pci": "0001:02:00.0"}, {"netdev": "net2_0"}, {"mac": "00:00:00:00:02:00"}],
)
def test_rails_by_name_in_the_order_of_their_names(node, name):
    for number in (1, 2):
        card(node, number)
    node.default_route("net2_0")
    facts = node.facts(RAILS, rails=[name, {"hca": "mlx5_1", "pci": None, "netdev": None, "mac": None, "port": None}])
    assert [(rail["index"], rail["hca"], rail["reason"]) for rail in facts["rails"]] == [
        (0, "mlx5_2", "named"),
        (1, "mlx5_1", "named"),
    ]
    assert facts["rails_excluded"] == []


def test_a_name_without_an_hca_keeps_its_number(node):
    card(node, 1)
    facts = node.facts(RAILS, rails=[{"netdev": "eth9"}, {"hca": "mlx5_1"}])
    assert [(rail["index"], rail["hca"]) for rail in facts["rails"]] == [(1, "mlx5_1")]
    assert facts["rails_excluded"] == [
        {"hca": None, "reason": "Rail 0 is named by netdev eth9, but no HCA port has it."}
    ]


def test_a_device_with_two_ports_wants_the_port_too(node):
    path = node.pci("pci0000:00/0000:00:01.0/0000:04:00.0", "15b3", "1007", "0x028000", "mlx4_core")
    node.hca("mlx4_0", path, ports=2)
    for port in (0, 1):
        node.netdev(f"ens3d{port}", path, dev_port=port)
    assert [(rail["index"], rail["port"]) for rail in node.facts(RAILS)["rails"]] == [(0, 1), (1, 2)]
    named = node.facts(RAILS, rails=[{"hca": "mlx4_0"}, {"netdev": "ens3d1"}, {"hca": "mlx4_0", "port": 1}])
    assert [(rail["index"], rail["port"]) for rail in named["rails"]] == [(1, 2), (2, 1)]
    assert "2 ports have it; name the port too" in named["rails_excluded"][0]["reason"]
