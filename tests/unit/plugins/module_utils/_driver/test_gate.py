"""The change gate as a table: a captured or composed node, what is laid over it, and the answer that it must give.

Every row goes the whole way: files -> facts and risks -> decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.gate import decide
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.risk import read
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixtures
from ansible_collections.gpufabric.rdma.tests.tools.overlays import (
    DEVICE,
    ENROLLED,
    INSTALL,
    KEY,
    LOOSE,
    NET,
    NETPLAN,
    NEWER,
    NIC,
    PINNED,
    POD,
    SECURE,
    STALE,
    VFS,
    Over,
    bonded,
    default_route,
    file,
    lay_over,
    module,
    mounted,
    newer_kernel,
    pod,
    process,
    ssh,
)


@dataclass
class Row:
    name: str
    verdict: str
    codes: set = field(default_factory=set)
    over: Over = field(default_factory=Over)
    wanted: dict = field(default_factory=dict)
    says: str = ""  # must be read in the reasons, steps or notes
    fixture: str = STALE
    consents: list = field(default_factory=list)


RELOAD = {"reload_allowed": True}
MANAGED, MAC = {"name-change", "management-path"}, "a0:88:c2:b0:00:00"
BY_NAME = {
    "netplan": ("/etc/netplan/50-f.yaml", f"network:\n  ethernets:\n    {NIC}:\n      dhcp4: true", True),
    "netplan by MAC": (
        "/etc/netplan/50-f.yaml",
        f"network:\n  ethernets:\n    {NIC}:\n      match:\n        macaddress: {MAC}\n      dhcp4: true",
        False,
    ),
    "netplan, a MAC that is set": (
        "/etc/netplan/50-f.yaml",
        f"network:\n ethernets:\n  {NIC}:\n   macaddress: {MAC}",
        True,
    ),
    "NetworkManager": (
        "/etc/NetworkManager/system-connections/f.nmconnection",
        f"[connection]\nid={NIC}\ninterface-name={NIC}",
        True,
    ),
    "NetworkManager by MAC": (
        "/etc/NetworkManager/system-connections/f.nmconnection",
        f"[connection]\nid={NIC}\n[ethernet]\nmac-address={MAC}",
        False,
    ),
    "ifcfg": (f"/etc/sysconfig/network-scripts/ifcfg-{NIC}", f"DEVICE={NIC}", True),
    "networkd": ("/etc/systemd/network/f.network", f"[Match]\nName={NIC}", True),
    "networkd, a pattern that fits any name": ("/etc/systemd/network/f.network", "[Match]\nName=en*", False),
    "networkd by MAC": ("/etc/systemd/network/f.network", f"[Match]\nMACAddress={MAC}", False),
    "ifupdown": ("/etc/network/interfaces", f"iface {NIC} inet dhcp", True),
    "ifupdown, a comment": ("/etc/network/interfaces.d/x", f"# iface {NIC} inet dhcp", False),
}
NAMED = [
    Row(
        f"management over the HCA, configured by {name}" if named else f"management over the HCA: {name}",
        "refuse" if named else "reboot",
        MANAGED if named else {"management-path"},
        default_route(NIC) + file(path, text),
        says=path if named else "",
        consents=["driver_rename_allowed"] if named else [],
    )
    for name, (path, text, named) in BY_NAME.items()
]
NAMED += [
    Row("configured by name, and no management", "reload", over=NETPLAN, wanted=RELOAD),
    Row("by name, and allowed", "reboot", {"management-path"}, ssh(NIC) + NETPLAN, {"rename_allowed": True}),
    Row("by name, and denied", "refuse", MANAGED, ssh(NIC) + NETPLAN, {"rename_allowed": False}),
    Row("a .link file ties the name to the MAC", "reboot", {"management-path"}, ssh(NIC) + NETPLAN + PINNED),
]
ROWS = [
    # Nothing to do.
    Row("inbox, and memory agrees", "nothing", fixture="gh200-cx7-roce", says="same driver: inbox"),
    Row("DOCA, and memory agrees", "nothing", fixture="h100-8x-cx7-ib", says="same driver: doca"),
    Row(
        "agrees, with pods and jobs running",
        "nothing",
        fixture="two-cards-cx6dx",
        over=pod() + process(9, "a", "umad0"),
    ),
    Row("an HCA of another maker", "nothing", fixture="irdma"),
    Row("memory agrees although Secure Boot is on", "nothing", fixture="two-cards-cx6dx", over=SECURE),
    # Reload.
    Row(
        "only the driver in memory is old", "reload", wanted=RELOAD, says="save MTU, state and addresses of enp59s0np0"
    ),
    Row("the same, and nobody said yes to a reload", "reload", consents=["driver_reload_allowed"]),
    Row("to be installed on an idle inbox node", "reload", fixture="two-cards-cx6dx", wanted=INSTALL | RELOAD),
    Row("default route elsewhere", "reload", over=default_route("eno1"), wanted=RELOAD),
    Row("SSH comes in elsewhere", "reload", over=ssh("eno1"), wanted=RELOAD),
    Row(
        "peermem loaded and idle",
        "reload",
        over=module("nvidia_peermem", 0, "ib_core"),
        wanted=RELOAD,
        says="unload nvidia_",
    ),
    Row("virtual functions that sysfs shows", "reload", over=VFS, wanted=RELOAD, says="2 virtual functions of mlx5_0"),
    Row("local NVMe without mlx_compat", "reload", over=mounted("/data", "/dev/nvme1n1"), wanted=RELOAD),
    Row(
        "NFS over the management port",
        "reload",
        over=mounted("/home", "n:/h", "nfs4", "rw,addr=192.0.2.7"),
        wanted=RELOAD,
    ),
    Row(
        "pods, and draining is allowed",
        "reload",
        over=pod(),
        wanted=RELOAD | {"drain_allowed": True},
        says="cordon and drain",
    ),
    Row(
        "a pod's process, and draining is allowed",
        "reload",
        over=pod() + process(70, "python3", "uverbs0", f"/kubepods/burstable/pod{POD}/abc"),
        wanted=RELOAD | {"drain_allowed": True},
        says="uncordon",
    ),
    Row("Secure Boot off in the firmware", "reload", over=LOOSE, wanted=RELOAD),
    Row("Secure Boot with an enrolled DKMS key", "reload", over=SECURE + KEY + ENROLLED, wanted=RELOAD),
    Row("Secure Boot with signed modules", "reload", over=SECURE, wanted=RELOAD | {"signed": True}),
    Row("the next kernel has the driver too", "reload", over=newer_kernel("updates/dkms/mlx5_core.ko"), wanted=RELOAD),
    # Reboot: a reload is ruled out.
    Row("default route over the HCA", "reboot", {"management-path"}, default_route(NIC), says="the default route"),
    Row("SSH session over the HCA", "reboot", {"management-path"}, ssh(NIC), says="SSH session from 198.18.0.9"),
    Row(
        "default route over a bond of HCAs",
        "reboot",
        {"management-path", "upper-device"},
        default_route("bond0"),
        INSTALL,
        "bond0",
        "bond",
    ),
    Row("interface in a bond", "reboot", {"upper-device"}, bonded(), says="bond0 is on top of it"),
    Row(
        "a pod's macvlan on the interface",
        "reboot",
        {"upper-device"},
        Over(links={f"{NET}/upper_mac0": "../mac0"}),
        says="macvlans",
    ),
    Row(
        "root on NVMe behind mlx_compat",
        "reboot",
        {"storage", "third-party"},
        module("nvme_core", 3, "mlx_compat") + module("nvme", 1, "mlx_compat"),
        says="/ on /dev/nvme0n1p2",
    ),
    Row(
        "data on an LVM volume on such NVMe",
        "reboot",
        {"storage", "third-party"},
        module("nvme", 1, "mlx_compat")
        + mounted("/data", "/dev/mapper/vg-data", number="253:0")
        + Over(links={"/dev/mapper/vg-data": "../dm-0", "/sys/class/block/dm-0/slaves/nvme1n1": "../../nvme1n1"}),
        says="/data on /dev/mapper/vg-data",
    ),
    Row(
        "swap on such NVMe",
        "reboot",
        {"storage", "third-party"},
        module("nvme", 1, "mlx_compat")
        + file("/proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p3 partition 1 0 -2"),
        says="swap on /dev/nvme0n1p3",
    ),
    Row(
        "a disk over NVMe/RDMA",
        "reboot",
        {"storage", "consumer"},
        module("nvme_rdma", 1, "ib_core", "rdma_cm")
        + mounted("/data", "/dev/nvme3n1")
        + file("/sys/class/nvme/nvme3/transport", "rdma"),
        says="NVMe over RDMA",
    ),
    Row(
        "NFS over RDMA",
        "reboot",
        {"storage"},
        mounted("/scratch", "10.0.0.1:/s", "nfs4", "rw,proto=rdma,addr=10.0.0.1"),
    ),
    Row(
        "NFS over TCP, but through the HCA",
        "reboot",
        {"management-path", "storage"},
        ssh(NIC) + mounted("/home", "198.18.0.7:/home", "nfs4", "rw,proto=tcp,addr=198.18.0.7"),
        says="nfs4 from 198.18.0.7 over enp59s0np0",
    ),
    Row(
        "Lustre over o2ib",
        "reboot",
        {"storage", "consumer"},
        module("ko2iblnd", 2, "rdma_cm") + mounted("/l", "1@o2ib:/l", "lustre"),
    ),
    Row(
        "iSER initiator loaded",
        "reboot",
        {"consumer"},
        module("ib_iser", 0, "ib_core", "rdma_cm"),
        says="modprobe -r ib_iser",
    ),
    Row(
        "a third party's module on ib_core",
        "reboot",
        {"third-party"},
        module("gds_magic", 0, "ib_core"),
        says="gds_magic",
    ),
    Row(
        "peermem in use", "reboot", {"peermem-in-use"}, module("nvidia_peermem", 4, "ib_core"), says="stop the GPU jobs"
    ),
    Row(
        "a user that is neither a module nor a process",
        "reboot",
        {"unknown-user"},
        file("/sys/module/rdma_cm/refcnt", "5"),
        says="in use 5",
    ),
    Row(
        "a job holds a verbs device", "reboot", {"process"}, process(4242, "python3", "uverbs0"), says="slurmd.service"
    ),
    Row(
        "the subnet manager runs here",
        "reboot",
        {"process"},
        process(99, "opensm", "umad0", "/system.slice/opensm.service"),
        says="opensm",
    ),
    Row(
        "VFs whose MACs only netlink knows",
        "reboot",
        {"vf-settings", "vf-passed-through"},
        wanted=INSTALL,
        fixture="vfs",
        says="virtual machine",
    ),
    Row(
        "switchdev mode with representors",
        "reboot",
        {"switchdev"},
        VFS
        + Over({f"{DEVICE}/net/eth9/phys_port_name": "pf0vf1"}, {"/sys/class/net/eth9": f"../..{DEVICE[4:]}/net/eth9"}),
        says="eth9",
    ),
    Row("a reload is denied", "reboot", {"reload-denied"}, wanted={"reload_allowed": False}),
    Row("a reboot is asked for", "reboot", wanted={"activation": "reboot"}, says="a reboot was asked for"),
    # Refuse.
    Row(
        "a reload is demanded, and SSH goes over the HCA",
        "refuse",
        {"management-path"},
        ssh(NIC),
        {"activation": "reload"},
    ),
    Row(
        "in a container",
        "refuse",
        {"container"},
        file("/run/systemd/container", "systemd-nspawn"),
        INSTALL,
        "run this on the container's host",
    ),
    Row(
        "pods, and nobody said yes to a drain",
        "refuse",
        {"pods"},
        pod(),
        says="jobs/train-0",
        consents=["driver_drain_allowed"],
    ),
    Row("pods, and draining is denied", "refuse", {"pods"}, pod(), {"drain_allowed": False}, "drain the node yourself"),
    Row("Secure Boot, no key", "refuse", {"secure-boot"}, SECURE, INSTALL, "mokutil --import"),
    Row(
        "Secure Boot, a key that is not enrolled",
        "refuse",
        {"secure-boot"},
        SECURE + KEY,
        INSTALL,
        "/var/lib/dkms/mok.pub is not enrolled",
    ),
    Row(
        "locked-down kernel",
        "refuse",
        {"secure-boot"},
        file("/sys/kernel/security/lockdown", "none [integrity] confidentiality"),
        says="integrity",
    ),
    Row(
        "a kernel that enforces signatures",
        "refuse",
        {"secure-boot"},
        file("/sys/module/module/parameters/sig_enforce", "Y"),
    ),
    *NAMED,
    Row(
        "NVIDIA's Network Operator runs the driver",
        "refuse",
        {"cluster-operator", "pods"},
        pod("mofed-ubuntu22.04-x", "nvidia-network-operator", "mofed-container"),
        INSTALL,
        "NicClusterPolicy",
    ),
    Row(
        "its driver directory is still mounted",
        "refuse",
        {"cluster-operator"},
        file("/run/mellanox/drivers/usr/x"),
        INSTALL,
        "/run/mellanox/drivers",
    ),
    Row(
        "it left its blacklist",
        "refuse",
        {"operator-blacklist"},
        file("/etc/modprobe.d/blacklist-ofed-modules.conf", "blacklist mlx5_core"),
        INSTALL,
        "remove /etc/modprobe.d/blacklist-ofed",
    ),
    Row(
        "NVIDIA's GPU Operator runs driver and peermem",
        "refuse",
        {"cluster-operator", "pods"},
        pod("nvidia-driver-daemonset-a", "gpu-operator", "nvidia-peermem-ctr"),
        INSTALL,
        "ClusterPolicy",
    ),
    Row(
        "mlx5_core is blacklisted by hand",
        "refuse",
        {"blocked"},
        file("/etc/modprobe.d/no.conf", "blacklist mlx5_core"),
        says="no.conf:1",
    ),
    Row(
        "the next kernel lacks the driver, reboot needed",
        "refuse",
        {"next-kernel", "process"},
        newer_kernel("kernel/mlx5_core.ko") + process(5, "job", "uverbs0"),
        says=f"autoinstall -k {NEWER}",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_gate_answers(row, tmp_path):
    fixtures.lay_out(fixtures.load(row.fixture), tmp_path)
    lay_over(row.over, tmp_path)
    tree = Tree(str(tmp_path))
    facts = gather(tree, Seams.of(tree))
    decision = decide(facts, read(tree, facts), row.wanted)
    text = " ".join([decision.summary, *map(str, decision.reasons), *decision.steps, *decision.notes])
    assert decision.verdict == row.verdict, text
    assert {reason.finding.id for reason in decision.reasons} == row.codes, text
    assert row.says in text
    assert decision.consents == row.consents or not row.consents
    for reason in decision.reasons:
        assert all(reason.finding), reason
