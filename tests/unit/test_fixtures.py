"""What must be read from each node of tests/fixtures/hosts.

A path walks the facts: names, addresses and numbers choose from lists. `[*]` takes all entries of a list.
"""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Seams, Tree, gather
from ansible_collections.gpufabric.rdma.tests.tools import compose_hosts, tree

UNKNOWN_MTU = "unknown: needs verbs"

FACTS = {
    # All that the commands of the published walk-through print about this machine; see the fixture's provenance.
    "gh200-cx7-roce": {
        "node/kernel": "6.8.0-1050-nvidia-64k",
        "node/architecture": "aarch64",
        "node/os/version_id": "22.04",
        "hcas/[*]/name": ["mlx5_0", "mlx5_1"],
        "hcas/[*]/pci/address": ["0000:01:00.0", "0000:01:00.1"],
        "hcas/[*]/pci/vendor": ["15b3", "15b3"],
        "hcas/[*]/pci/device": ["1021", "1021"],
        "hcas/[*]/pci/model": ["ConnectX-7", "ConnectX-7"],
        "hcas/[*]/pci/driver": ["mlx5_core", "mlx5_core"],
        "hcas/[*]/pci/numa_node": [0, 0],
        "hcas/[*]/pci/local_cpus": ["0-71", "0-71"],
        "hcas/[*]/firmware": ["28.40.1000", "28.40.1000"],
        "hcas/[*]/hca_type": ["MT4129", "MT4129"],
        "hcas/[*]/node_type": ["CA", "CA"],
        "hcas/[*]/kind": ["pci", "pci"],
        "hcas/[*]/function": ["pf", "pf"],
        "hcas/[*]/char_devices/uverbs": ["uverbs0", "uverbs1"],
        "hcas/[*]/char_devices/umad": [["umad0"], ["umad1"]],
        "hcas/mlx5_0/netdevs/[*]/name": ["enp1s0f0np0"],
        "hcas/mlx5_0/netdevs/enp1s0f0np0/mac": "a0:88:c2:a7:5c:d4",
        "hcas/mlx5_0/netdevs/enp1s0f0np0/mtu": 1500,
        "hcas/mlx5_0/netdevs/enp1s0f0np0/operstate": "up",
        "hcas/mlx5_0/netdevs/enp1s0f0np0/phys_port_name": "p0",
        "hcas/mlx5_0/netdevs/enp1s0f0np0/default_route": True,
        "hcas/mlx5_0/netdevs/enp1s0f0np0/addresses": ["198.51.100.253/23", "fe80::a288:c2ff:fea7:5cd4/64"],
        "hcas/mlx5_1/netdevs/[*]/name": ["enp1s0f1np1"],
        "hcas/mlx5_1/netdevs/enp1s0f1np1/mac": "a0:88:c2:a7:5c:d5",
        "hcas/mlx5_1/netdevs/enp1s0f1np1/operstate": "down",
        "hcas/mlx5_1/netdevs/enp1s0f1np1/default_route": False,
        "hcas/[*]/ports/[*]/number": [[1], [1]],
        "hcas/mlx5_0/ports/1/state": "ACTIVE",
        "hcas/mlx5_0/ports/1/phys_state": "LinkUp",
        "hcas/mlx5_0/ports/1/link_layer": "Ethernet",
        "hcas/mlx5_0/ports/1/netdev": "enp1s0f0np0",
        "hcas/mlx5_0/ports/1/active_mtu": 1024,
        "hcas/mlx5_0/ports/1/max_mtu": UNKNOWN_MTU,
        "hcas/mlx5_0/ports/1/gids/[*]/type": ["IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"],
        "hcas/mlx5_1/ports/1/state": "DOWN",
        "hcas/mlx5_1/ports/1/phys_state": "Disabled",
        "hcas/mlx5_1/ports/1/netdev": "enp1s0f1np1",
        "hcas/mlx5_1/ports/1/gids": [],
        "hcas/[*]/nearest_gpus": [[{"address": "0009:01:00.0", "distance": "NODE"}]] * 2,
        "hcas/mlx5_0/nic_distances": {"mlx5_1": "PIX"},
        "hcas/mlx5_1/nic_distances": {"mlx5_0": "PIX"},
        "gpus/[*]/address": ["0009:01:00.0"],
        "gpus/[*]/device": ["2342"],
        "gpus/[*]/numa_node": [0],
        "gpus/[*]/model": ["NVIDIA GH200 480GB"],
        "modules/mlx5_core/loaded": True,
        "modules/mlx5_ib/loaded": True,
        "modules/ib_core/loaded": True,
        "modules/ib_uverbs/loaded": True,
        "modules/ib_umad/loaded": True,
        "modules/rdma_cm/loaded": True,
        "modules/rdma_ucm/loaded": True,
        "modules/ib_ipoib/loaded": True,
        "modules/nvidia_peermem/loaded": True,
        "modules/nv_peer_mem/loaded": False,
        "driver/installed/flavor": "inbox",
        "driver/on_disk/flavor": "inbox",
        "driver/loaded/flavor": "inbox",
        "driver/agree": True,
        "gpudirect/mode": "peermem",
        "subsystem/netns_mode": "shared",
        "subsystem/persisted_netns_mode": None,
        "cards_without_rdma": [],
        # Port 1 carries the default route, port 2 is the card's unused one: whoever wants either names it.
        "rails": [],
        "rails_excluded/[*]/hca": ["mlx5_0", "mlx5_1"],
        "reboot_reasons": [],
    },
    "h100-8x-cx7-ib": {
        "hcas/[*]/name": [f"mlx5_{number}" for number in range(8)],
        "hcas/[*]/pci/numa_node": [0, 0, 0, 0, 1, 1, 1, 1],
        "hcas/[*]/ports/[*]/rate_gbps": [[400.0]] * 8,
        "hcas/[*]/ports/[*]/rate_text": [["400 Gb/sec (4X NDR)"]] * 8,
        "hcas/[*]/ports/[*]/link_layer": [["InfiniBand"]] * 8,
        "hcas/[*]/ports/[*]/lid": [[0x40 + number] for number in range(8)],
        "hcas/[*]/ports/[*]/sm_lid": [[1]] * 8,
        "hcas/[*]/ports/[*]/active_mtu": [[UNKNOWN_MTU]] * 8,
        "hcas/[*]/char_devices/issm": [[f"issm{number}"] for number in range(8)],
        "hcas/[*]/nearest_gpus/[*]/distance": [["PIX"]] * 8,
        "hcas/[*]/nearest_gpus/[*]/address": [
            [f"0000:{bus}:00.0"] for bus in ("1b", "3d", "4e", "5f", "8a", "ad", "bd", "cd")
        ],
        "hcas/mlx5_0/nic_distances/mlx5_1": "NODE",
        "hcas/mlx5_0/nic_distances/mlx5_7": "SYS",
        "hcas/mlx5_0/netdevs/[*]/type": ["infiniband"],
        "hcas/mlx5_0/netdevs/[*]/name": ["ibp24s0"],
        "gpus/[*]/index": list(range(8)),
        "rails/[*]/hca": [f"mlx5_{number}" for number in range(8)],
        "rails/[*]/distance": ["PIX"] * 8,
        "rails/[*]/gpu": [f"0000:{bus}:00.0" for bus in ("1b", "3d", "4e", "5f", "8a", "ad", "bd", "cd")],
        "driver/installed/flavor": "doca",
        "driver/loaded/flavor": "doca",
        "driver/loaded/version": "24.10-2.1.8",
        "driver/agree": True,
        "gpudirect/mode": "peermem",
        "limits/services/containerd/active": True,
        "limits/services/containerd/main_pid": 2210,
        "limits/services/containerd/memlock_running": "infinity",
    },
    "a100-8x-cx6": {
        "hcas/[*]/pci/address": [f"0000:{bus}:00.0" for bus in ("0c", "12", "4b", "54", "8d", "94", "ba", "cc")],
        "hcas/[*]/pci/numa_node": [1, 1, 0, 0, 3, 3, 2, 2],
        "hcas/[*]/pci/model": ["ConnectX-6"] * 8,
        "hcas/[*]/ports/[*]/rate_text": [["200 Gb/sec (4X HDR)"]] * 8,
        "gpus/[*]/numa_node": [1, 1, 0, 0, 3, 3, 2, 2],
        # Two GPUs and two HCAs share a switch: both GPUs are near, yet each rail has a GPU of its own.
        "hcas/mlx5_0/nearest_gpus/[*]/address": ["0000:07:00.0", "0000:0f:00.0"],
        "hcas/mlx5_0/nearest_gpus/[*]/distance": ["PIX", "PIX"],
        "hcas/mlx5_0/nic_distances/mlx5_1": "PIX",
        "hcas/mlx5_0/nic_distances/mlx5_2": "SYS",
        "rails/[*]/gpu": [f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd")],
        "driver/loaded/flavor": "inbox",
        "modules/nvidia_peermem/loaded": False,
    },
    "two-cards-cx6dx": {
        "hcas/[*]/name": ["mlx5_0", "mlx5_1"],
        "hcas/[*]/pci/model": ["ConnectX-6 Dx", "ConnectX-6 Dx"],
        "hcas/[*]/pci/numa_node": [0, 1],
        "hcas/mlx5_0/pci/link": {"speed_gts": 16.0, "width": 8, "max_speed_gts": 16.0, "max_width": 16},
        "hcas/mlx5_0/nic_distances": {"mlx5_1": "SYS"},
        "hcas/[*]/ports/[*]/active_mtu": [[4096], [4096]],
        "hcas/[*]/nearest_gpus": [[], []],
        "rails/[*]/netdev": ["ens1np0", "ens2np0"],
        "rails/[*]/gpu": [None, None],
    },
    "bond": {
        "hcas/[*]/name": ["mlx5_bond_0"],
        "hcas/mlx5_bond_0/netdevs/[*]/name": ["bond0", "enp59s0f0np0", "enp59s0f1np1"],
        "hcas/mlx5_bond_0/netdevs/enp59s0f1np1/master": "bond0",
        "hcas/mlx5_bond_0/ports/1/netdev": "bond0",
        "hcas/mlx5_bond_0/ports/1/gids/[*]/netdev": ["bond0"] * 4,
        # The second function has no HCA because the bond has made one of both; nothing is missing.
        "cards_without_rdma": [],
        "rails/[*]/netdev": ["bond0"],
    },
    "vfs": {
        "hcas/[*]/name": ["mlx5_0", "mlx5_1"],
        "hcas/[*]/function": ["pf", "vf"],
        "hcas/mlx5_0/pci/sriov": {"total": 8, "enabled": 2},
        "hcas/mlx5_0/pci/virtfns": ["0000:3b:00.2", "0000:3b:00.3"],
        "hcas/mlx5_1/pci/physfn": "0000:3b:00.0",
        "hcas/mlx5_1/pci/device": "101e",
        "hcas/mlx5_1/pci/sriov": {"total": 0, "enabled": 0},
        "cards_without_rdma": [],
        "rails/[*]/hca": ["mlx5_0"],
        "rails_excluded/[*]/hca": ["mlx5_1"],
    },
    "sfs": {
        "hcas/[*]/name": ["mlx5_0", "mlx5_2", "mlx5_3"],
        "hcas/[*]/function": ["pf", "sf", "sf"],
        "hcas/[*]/auxiliary": [None, "mlx5_core.sf.4", "mlx5_core.sf.5"],
        "hcas/[*]/pci/address": ["0000:08:00.0"] * 3,
        "hcas/[*]/ports/[*]/netdev": [["enp8s0f0np0"], ["enp8s0f0s88"], ["enp8s0f0s89"]],
        "rails/[*]/hca": ["mlx5_0"],
    },
    "names-persistent": {
        "hcas/[*]/name": ["rocep1s0f0", "rocep1s0f1", "ibp24s0"],
        "hcas/[*]/ports/[*]/link_layer": [["Ethernet"], ["Ethernet"], ["InfiniBand"]],
        "hcas/[*]/pci/model": ["ConnectX-5", "ConnectX-5", "ConnectX-6"],
        "hcas/ibp24s0/ports/1/netdev": "ibp24s0",
        "node/os/like": ["rhel", "centos", "fedora"],
        "driver/installed/flavor": "inbox",
        "driver/agree": True,
        "initramfs/generator": "dracut",
    },
    "ipoib-children": {
        "hcas/mlx5_0/netdevs/[*]/name": ["ib0", "ib0.8001", "ib0.8002"],
        "hcas/mlx5_0/ports/1/netdev": "ib0",
        "rails/[*]/netdev": ["ib0"],
    },
    "mlx4-two-ports": {
        "hcas/[*]/name": ["mlx4_0"],
        "hcas/mlx4_0/pci/model": "ConnectX-3 Pro",
        "hcas/mlx4_0/pci/driver": "mlx4_core",
        "hcas/mlx4_0/ports/[*]/number": [1, 2],
        "hcas/mlx4_0/ports/[*]/link_layer": ["InfiniBand", "Ethernet"],
        "hcas/mlx4_0/ports/[*]/netdev": ["ibs3", "ens3d1"],
        "hcas/mlx4_0/ports/[*]/rate_gbps": [56.0, 40.0],
        "hcas/mlx4_0/ports/[*]/active_mtu": [UNKNOWN_MTU, 1024],
        "hcas/mlx4_0/char_devices/umad": ["umad0", "umad1"],
        "cards_without_rdma": [],
    },
    "hfi1": {
        "hcas/[*]/name": ["hfi1_0"],
        "hcas/hfi1_0/hca_type": None,
        "hcas/hfi1_0/psid": "Intel Omni-Path Host Fabric Interface Adapter 100 Series",
        "hcas/hfi1_0/pci/driver": "hfi1",
        "hcas/hfi1_0/pci/numa_node": 1,
        "hcas/hfi1_0/ports/1/rate_gbps": 100.0,
        "hcas/hfi1_0/ports/1/netdev": "ib0",
    },
    "irdma": {
        "hcas/[*]/name": ["rocep101s0f0", "rocep101s0f1"],
        "hcas/[*]/psid": [None, None],
        "hcas/[*]/hca_type": [None, None],
        "hcas/[*]/pci/driver": ["ice", "ice"],
        "hcas/[*]/ports/[*]/state": [["ACTIVE"], ["DOWN"]],
        "hcas/rocep101s0f0/ports/1/active_mtu": 1024,
    },
    "efa": {
        "hcas/[*]/name": ["rdmap0s6"],
        "hcas/rdmap0s6/netdevs": [],
        "hcas/rdmap0s6/char_devices/umad": [],
        "hcas/rdmap0s6/ports/1/link_layer": "Unknown",
        "hcas/rdmap0s6/ports/1/netdev": None,
        "hcas/rdmap0s6/ports/1/active_mtu": UNKNOWN_MTU,
        "hcas/rdmap0s6/pci/device": "efa1",
    },
    "rxe-and-siw": {
        "hcas/[*]/name": ["rxe0", "rxe1", "siw_eth2"],
        "hcas/[*]/kind": ["software"] * 3,
        "hcas/[*]/function": [None] * 3,
        "hcas/[*]/pci": [None] * 3,
        "hcas/[*]/ports/[*]/netdev": [["eth0"], ["eth1"], ["eth2"]],
        "hcas/[*]/node_type": ["CA", "CA", "RNIC"],
        "hcas/[*]/firmware": [None] * 3,
        "hcas/rxe1/ports/1/gids/[*]/index": [0, 1],
        "rails": [],
        "rails_excluded/[*]/hca": ["rxe0", "rxe1", "siw_eth2"],
    },
    "lab-rxe-debian12": {
        "node/kernel": "6.1.0-56-amd64",
        "node/os/id": "debian",
        "node/container": None,
        "hcas/[*]/name": [f"rxe{number}" for number in range(8)],
        "hcas/[*]/kind": ["software"] * 8,
        "hcas/[*]/ports/[*]/netdev": [["eth2"], ["eth3"], *([f"dm{number}"] for number in range(2, 8))],
        "hcas/[*]/ports/[*]/state": [["ACTIVE"]] * 8,
        "hcas/[*]/ports/[*]/active_mtu": [[1024]] * 8,
        "hcas/[*]/char_devices/uverbs": [f"uverbs{number}" for number in range(8)],
        "hcas/rxe0/ports/1/gids/[*]/type": ["RoCE v2", "RoCE v2"],
        "rails_excluded/[*]/hca": [f"rxe{number}" for number in range(8)],
        "subsystem/netns_mode": "shared",
        "driver/loaded/flavor": "inbox",
        "initramfs/generator": "update-initramfs",
        "initramfs/images/[*]/kernel": ["6.1.0-56-amd64"],
    },
    "card-without-mlx5-ib": {
        "hcas": [],
        "cards_without_rdma/[*]/address": ["0000:3b:00.0", "0000:3b:00.1"],
        "cards_without_rdma/[*]/driver": ["mlx5_core", "mlx5_core"],
        "cards_without_rdma/[*]/model": ["ConnectX-7", "ConnectX-7"],
        "cards_without_rdma/[*]/netdevs": [["enp59s0f0np0"], ["enp59s0f1np1"]],
        "modules/mlx5_ib/loaded": False,
        "modules/mlx5_ib/available": True,
        "modules/mlx5_ib/blocked_by": [
            {"path": "/etc/modprobe.d/blacklist-ofed-modules.conf", "line": 2, "text": "blacklist mlx5_ib"}
        ],
        "subsystem/ib_core_loaded": False,
        "subsystem/netns_mode": "unknown: ib_core is not loaded",
        "driver/on_disk/flavor": "inbox",
    },
    "card-on-vfio": {
        "hcas/[*]/name": ["mlx5_0"],
        "cards_without_rdma/[*]/address": ["0000:4b:00.0"],
        "cards_without_rdma/[*]/driver": ["vfio-pci"],
    },
    "exclusive-netns-foreign-file": {
        "subsystem/netns_mode": "exclusive",
        "subsystem/persisted_netns_mode": "exclusive",
        "subsystem/foreign_owners": ["/etc/modprobe.d/sriov_network_operator_modules_config.conf"],
        "subsystem/netns_sources/[*]/line": [2],
        "subsystem/netns_sources/[*]/wins": [True],
        "subsystem/namespaces/[*]/inode": [4026532500, 4026532710, 4026532800],
        "subsystem/namespaces/[*]/name": [None, None, "/run/netns/blue"],
        "subsystem/namespaces/[*]/owners/[*]/transient": [[False], [True], []],
        "limits/services/k3s/main_pid": 1200,
        "limits/services/k3s/memlock_running": 8388608,
        # A foreign file's mode that agrees with the running one is no reason to reboot.
        "reboot_reasons": [],
    },
    "doca-loaded-differs-from-disk": {
        "driver/installed/flavor": "doca",
        "driver/on_disk/version": "25.04-0.6.0",
        "driver/loaded/version": "24.10-1.1.4",
        "driver/agree": False,
    },
    "gids-256": {
        "hcas/mlx5_0/ports/1/active_mtu": 4096,
        "hcas/mlx5_0/ports/1/netdev": "enp59s0np0",
        "hcas/mlx5_0/ports/1/gids/[*]/index": [0, 1, 2, 3, 7, 8, 9, 10],
        "hcas/mlx5_0/ports/1/gids/[*]/netdev": ["enp59s0np0"] * 4 + ["enp59s0np0.100"] * 4,
    },
}


def pick(value, path):
    """The value at a path of the facts; KeyError names the step that is missing."""
    if not path:
        return value
    step, _slash, rest = path.partition("/")
    if isinstance(value, dict):
        return pick(value[step], rest)
    if step == "[*]":
        return [pick(entry, rest) for entry in value]
    for entry in value:
        if any(str(entry.get(key)) == step for key in ("name", "number", "address", "hca")):
            return pick(entry, rest)
    raise KeyError(step)


@pytest.fixture(scope="module")
def facts(request, tmp_path_factory):
    """The facts of a node, gathered once for all that is asserted of it."""
    root = tree.lay_out(tree.load(request.param), tmp_path_factory.mktemp(request.param))
    reader = Tree(str(root))
    seams = Seams.of(reader)
    found = gather(reader, seams)
    assert seams.forks == 0
    return found


@pytest.mark.parametrize(
    ("facts", "path", "wanted"),
    [(name, path, wanted) for name, table in FACTS.items() for path, wanted in table.items()],
    indirect=["facts"],
    ids=[f"{name}-{path}" for name, table in FACTS.items() for path in table],
)
def test_fact(facts, path, wanted):
    assert pick(facts, path) == wanted


@pytest.mark.parametrize("facts", ["gh200-cx7-roce"], indirect=True)
def test_the_device_id_is_the_vendor_part_id_that_ibv_devinfo_prints(facts):
    assert {int(hca["pci"]["device"], 16) for hca in facts["hcas"]} == {4129}


@pytest.mark.parametrize("facts", ["card-without-mlx5-ib"], indirect=True)
def test_a_card_without_rdma_names_the_blocking_file_and_a_next_step(facts):
    card = facts["cards_without_rdma"][0]
    assert "mlx5_ib" in card["reason"]
    assert "blacklist-ofed-modules.conf" in card["reason"] + card["next_step"]


@pytest.mark.parametrize("facts", ["doca-loaded-differs-from-disk"], indirect=True)
def test_a_driver_that_differs_on_disk_gives_a_reason_to_reboot(facts):
    (reason,) = facts["reboot_reasons"]
    for place in ("loaded", "on_disk"):
        assert facts["driver"][place]["modules"]["mlx5_core"]["srcversion"] in reason


def test_every_node_has_facts_that_are_asserted():
    assert set(tree.names()) - set(FACTS) == set()


@pytest.mark.parametrize("name", tree.names())
def test_a_node_says_where_it_comes_from(name):
    fixture = tree.load(name)
    assert fixture["name"] == name
    assert fixture["about"]
    assert fixture["provenance"]["kind"] in ("captured", "composed")
    assert fixture["provenance"]["from"]


def test_composing_again_changes_nothing():
    for name, text in compose_hosts.compose().items():
        assert (tree.HOSTS / name).read_text() == text, f"run tests/tools/compose_hosts.py: {name} is out of date"


def test_the_tree_that_is_laid_out_holds_no_way_out_of_it(tmp_path):
    """A relative link that climbs too high, or an absolute one, would read the machine that runs the tests."""
    for name in tree.names():
        for path, goal in tree.load(name)["links"].items():
            steps = path.count("/") - 1
            assert not goal.startswith("/"), (name, path)
            assert goal.split("/").count("..") <= steps, (name, path, goal)
