"""Config space and the path between HCA and GPU: bytes in, a verdict out."""

import itertools
import random

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import gpudirect
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import pcie, pcie_path
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.pcie_path import CR, DT, EC, RR, SV, TB, UF
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.text import is_unknown

ENDPOINT, ROOT, UPSTREAM, DOWNSTREAM = 0, 4, 5, 6
ABLE = 0x5F


def config(port=ENDPOINT, acs=None, ats=None, control=0x5936, size=4096):
    """Config space of a function: PCI Express at 0x60 after another capability; ACS, ATS and another one after AER."""
    data = bytearray(4096)
    data[0:4], data[0x06], data[0x34] = b"\xb3\x15\x23\x10", 0x10, 0x40
    data[0x40:0x42], data[0x60:0x62] = b"\x01\x60", b"\x10\x00"
    data[0x62] = port << 4 | 2
    data[0x64:0x68] = (2).to_bytes(4, "little")
    data[0x68:0x6A] = control.to_bytes(2, "little")
    data[0x6C:0x70], data[0x72:0x74] = (16 << 4 | 5).to_bytes(4, "little"), (8 << 4 | 4).to_bytes(2, "little")
    entries = [(0x0001, 0x100, b""), (0x000B, 0x140, b"")]
    entries += [(0x000D, 0x180, bytes([ABLE, 0, acs, 0]))] if acs is not None else []
    entries += [(0x000F, 0x1C0, bytes([0, 0, 0, 0x80 if ats else 0]))] if ats is not None else []
    for (identity, place, body), follows in zip(entries, [place for _id, place, _body in entries[1:]] + [0]):
        data[place : place + 4] = (identity | 1 << 16 | follows << 20).to_bytes(4, "little")
        data[place + 4 : place + 4 + len(body)] = body
    return bytes(data[:size])


def test_what_a_function_says():
    said = pcie.function(config(DOWNSTREAM, 0x1D, True))
    assert (said["port"], said["ats"], said["acs"]) == ("downstream", True, {"capability": ABLE, "control": 0x1D})
    assert [said[key] for key in ("relaxed_ordering", "max_read_request", "max_payload")] == [True, 4096, 256]
    assert said["link"] == {"speed_gts": 16.0, "width": 8, "max_speed_gts": 32.0, "max_width": 16}
    for data in (config(), config(DOWNSTREAM, 0x1D, True), config(DOWNSTREAM, 0, False)):
        assert pcie.function(pcie.reduced(data)) == pcie.function(data), "a capture says the same, in a tenth"
        assert len(pcie.reduced(data)) < 300
    plain = pcie.function(config())
    assert (plain["acs"], plain["ats"], plain["max_payload_supported"]) == (None, None, 512)
    conventional = bytearray(config())
    conventional[0x41] = 0
    assert pcie.function(bytes(conventional))["acs"] is None


def changed(place, value, data=None):
    data = data or config(DOWNSTREAM, 0, False)
    return data[:place] + value + data[place + len(value) :]


@pytest.mark.parametrize("data", [
    None,
    b"",
    b"\xff" * 4096,
    config(size=64),
    config(size=256),
    config(size=0x69),
    config(DOWNSTREAM, 0, size=0x184),
    changed(0x41, b"\x40"),
    changed(0x41, b"\x10"),
    changed(0x102, b"\x01\x10", config()),
    changed(0x102, b"\x01\x08", config()),
    changed(0x143, b"\x14", config()),
    changed(0x180, b"\xff" * 4),
])  # fmt: skip
def test_what_was_not_read_is_not_without_acs(data):
    assert is_unknown(pcie.function(data)["acs"])


