# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

CARD = "pci0000:00/0000:00:01.0/0000:01:00"
HCAS = ["hcas", "rails"]


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


def test_order_is_that_of_pci_and_software_comes_last(node):
    for name, chain in (("mlx5_10", "pci0000:00/0000:a0:00.0"), ("mlx5_2", "pci10000:00/10000:01:00.0")):
        node.hca(name, node.pci(chain, "15b3", "101b", "0x020700", "mlx5_core"))
    node.hca("rocep1s0f0", node.pci("pci0000:00/0000:01:00.0", "15b3", "1017", "0x020000", "mlx5_core"))
    for name in ("rxe10", "rxe9"):
        node.hca(name)
    names = [hca["name"] for hca in node.facts(HCAS)["hcas"]]
    assert names == ["rocep1s0f0", "mlx5_10", "mlx5_2", "rxe9", "rxe10"]


def test_every_pci_field(node):
    path = node.pci(
        f"{CARD}.0",
        "15b3",
        "101d",
        "0x020000",
        "mlx5_core",
        subsystem_vendor="0x15b3",
        subsystem_device="0x0083",
        current_link_speed="16.0 GT/s PCIe",
        current_link_width=8,
        max_link_speed="32.0 GT/s PCIe",
        max_link_width=16,
        sriov_totalvfs=8,
        sriov_numvfs=2,
    )
    node.link(f"{path}/iommu_group", "/sys/kernel/iommu_groups/27")
    node.hca("mlx5_0", path)
    for number in (0, 1):
        node.link(f"{path}/virtfn{number}", f"/sys/devices/{CARD}.{number + 2}")
    assert node.facts(HCAS)["hcas"][0]["pci"] == {
        "address": "0000:01:00.0",
        "vendor": "15b3",
        "device": "101d",
        "subsystem_vendor": "15b3",
        "subsystem_device": "0083",
        "model": "ConnectX-6 Dx",
        "driver": "mlx5_core",
        "numa_node": 0,
        "local_cpus": "0-71",
        "link": {"speed_gts": 16.0, "width": 8, "max_speed_gts": 32.0, "max_width": 16},
        "iommu_group": "27",
        "sriov": {"total": 8, "enabled": 2},
        "physfn": None,
        "virtfns": ["0000:01:00.2", "0000:01:00.3"],
        "path": ["pci0000:00", "0000:00:01.0", "0000:01:00.0"],
    }


def test_an_unknown_model_says_which_id(node):
    node.hca("mlx5_0", node.pci(f"{CARD}.0", "15b3", "9999", "0x020000", "mlx5_core"))
    assert node.facts(HCAS)["hcas"][0]["pci"]["model"] == "unknown: 15b3:9999 is not in the table of models"


def test_virtual_functions_know_their_card(node):
    parent = node.pci(f"{CARD}.0", "15b3", "1021", "0x020000", "mlx5_core", sriov_totalvfs=8, sriov_numvfs=1)
    child = node.pci(f"{CARD}.2", "15b3", "101e", "0x020000", "mlx5_core")
    node.link(f"{child}/physfn", parent).link(f"{parent}/virtfn0", child)
    node.hca("mlx5_0", parent)
    node.hca("mlx5_1", child)
    physical, virtual = node.facts(HCAS)["hcas"]
    assert (physical["function"], physical["pci"]["virtfns"]) == ("pf", ["0000:01:00.2"])
    assert (virtual["function"], virtual["pci"]["physfn"]) == ("vf", "0000:01:00.0")
    assert (virtual["pci"]["model"], virtual["pci"]["sriov"]) == ("ConnectX-7", {"total": 0, "enabled": 0})


def test_sub_functions_on_the_auxiliary_bus(node):
    card = node.pci(f"{CARD}.0", "15b3", "a2dc", "0x020000", "mlx5_core")
    node.hca("mlx5_0", card)
    node.netdev("enp1s0f0np0", card, phys_port_name="p0")
    node.netdev("enp1s0f0pf0sf88", card, phys_port_name="pf0sf88")
    for number in (10, 9):
        auxiliary = f"{card}/mlx5_core.sf.{number}"
        node.hca(f"mlx5_{number}", auxiliary)
        node.netdev(f"enp1s0f0s{number}", auxiliary)
    whole, *parts = node.facts(HCAS)["hcas"]
    assert [netdev["name"] for netdev in whole["netdevs"]] == ["enp1s0f0np0"]
    assert whole["representors"] == ["enp1s0f0pf0sf88"]
    assert [part["auxiliary"] for part in parts] == ["mlx5_core.sf.9", "mlx5_core.sf.10"]
    assert [part["function"] for part in parts] == ["sf", "sf"]
    assert {part["pci"]["address"] for part in parts} == {"0000:01:00.0"}
    assert parts[0]["ports"][0]["netdev"] == "enp1s0f0s9"


