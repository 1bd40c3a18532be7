"""HCAs, GPUs, rails, netdevs, routes and distances, for cases that the machines of tests/fixtures do not show."""

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import counters, hcas, pci, roots, routes, topology
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.management import uses
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.netdevs import RXE_OVERHEAD, ib_mtu
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

CARD = "pci0000:00/0000:00:01.0/0000:01:00"
CX7 = ("15b3", "1021", "0x020000")
CX7_MLX5 = (*CX7, "mlx5_core")
CX3 = ("15b3", "1007", "0x028000", "mlx4_core")
RAILS = ["rails"]


ETH1, MV0 = ("fe80::1", "RoCE v2", "eth1"), ("fe80::2", "RoCE v2", "mv0")


@pytest.mark.parametrize(("files", "gids", "wanted"), [
    pytest.param({"parent": "eth1"}, {}, "eth1", id="rxe's parent"),
    pytest.param({}, {0: ETH1, 2: MV0}, "eth1", id="the first GID"),
    # The default GIDs of a netdev without carrier may be gone while those of a macvlan on it are there.
    pytest.param({"parent": "eth1"}, {3: MV0}, "eth1", id="the parent outweighs GIDs"),
    pytest.param({"node_guid": "5054:00ff:fe12:3456"}, {}, "eth1", id="siw's GUID"),
    pytest.param({"node_guid": ""}, {}, None, id="no GUID"),
    pytest.param({"node_guid": "0000:0000:0000:0000"}, {}, None, id="GUID zero"),
    pytest.param({"node_guid": "zzzz:00ff:fezz:zzzz"}, {}, None, id="no digits"),
    pytest.param({"node_guid": "5054:00ff:fe12"}, {}, None, id="short GUID"),
])  # fmt: skip
def test_a_software_hca_finds_its_interface(node, files, gids, wanted):
    node.netdev("eth1", address="52:54:00:12:34:56", mtu=4180)
    node.netdev("mv0", address="52:54:00:12:34:57")
    node.netdev("tun0", address="")
    node.gids(node.hca("rxe0"), 1, gids)
    node.files("/sys/class/infiniband/rxe0", **files)
    (found,) = node.facts(["hcas"])["hcas"]
    (port,) = found["ports"]
    assert (port["netdev"], port["active_mtu"] == 4096) == (wanted, "parent" in files)
    assert (found["kind"], found["function"], found["pci"]) == ("software", None, None)
    assert [gid["index"] for gid in port["gids"]] == list(gids)


BLOCKED = {"/etc/modprobe.d/x.conf": "# why\nblacklist mlx5_ib"}
RECOVERY = {f"/sys/devices/{CARD}.0/device": "0x020d", f"/sys/devices/{CARD}.0/class": "0x058000"}
NO_MODULE = {"/lib/modules/6.1.0-test/modules.dep": "kernel/x/ib_core.ko:"}


@pytest.mark.parametrize(("driver", "loaded", "files", "seen", "step"), [
    ("mlx5_core", "mlx5_core", {}, "mlx5_ib is not loaded.", "modprobe mlx5_ib"),
    ("mlx5_core", "mlx5_core", BLOCKED, "/etc/modprobe.d/x.conf:2 (blacklist mlx5_ib)", "Remove that line"),
    ("mlx5_core", "mlx5_core mlx5_ib", {}, "mlx5_ib is loaded but created no RDMA device", "dmesg"),
    ("vfio-pci", "", {}, "bound to vfio-pci", "/sys/bus/pci/drivers/vfio-pci/unbind"),
    ("mystery", "", {}, "bound to mystery instead of mlx5_core", "Unbind 0000:01:00.0"),
    (None, "", {}, "mlx5_core is not loaded.", "modprobe mlx5_core"),
    (None, "mlx5_core", {}, "mlx5_core is loaded but did not bind", "dmesg | grep 0000:01:00.0"),
    (None, "", RECOVERY, "flash recovery", "mstflint -d 0000:01:00.0"),
    (None, "", NO_MODULE, "the running kernel has no such module", "Install the package with mlx5_core"),
])  # fmt: skip
def test_cards_without_rdma_say_why(node, driver, loaded, files, seen, step):
    card = node.pci(f"{CARD}.0", *CX7, driver)
    netdevs = ["enp1s0f0np0"] if driver == "mlx5_core" else []
    for name in netdevs:
        node.netdev(name, card)
    for name in loaded.split():
        node.module(name)
    for path, text in files.items():
        node.write(path, text)
    (found,) = node.facts(["pci"])["cards_without_rdma"]
    assert (seen in found["reason"], step in found["next_step"]) == (True, True), found
    assert (found["address"], found["driver"], found["netdevs"]) == ("0000:01:00.0", driver, netdevs)