def test_no_bytes_make_the_walk_run_on():
    chance = random.Random(44)
    for _round in range(3000):
        data = bytearray(config(DOWNSTREAM, 0x1D, True, size=chance.choice((64, 200, 256, 300, 4096))))
        for _change in range(chance.randrange(6)):
            at = chance.choice(
                (0x06, 0x34, 0x41, 0x61, *range(0x100, 0x104), *range(0x140, 0x144), *range(0x180, 0x184))
            )
            if at < len(data):
                data[at] = chance.randrange(256)
        said = pcie.function(bytes(data))
        assert said["acs"] is None or is_unknown(said["acs"]) or said["acs"].keys() == {"capability", "control"}
        assert pcie.function(pcie.reduced(bytes(data)))["port"] == said["port"] or is_unknown(said["port"])


# --- the judge -------------------------------------------------------------------------------------------------------

CX, GRACE, INTEL, NIC, DD = "15b3:197c", "10de:22b8", "8086:352a", "15b3:1023", "15b3:2100"
NAMES = ("rp", "usp", "mine", "its", "second", "deep", "nic", "gpu")
PORTS = ("root", "upstream", "downstream", "downstream", "upstream", "downstream", "endpoint", "endpoint")


def functions(acs=(), ats=None, group="DMA", root=INTEL, switch="1000:c030", nic=NIC, **more):
    """One switch; its port `its` leads to the GPU, or to a second switch with the port `deep`."""
    ids = dict.fromkeys(("usp", "mine", "its", "second", "deep"), switch)
    ids = {**ids, "rp": root, "nic": nic, "gpu": "10de:2901"}
    return {
        name: {
            "id": ids[name],
            "port": port,
            "acs": {"capability": ABLE, "control": dict(acs).get(name, 0)} if port in ("root", "downstream") else None,
            "ats": ats if name == "nic" else None,
            "iommu_group": "7" if group else None,
            "iommu_type": group,
            **more.get(name, {}),
        }
        for name, port in zip(NAMES, PORTS)
    }


def path(deep=False, meets="usp", nic="nic", direct=False):
    its = ["its", "second", "deep"] if deep else ["its"]
    sides = (["mine"], its) if meets else (["rp0", "mine"], ["rp"])
    keys = {"function": nic, "gpu": "gpu", "meets": meets, "root_port": "rp", "data_direct": direct}
    return {**keys, "function_side": sides[0], "gpu_side": sides[1]}


def judge(way, there, guest=False, direct=False, virtual=False):
    return pcie_path.judge(way, there, guest, direct, virtual)


OFF = "xx000x0"
PAIR_OFF, NIC_DT = {"mine": OFF, "its": OFF}, {"mine": "1x111x1"}
DIRECT_MASKS = {"mine": "xx110x1", "its": "xx101x1", "rp": "xx111x0"}
GB300 = {"root": GRACE, "switch": CX, "nic": DD}
NODE = {"direct": True}  # it has Data Direct functions
DATA, DEEP, CPU = path(True, direct=True), path(True), path(meets=None)
FAR, AT_CPU, VIA = "translated", "root-complex", "direct-translated-only"


