"""What an end should carry: link rates and PCIe slots of the cards that are in use."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import expect


def carries(rate=400.0, speed=32.0, width=16, best=None, layer="InfiniBand", text="", **changes):
    best_speed, best_width = best or (speed, width)
    return {
        "kind": "pci",
        "device": "15b3:1021",
        "link_layer": layer,
        "rate_gbps": rate,
        "rate_text": text,
        "mtu": 4096,
        "link": {"speed_gts": speed, "width": width, "max_speed_gts": best_speed, "max_width": best_width},
        "override": None,
        **changes,
    }


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    [
        # GT/s x lanes x line coding x 0.92 (DLLPs, flow control) x 256/280 (packet overhead)
        (2.5, 8, 13.5),
        (5.0, 8, 26.9),
        (8.0, 8, 53.0),
        (8.0, 16, 106.0),
        (16.0, 8, 106.0),
        (16.0, 16, 212.0),
        (32.0, 8, 212.0),
        (32.0, 16, 424.0),
        (64.0, 16, 794.0),
    ],
)
def test_what_a_pcie_link_carries(speed, width, gbps):
    assert expect.pcie_gbps(speed, width) == pytest.approx(gbps, abs=0.05)


@pytest.mark.parametrize(
    ("rate", "text", "layer", "mtu", "gbps"),
    [
        (400.0, "400 Gb/sec (4X NDR)", "InfiniBand", 4096, 397.5),
        (200.0, "200 Gb/sec (4X HDR)", "InfiniBand", 4096, 198.7),
        (100.0, "100 Gb/sec (2X HDR)", "InfiniBand", 4096, 99.4),
        (100.0, "100 Gb/sec (4X EDR)", "InfiniBand", 4096, 99.4),
        (56.0, "56 Gb/sec (4X FDR)", "InfiniBand", 4096, 54.0),
        (40.0, "40 Gb/sec (4X FDR10)", "InfiniBand", 4096, 39.7),
        (40.0, "40 Gb/sec (4X QDR)", "InfiniBand", 2048, 31.6),
        # On Ethernet the same word names another rate: 40GbE carries 40 Gb/s of data.
        (40.0, "40 Gb/sec (4X QDR)", "Ethernet", 4096, 39.2),
        (100.0, "100 Gb/sec (4X EDR)", "Ethernet", 1024, 92.6),
        (400.0, "400 Gb/sec (4X NDR)", "Ethernet", 4096, 392.1),
        (100.0, "", "Ethernet", None, 92.6),
    ],
)
def test_what_a_link_carries(rate, text, layer, mtu, gbps):
    assert expect.wire_gbps(rate, layer, mtu, text) == pytest.approx(gbps, abs=0.1)


CARDS = {
    # name: (rate, GT/s, lanes, best GT/s and lanes, expected, part of the reason or None)
    "CX7 NDR, Gen5 x16": (400.0, 32.0, 16, (32.0, 16), 397.5, None),
    "CX7 NDR in a Gen4 slot": (400.0, 16.0, 16, (32.0, 16), 397.5, "PCIe link trained down to 16 of 32 GT/s"),
    "CX7 NDR at x8": (400.0, 32.0, 8, (32.0, 16), 397.5, "PCIe x8 instead of x16"),
    "CX7 NDR at Gen3 x8": (400.0, 8.0, 8, (32.0, 16), 397.5, "PCIe x8 instead of x16 and PCIe link trained down to 8"),
    "CX7 HDR in a Gen4 slot": (200.0, 16.0, 16, (32.0, 16), 198.7, None),
    "CX7 HDR at Gen5 x8": (200.0, 32.0, 8, (32.0, 16), 198.7, None),
    "CX6 HDR, Gen4 x16": (200.0, 16.0, 16, (16.0, 16), 198.7, None),
    "CX6 HDR in a Gen3 slot": (200.0, 8.0, 16, (16.0, 16), 198.7, "PCIe link trained down to 8 of 16 GT/s"),
    "CX6 HDR100 in a Gen3 slot": (100.0, 8.0, 16, (16.0, 16), 99.4, None),
    "CX5 EDR, Gen3 x16": (100.0, 8.0, 16, (8.0, 16), 99.4, None),
    "CX5 EDR at x8": (100.0, 8.0, 8, (8.0, 16), 99.4, "PCIe x8 instead of x16, which carries 53.0 Gb/s"),
    "CX5 EDR card of 8 lanes": (100.0, 8.0, 8, (8.0, 8), 53.0, None),
    "CX6 HDR card of Gen3": (200.0, 8.0, 16, (8.0, 16), 106.0, None),
}


@pytest.mark.parametrize("name", CARDS)
def test_what_a_card_should_reach_and_what_holds_it_back(name):
    rate, speed, width, best, gbps, reason = CARDS[name]
    found = expect.end(carries(rate, speed, width, best), {})
    assert found["gbit_per_s"] == pytest.approx(gbps, abs=0.1)
    if reason is None:
        assert found["limits"] == []
    else:
        assert reason in found["limits"][0]


def test_a_slot_below_the_link_is_the_figure_and_says_so():
    found = expect.end(carries(100.0, 8.0, 8), {})
    assert found["why"] == "PCIe Gen3 x8 with 256 bytes of payload a packet"
    assert expect.end(carries(), {})["why"] == "link of 400 Gb/s without packet headers"


def test_a_port_slower_than_its_kind_is_measured_against_the_kind():
    carried = {f"node{number}": carries(400.0 if number else 100.0) for number in range(4)}
    usual = expect.usual_rates(carried)
    assert usual == {("15b3:1021", "InfiniBand"): 400.0}
    found = expect.end(carried["node0"], usual)
    assert found["gbit_per_s"] == pytest.approx(397.5, abs=0.1)
    assert found["limits"] == ["the port runs at 100 Gb/s where ports of its kind run at 400 Gb/s"]
    assert expect.end(carried["node1"], usual)["limits"] == []


def test_a_fast_port_among_slow_ones_is_measured_against_itself():
    carried = {f"node{number}": carries(100.0 if number else 400.0) for number in range(4)}
    found = expect.end(carried["node0"], expect.usual_rates(carried))
    assert found["gbit_per_s"] == pytest.approx(397.5, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [({"kind": "software"}, "software HCA"), ({"rate_gbps": None}, "software HCA")],
)
def test_what_has_no_rate_has_no_figure(changes, why):
    assert expect.end(carries(**changes), {})["gbit_per_s"] is None


def test_the_figure_of_the_user_stands():
    found = expect.end(carries(override=90), {})
    assert (found["gbit_per_s"], found["why"]) == (90.0, "matrix_expected_gbit_per_s")


def test_a_slot_that_shows_no_best_counts_as_it_is():
    one = carries(400.0, 16.0, 16)
    one["link"].update(max_speed_gts=None, max_width=None)
    found = expect.end(one, {})
    assert found["gbit_per_s"] == pytest.approx(212.0, abs=0.1)
    one["link"] = {}
    assert expect.end(one, {})["gbit_per_s"] == pytest.approx(397.5, abs=0.1)
