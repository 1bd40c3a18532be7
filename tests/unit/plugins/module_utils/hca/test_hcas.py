# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


def test_seed_004_dual_port_card(gh200):
    facts = gh200.facts()
    first, second = facts["hcas"]
    assert [hca["name"] for hca in facts["hcas"]] == ["mlx5_0", "mlx5_1"]
    assert first["pci"]["address"] == "0000:01:00.0"
    assert int(first["pci"]["device"], 16) == 4129
    assert (first["pci"]["model"], first["firmware"]) == ("ConnectX-7", "28.40.1000")
    assert (first["ports"][0]["state"], second["ports"][0]["state"]) == ("ACTIVE", "DOWN")
    assert second["ports"][0]["phys_state"] == "Disabled"
    assert (first["netdevs"][0]["mtu"], first["ports"][0]["active_mtu"]) == (1500, 1024)
    assert first["nearest_gpus"] == [{"address": "0009:01:00.0", "distance": "NODE"}]
    assert (first["nic_distances"], second["nic_distances"]) == ({"mlx5_1": "PIX"}, {"mlx5_0": "PIX"})
    assert (first["netdevs"][0]["default_route"], second["netdevs"][0]["default_route"]) == (True, False)
    assert first["netdevs"][0]["addresses"] == ["66.42.90.253/23"]
    assert first["char_devices"] == {"uverbs": "uverbs0", "umad": ["umad0"], "issm": []}
    assert facts["subsystem"]["netns_mode"] == "shared"