@pytest.mark.parametrize(("way", "acs", "there", "how", "wanted", "masks"), [
    (path(), {}, {}, {}, ("switch", "direct", None), PAIR_OFF),
    (path(), {"mine": RR | SV}, {}, {}, ("switch", FAR, "mine", "RR"), PAIR_OFF),
    (path(), {"its": CR}, {"group": "identity"}, {}, ("switch", AT_CPU, "its", "CR"), PAIR_OFF),
    (path(), {"its": CR}, {"group": None}, {}, ("switch", AT_CPU, "its", "CR"), PAIR_OFF),
    (path(), {"mine": EC}, {}, {}, ("switch", FAR, "mine", "EC"), PAIR_OFF),
    (path(), {"rp": RR | CR, "mine": UF | SV}, {}, {}, ("switch", "direct", None), PAIR_OFF),
    (DEEP, {"deep": RR}, {}, {}, ("switch", FAR, "deep", "RR"), {**PAIR_OFF, "deep": OFF}),
    (DEEP, {}, {"switch": CX}, {}, ("inline", "direct", None), {**PAIR_OFF, "deep": OFF, "rp": OFF}),
    (DEEP, {}, {"switch": CX, "nic": "14e4:1760"}, {}, ("switch", "direct", None), {**PAIR_OFF, "deep": OFF}),
    (DEEP, {}, {"switch": CX, "ats": False}, {}, ("virtual", "direct", None), NIC_DT),
    (path(), {"mine": DT | RR, "its": CR}, {"ats": True}, {}, ("virtual", VIA, "mine", "RR"), NIC_DT),
    (path(), {"mine": RR | CR}, {"ats": True}, {}, ("virtual", FAR, "mine", "RR", "CR"), NIC_DT),
    (path(), {"mine": DT | RR}, {}, {"virtual": True}, ("virtual", FAR, "mine", "RR"), {}),
    (path(), {"mine": RR}, {"ats": False}, {"virtual": True}, ("virtual", FAR, "mine", "RR"), NIC_DT),
    (path(), {}, {"ats": False, "nic": "14e4:1760"}, {}, ("switch", "direct", None), PAIR_OFF),
    (path(), {"mine": RR}, {"ats": "unknown: x"}, {}, ("unsupported", FAR, "mine", "RR"), {}),
    (path(), {"mine": DT | RR}, {"ats": "unknown: x"}, {}, ("unsupported", "unknown", "mine", "RR"), {}),
    (path(), {"mine": TB}, {"ats": True}, {}, ("virtual", "unknown", "mine", "TB"), NIC_DT),
    (DATA, {"mine": 0x19, "its": 0x15, "deep": 0x1D}, GB300, NODE, ("data-direct", "direct", None), DIRECT_MASKS),
    (DATA, {"mine": 0x1D, "its": 0x1D}, GB300, NODE, ("data-direct", FAR, "mine", "RR"), DIRECT_MASKS),
    (DATA, {"mine": 0x19, "its": 0x1D}, GB300, NODE, ("data-direct", FAR, "its", "CR"), DIRECT_MASKS),
    (DATA, {"mine": RR}, GB300, {"direct": True, "virtual": True}, ("virtual", FAR, "mine", "RR"), {}),
    (DATA, {"mine": CR}, {**GB300, "root": INTEL}, NODE, ("unsupported", FAR, "mine", "CR"), {}),
    (DEEP, {"its": RR}, {"switch": CX}, NODE, ("unsupported", FAR, "its", "RR"), {}),
    (CPU, {}, {}, {}, ("root-port", FAR, None), {}),
    (CPU, {}, {"group": "identity"}, {}, ("root-port", AT_CPU, None), {}),
    (path(), {}, {}, {"guest": True}, ("guest", "unknown", None), {}),
    (path(nic="unknown: x"), {}, {}, {}, ("unsupported", "unknown", None), {}),
    (path(nic="gone"), {}, {}, {}, ("unsupported", "unknown", None), {}),
    (path(), {}, {"mine": {"acs": "unknown: x"}}, {}, ("switch", "unknown", "mine"), {}),
    (path(), {}, {"its": {"port": "unknown: x"}}, {}, ("unsupported", "unknown", "its"), {}),
    (path(), {}, {"usp": {"port": "bridge"}}, {}, ("unsupported", "unknown", "usp"), {}),
])  # fmt: skip
def test_paths_by_topology(way, acs, there, how, wanted, masks):
    said = judge(way, functions(acs, **there), **how)
    assert (said["topology"], said["verdict"], said["bridge"], *said["bits"]) == wanted
    assert said["masks"] == masks