def below(switch, slot, address):
    return f"pci0000:{switch}/0000:{switch}:01.0/0000:{switch}:00.0/0000:{switch}:{slot}.0/{address}"


def card(node, number, switch=None):
    chain = below(switch or f"b{number}", f"0{number}", f"0001:{number:02x}:00.0")
    path = node.pci(chain, *CX7, "mlx5_core")
    node.hca(f"mlx5_{number}", path)
    node.netdev(f"net{number}", path, address=f"00:00:00:00:{number:02x}:00")
    return f"/sys/class/infiniband/mlx5_{number}"


def gpu(node, number, switch):
    node.pci(below(switch, f"1{number}", f"0002:{number:02x}:00.0"), "10de", "2330", "0x030200", "nvidia")


def indexes(facts):
    return [(rail["index"], rail["hca"]) for rail in facts["rails"]]


G1, G2 = "0002:01:00.0", "0002:02:00.0"


@pytest.mark.parametrize(("cards", "gpus", "wanted"), [
    pytest.param("2:a2 1:a1 3:a3", "", [("mlx5_1", None), ("mlx5_2", None), ("mlx5_3", None)], id="PCI order"),
    pytest.param("1:a1 2:a2", "1:a2 2:a1", [("mlx5_2", G1), ("mlx5_1", G2)], id="the order of their GPUs"),
    pytest.param("1:a1 2:a1", "1:a1 2:a1", [("mlx5_1", G1), ("mlx5_2", G2)], id="two and two below one switch"),
    pytest.param("1:a1 2:a2 9:a9", "1:a1 2:a2", [("mlx5_1", G1), ("mlx5_2", G2)], id="a card that no GPU is near"),
    # Either of the two could be the GPU's, so PCI order decides.
    pytest.param("1:a1 2:a1", "1:a1", [("mlx5_1", G1), ("mlx5_2", G1)], id="more near cards than GPUs"),
    pytest.param("1:a1", "1:a1 2:a1", [("mlx5_1", None)], id="GPUs that share a card"),
])  # fmt: skip
def test_rails_pair_with_gpus(node, cards, gpus, wanted):
    hcas = {card(node, int(one[0]), one[2:]).rpartition("/")[2] for one in cards.split()}
    for one in gpus.split():
        gpu(node, int(one[0]), one[2:])
    facts = node.facts(RAILS)
    assert [(rail["hca"], rail["gpu"]) for rail in facts["rails"]] == wanted
    assert {row["hca"] for row in facts["not_rails"]} == hcas - {name for name, _gpu in wanted}
    assert {rail["reason"] for rail in facts["rails"]} == {"automatic"}


@pytest.mark.parametrize(
    "name",
    [{"hca": "mlx5_2"}, {"hca": "MLX5_2"}, {"pci": "0001:02:00.0"}, {"netdev": "net2"}, {"mac": "00:00:00:00:02:00"}],
)
def test_rails_by_name_in_the_order_of_their_names(node, name):
    for number in (1, 2):
        card(node, number)
    node.default_route("net2")
    assert indexes(node.facts(RAILS)) == [(0, "mlx5_1")]
    other = {"hca": "mlx5_1", "pci": None, "netdev": None, "mac": None, "port": None}
    facts = node.facts(RAILS, rails=[name, {"netdev": "eth9"}, other])
    assert indexes(facts) == [(0, "mlx5_2"), (2, "mlx5_1")], "a name without an HCA keeps its number"
    assert {rail["reason"] for rail in facts["rails"]} == {"named"}
    assert len(facts["not_rails"]) == 1


def test_storage_cards_and_shares_of_gpus_take_no_number(node):
    for number, switch in zip((1, 5, 2, 3, 4, 6), ("a1", "a1", "a1", "a2", "a2", "a3")):
        node.write(f"{card(node, number, switch)}/board_id", "MT_0000000834" if number == 5 else "MT_0000000838")
    node.pci("pci0000:a3/0000:a3:01.0/0000:a3:00.0/0000:a3:1f.0", "1000", "c030", "0x060400")
    for number in (1, 2, 3, 4, 7):
        gpu(node, number, "a1" if number in (1, 2, 7) else "a2")
    node.link("/sys/bus/pci/devices/0002:07:00.0/physfn", "/sys/bus/pci/devices/0002:01:00.0")
    assert indexes(node.facts(RAILS)) == [(number - 1, f"mlx5_{number}") for number in (1, 2, 3, 4)]