def bonded(node):
    for number in (0, 1):
        card = node.pci(f"{CARD}.{number}", "15b3", "101d", "0x020000", "mlx5_core")
        node.netdev(f"p{number}", card, mtu=9000, phys_port_name=f"p{number}")
        if number == 0:
            hca = node.hca("mlx5_bond_0", card)
            node.gids(hca, 1, {0: ("fe80::1", "IB/RoCE v1", "bond0"), 1: ("fe80::1", "RoCE v2", "bond0")})
    bond = node.netdev("bond0", mtu=4200)
    node.write(f"{bond}/bonding/slaves", "p0 p1")
    node.enslave("p0", "bond0").enslave("p1", "bond0")
    node.addresses = {"bond0": ["10.0.0.1/24"]}


def test_a_bond_is_one_hca_with_both_interfaces(node):
    bonded(node)
    facts = node.facts()
    (hca,) = facts["hcas"]
    assert [(netdev["name"], netdev["master"]) for netdev in hca["netdevs"]] == [
        ("bond0", None),
        ("p0", "bond0"),
        ("p1", "bond0"),
    ]
    assert (hca["ports"][0]["netdev"], hca["ports"][0]["active_mtu"]) == ("bond0", 4096)
    assert hca["bonded_functions"] == ["0000:01:00.1"]
    assert facts["cards_without_rdma"] == []
    assert facts["rails"][0]["netdev"] == "bond0"


def test_the_default_route_over_a_bond_reaches_its_hca(node):
    bonded(node)
    node.default_route("bond0")
    facts = node.facts(HCAS)
    assert all(netdev["default_route"] for netdev in facts["hcas"][0]["netdevs"])
    assert facts["rails"] == []
    assert "default route" in facts["rails_excluded"][0]["reason"]


def test_a_bridge_is_not_a_bond(node):
    card = node.pci(f"{CARD}.0", "15b3", "101d", "0x020000", "mlx5_core")
    node.hca("mlx5_0", card)
    node.netdev("p0", card)
    node.netdev("br0", mtu=9000)
    node.enslave("p0", "br0")
    (hca,) = node.facts(HCAS)["hcas"]
    assert [(netdev["name"], netdev["master"]) for netdev in hca["netdevs"]] == [("p0", "br0")]
    assert (hca["ports"][0]["netdev"], hca["ports"][0]["active_mtu"]) == ("p0", 1024)


def test_infiniband_with_ipoib_children(node):
    card = node.pci(f"{CARD}.0", "15b3", "1021", "0x020700", "mlx5_core")
    hca = node.hca("ibp24s0", card, layer="InfiniBand")
    node.port(hca, 1, "InfiniBand", rate="400 Gb/sec (4X NDR)", lid="0x1c", sm_lid="0x1")
    node.gids(hca, 1, {0: ("fe80:0000:0000:0000:a088:c203:0000:0001", "IB/RoCE v1", None)})
    for name, parent in (("ib0", ""), ("ib0.8001", "ib0")):
        node.netdev(name, card, type=32, mtu=2044)
        if parent:
            node.write(f"/sys/class/net/{name}/parent", parent)
    (found,) = node.facts(HCAS)["hcas"]
    port = found["ports"][0]
    assert (port["link_layer"], port["rate_gbps"], port["lid"], port["sm_lid"]) == ("InfiniBand", 400.0, 28, 1)
    assert (port["netdev"], port["active_mtu"], port["max_mtu"]) == ("ib0", *["unknown: needs verbs"] * 2)
    assert [(netdev["name"], netdev["parent"], netdev["type"]) for netdev in found["netdevs"]] == [
        ("ib0", None, "infiniband"),
        ("ib0.8001", "ib0", "infiniband"),
    ]
    assert port["gids"] == [
        {"index": 0, "gid": "fe80:0000:0000:0000:a088:c203:0000:0001", "type": "IB/RoCE v1", "netdev": None}
    ]


@pytest.mark.parametrize("attribute", ["dev_port", "dev_id"])
def test_mlx4_has_two_ports_on_one_device(node, attribute):
    """mlx4_en says which port by dev_port, older drivers by dev_id only."""
    card = node.pci(f"{CARD}.0", "15b3", "1007", "0x028000", "mlx4_core")
    hca = node.hca("mlx4_0", card, ports=2)
    node.port(hca, 1, "InfiniBand")
    node.netdev("ens3", card, type=32, mtu=2044, dev_port=0)
    node.netdev("ens3d1", card, **{"dev_port": 0, "dev_id": "0x0", attribute: "0x1" if attribute == "dev_id" else 1})
    (found,) = node.facts(HCAS)["hcas"]
    assert [(port["number"], port["netdev"]) for port in found["ports"]] == [(1, "ens3"), (2, "ens3d1")]
    assert [(netdev["name"], netdev["port"]) for netdev in found["netdevs"]] == [("ens3", 1), ("ens3d1", 2)]
    assert [port["active_mtu"] for port in found["ports"]] == ["unknown: needs verbs", 1024]


