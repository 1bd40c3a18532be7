"""The change gate as a table: a captured or composed node, what is laid over it, and the answer a person has to get.

Every row goes the whole way: files -> facts and risks -> decision.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver_gate import decide
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver_risk import read
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Seams, Tree, gather
from ansible_collections.gpufabric.rdma.tests.tools import tree as fixtures

# This node has DOCA 25.04 on disk and 24.10 in memory; its one HCA is enp59s0np0, its management port eno1.
STALE = "doca-loaded-differs-from-disk"
NIC, CARD, DEVICE = "enp59s0np0", "0000:3b:00.0", "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0"
NET = f"{DEVICE}/net/{NIC}"
ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
KERNEL, NEWER = "6.8.0-60-generic", "6.8.0-71-generic"
INSTALL = {"change": "doca 3.2.1 is installed"}
ORDER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@dataclass
class Over:
    """Files and links laid over a node."""

    files: dict = field(default_factory=dict)
    links: dict = field(default_factory=dict)
    binary: dict = field(default_factory=dict)

    def __add__(self, other):
        return Over(self.files | other.files, self.links | other.links, self.binary | other.binary)


def file(path, content="x"):
    return Over({path: content})


def module(name, refcount, *holds):
    """A loaded module that stands on others."""
    return Over(
        {f"/sys/module/{name}/refcnt": str(refcount)},
        {f"/sys/module/{other}/holders/{name}": f"../../{name}" for other in holds},
    )


def default_route(netdev):
    return file("/proc/net/route", ROUTES + f"{netdev}\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0")


def ssh(netdev):
    """A session from 198.18.0.9 whose route leaves by netdev."""
    routes = (
        ROUTES
        + "eno1\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        + f"{netdev}\t000012C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"
    )
    session = "   0: 010012C6:0016 090012C6:C350 01 00000000:00000000 02:00000000 00000000     0        0 4711 2 0"
    return Over(
        {"/proc/net/route": routes, "/proc/net/tcp": ORDER + session, "/proc/800/comm": "sshd"},
        {"/proc/800/fd/4": "socket:[4711]"},
    )


def process(pid, command, device, cgroup="/system.slice/slurmd.service"):
    return Over(
        {f"/proc/{pid}/comm": command, f"/proc/{pid}/cgroup": f"0::{cgroup}"},
        {f"/proc/{pid}/fd/7": f"/dev/infiniband/{device}"},
    )


POD = "1b2c3d4e-0000-4000-8000-00000000cafe"


def pod(name="train-0", namespace="jobs", container="main", uid=POD):
    return Over(
        {
            f"/sys/fs/cgroup/kubepods/burstable/pod{uid}/cgroup.procs": "",
            f"/var/log/pods/{namespace}_{name}_{uid}/{container}/0.log": "",
        }
    )


def mounted(mount, source, kind="ext4", options="rw", number="259:5"):
    return file(
        "/proc/1/mountinfo",
        "25 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        f"60 25 {number} / {mount} rw shared:9 - {kind} {source} {options}",
    )


def udev(name=NIC, index=3):
    """What udev has recorded of an interface, and the .link file that every system ships."""
    return Over(
        {
            f"/run/udev/data/n{index}": f"I:1\nE:ID_NET_NAMING_SCHEME=v252\nE:ID_NET_NAME_PATH={name}\nG:systemd",
            "/usr/lib/systemd/network/99-default.link": "[Match]\nOriginalName=*\n\n[Link]\n"
            "NamePolicy=keep kernel database onboard slot path\nMACAddressPolicy=persistent",
        }
    )


def old_style_netdev():
    """A second interface of the card, from a driver that shows no port name."""
    base = f"{DEVICE}/net/enp59s0"
    values = {"ifindex": "9", "type": "1", "address": "a0:88:c2:b0:00:09", "mtu": "1500", "flags": "0x1003"}
    return Over(
        {f"{base}/{name}": value for name, value in values.items()},
        {"/sys/class/net/enp59s0": f"../..{base[4:]}", f"{base}/device": "../.."},
    )


NAMED_FABRIC = file(
    "/etc/systemd/network/10-fabric.link", "[Match]\nMACAddress=a0:88:c2:b0:00:00\n[Link]\nName=fabric0"
)
STRIPS = file(
    "/etc/udev/rules.d/77-mlnx-net-names.rules",
    'DRIVERS=="mlx5_core", ENV{ID_NET_NAME_PATH}!="", \\\n'
    "PROGRAM=\"/bin/sh -c 'echo $env{ID_NET_NAME_PATH} | sed -r -e s/np[01]$// -e s/np[01]v/v/'\", "
    'ENV{ID_NET_NAME_PATH}="$result"',
)
NETPLAN = file("/etc/netplan/50-fabric.yaml", f"network:\n  ethernets:\n    {NIC}:\n      mtu: 9000\n")
EFI = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SECURE = Over(binary={EFI: "BgAAAAE="})  # attributes 6, value 1
LOOSE = Over(binary={EFI: "BgAAAAA="})
KEY = Over(binary={"/var/lib/dkms/mok.pub": "MIIDKmZha2UgY2VydA=="})
ENROLLED = Over(binary={"/sys/firmware/efi/mok-variables/MokListRT": "AAAAAAAwggMqZmFrZSBjZXJ0AA=="})
VFS = Over(
    {
        f"{DEVICE}/sriov_numvfs": "2",
        f"{DEVICE}/sriov_totalvfs": "8",
        f"{DEVICE}/sriov/0/mac": "02:00:00:00:00:01",
        f"{DEVICE}/sriov/1/mac": "02:00:00:00:00:02",
        f"{DEVICE}/sriov/0/node": "00:11:22:33:44:55:66:77",
    }
)


def newer_kernel(module_path):
    base = f"/usr/lib/modules/{NEWER}"
    return Over({f"/boot/vmlinuz-{KERNEL}": "", f"/boot/vmlinuz-{NEWER}": "", f"{base}/modules.dep": f"{module_path}:"})


def bonded():
    return Over(links={f"{NET}/upper_bond0": "../bond0", f"{NET}/master": "../bond0"})


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
    Row(
        "a renamed interface that nobody refers to",
        "reload",
        over=udev() + NAMED_FABRIC,
        wanted=RELOAD,
        says="as fabric0",
    ),
    Row("the name stays, and netplan refers to it", "reload", over=udev() + NETPLAN, wanted=RELOAD),
    Row(
        "netplan finds the interface by MAC",
        "reload",
        over=udev()
        + NAMED_FABRIC
        + file(
            "/etc/netplan/50-f.yaml",
            f"network:\n  ethernets:\n    {NIC}:\n      match:\n        macaddress: a0:88:c2:b0:00:00\n      mtu: 9000",
        ),
        wanted=RELOAD,
    ),
    Row(
        "a rename that is allowed",
        "reload",
        over=udev() + NAMED_FABRIC + NETPLAN,
        wanted=RELOAD | {"rename_allowed": True},
    ),
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
    Row("interface in a bond", "reboot", {"upper-device"}, bonded(), says="bond0 stands on it"),
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
        + Over(
            links={"/dev/mapper/vg-data": "../dm-0", "/sys/class/block/dm-0/slaves/nvme1n1": "../../nvme1n1"},
        ),
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
        "a user that is no module and no process",
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
        + Over(
            {f"{DEVICE}/net/eth9/phys_port_name": "pf0vf1"},
            {"/sys/class/net/eth9": f"../..{DEVICE[4:]}/net/eth9"},
        ),
        says="switchdev, with eth9",
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
        "run this on the host",
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
    Row(
        "a .link renames, netplan refers to the old name",
        "refuse",
        {"name-change"},
        udev() + NAMED_FABRIC + NETPLAN,
        says="50-fabric.yaml:3",
    ),
    Row(
        "the old ifcfg name, NetworkManager",
        "refuse",
        {"name-change"},
        udev()
        + NAMED_FABRIC
        + file(
            "/etc/NetworkManager/system-connections/f.nmconnection", f"[connection]\nid={NIC}\ninterface-name={NIC}"
        ),
        says="f.nmconnection:3",
        consents=["driver_rename_allowed"],
    ),
    Row(
        "ifcfg refers",
        "refuse",
        {"name-change"},
        udev() + NAMED_FABRIC + file(f"/etc/sysconfig/network-scripts/ifcfg-{NIC}", f"DEVICE={NIC}"),
    ),
    Row(
        "networkd refers",
        "refuse",
        {"name-change"},
        udev() + NAMED_FABRIC + file("/etc/systemd/network/f.network", f"[Match]\nName={NIC}"),
    ),
    Row(
        "networkd's pattern fits both",
        "reload",
        set(),
        udev() + NAMED_FABRIC + file("/etc/systemd/network/f.network", "[Match]\nName=en* fab*"),
        RELOAD,
    ),
    Row(
        "a NAD refers",
        "refuse",
        {"name-change"},
        udev() + NAMED_FABRIC,
        {"attachments": [{"name": "jobs/rail0", "master": NIC}]},
        "jobs/rail0",
    ),
    Row(
        "np0 goes away by NVIDIA's rule",
        "refuse",
        {"name-change"},
        udev() + STRIPS + NETPLAN,
        says="comes back as enp59s0 ",
    ),
    Row(
        "np0 comes with the new driver",
        "refuse",
        {"name-change"},
        old_style_netdev()
        + udev("enp59s0", index=9)
        + file("/etc/network/interfaces.d/up", "# enp59s0 of old\niface enp59s0 inet manual"),
        INSTALL | {"port_names": True},
        "comes back as enp59s0np0 (/usr/lib/systemd/network/99-default.link names by path), and "
        "/etc/network/interfaces.d/up:2 refers",
    ),
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
    wanted = dict(row.wanted)
    attachments, port_names = wanted.pop("attachments", []), wanted.pop("port_names", None)
    risk = read(tree, facts, attachments, port_names=port_names)
    decision = decide(facts, risk, wanted)
    text = " ".join([decision.summary, *map(str, decision.reasons), *decision.steps, *decision.notes])
    assert decision.verdict == row.verdict, text
    assert {reason.code for reason in decision.reasons} == row.codes, text
    assert row.says in text
    assert decision.consents == row.consents or not row.consents
    for reason in decision.reasons:
        assert all((reason.object, reason.wanted, reason.seen, reason.next_step)), reason


def lay_over(over, target):
    texts = {path: (content + "\n" if content else "").encode() for path, content in over.files.items()}
    for path, content in {**texts, **{path: base64.b64decode(data) for path, data in over.binary.items()}}.items():
        host = target / path.lstrip("/")
        host.parent.mkdir(parents=True, exist_ok=True)
        host.write_bytes(content)
    for path, goal in over.links.items():
        host = target / path.lstrip("/")
        host.parent.mkdir(parents=True, exist_ok=True)
        host.unlink(missing_ok=True)
        host.symlink_to(goal)


def test_the_table_is_as_wide_as_promised():
    assert len(ROWS) >= 40
    assert {row.verdict for row in ROWS} == {"nothing", "reload", "reboot", "refuse"}
