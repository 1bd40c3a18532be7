"""Expected facts of each node of tests/fixtures, and its rails under one fault at a time.

A path walks the facts: names, addresses and numbers choose from lists, `[*]` takes all entries of a list. Words after
it are the columns below that path: a tuple, or one per entry. A fault is a rename in the laid-out tree, like in the
kernel: everything of the function is gone.
"""

import contextlib
import os

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.tests.tools import tree

UNKNOWN_MTU = "unknown: needs verbs"
EIGHT = [f"mlx5_{number}" for number in range(8)]
H100_GPUS = [f"0000:{bus}:00.0" for bus in ("1b", "3d", "4e", "5f", "8a", "ad", "bd", "cd")]
A100_GPUS = [f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd")]
BLOCKED = {"path": "/etc/modprobe.d/blacklist-ofed-modules.conf", "line": 2, "text": "blacklist mlx5_ib"}
GRACE = ("0008", "0009", "0018", "0019")

FACTS = {
    # The full output of the published walk-through's commands for this machine; see the fixture's provenance.
    "gh200-cx7-roce": {
        "node kernel architecture os/version_id": ("6.8.0-1050-nvidia-64k", "aarch64", "22.04"),
        "hcas/[*] name firmware hca_type node_type": [(f"mlx5_{n}", "28.40.1000", "MT4129", "CA") for n in (0, 1)],
        "hcas/[*]/pci address device model driver numa_node local_cpus": [
            (f"0000:01:00.{n}", "1021", "ConnectX-7", "mlx5_core", 0, "0-71") for n in (0, 1)
        ],
        "hcas/mlx5_0/netdevs/[*] name mac mtu operstate phys_port_name default_route": [
            ("enp1s0f0np0", "a0:88:c2:a7:5c:d4", 1500, "up", "p0", True)
        ],
        "hcas/mlx5_0/netdevs/enp1s0f0np0/addresses": ["198.51.100.253/23", "fe80::a288:c2ff:fea7:5cd4/64"],
        "hcas/mlx5_0/ports/[*] number state phys_state link_layer netdev active_mtu": [
            (1, "ACTIVE", "LinkUp", "Ethernet", "enp1s0f0np0", 1024)
        ],
        "hcas/mlx5_0/ports/1/gids/[*]/type": ["IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"],
        "hcas/mlx5_1/ports/[*] number state phys_state netdev gids": [(1, "DOWN", "Disabled", "enp1s0f1np1", [])],
        "hcas/[*]/nearest_gpus": [[{"address": "0009:01:00.0", "distance": "NODE"}]] * 2,
        "gpus/[*] address device model": [("0009:01:00.0", "2342", "NVIDIA GH200 480GB")],
        "modules mlx5_core/loaded nvidia_peermem/loaded nv_peer_mem/loaded": (True, True, False),
        "driver installed/flavor on_disk/flavor loaded/flavor agree": ("inbox", "inbox", "inbox", True),
        # Port 1 carries the default route, port 2 is the card's unused one: either can only be a named rail.
        "rails": [],
        "not_rails/[*]/hca": ["mlx5_0", "mlx5_1"],
    },
    "h100-8x-cx7-ib": {
        "hcas/[*] name pci/numa_node": [(name, number // 4) for number, name in enumerate(EIGHT)],
        "hcas/[*]/ports/1 rate_gbps rate_text link_layer lid sm_lid active_mtu": [
            (400.0, "400 Gb/sec (4X NDR)", "InfiniBand", 0x40 + number, 1, UNKNOWN_MTU) for number in range(8)
        ],
        "hcas/[*]/char_devices/issm": [[f"issm{number}"] for number in range(8)],
        "hcas/[*]/nearest_gpus": [[{"address": address, "distance": "PIX"}] for address in H100_GPUS],
        "hcas/mlx5_0/nic_distances mlx5_1 mlx5_7": ("NODE", "SYS"),
        "rails/[*] hca distance gpu": [(name, "PIX", gpu) for name, gpu in zip(EIGHT, H100_GPUS)],
        "driver installed/flavor loaded/flavor loaded/version agree": ("doca", "doca", "24.10-2.1.8", True),
        "limits/services/containerd active main_pid memlock_running": (True, 2210, "infinity"),
    },
    "a100-8x-cx6": {
        # Two GPUs and two HCAs share a switch: both GPUs are near, yet each rail has its own GPU.
        "hcas/mlx5_0/nearest_gpus/[*] address distance": [("0000:07:00.0", "PIX"), ("0000:0f:00.0", "PIX")],
        "rails/[*]/gpu": A100_GPUS,
    },
    "two-cards-cx6dx": {
        "hcas/mlx5_0/pci/link": {"speed_gts": 16.0, "width": 8, "max_speed_gts": 16.0, "max_width": 16},
        "hcas/[*] ports/1/active_mtu nearest_gpus": [(4096, []), (4096, [])],
        "rails/[*] netdev gpu": [("ens1np0", None), ("ens2np0", None)],
    },
    "bond": {
        "hcas/mlx5_bond_0/netdevs/[*] name master": [
            ("bond0", None),
            *((f"enp59s0f{n}np{n}", "bond0") for n in (0, 1)),
        ],
        "hcas/mlx5_bond_0/ports/1/netdev": "bond0",
        "hcas/mlx5_bond_0/ports/1/gids/[*]/netdev": ["bond0"] * 4,
        # The second function has no HCA because the bond has one HCA for both; nothing is missing.
        "cards_without_rdma": [],
        "rails/[*]/netdev": ["bond0"],
    },
    "vfs": {
        "hcas/[*] name function pci/sriov": [
            ("mlx5_0", "pf", {"total": 8, "enabled": 2}),
            ("mlx5_1", "vf", {"total": 0, "enabled": 0}),
        ],
        "hcas/mlx5_1/pci physfn device": ("0000:3b:00.0", "101e"),
        "cards_without_rdma": [],
        "rails/[*]/hca": ["mlx5_0"],
        "not_rails/[*]/hca": ["mlx5_1"],
    },
    "sfs": {
        "hcas/[*] name function auxiliary pci/address ports/1/netdev": [
            ("mlx5_0", "pf", None, "0000:08:00.0", "enp8s0f0np0"),
            ("mlx5_2", "sf", "mlx5_core.sf.4", "0000:08:00.0", "enp8s0f0s88"),
            ("mlx5_3", "sf", "mlx5_core.sf.5", "0000:08:00.0", "enp8s0f0s89"),
        ],
        "rails/[*]/hca": ["mlx5_0"],
    },
    "names-persistent": {
        "hcas/[*] name ports/1/link_layer pci/model": [
            *((f"rocep1s0f{n}", "Ethernet", "ConnectX-5") for n in (0, 1)),
            ("ibp24s0", "InfiniBand", "ConnectX-6"),
        ],
        "node/os/like": ["rhel", "centos", "fedora"],
        "initramfs generator images/[*]/kernel": ("dracut", ["5.14.0-427.13.1.el9_4.x86_64"]),
    },
    "ipoib-children": {
        "hcas/mlx5_0/netdevs/[*] name parent": [("ib0", None), ("ib0.8001", "ib0"), ("ib0.8002", "ib0")],
        "hcas/mlx5_0/ports/1/netdev": "ib0",
        "rails/[*]/netdev": ["ib0"],
    },
    "mlx4-two-ports": {
        "hcas/[*] name pci/model char_devices/umad": [("mlx4_0", "ConnectX-3 Pro", ["umad0", "umad1"])],
        "hcas/mlx4_0/ports/[*] number link_layer netdev rate_gbps active_mtu": [
            (1, "InfiniBand", "ibs3", 56.0, UNKNOWN_MTU),
            (2, "Ethernet", "ens3d1", 40.0, 1024),
        ],
        "cards_without_rdma": [],
    },
    "hfi1": {
        "hcas/[*] name hca_type psid": [("hfi1_0", None, "Intel Omni-Path Host Fabric Interface Adapter 100 Series")]
    },
    "irdma": {"hcas/[*] name hca_type pci/driver": [(f"rocep101s0f{n}", None, "ice") for n in (0, 1)]},
    "efa": {
        "hcas/[*] name netdevs char_devices/umad": [("rdmap0s6", [], [])],
        "hcas/rdmap0s6/ports/1 link_layer netdev active_mtu": ("Unknown", None, UNKNOWN_MTU),
    },
    "rxe-and-siw": {
        "hcas/[*] name kind function pci node_type firmware ports/1/netdev": [
            ("rxe0", "software", None, None, "CA", None, "eth0"),
            ("rxe1", "software", None, None, "CA", None, "eth1"),
            ("siw_eth2", "software", None, None, "RNIC", None, "eth2"),
        ],
        "rails": [],
        "not_rails/[*]/hca": ["rxe0", "rxe1", "siw_eth2"],
    },
    "lab-rxe-debian12": {
        "node kernel os/id container": ("6.1.0-56-amd64", "debian", None),
        "hcas/[*] name ports/1/netdev char_devices/uverbs": [
            (f"rxe{number}", netdev, f"uverbs{number}")
            for number, netdev in enumerate(["eth2", "eth3", *(f"dm{number}" for number in range(2, 8))])
        ],
        "not_rails/[*]/hca": [f"rxe{number}" for number in range(8)],
        "initramfs generator images/[*]/kernel": ("update-initramfs", ["6.1.0-56-amd64"]),
    },
    "card-without-mlx5-ib": {
        "not_rails/[*] pci index code": [(f"0000:3b:00.{n}", n, "no-rdma") for n in (0, 1)],
        "hcas": [],
        "cards_without_rdma/[*] address model netdevs": [
            (f"0000:3b:00.{n}", "ConnectX-7", [f"enp59s0f{n}np{n}"]) for n in (0, 1)
        ],
        "modules/mlx5_ib loaded available blocked_by": (False, True, [BLOCKED]),
        "subsystem ib_core_loaded netns_mode": (False, "unknown: ib_core is not loaded"),
    },
    "card-on-vfio": {
        "hcas/[*]/name": ["mlx5_0"],
        "cards_without_rdma/[*] address driver": [("0000:4b:00.0", "vfio-pci")],
    },
    "exclusive-netns-foreign-file": {
        "subsystem netns_mode persisted_netns_mode": ("exclusive", "exclusive"),
        "subsystem/foreign_owners": ["/etc/modprobe.d/sriov_network_operator_modules_config.conf"],
        "subsystem/netns_sources/[*] line wins": [(2, True)],
        "subsystem/namespaces/[*] inode name owners/[*]/transient": [
            (4026532500, None, [False]),
            (4026532710, None, [True]),
            (4026532800, "/run/netns/blue", []),
        ],
        "limits/services/k3s main_pid memlock_running": (1200, 8388608),
        # A foreign file's mode that agrees with the running one is not a reason to reboot.
        "reboot_reasons": [],
    },
    "doca-loaded-differs-from-disk": {
        "driver installed/flavor on_disk/version loaded/version agree": ("doca", "25.04-0.6.0", "24.10-1.1.4", False)
    },
    # Each operator's discovery_rails, and why every other port is not a rail.
    "dgx-b200": {
        "rails/[*] hca distance": [(f"mlx5_{number}", "PIX") for number in (0, 3, 4, 5, 6, 9, 10, 11)],
        "not_rails/[*]/code": [*["no-gpu"] * 2, *["other-kind", "unused"] * 2, *["no-gpu"] * 2],
        "cards_without_rdma": [],
    },
    "mi300x-thor2": {
        "rails/[*] hca gpu distance": [
            (f"bnxt_re{2 * number + port}", f"0000:{bus}:00.0", "PIX")
            for number, bus in enumerate(("05", "26", "46", "65", "85", "a6", "c6", "e5"))
            for port in (0, 1)
        ],
        "not_rails/[*] hca code": [("mlx5_0", "management"), ("mlx5_1", "other-kind")],
    },
    "vf-lag": {
        "rails": [],
        "not_rails/[*] hca code": [
            ("mlx5_bond_0", "no-gid"),
            *[("mlx5_bond_0", "representor")] * 2,
            *((f"mlx5_{number}", "virtual") for number in (2, 3)),
        ],
        "hcas/mlx5_bond_0/representors": ["enp59s0f0npf0vf0", "enp59s0f1npf1vf0"],
        "cards_without_rdma": [],
    },
    "gb300-nvl": {
        "rails/[*] gpu data_direct distance": [(f"{at}:06:00.0", f"{at}:03:00.0", "PIX") for at in GRACE],
        "cards_without_rdma": [],
    },
    "gb200-nvl": {
        "rails/[*] hca gpu": [(f"mlx5_{number}", f"{at}:01:00.0") for number, at in enumerate(GRACE)],
        "not_rails/[*]/code": ["other-kind"] * 2,
    },
    "nd-h100-v5": {"rails/[*] hca gpu": [(f"mlx5_{n}", f"000{n + 1}:00:00.0") for n in range(8)]},
    "xdr-cx8": {"rails/[*]/hca": ["mlx5_0"], "not_rails/[*]/code": ["no-verbs"] * 4},
    "switchdev-sfs": {
        "rails": [],
        "not_rails/[*]/code": ["no-gid", "virtual"],
        "hcas/mlx5_0/representors": ["en3f0pf0sf88"],
    },
    "socket-direct": {"rails/[*] hca card": [(name, "0c42:a103:00aa:0000") for name in ("mlx5_0", "mlx5_1")]},
    "irdma-beside-mlx5": {"rails/[*]/hca": ["mlx5_0", "mlx5_1"], "not_rails/[*]/code": ["other-kind"] * 4},
}


def pick(value, path):
    """The value at a path of the facts; KeyError has the missing step."""
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


def read(facts, key):
    base, *names = key.split()
    columns = [pick(facts, f"{base}/{name}") for name in names]
    return (list(zip(*columns)) if "[*]" in base else tuple(columns)) if names else pick(facts, base)


@pytest.mark.parametrize("name", sorted({*FACTS, *tree.names()}))
def test_facts(tmp_path, name):
    root = Tree(str(tree.lay_out(tree.load(name), tmp_path)))
    seams = Seams.of(root)
    facts = gather(root, seams)
    assert seams.forks == 0
    assert {key: read(facts, key) for key in FACTS[name]} == FACTS[name]
    # No capture has config space yet.
    assert {path["verdict"] for path in facts["pcie"]["paths"] if path["meets"]} <= {"unknown"}


# --- rails ----------------------------------------------------------------------------------------------------------

PCI = "sys/bus/pci/devices"
OF_A_DRIVER = ("driver", "infiniband", "infiniband_verbs", "infiniband_mad", "net")


def rails_of(root) -> dict:
    reader = Tree(str(root))
    return gather(reader, Seams.of(reader), ["rails", "gpus", "!gids"], software_hcas=True)


def numbers(facts: dict) -> dict:
    return {(rail["hca"], rail["port"]): rail["index"] for rail in facts["rails"]}


@contextlib.contextmanager
def away(*places):
    """Removes the existing ones of these paths for a while."""
    moved = [place for place in places if os.path.lexists(place)]
    for place in moved:
        os.rename(place, f"{place}.away")
    try:
        yield
    finally:
        for place in moved:
            os.rename(f"{place}.away", place)


@contextlib.contextmanager
def written(place, text):
    before = place.read_text() if place.exists() else None
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    yield
    place.write_text(before) if before is not None else place.unlink()


def functions_of_rails(facts: dict) -> set:
    return {rail["pci"] for rail in facts["rails"] if rail["pci"]}


@pytest.fixture(scope="module", params=tree.names())
def machine(request, tmp_path_factory):
    root = tree.lay_out(tree.load(request.param), tmp_path_factory.mktemp(request.param))
    return root, rails_of(root)


def others_stay(before: dict, after: dict, gone=()) -> None:
    """The others keep their numbers. A port that counted as unused may appear with a new number."""
    kept = {key: index for key, index in numbers(before).items() if key[0] not in gone}
    now = {key: index for key, index in numbers(after).items() if key[0] not in gone}
    assert kept.items() <= now.items()
    assert not {now[key] for key in now.keys() - kept.keys()} & set(numbers(before).values())


def test_cards_that_no_driver_is_bound_to_leave_their_numbers_empty(machine):
    """Each card separately, and all of one driver."""
    root, before = machine
    of_driver = {}
    for address in functions_of_rails(before):
        of_driver.setdefault(os.path.realpath(root / PCI / address / "driver"), set()).add(address)
    for cards in [*of_driver.values(), *({address} for address in functions_of_rails(before))]:
        gone = {rail["hca"] for rail in before["rails"] if rail["pci"] in cards}
        with away(*(root / PCI / address / name for address in cards for name in OF_A_DRIVER)):
            after = rails_of(root)
        others_stay(before, after, gone)
        assert not gone & {rail["hca"] for rail in after["rails"]}


def test_a_cable_that_is_pulled_changes_no_number(machine):
    root, before = machine
    for hca, port in numbers(before):
        folder = root / "sys/class/infiniband" / hca / "ports" / str(port)
        with written(folder / "state", "1: DOWN\n"), written(folder / "phys_state", "3: Disabled\n"):
            others_stay(before, rails_of(root), [hca])


def test_a_card_or_gpu_that_is_off_the_bus_changes_no_other_number(machine):
    root, before = machine
    gpus = [gpu["address"] for gpu in before["gpus"]]
    for card in {address[:-1] for address in [*gpus, *(functions_of_rails(before) if gpus else ())]}:
        gone = {rail["hca"] for rail in before["rails"] if (rail["pci"] or "").startswith(card)}
        functions = sorted((root / PCI).glob(f"{card}*"))
        with away(*map(os.path.realpath, functions), *functions):
            others_stay(before, rails_of(root), gone)


STORAGE = {"model": "cx5", "cidr": "172.16.0.1/24", "system_guid": "3c:ec:ef:99:00:00", "port": "p0"}
PLACES = ("0000:03:00.0", "0000:04:00"), ("0030:00:00.0", "0030:01:00")


@pytest.mark.parametrize(("below", "at"), PLACES)
@pytest.mark.parametrize("name", tree.COMPOSED["names"]())
def test_a_nic_that_is_no_rail_changes_nothing(tmp_path, name, below, at):
    """GPUs show which cards are the rails. Two ports of a storage NIC, first and last on PCI."""
    row = tree.COMPOSED["table"]()["machines"][name]
    ports = [
        {"at": f"{at}.{n}", "below": below, "hca": f"mlx5_{90 + n}", "mac": f"3c:ec:ef:99:00:0{n}", "netdev": f"st{n}"}
        for n in range(2)
    ]
    more = {**row, "parts": [*row["parts"], *({"roce": {**STORAGE, **port}} for port in ports)]}
    before, after = (
        rails_of(tree.lay_out(tree.COMPOSED["Node"](name, **one).fixture(), tmp_path / str(number)))
        for number, one in enumerate((row, more))
    )
    if before["gpus"] and before["rails"]:
        assert after["rails"] == before["rails"]