def test_an_hca_whose_function_has_no_interface_has_that_of_its_mac(node):
    node.netdev("eth1", address="00:16:3e:00:00:02")
    node.hca("erdma_1", node.pci(f"{CARD}.0", "1ded", "107f", "0x020000"), node_guid="0216:3eff:fe00:0002")
    assert [rail["netdev"] for rail in node.facts(RAILS)["rails"]] == ["eth1"]


def test_a_device_with_two_ports_wants_the_port_too(node):
    path = node.pci("pci0000:00/0000:00:01.0/0000:04:00.0", *CX3)
    node.hca("mlx4_0", path, ports=2)
    for port in (0, 1):
        node.netdev(f"ens3d{port}", path, dev_port=port)
    assert [(rail["index"], rail["port"]) for rail in node.facts(RAILS)["rails"]] == [(0, 1), (1, 2)]
    named = node.facts(RAILS, rails=[{"hca": "mlx4_0"}, {"netdev": "ens3d1"}, {"pci": "04:00.0", "port": 1}])
    assert [(rail["index"], rail["port"]) for rail in named["rails"]] == [(1, 2), (2, 1)]
    assert len(named["not_rails"]) == 1


NET = "/sys/class/net"
K3S_UNIT = "[Service]\nExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--node-ip' \\\n\t'10.0.0.5' \\\n\n"
SSH = "head\n 0: 0500000A:08AE 0101000A:C000 01 0 0 0 0 0 1 0"


def ports(node, *names, rest="eno1"):
    for index, name in enumerate(names):
        path = node.pci(f"pci0000:00/0000:00:0{index + 1}.0/0000:0{index + 1}:00.0", *CX7_MLX5)
        node.hca(f"mlx5_{index}", path)
        node.netdev(name, path, address=f"a0:00:00:00:00:0{index}")
        node.addresses[name] = [f"10.0.{index}.5/24"]
    node.netdev(rest, address="aa:00:00:00:00:01")


ECMP = [{"dst": "default", "nexthops": [{"dev": "p0"}, {"dev": "p1"}]}]
OTHER_TABLE = {"routes": [{"dst": "default", "dev": "p1", "table": 100}]}
ALL, OWN = ({"table": 100, "src": source} for source in ("all", "10.0.1.5/32"))