def test_gids_tell_the_port_where_the_numbers_do_not(node):
    card = node.pci(f"{CARD}.0", "15b3", "1007", "0x028000", "mlx4_core")
    hca = node.hca("mlx4_0", card, ports=2)
    for number, name in ((1, "b"), (2, "a")):
        node.netdev(name, card)
        node.gids(hca, number, {0: ("fe80::1", "RoCE v2", name)})
    (found,) = node.facts(["hcas", "!gids"])["hcas"]
    assert [(port["number"], port["netdev"], port["gids"]) for port in found["ports"]] == [(1, "b", []), (2, "a", [])]


def test_efa_has_few_files(node):
    card = node.pci("pci0000:00/0000:00:06.0", "1d0f", "efa1", "0x020000", "efa")
    hca = node.hca("rdmap0s6", card, node_type="4: unspecified", layer="Unknown")
    for name in ("board_id", "hca_type", "hw_rev"):
        node.host(f"{hca}/{name}").unlink()
    (found,) = node.facts(HCAS)["hcas"]
    assert (found["kind"], found["node_type"], found["psid"], found["netdevs"]) == ("pci", "unspecified", None, [])
    assert (found["ports"][0]["netdev"], found["ports"][0]["active_mtu"]) == (None, "unknown: needs verbs")


def test_irdma_takes_no_headers_off_the_mtu(node):
    card = node.pci(f"{CARD}.0", "8086", "1592", "0x020000", "ice")
    node.hca("rocep1s0f0", card)
    node.netdev("ens1f0", card, mtu=4096)
    (found,) = node.facts(HCAS)["hcas"]
    assert (found["pci"]["model"], found["ports"][0]["active_mtu"]) == ("E810-C QSFP", 4096)


def test_rxe_finds_its_interface_by_parent(node):
    node.netdev("eth0")
    node.netdev("eth1", mtu=4180)
    node.hca("rxe0", parent=None, fw_ver="")
    node.write("/sys/class/infiniband/rxe0/parent", "eth1")
    (found,) = node.facts(HCAS)["hcas"]
    assert (found["kind"], found["function"], found["pci"], found["firmware"]) == ("software", None, None, None)
    assert [netdev["name"] for netdev in found["netdevs"]] == ["eth1"]
    assert (found["ports"][0]["netdev"], found["ports"][0]["active_mtu"]) == ("eth1", 4096)


def test_a_software_hca_finds_its_interface_by_its_gids(node):
    node.netdev("eth1")
    node.netdev("mv0")
    hca = node.hca("rxe0")
    node.gids(hca, 1, {0: ("fe80::1", "RoCE v2", "eth1"), 5: ("fe80::2", "RoCE v2", "mv0")}, size=8)
    (found,) = node.facts(HCAS)["hcas"]
    assert found["ports"][0]["netdev"] == "eth1"
    assert [(gid["index"], gid["netdev"]) for gid in found["ports"][0]["gids"]] == [(0, "eth1"), (5, "mv0")]


def test_the_parent_of_rxe_outweighs_its_gids(node):
    """The default GIDs of a netdev without carrier may be gone while those of a macvlan on it are there."""
    node.netdev("eth1")
    node.netdev("mv0")
    node.gids(node.hca("rxe0", parent=None), 1, {3: ("fe80::2", "RoCE v2", "mv0")})
    node.write("/sys/class/infiniband/rxe0/parent", "eth1")
    (found,) = node.facts(HCAS)["hcas"]
    assert [netdev["name"] for netdev in found["netdevs"]] == ["eth1"]
    assert found["ports"][0]["netdev"] == "eth1"


@pytest.mark.parametrize("guid", ["", "0000:0000:0000:0000", "zzzz:00ff:fezz:zzzz", "5054:00ff:fe12"])
def test_a_guid_that_holds_no_mac(node, guid):
    node.netdev("tun0", address="")
    node.hca("siw0", node_guid=guid)
    (found,) = node.facts(HCAS)["hcas"]
    assert (found["netdevs"], found["ports"][0]["netdev"]) == ([], None)


def test_siw_finds_its_interface_by_its_guid(node):
    node.netdev("eth2", address="52:54:00:12:34:56")
    node.hca("siw0", node_type="4: RNIC", node_guid="5054:00ff:fe12:3456")
    (found,) = node.facts(HCAS)["hcas"]
    assert (found["ports"][0]["netdev"], found["node_type"]) == ("eth2", "RNIC")


