"""Overlays of a captured node for tests: access over the HCA, a disk behind the stack, pods, names, Secure Boot."""

import base64
from dataclasses import dataclass, field

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
    """Files and links that are laid over a node."""

    files: dict = field(default_factory=dict)
    links: dict = field(default_factory=dict)
    binary: dict = field(default_factory=dict)

    def __add__(self, other):
        return Over(self.files | other.files, self.links | other.links, self.binary | other.binary)


def file(path, content="x"):
    return Over({path: content})


def module(name, refcount, *holds):
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


PINNED = file("/run/systemd/network/10-fabric.link", f"[Match]\nMACAddress=a0:88:c2:b0:00:00\n[Link]\nName={NIC}")
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


def newer_kernel(module_path, release=NEWER):
    base = f"/usr/lib/modules/{release}"
    return Over({f"/boot/vmlinuz-{one}": "" for one in (KERNEL, release)} | {f"{base}/modules.dep": f"{module_path}:"})


def bonded():
    return Over(links={f"{NET}/upper_bond0": "../bond0", f"{NET}/master": "../bond0"})


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