@pytest.mark.parametrize(("files", "below", "left"), [
    pytest.param({}, {}, ["p0", "p1"], id="nothing"),
    pytest.param({}, {"bond0": "p0 eno1"}, ["p1"], id="a bond with a NIC that has no RDMA"),
    pytest.param({}, {"bond0": "p0 p1"}, [], id="a bond of two cards"),
    pytest.param({}, {"bond0": "p1"}, ["p0", "bond0"], id="a bond of one port"),
    pytest.param({}, {"team0": "p0 p1"}, [], id="a team of two cards"),
    pytest.param({"route": "team0.7"}, {"team0": "p0 eno1", "team0.7": "team0"}, ["p1"], id="management on a team"),
    pytest.param({}, {"hv0": "p0"}, ["p0", "p1"], id="Hyper-V's interface above its VF"),
    pytest.param({}, {"br0": "p0", "red": "p1"}, ["p0", "p1"], id="a bridge and a VRF"),
    pytest.param({"route": "br-ex"}, {"ovs-system": "p0", "br-ex": ""}, ["p1"], id="a bridge of Open vSwitch"),
    pytest.param({"/etc/rancher/k3s/config.yaml": "node-ip:\n  - 10.0.0.5 # x\n  - fd00::5"}, {}, ["p1"], id="k3s"),
    pytest.param({"/etc/rancher/k3s/config.yaml": "flannel-iface: [p1]"}, {}, ["p0"], id="k3s' interface"),
    pytest.param({"/etc/systemd/system/k3s.service": K3S_UNIT}, {}, ["p1"], id="the arguments of k3s"),
    pytest.param({"/proc/net/tcp": SSH, "/etc/ssh/sshd_config": "Port 2222"}, {}, ["p1"], id="SSH on another port"),
    pytest.param({"seams": {"sessions": ["10.0.0.5"]}}, {}, ["p1"], id="our own session"),
    pytest.param({"seams": {"routes": ECMP}}, {}, [], id="ECMP"),
    pytest.param({"seams": {**OTHER_TABLE, "rules": [ALL]}}, {}, ["p0"], id="another table for all"),
    pytest.param({"seams": {**OTHER_TABLE, "rules": [{**ALL, "iif": "lo"}]}}, {}, ["p0"], id="for our own"),
    pytest.param({"seams": {**OTHER_TABLE, "rules": [{**ALL, "iif": "cni0"}]}}, {}, ["p0", "p1"], id="for the pods'"),
    pytest.param({"seams": {**OTHER_TABLE, "rules": [OWN]}}, {}, ["p0", "p1"], id="for the rail's own address"),
])  # fmt: skip
def test_members_and_management_are_no_rails(node, files, below, left):
    ports(node, "p0", "p1")
    for master, members in below.items():
        node.netdev(master, address="a0:00:00:00:00:00" if master[:4] in ("team", "br0", "hv0") else "")
        node.link(f"{NET}/hv0/device", "/sys/bus/vmbus/devices/x") if master == "hv0" else None
        node.host(f"{NET}/br0/bridge").mkdir() if master == "br0" else None
        for name in members.split():
            node.enslave(name, master)
            if master == "team0":
                node.write(f"{NET}/{name}/address", "a0:00:00:00:00:00")
        if master == "bond0":
            node.write(f"{NET}/bond0/bonding/slaves", members)
    files = {**files}
    more = files.pop("seams", {})
    for path, text in files.items():
        node.default_route(text) if path == "route" else node.write(path, text)
    facts = gather(node.tree(), Seams.recorded({"addresses": node.addresses, **more}), RAILS)
    assert [rail["netdev"] for rail in facts["rails"]] == left


MULTI_PF = "/sys/kernel/debug/mlx5/0000:01:00.0/multi-pf"


@pytest.mark.parametrize("rdma", [True, False])
def test_socket_direct_with_one_interface_is_one_rail(node, rdma):
    first = node.pci(f"{CARD}.0", *CX7_MLX5)
    second = node.pci("pci0000:80/0000:80:01.0/0000:81:00.0", *CX7_MLX5)
    node.hca("mlx5_0", first)
    node.netdev("p0", first)
    if rdma:
        node.port(node.hca("mlx5_1", second), state="1: DOWN")
    else:
        node.files(MULTI_PF, primary="0000:01:00.0 vhca 0x0", secondary_0="0000:81:00.0 vhca 0x1")
    facts = node.facts()
    assert indexes(facts) == [(0, "mlx5_0")]
    assert [row["code"] for row in facts["not_rails"]] == ["shared"] * rdma
    assert [hca["bonded_functions"] for hca in facts["hcas"]] == ([[], []] if rdma else [["0000:81:00.0"]])
    assert facts["cards_without_rdma"] == []


@pytest.mark.parametrize(
    "driver", ["mlx5_core pf0vf0", "bnxt_en pf0vf0", "ice pf0vfr0", "sfc p0pf0vf0", "mlx5_core c1pf0sf88"]
)
def test_a_representor_is_no_port_of_any_driver(node, driver):
    name, port = driver.split()
    path = node.pci(f"{CARD}.0", *CX7, name)
    node.hca("hca0", path, ports=2)
    node.netdev("uplink", path, phys_port_name="p0")
    node.netdev("rep", path, phys_port_name=port, address="aa:00:00:00:00:01")
    facts = node.facts(RAILS)
    assert [(rail["port"], rail["netdev"]) for rail in facts["rails"]] == [(1, "uplink")]
    assert [row["code"] for row in facts["not_rails"]] == ["representor"]


HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
DEFAULT4 = "eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0"
LINK4 = "eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"
BLACKHOLE4 = "*\t0000000A\t00000000\t0201\t0\t0\t0\t000000FF\t0\t0\t0"
DOWN4 = "eth3\t00000000\t010300C0\t0002\t0\t0\t0\t00000000\t0\t0\t0"
ZERO = "0" * 32
DEFAULT6 = f"{ZERO} 00 {ZERO} 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003     ib0"
LINK6 = f"fd000000000000000000000000000000 40 {ZERO} 00 {ZERO} 00000100 00000001 00000000 00000001     eth0"
LOCAL6 = f"fd000000000000000000000000000002 80 {ZERO} 00 {ZERO} 00000000 00000003 00000000 80200001     eth0"
LINK_LOCAL6 = f"fe800000000000000000000000000000 40 {ZERO} 00 {ZERO} 00000100 00000002 00000000 00000001     eth0"
MULTICAST6 = f"ff000000000000000000000000000000 08 {ZERO} 00 {ZERO} 00000100 00000003 00000000 00000001     eth0"
LOOPBACK6 = f"00000000000000000000000000000001 80 {ZERO} 00 {ZERO} 00000000 00000002 00000000 80200001       lo"
UNREACHABLE6 = f"{ZERO} 00 {ZERO} 00 {ZERO} ffffffff 00000001 00000000 00200200       lo"
REJECT6 = f"{ZERO} 00 {ZERO} 00 {ZERO} 00000400 00000001 00000000 00000201     eth1"


def test_both_tables_of_a_node_without_rows_that_make_no_sense(node):
    assert (routes.usable(node.tree()), uses(node.tree(), Seams())) == ([], {})
    odd = ["eth9", *(f"eth9\t{word}\t00000000\t0001\t0\t0\t0\t00000000" for word in ("zz", "0000"))]
    node.write("/proc/net/route", "\n".join([HEAD, *odd, DEFAULT4, LINK4, BLACKHOLE4, DOWN4]))
    six = [LINK6, LINK_LOCAL6, DEFAULT6, LOOPBACK6, LOCAL6, MULTICAST6, UNREACHABLE6, REJECT6]
    node.write("/proc/net/ipv6_route", "\n".join(["fd00 40", f"{'z' * 32}{DEFAULT6[32:]}", *six]))
    assert set(uses(node.tree(), Seams())) == {"eth0", "ib0"}
    for address, wanted in (("fe80" + "0" * 28, {"eth0"}), ("fd00" + "0" * 28, {"eth0", "ib0"})):
        node.write("/proc/net/if_inet6", f"{address} 02 40 20 80 lo")
        assert set(uses(node.tree(), Seams.recorded({"routes": [{"dst": "::/0", "dev": "ib0"}]}))) == wanted
    assert [(row["destination"], row["netdev"]) for row in routes.destinations(node.tree())] == [
        *(("0.0.0.0/0", "eth0"), ("192.0.2.0/24", "eth0")),
        *(("fd00::/64", "eth0"), ("::/0", "ib0"), ("fd00::2/128", "eth0")),
    ]


@pytest.mark.parametrize(
    ("mtu", "overhead", "wanted"),
    [
        *((1500, (), 1024), (9000, (), 4096), (4191, (), 2048), (4192, (), 4096), (352, (), 256), (351, (), None)),
        *((None, (), None), (4180, (), 2048), (4180, (RXE_OVERHEAD,), 4096)),
    ],
)
def test_ib_mtu_is_the_kernels_iboe_get_mtu(mtu, overhead, wanted):
    assert ib_mtu(mtu, *overhead) == wanted


def test_errors_of_port_hardware_and_netdev_are_read_and_traffic_is_not(node):
    port = "/sys/class/infiniband/mlx5_0/ports/1"
    node.files(f"{port}/counters", symbol_error=3, port_xmit_data=10**12, port_rcv_errors="N/A (no PMA)")
    node.write(f"{port}/hw_counters/out_of_sequence", "7").write("/sys/class/net/eth2/statistics/rx_errors", "1")
    found = counters.read(node.tree(), "mlx5_0", 1, "eth2")
    assert found == {"symbol_error": 3, "out_of_sequence": 7, "netdev_rx_errors": 1}
    assert set(found) <= set(counters.KINDS)
    assert counters.read(node.tree(), "mlx5_9", 1) == {}


def test_rises_count_from_zero_after_a_reset_and_a_counter_at_its_end_is_reported():
    assert counters.rises({"a": 1, "b": 2, "c": 9}, {"a": 1, "b": 5, "c": 4, "d": 1}) == {"b": 3, "c": 4}
    values = {"symbol_error": 0xFFFF, "link_downed": 0xFE, "out_of_sequence": 10**9}
    assert counters.saturated(values) == ["symbol_error"]