def test_an_hca_that_vanished_is_left_out(node):
    node.hca("rxe0")
    node.link("/sys/class/infiniband/rxe1", "/sys/devices/virtual/infiniband/rxe1")
    assert [hca["name"] for hca in node.facts(HCAS)["hcas"]] == ["rxe0"]


@pytest.mark.parametrize(
    ("driver", "loaded", "files", "reason", "step"),
    [
        ("mlx5_core", ["mlx5_core"], {}, "mlx5_ib is not loaded.", "modprobe mlx5_ib"),
        (
            "mlx5_core",
            ["mlx5_core"],
            {"/etc/modprobe.d/x.conf": "# why\nblacklist mlx5_ib"},
            "mlx5_ib is not loaded and is blocked by /etc/modprobe.d/x.conf:2 (blacklist mlx5_ib).",
            "Remove that line",
        ),
        ("mlx5_core", ["mlx5_core", "mlx5_ib"], {}, "mlx5_ib is loaded but created no RDMA device for it.", "dmesg"),
        ("vfio-pci", [], {}, "It is bound to vfio-pci", "/sys/bus/pci/drivers/vfio-pci/unbind"),
        ("mystery", [], {}, "It is bound to mystery instead of mlx5_core.", "Unbind 0000:01:00.0"),
        (None, [], {}, "mlx5_core is not loaded.", "modprobe mlx5_core"),
        (None, ["mlx5_core"], {}, "mlx5_core is loaded but did not bind to the card.", "dmesg | grep 0000:01:00.0"),
        (
            None,
            [],
            {"/lib/modules/6.1.0-test/modules.dep": "kernel/x/ib_core.ko:"},
            "mlx5_core is not loaded and the running kernel has no such module.",
            "Install the package with mlx5_core",
        ),
    ],
)
def test_cards_without_rdma_say_why(node, driver, loaded, files, reason, step):
    card = node.pci(f"{CARD}.0", "15b3", "1021", "0x020000", driver)
    if driver == "mlx5_core":
        node.netdev("enp1s0f0np0", card)
    for name in loaded:
        node.module(name)
    for path, text in files.items():
        node.write(path, text)
    (found,) = node.facts(["pci"])["cards_without_rdma"]
    assert found["reason"].startswith(reason)
    assert step in found["next_step"]
    assert (found["address"], found["model"], found["driver"]) == ("0000:01:00.0", "ConnectX-7", driver)
    assert found["netdevs"] == (["enp1s0f0np0"] if driver == "mlx5_core" else [])


def test_a_connectx_3_needs_the_mlx4_modules(node):
    node.pci(f"{CARD}.0", "15b3", "1007", "0x028000", "mlx4_core")
    node.module("mlx4_core")
    assert node.facts(["hcas"])["cards_without_rdma"][0]["reason"] == "mlx4_ib is not loaded."


def test_what_is_no_card_without_rdma(node):
    """VFs, other vendors, and Mellanox functions that are no network card."""
    parent = node.pci(f"{CARD}.0", "15b3", "1021", "0x020000", "mlx5_core")
    node.hca("mlx5_0", parent)
    node.link(f"{node.pci(f'{CARD}.2', '15b3', '101e', '0x020000', 'vfio-pci')}/physfn", parent)
    node.pci("pci0000:00/0000:00:02.0", "8086", "1592", "0x020000", "ice")
    node.pci(f"{CARD}.3", "15b3", "c2d5", "0x080100")
    assert node.facts(["hcas"])["cards_without_rdma"] == []


@pytest.mark.parametrize(
    ("vendor", "device", "code", "wanted"),
    [
        ("10de", "2330", "0x030200", "H100 SXM5 80GB"),
        ("10de", "26b9", "0x030000", "L40S"),
        ("1002", "74a1", "0x120000", "MI300X"),
        ("10de", "22a3", "0x068000", None),
        ("1a03", "2000", "0x030000", None),
        ("10de", "fefe", "0x030200", "unknown: 10de:fefe is not in the table of models"),
    ],
    ids=["3D controller", "VGA", "accelerator", "NVSwitch", "BMC", "no such model"],
)
def test_what_is_a_gpu(node, vendor, device, code, wanted):
    node.pci(f"{CARD}.0", vendor, device, code, "nvidia")
    found = [gpu["model"] for gpu in node.facts(["gpus"])["gpus"]]
    assert found == ([wanted] if wanted else [])


def test_the_nvidia_driver_knows_the_model_best(node):
    node.pci(f"{CARD}.0", "10de", "2342", "0x030200", "nvidia")
    node.write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA GH200 480GB\nIRQ: 5")
    (gpu,) = node.facts(["gpus"])["gpus"]
    assert (gpu["index"], gpu["model"], gpu["driver"]) == (0, "NVIDIA GH200 480GB", "nvidia")
