"""The cables: a user network for SSH, and UDP on loopback between the nodes, which either side may leave and rejoin."""

import socket

from . import cpio, ssh
from .settings import CABLES, NICS, LabError, Settings

RAILS = list(CABLES)[1:]
GPU_NIC = RAILS[0]
# With LAB_GPU: a PCIe switch with this NIC and a GPU's double. QEMU's downstream ports lack ACS: root ports play them.
SWITCH = (
    f"x3130-upstream,id=switch,bus=port-{GPU_NIC}",
    f"pcie-root-port,id=switch-{GPU_NIC},bus=switch,chassis={len(NICS)},addr=0",
    f"pcie-root-port,id=switch-gpu,bus=switch,chassis={len(NICS) + 1},addr=1",
    "ati-vga,bus=switch-gpu,romfile=",
)
# The node's address for the mirror on this machine's loopback; the user network lets it reach nothing else.
MIRROR = "10.0.2.100"


def mac(number: int, nic: str) -> str:
    return f"52:54:00:4c:0{number}:0{NICS.index(nic)}"


def arguments(settings: Settings, number: int) -> list[str]:
    """eth0 and eth1 sit on the root bus; eth2, eth3 and all others are each behind a host bridge."""
    mirror = f"guestfwd=tcp:{MIRROR}:443-cmd:socat STDIO TCP4:127.0.0.1:{settings.mirror_port}"
    ssh_in = f"hostfwd=tcp:127.0.0.1:{settings.ssh_port(number)}-:22"
    found = [
        "-netdev", f"user,id=net-eth0,restrict=on,ipv6=off,{ssh_in},{mirror}",
        "-device", f"virtio-net-pci,id=eth0,netdev=net-eth0,mac={mac(number, 'eth0')},bus=pcie.0,romfile=",
    ]  # fmt: skip
    for place, nics in enumerate((["eth2"], ["eth3"], RAILS[2:])):
        bridge = ("pxb-pcie", f"id=pxb{place}", f"bus_nr={64 + 64 * place}", f"numa_node={place % 2}", "bus=pcie.0")
        found += ["-device", ",".join(bridge)]
        for nic in nics:
            port = ("pcie-root-port", f"id=port-{nic}", f"bus=pxb{place}", f"chassis={CABLES[nic]}")
            found += ["-device", ",".join(port)]
    for device in SWITCH if settings.gpu else ():
        found += ["-device", device]
    for nic, cable in CABLES.items():
        here, there = settings.cable_ports(cable, number)
        end = "type=inet", "host=127.0.0.1"
        ends = [
            f"{side}.{item}" for side, port in (("local", here), ("remote", there)) for item in (*end, f"port={port}")
        ]
        bus = "pcie.0" if nic == "eth1" else f"port-{nic}"
        bus = f"switch-{nic},ats=on" if settings.gpu and nic == GPU_NIC else bus
        found += [
            "-netdev", ",".join(["dgram", f"id=net-{nic}", *ends]),
            "-device", f"virtio-net-pci,id={nic},netdev=net-{nic},mac={mac(number, nic)},bus={bus},romfile=",
        ]  # fmt: skip
    return found


def require_free_ports(settings: Settings, name: str, number: int) -> None:
    """All of a node's ports at once; QEMU itself would stop at the first without reporting its node."""
    wanted = [("TCP", socket.SOCK_STREAM, settings.ssh_port(number))]
    wanted += [("UDP", socket.SOCK_DGRAM, settings.cable_ports(cable, number)[0]) for cable in CABLES.values()]
    taken = []
    for protocol, kind, port in wanted:
        with socket.socket(socket.AF_INET, kind) as probe:
            if kind == socket.SOCK_STREAM:  # connections of the node's last run may still be in TIME_WAIT
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                taken.append(f"{protocol} {port} ({error.strerror})")
    if taken:
        raise LabError(f"{name}: ports on 127.0.0.1", "free ports for SSH and cables", ", ".join(taken),
                       "see what uses them with `ss -ltunp`, or choose others: export LAB_PORT_BASE=…")  # fmt: skip


def node_archive(settings: Settings, name: str, number: int) -> bytes:
    archive = cpio.Archive()
    archive.folder("node/etc")
    for path, (data, mode) in ssh.node_files(settings, name, number).items():
        archive.file(f"node/{path}", data, mode)
    return archive.bytes()