def test_nothing_that_is_redirected_is_called_direct():
    """Every combination of both ports, as in 1.2: by Linux' own rule, and by rdma_topo's for Data Direct."""
    for mine, its in itertools.product(range(128), repeat=2):
        bits = {"mine": mine, "its": its}
        for ats, virtual in ((None, False), (True, True)):
            said = judge(path(), functions(bits, ats), virtual=virtual)["verdict"]
            assert said != "direct" or not (mine | its) & (RR | CR | EC)
            assert said != "direct-translated-only" or (mine & DT and not (mine | its) & TB and ats)
            assert (mine | its) & (RR | CR | EC | TB) or said == "direct"
        said = judge(path(True, direct=True), functions(bits, **GB300), direct=True)["verdict"]
        assert (said == "direct") == (not mine & (RR | EC) and not its & (CR | EC))


@pytest.mark.parametrize(("mask", "control", "able", "wrong"), [
    (OFF, 0x1D, ABLE, ["SV", "RR", "CR", "UF"]),
    (OFF, DT | EC | TB, 0x7F, []),
    ("xx101x1", 0x15, ABLE, []),
    ("xx101x1", 0x1D, ABLE, ["CR"]),
    ("1x111x1", 0x1D, 0x1F, []),
    ("1x111x1", 0x1D, ABLE, ["DT"]),
    (OFF, None, None, ["ACS"]),
])  # fmt: skip
def test_bits_are_compared_where_the_bridge_can_have_them(mask, control, able, wrong):
    acs = None if control is None else {"capability": able, "control": control}
    assert pcie_path.differs(mask, {"acs": acs}) == wrong


PAIR, ONE = {"a": OFF, "b": OFF}, {"a": "xx101x1"}


@pytest.mark.parametrize(("masks", "kernel", "parameter"), [
    (PAIR, "6.12.43+deb13-amd64", "pci=config_acs=xx000x0@a;xx000x0@b"),
    (PAIR, "6.15.0-3-generic", "pci=config_acs=xx000x0@a;xx000x0@b"),
    (PAIR, "6.14.0-1007-nvidia-64k", "pci=config_acs=xx000x0@a;xx000x0@b"),
    (PAIR, "6.14.0-15-generic", None),
    (PAIR, "6.12.0-55.el10", None),
    (PAIR, "6.12.22-amd64", None),
    (ONE, "6.11.0-8-generic", "pci=config_acs=xx101x1@a"),
    (ONE, "6.8.0-60-generic", None),
    (PAIR, "6.1.0-42-amd64", "pci=disable_acs_redir=a;b"),
    (PAIR, "4.18.0-553.el8", None),
    ({"a": pcie_path.KERNEL_DEFAULT}, "6.15.0", None),
    ({}, "6.15.0", None),
])  # fmt: skip
def test_the_parameter_that_this_kernel_has(masks, kernel, parameter):
    said = pcie_path.setting({"paths": [{"masks": masks}], "iommu": True}, kernel)
    assert said.parameter == parameter
    assert (said.reason is None) == (parameter is not None)
    clash = {"paths": [{"masks": {"a": OFF}}, {"masks": {"a": "xx101x1"}}], "iommu": True}
    assert pcie_path.setting(clash, kernel).parameter is None


SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"
NVIDIA = ("10de", "2330", "0x030200", "nvidia")


def behind_a_switch(node, of_nic, of_gpu=None):
    """A NIC and a GPU behind the two ports of a switch, which have these ACS bits."""
    nic = node.pci(f"{SWITCH}/0000:02:00.0/0000:03:00.0", "15b3", "1021", "0x020000", "mlx5_core")
    gpu = node.pci(f"{SWITCH}/0000:02:01.0/0000:04:00.0", *NVIDIA)
    node.netdev("eth1", nic)
    node.hca("mlx5_0", nic)
    node.write(f"{nic}/config", config()).write(f"{gpu}/config", config())
    for port, bits in (("00", of_nic), ("01", of_nic if of_gpu is None else of_gpu)):
        node.write(f"/sys/devices/{SWITCH}/0000:02:{port}.0/config", config(DOWNSTREAM, bits))
    return node.write(f"/sys/devices/{SWITCH}/config", config(UPSTREAM))