def test_governors_are_counted(node):
    for number, governor in enumerate(("powersave", "powersave", "performance")):
        node.write(f"/sys/devices/system/cpu/cpu{number}/cpufreq/scaling_governor", governor)
    node.write("/sys/devices/system/cpu/cpuidle/current_driver", "x")
    assert counters.governors(node.tree()) == {"powersave": 2, "performance": 1}


BUS, PORT = "pci0000:10", "pci0000:10/0000:10:01.0"
SWITCH = f"{PORT}/0000:11:00.0"
GPU = f"{SWITCH}/0000:12:00.0/0000:13:00.0"
PLATFORM = "platform/ACPI0004:00/pci0002:00/0002:00:00"
DIRECT = ("15b3", "2100", "0x088000")
SERIAL = "MT2501X00001"


@pytest.mark.parametrize(("one", "other", "wanted"), [
    pytest.param(f"{PORT}/0000:11:00.0", f"{PORT}/0000:11:00.1", "PIX", id="two functions of a card"),
    pytest.param(GPU, f"{SWITCH}/0000:12:01.0/0000:14:00.0", "PIX", id="one switch, two downstream ports"),
    pytest.param(GPU, f"{SWITCH}/0000:12:01.0/0000:14:00.0/0000:15:00.0/0000:16:00.0", "PXB", id="second switch"),
    pytest.param(GPU, f"{BUS}/0000:10:02.0/0000:20:00.0", "PHB", id="one host bridge, two root ports"),
    pytest.param(f"{PLATFORM}.1", f"{PLATFORM}.2", "PHB", id="a host bridge below a platform device"),
    (GPU, None, None),
])  # fmt: skip
def test_distance(node, one, other, wanted):
    for chain in filter(None, (one, other)):
        node.pci(chain, "10de", "2330", "0x030200")
    addresses = [(chain or "0000:99:00.0").rpartition("/")[2] for chain in (one, other)]
    assert topology.Topology(node.tree()).distance(*addresses) == wanted
    assert topology.Topology(node.tree()).distance(*reversed(addresses)) == wanted


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
    assert topology.Topology(node.tree()).distance("0000:10:01.0", "0000:30:01.0") == wanted


def vpd(serial: str) -> bytes:
    """VPD of a ConnectX, as in lspci -vv: an identifier, then PN, SN and VU, then the end tag."""
    pairs = ((b"PN", b"900-9X81E"), (b"SN", serial.encode()), (b"VU", f"{serial}MLNXS0D0F0".encode()))
    fields = b"".join(key + bytes([len(value)]) + value for key, value in pairs)
    parts = ((0x82, b"NVIDIA ConnectX-8"), (0x90, fields))
    return b"".join(bytes([tag]) + len(body).to_bytes(2, "little") + body for tag, body in parts) + b"\x78"


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
    node.hca("mlx5_0", node.pci("pci0003:00/0003:00:01.0/0003:01:00.0", *CX7_MLX5))
    assert root_of(node, "mlx5_0") == "pci0003:00"
    for number in (1, 2):
        card = node.pci(f"pci0000:00/0000:00:0{number}.0/0000:0{number}:00.0", *CX7_MLX5)
        node.hca(f"mlx5_{number}", card, layer="InfiniBand")
        direct = node.pci(f"pci000{number}:00/000{number}:00:00.0/000{number}:01:00.0", *DIRECT)
        node.write(f"{card}/vpd", vpd(f"MT{number}")).write(f"{direct}/vpd", vpd(f"MT{number}"))
    assert [root_of(node, name) for name in ("mlx5_1", "mlx5_2")] == ["pci0001:00", "pci0002:00"]


def test_several_functions_of_one_card_pair_up_by_rank_or_not_at_all(node):
    for index in (0, 1):
        card = node.pci(f"pci0000:00/0000:00:01.0/0000:01:00.{index}", *CX7_MLX5)
        direct = node.pci(f"pci0001:00/0001:00:00.0/0001:01:00.{index}", *DIRECT)
        node.write(f"{card}/vpd", vpd(SERIAL)).write(f"{direct}/vpd", vpd(SERIAL))
    functions, direct = pci.classes(node.tree()), ["0001:01:00.0", "0001:01:00.1"]
    assert roots.data_direct_functions(node.tree(), functions) == direct
    assert roots.data_direct(node.tree(), "0000:01:00.1", functions, direct) == direct[1]
    del functions["0000:01:00.0"]
    assert roots.data_direct(node.tree(), "0000:01:00.1", functions, direct) is None