def test_the_facts_of_a_pair(node):
    behind_a_switch(node, RR | CR, 0)
    nic, gpu = (f"/sys/devices/{SWITCH}/0000:02:0{port}.0/0000:0{3 + port}:00.0" for port in range(2))
    for function in (nic, gpu):
        node.link(f"{function}/iommu_group", "/sys/kernel/iommu_groups/9")
    node.write("/sys/kernel/iommu_groups/9/type", "identity")
    node.write("/boot/config-6.1.0-test", "CONFIG_INFINIBAND_USER_MEM=y\n# CONFIG_PCI_P2PDMA is not set")
    facts = node.facts(["rails", "gpudirect"])["pcie"]
    (way,) = facts["paths"]
    assert (way["verdict"], way["bridge"], way["bits"]) == ("root-complex", "0000:02:00.0", ["RR", "CR"])
    assert (way["group_shared"], way["masks"]) == (True, {"0000:02:00.0": OFF, "0000:02:01.0": OFF})
    assert [name for name, on in facts["kernel_config"].items() if on] == ["INFINIBAND_USER_MEM"]
    assert is_unknown(facts["functions"]["0000:00:01.0"]["acs"])
    node.link("/sys/bus/pci/drivers/vfio-pci/0000:04:00.0", gpu)
    assert node.facts(["rails", "gpudirect"])["pcie"]["paths"][0]["topology"] == "virtual"
    google, cpu = "Google Compute Engine", "cpu:type:x86,ven0000fam0006mod008F:feature:,0000,0001"
    for product, modalias, verdict in (
        ("Standard PC (Q35 + ICH9, 2009)", "", "unknown"),
        ("p6-b200.48xlarge", "", "unknown"),
        (google, "cpu:type:aarch64:feature:,0000", "unknown"),
        (google, f"{cpu},009E,00C0", "root-complex"),  # bare metal
        ("None", f"{cpu},009F,00C0", "unknown"),  # KubeVirt
    ):
        node.write("/sys/class/dmi/id/product_name", product)
        node.write("/sys/devices/system/cpu/modalias", modalias)
        assert node.facts(["rails", "gpudirect"])["pcie"]["paths"][0]["verdict"] == verdict


GOOD = dict.fromkeys(("PCI_P2PDMA", "INFINIBAND_ON_DEMAND_PAGING", "INFINIBAND_USER_MEM"), True)
AT_FAULT = {"bridge": "mine", "bits": ["RR"], "masks": {"mine": OFF}, "reason": "x"}


@pytest.mark.parametrize(("config_", "topology", "verdict", "shared", "words"), [
    (GOOD, "switch", "direct", False, []),
    (GOOD, "root-port", "translated", False, []),
    (GOOD, "data-direct", "direct", True, []),
    (GOOD, "data-direct", "direct", False, ["IOMMU groups"]),
    (GOOD, "switch", "translated", True, ["translated"]),
    (GOOD, "switch", "unknown", True, ["unknown"]),
    ({**GOOD, "PCI_P2PDMA": False}, "switch", "direct", True, ["PCI_P2PDMA"]),
    ({**GOOD, "INFINIBAND_USER_MEM": False}, "switch", "direct", True, ["EOPNOTSUPP"]),
    ("unknown: no config-6.1", "switch", "direct", True, ["no config-6.1"]),
])  # fmt: skip
def test_what_dma_buf_needs_besides_driver_and_kernel(config_, topology, verdict, shared, words):
    fault = AT_FAULT if topology == "switch" else {"bridge": None, "masks": {}, "reason": "x"}
    way = {**path(), **fault, "topology": topology, "verdict": verdict, "group_shared": shared}
    found = gpudirect.doubts({"kernel_config": config_, "paths": [way], "functions": functions({"mine": RR})})
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found))
