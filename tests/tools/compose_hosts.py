"""Writes the composed nodes of tests/fixtures/hosts from the descriptions at the end of this file.

    compose_hosts.py [FOLDER]

A composed node is what the kernel would show on a machine that was not available: paths and link structure follow the
kernel's sources (drivers/infiniband/core/sysfs.c, drivers/pci/pci-sysfs.c, net/core/net-sysfs.c, each driver's own
attributes), values come from the sources that each fixture names under `provenance`. Nothing is random, so writing
again gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
import struct
import sys
import textwrap
import zlib

from ansible_collections.gpufabric.rdma.plugins.filter.fixture_text import fixture_text
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.capture import fold, holes

HOSTS = pathlib.Path(__file__).resolve().parents[1] / "fixtures/hosts"
KERNEL_SYSFS = "layout: kernel sources, drivers/infiniband/core/sysfs.c, drivers/pci/pci-sysfs.c, net/core/net-sysfs.c"
DEVICE_IDS = "PCI and HCA types: the PCI ID database; the mlx5, mlx4, hfi1, irdma and efa drivers of Linux 6.x"
CAPTURED_RXE = "attributes of soft-RoCE: captured on Debian 12, kernel 6.1.0-56-amd64"
ZERO_GID = ":".join(["0000"] * 8)

OS_RELEASE = {
    "ubuntu-22.04": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nNAME="Ubuntu"\nVERSION_ID="22.04"\nID=ubuntu\nID_LIKE=debian',
    "ubuntu-24.04": 'PRETTY_NAME="Ubuntu 24.04.2 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian',
    "debian-12": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian',
    "rocky-9": 'NAME="Rocky Linux"\nVERSION="9.4 (Blue Onyx)"\nID="rocky"\nID_LIKE="rhel centos fedora"\n'
    'VERSION_ID="9.4"\nPRETTY_NAME="Rocky Linux 9.4 (Blue Onyx)"',
    "amzn-2023": 'NAME="Amazon Linux"\nVERSION="2023"\nID="amzn"\nID_LIKE="fedora"\nVERSION_ID="2023"\n'
    'PRETTY_NAME="Amazon Linux 2023.6.20250303"',
}
DEBIAN_LIKE = ("ubuntu-22.04", "ubuntu-24.04", "debian-12")

CORE = "kernel/drivers/infiniband/core"
HARDWARE = "kernel/drivers/infiniband/hw"
ETHERNET = "kernel/drivers/net/ethernet"
# Module: where distributions keep its file, and what it depends on.
MODULES = {
    "ib_core": (f"{CORE}/ib_core.ko", ()),
    "ib_cm": (f"{CORE}/ib_cm.ko", ("ib_core",)),
    "iw_cm": (f"{CORE}/iw_cm.ko", ("ib_core",)),
    "ib_umad": (f"{CORE}/ib_umad.ko", ("ib_core",)),
    "ib_uverbs": (f"{CORE}/ib_uverbs.ko", ("ib_core",)),
    "rdma_cm": (f"{CORE}/rdma_cm.ko", ("iw_cm", "ib_cm", "ib_core")),
    "rdma_ucm": (f"{CORE}/rdma_ucm.ko", ("rdma_cm", "ib_uverbs", "ib_core")),
    "ib_ipoib": ("kernel/drivers/infiniband/ulp/ipoib/ib_ipoib.ko", ("ib_cm", "ib_core")),
    "mlx5_core": (f"{ETHERNET}/mellanox/mlx5/core/mlx5_core.ko", ()),
    "mlx5_ib": (f"{HARDWARE}/mlx5/mlx5_ib.ko", ("ib_uverbs", "ib_core", "mlx5_core")),
    "mlx4_core": (f"{ETHERNET}/mellanox/mlx4/mlx4_core.ko", ()),
    "mlx4_en": (f"{ETHERNET}/mellanox/mlx4/mlx4_en.ko", ("mlx4_core",)),
    "mlx4_ib": (f"{HARDWARE}/mlx4/mlx4_ib.ko", ("ib_uverbs", "mlx4_core", "ib_core")),
    "rdmavt": ("kernel/drivers/infiniband/sw/rdmavt/rdmavt.ko", ("ib_uverbs", "ib_core")),
    "hfi1": (f"{HARDWARE}/hfi1/hfi1.ko", ("rdmavt", "ib_uverbs", "ib_core")),
    "ice": (f"{ETHERNET}/intel/ice/ice.ko", ()),
    "irdma": (f"{HARDWARE}/irdma/irdma.ko", ("ice", "ib_uverbs", "ib_core")),
    "efa": (f"{HARDWARE}/efa/efa.ko", ("ib_uverbs", "ib_core")),
    "rdma_rxe": ("kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko", ("ib_uverbs", "ib_core")),
    "siw": ("kernel/drivers/infiniband/sw/siw/siw.ko", ("iw_cm", "ib_uverbs", "ib_core")),
    "mlx_compat": ("updates/dkms/mlx_compat.ko", ()),
    "nvidia": ("updates/dkms/nvidia.ko", ()),
    "nvidia_peermem": ("updates/dkms/nvidia-peermem.ko", ("nvidia", "ib_uverbs")),
}
VERBS = ("ib_core", "ib_cm", "iw_cm", "ib_umad", "ib_uverbs", "rdma_cm", "rdma_ucm")
MLX5 = (*VERBS, "mlx5_core", "mlx5_ib")
# MLNX_OFED and DOCA replace these by their own build.
OFED_MODULES = (*VERBS, "ib_ipoib", "mlx5_core", "mlx5_ib")
# Modules whose file on disk the facts read; the others are only in modules.dep.
ON_DISK = ("ib_core", "mlx5_core", "mlx5_ib", "mlx4_core", "mlx4_ib", "mlx_compat", "nvidia", "nvidia_peermem")

# model: device, subsystem, hca_type, psid, firmware, link speed, link width
CARDS = {
    "cx5": ("0x1017", "0x0008", "MT4119", "MT_0000000008", "16.35.3006", "8.0 GT/s PCIe", "16"),
    "cx6": ("0x101b", "0x0007", "MT4123", "MT_0000000223", "20.39.2048", "16.0 GT/s PCIe", "16"),
    "cx6dx": ("0x101d", "0x0083", "MT4125", "MT_0000000359", "22.39.2048", "16.0 GT/s PCIe", "16"),
    "cx7": ("0x1021", "0x0041", "MT4129", "MT_0000000838", "28.40.1000", "32.0 GT/s PCIe", "16"),
    "vf": ("0x101e", "0x0041", "MT4126", "MT_0000000838", "28.40.1000", "32.0 GT/s PCIe", "16"),
}
RATES = {
    10: "10 Gb/sec (4X SDR)",
    25: "25 Gb/sec (1X EDR)",
    40: "40 Gb/sec (4X QDR)",
    100: "100 Gb/sec (4X EDR)",
    200: "200 Gb/sec (4X HDR)",
    400: "400 Gb/sec (4X NDR)",
}


def eui64(mac: str) -> str:
    """Interface identifier of a MAC, as four groups (RFC 4291)."""
    octets = [int(octet, 16) for octet in mac.split(":")]
    octets = [octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]]
    return ":".join(f"{octets[i]:02x}{octets[i + 1]:02x}" for i in range(0, 8, 2))


def mlx5_guid(mac: str, function: str = "03:00") -> str:
    """Node GUID as mlx5 firmware makes it from the base MAC."""
    text = (mac[:8] + ":" + function + mac[8:]).replace(":", "")
    return ":".join(text[i : i + 4] for i in range(0, 16, 4))


def link_local_gid(mac: str) -> str:
    return f"fe80:0000:0000:0000:{eui64(mac)}"


def mapped_gid(address: str) -> str:
    octets = [int(octet) for octet in address.partition("/")[0].split(".")]
    return "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)


def roce_gids(mac: str, netdev: str, address: str | None = None) -> list:
    """The table of a RoCE port: each address once for RoCE v1 and once for v2, in this order."""
    gids = [link_local_gid(mac)] + ([mapped_gid(address)] if address else [])
    kinds = [(gid, kind) for gid in gids for kind in ("IB/RoCE v1", "RoCE v2")]
    return [(index, gid, kind, netdev) for index, (gid, kind) in enumerate(kinds)]


def srcversion(*seed: str) -> str:
    """24 hex digits as modpost makes them, from what names the build."""
    return hashlib.md5(" ".join(seed).encode()).hexdigest()[:23].upper()


def kernel_module(machine: int, fields: dict) -> bytes:
    """The smallest ELF file that holds a .modinfo section."""
    info = b"".join(f"{key}={value}\0".encode() for key, value in fields.items())
    names = b"\0.modinfo\0.shstrtab\0"
    header = struct.pack(
        "<4sBBBB8xHHIQQQIHHHHHH",
        b"\x7fELF",
        2,
        1,
        1,
        0,
        1,
        machine,
        1,
        0,
        0,
        64 + len(info) + len(names),
        0,
        64,
        0,
        0,
        64,
        3,
        2,
    )
    sections = struct.pack("<IIQQQQIIQQ", *[0] * 10)
    sections += struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, 64, len(info), 0, 0, 1, 0)
    sections += struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, 64 + len(info), len(names), 0, 0, 1, 0)
    return header + info + names + sections


class Node:
    """One machine under construction; every method adds what the kernel or a package would have created."""

    def __init__(
        self, name, about, sources, *, system="ubuntu-22.04", kernel="6.8.0-60-generic", arch="x86_64", cmdline=""
    ):
        self.name, self.kernel, self.arch, self.system = name, kernel, arch, system
        self.head = {"name": name, "about": about, "provenance": {"kind": "composed", "from": list(sources)}}
        self.files, self.links, self.errors, self.binary, self.mtimes = {}, {}, {}, {}, {}
        self.repeat, self.directories = [], []
        self.seams = {"addresses": {"lo": ["127.0.0.1/8"]}, "machine": arch, "modinfo": {}, "rpm": None}
        self.devices, self.netdevs, self.loaded, self.packages = {}, {}, {}, {}
        self.counts = {"uverbs": 0, "umad": 0, "issm": 0, "group": 10, "gpu": 0}
        self.routes, self.routes6, self.processes = [], [], {}
        self.boot(cmdline)
        self.netdev("lo", "/sys/devices/virtual", "00:00:00:00:00:00", mtu=65536, state="unknown", kind=772)

    # Plain pieces.

    def put(self, folder, **attributes):
        for name, content in attributes.items():
            if content is not None:
                self.files[f"{folder}/{name}"] = str(content)

    def link(self, path, target):
        """A relative link, as sysfs makes them."""
        self.links[path] = os.path.relpath(target, os.path.dirname(path)) if target.startswith("/") else target

    def boot(self, cmdline):
        kernel, major = self.kernel, tuple(int(part) for part in self.kernel.split(".")[:2])
        self.put("/proc/sys/kernel", osrelease=kernel, hostname="node", arch=self.arch if major >= (6, 1) else None)
        # One boot id and machine id a fixture, of the form the kernel and systemd give them.
        digest = hashlib.md5(self.name.encode()).hexdigest()
        self.files["/proc/sys/kernel/random/boot_id"] = (
            f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-8{digest[17:20]}-{digest[20:]}"
        )
        self.files["/etc/machine-id"] = hashlib.md5(digest.encode()).hexdigest()
        self.files["/proc/cmdline"] = f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=/dev/nvme0n1p2 ro {cmdline}".strip()
        self.files["/usr/lib/os-release"] = OS_RELEASE[self.system]
        self.links["/etc/os-release"] = "../usr/lib/os-release"
        for folder in ("lib", "bin", "sbin"):
            self.links[f"/{folder}"] = f"usr/{folder}"
        self.directories += ["/etc/modules-load.d", "/etc/modprobe.d", "/usr/lib/modprobe.d", "/usr/lib/modules-load.d"]
        self.files["/proc/1/mountinfo"] = "25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw"
        self.process(1, "systemd", "/sbin/init", "init.scope")
        self.put("/proc/1", environ="HOME=/\0TERM=linux\0")
        if self.system in DEBIAN_LIKE:
            self.files["/usr/sbin/update-initramfs"] = "#!/bin/sh"
            image = f"/boot/initrd.img-{kernel}"
        else:
            self.files["/usr/bin/dracut"] = "#!/bin/bash"
            image = f"/boot/initramfs-{kernel}.img"
        self.files[image] = ""
        self.mtimes[image] = 1748736000

    # PCI.

    def pci(
        self,
        address,
        parent=None,
        *,
        vendor,
        device,
        kind,
        numa=0,
        cpus=None,
        driver=None,
        speed=None,
        width=None,
        max_speed=None,
        max_width=None,
        subsystem=None,
        subvendor=None,
        sriov=None,
        group=True,
    ):
        """A PCI function below the bridge at `parent`, or on the root bus; returns its folder."""
        domain, bus, _function = address.split(":")
        folder = f"{self.devices[parent] if parent else f'/sys/devices/pci{domain}:{bus}'}/{address}"
        self.devices[address] = folder
        self.put(folder, vendor=vendor, device=device, **{"class": kind})
        self.put(folder, numa_node=numa, local_cpulist=cpus, current_link_speed=speed, current_link_width=width)
        self.put(folder, max_link_speed=max_speed or speed, max_link_width=max_width or width)
        self.put(folder, subsystem_vendor=subvendor or (vendor if subsystem else None), subsystem_device=subsystem)
        if sriov:
            self.put(folder, sriov_totalvfs=sriov[0], sriov_numvfs=sriov[1])
        if driver:
            self.bind(address, driver)
        if group and not kind.startswith("0x0604"):
            self.link(f"{folder}/iommu_group", f"/sys/kernel/iommu_groups/{self.counts['group']}")
            self.directories.append(f"/sys/kernel/iommu_groups/{self.counts['group']}")
            self.counts["group"] += 1
        self.link(f"/sys/bus/pci/devices/{address}", folder)
        return folder

    def bind(self, address, driver):
        self.link(f"{self.devices[address]}/driver", f"/sys/bus/pci/drivers/{driver}")
        self.link(f"/sys/bus/pci/drivers/{driver}/{address}", self.devices[address])

    def bridge(self, address, parent=None, numa=0, device="0x352a", vendor="0x8086", cpus=None):
        """A root port (no parent), or an upstream or downstream port of a switch."""
        return self.pci(
            address, parent, vendor=vendor, device=device, kind="0x060400", numa=numa, cpus=cpus, driver="pcieport"
        )

    def card(self, address, model, parent=None, *, infiniband=False, driver="mlx5_core", **options):
        """A function of a ConnectX card."""
        device, subsystem, _type, _psid, _firmware, speed, width = CARDS[model]
        options = {"speed": speed, "width": width, "subsystem": subsystem, **options}
        kind = "0x020700" if infiniband else "0x020000"
        return self.pci(address, parent, vendor="0x15b3", device=device, kind=kind, driver=driver, **options)

    def gpu(self, address, parent=None, *, model, device, version="535.183.06", speed="32.0 GT/s PCIe", **options):
        folder = self.pci(
            address,
            parent,
            vendor="0x10de",
            device=device,
            kind="0x030200",
            driver="nvidia",
            speed=speed,
            width="16",
            subsystem="0x16c1",
            **options,
        )
        uuid = hashlib.md5(f"{self.name} {address}".encode()).hexdigest()
        self.files[f"/proc/driver/nvidia/gpus/{address}/information"] = (
            f"Model: \t\t {model}\nIRQ:   \t\t {300 + self.counts['gpu']}\n"
            f"GPU UUID: \t GPU-{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}\n"
            f"Video BIOS: \t 96.00.74.00.01\nBus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
            f"Bus Location: \t {address}\nDevice Minor: \t {self.counts['gpu']}\n"
            f"GPU Firmware: \t {version}\nGPU Excluded:\t No"
        )
        self.counts["gpu"] += 1
        return folder

    # Network.

    def netdev(
        self,
        name,
        device,
        mac,
        *,
        mtu=1500,
        state="up",
        speed=None,
        port=None,
        kind=1,
        dev_port=0,
        cidr=None,
        master=None,
        gateway=None,
        **attributes,
    ):
        """A network device below `device`. A mac of 20 octets is an IPoIB hardware address."""
        folder = f"{device}/net/{name}"
        index = len(self.netdevs) + 1
        self.netdevs[name] = folder
        up = state in ("up", "unknown")
        self.put(
            folder, address=mac, mtu=mtu, operstate=state, type=kind, ifindex=index, dev_id="0x0", dev_port=dev_port
        )
        self.put(folder, flags="0x1003" if up else "0x1002", phys_port_name=port, **attributes)
        if up or master:  # reading carrier of an interface that is administratively down fails with EINVAL
            self.put(folder, carrier=1 if up else 0)
        else:
            self.errors[f"{folder}/carrier"] = "EINVAL"
        if speed:
            self.put(folder, speed=speed)
        elif not device.startswith("/sys/devices/virtual"):
            self.put(folder, speed=-1)
        if port is None and "/pci" in device:
            self.errors[f"{folder}/phys_port_name"] = "EOPNOTSUPP"
        if not device.startswith("/sys/devices/virtual"):
            self.link(f"{folder}/device", device)
        if master:
            self.link(f"{folder}/master", self.netdevs[master])
            self.stack(upper=master, lower=name)
        self.link(f"/sys/class/net/{name}", folder)
        if cidr:
            self.seams["addresses"].setdefault(name, []).append(cidr)
        if gateway:
            self.routes.append((name, "0.0.0.0/0", gateway))
        if up and name != "lo" and kind == 1:
            local = eui64(mac).replace(":", "")
            self.routes6.append(f"fe80000000000000{local} {index:02x} 40 20 80 {name:>8}")
        return folder

    def stack(self, upper, lower):
        """The links between a bond or VLAN and its lower interfaces."""
        self.link(f"{self.netdevs[upper]}/lower_{lower}", self.netdevs[lower])
        self.link(f"{self.netdevs[lower]}/upper_{upper}", self.netdevs[upper])

    # RDMA.

    def hca(
        self,
        name,
        device,
        *,
        guid,
        ports,
        firmware="",
        psid=None,
        hca_type=None,
        hw_rev=None,
        node_type="1: CA",
        system_guid=None,
        parent=None,
        verbs=True,
        mad=True,
        describe=None,
    ):
        """An HCA below the folder of its device; software ones live below /sys/devices/virtual."""
        virtual = device.startswith("/sys/devices/virtual")
        folder = f"{device}/infiniband/{name}"
        self.put(
            folder,
            node_type=node_type,
            node_guid=guid,
            sys_image_guid=system_guid or guid,
            fw_ver=firmware,
            node_desc=describe or f"node {name}",
            hca_type=hca_type,
            hw_rev=hw_rev,
            board_id=psid,
            parent=parent,
        )
        self.link(f"{folder}/subsystem", "/sys/class/infiniband")
        self.link(f"/sys/class/infiniband/{name}", folder)
        if not virtual:
            self.link(f"{folder}/device", device)
        for number, port in enumerate(ports, 1):
            self.port(f"{folder}/ports/{number}", **port)
            if mad:
                kinds = ("umad", "issm") if port.get("layer") == "InfiniBand" else ("umad",)
                for kind in kinds:
                    self.character_device("infiniband_mad", kind, device, ibdev=name, port=number)
        if verbs:
            self.character_device("infiniband_verbs", "uverbs", device, ibdev=name, abi_version=1 if not virtual else 2)
        return folder

    def character_device(self, subsystem, kind, device, **attributes):
        number = self.counts[kind]
        self.counts[kind] += 1
        minor = {"uverbs": 192, "umad": 0, "issm": 64}[kind] + number
        folder = f"{device}/{subsystem}/{kind}{number}"
        self.put(folder, dev=f"231:{minor}", **attributes)
        if not device.startswith("/sys/devices/virtual"):
            self.link(f"{folder}/device", device)
        self.link(f"/sys/class/{subsystem}/{kind}{number}", folder)

    def port(
        self,
        folder,
        *,
        rate=None,
        layer="Ethernet",
        state="4: ACTIVE",
        phys="5: LinkUp",
        lid="0x0",
        sm_lid="0x0",
        gids=(),
        slots=16,
        rate_text=None,
        cap_mask="0x04010000",
    ):
        self.put(
            folder,
            state=state,
            phys_state=phys,
            rate=rate_text or RATES[rate],
            link_layer=layer,
            lid=lid,
            sm_lid=sm_lid,
            lid_mask_count=0,
            sm_sl=0,
            cap_mask=cap_mask,
        )
        self.files[f"{folder}/pkeys/0"] = "0xffff"
        used = {index for index, *_rest in gids}
        for index, gid, kind, netdev in gids:
            self.files[f"{folder}/gids/{index}"] = gid
            self.files[f"{folder}/gid_attrs/types/{index}"] = kind
            if netdev:
                self.files[f"{folder}/gid_attrs/ndevs/{index}"] = netdev
            else:
                self.errors[f"{folder}/gid_attrs/ndevs/{index}"] = "EINVAL"
        for start, end in holes(used, slots):
            span = {"from": start, "to": end}
            self.repeat.append({"path": f"{folder}/gids/{{n}}", **span, "content": ZERO_GID})
            self.repeat.append({"path": f"{folder}/gid_attrs/types/{{n}}", **span, "error": "EINVAL"})
            self.repeat.append({"path": f"{folder}/gid_attrs/ndevs/{{n}}", **span, "error": "EINVAL"})

    def roce(
        self,
        name,
        address,
        model,
        mac,
        netdev,
        *,
        active=True,
        rate=100,
        cidr=None,
        slots=16,
        device=None,
        gids=None,
        guid=None,
        system_guid=None,
        **netdev_options,
    ):
        """A function of a ConnectX card with one Ethernet port: its netdev and its HCA."""
        device = device or self.devices[address]
        _device, _subsystem, hca_type, psid, firmware, _speed, _width = CARDS[model]
        self.netdev(
            netdev,
            device,
            mac,
            state="up" if active else "down",
            speed=rate * 1000 if active else None,
            cidr=cidr,
            **netdev_options,
        )
        # mlx5 answers 4X QDR for a port without link (mlx5_query_port_roce).
        live = {"rate": rate} if active else {"rate": 40, "state": "1: DOWN", "phys": "3: Disabled"}
        table = gids if gids is not None else roce_gids(mac, netdev, cidr)
        return self.hca(
            name,
            device,
            guid=guid or mlx5_guid(mac),
            system_guid=system_guid,
            firmware=firmware,
            psid=psid,
            hca_type=hca_type,
            hw_rev=0,
            ports=[{**live, "gids": table, "slots": slots}],
        )

    def infiniband(self, name, address, model, mac, netdev, *, rate=400, lid, active=True, device=None, **options):
        """A function of a ConnectX card with one InfiniBand port and its IPoIB interface."""
        device = device or self.devices[address]
        _device, _subsystem, hca_type, psid, firmware, _speed, _width = CARDS[model]
        guid = mlx5_guid(mac)
        self.netdev(
            netdev,
            device,
            self.ipoib_address(guid),
            mtu=2044,
            kind=32,
            state="up" if active else "down",
            mode="datagram",
            pkey="0xffff",
            umcast=0,
            **options,
        )
        live = {"lid": lid, "sm_lid": "0x1"} if active else {"state": "1: DOWN", "phys": "2: Polling", "lid": "0xffff"}
        gids = [(0, f"fe80:0000:0000:0000:{guid}", "IB/RoCE v1", None)]
        return self.hca(
            name,
            device,
            guid=guid,
            firmware=firmware,
            psid=psid,
            hca_type=hca_type,
            hw_rev=0,
            ports=[
                {
                    "rate": rate if active else 10,
                    "layer": "InfiniBand",
                    "gids": gids,
                    "slots": 8,
                    "cap_mask": "0xa741e848",
                    **live,
                }
            ],
        )

    @staticmethod
    def ipoib_address(guid, prefix="00:00:10:29"):
        octets = guid.replace(":", "")
        pairs = ":".join(octets[i : i + 2] for i in range(0, 16, 2))
        return f"{prefix}:fe:80:00:00:00:00:00:00:{pairs}"

    # Modules, packages, services.

    def modules(
        self, *loaded, available=(), builtin=(), ofed=None, disk_ofed=None, versions=None, sizes=None, suffix=""
    ):
        """Loaded modules and those in /lib/modules. ofed: version of the MLNX_OFED or DOCA build that is loaded;
        disk_ofed: the one on disk, where it differs."""
        disk = disk_ofed or ofed
        known = dict.fromkeys([*MODULES] if not available else [*loaded, *available])
        versions, sizes = versions or {}, sizes or {}
        base = f"/usr/lib/modules/{self.kernel}"
        dependencies = []
        for name in known:
            place, needs = MODULES[name]
            if name in ("mlx_compat", "nvidia", "nvidia_peermem") and name not in (*loaded, *available):
                continue
            if disk and name in OFED_MODULES:
                place = f"updates/dkms/{os.path.basename(place)}"
                needs = (*needs, "mlx_compat")
            dependencies.append(f"{place}{suffix}: " + " ".join(self.place(need, disk) + suffix for need in needs))
            if name in ON_DISK:
                self.module_file(f"{base}/{place}{suffix}", name, needs, disk, versions.get(name))
        self.files[f"{base}/modules.dep"] = "\n".join(sorted(dependencies))
        self.files[f"{base}/modules.builtin"] = "\n".join(builtin)
        users = {name: [] for name in loaded}
        for name in loaded:
            for need in (*MODULES[name][1], *(("mlx_compat",) if ofed and name in OFED_MODULES else ())):
                if need in users:
                    users[need].append(name)
        lines = []
        for name in sorted(loaded):
            size = (sizes or {}).get(name, 16384 * (2 + zlib.crc32(name.encode()) % 24))
            holders = "".join(f"{user}," for user in users[name]) or "-"
            taint = (
                "(POE)"
                if name in ("nvidia", "nvidia_peermem")
                else "(OE)"
                if ofed and name in (*OFED_MODULES, "mlx_compat")
                else ""
            )
            lines.append(f"{name} {size} {len(users[name])} {holders} Live 0x0000000000000000 {taint}".rstrip())
            folder = f"/sys/module/{name}"
            fields = self.module_fields(name, ofed, versions.get(name))
            self.put(folder, initstate="live", refcnt=len(users[name]), version=fields.get("version"))
            # Debian builds without MODULE_SRCVERSION_ALL: only modules with a version carry one.
            self.put(folder, srcversion=fields.get("srcversion"))
            self.directories.append(f"{folder}/holders")
            for user in users[name]:
                self.link(f"{folder}/holders/{user}", f"/sys/module/{user}")
        self.files["/proc/modules"] = "\n".join(lines)
        self.loaded = users

    def place(self, name, ofed):
        return (
            f"updates/dkms/{os.path.basename(MODULES[name][0])}" if ofed and name in OFED_MODULES else MODULES[name][0]
        )

    def module_fields(self, name, ofed, version=None):
        fields = {}
        if ofed and name in (*OFED_MODULES, "mlx_compat"):
            fields["version"] = ofed
        elif version:
            fields["version"] = version
        fields["license"] = "NVIDIA" if name in ("nvidia", "nvidia_peermem") else "Dual BSD/GPL"
        if self.system != "debian-12" or "version" in fields:
            fields["srcversion"] = srcversion(name, fields.get("version") or self.kernel)
        return fields

    def module_file(self, path, name, needs, ofed, version):
        fields = {
            **self.module_fields(name, ofed, version),
            "depends": ",".join(needs),
            "name": name,
            "vermagic": f"{self.kernel} SMP preempt mod_unload",
        }
        if path.endswith(".zst"):
            # The reader asks modinfo for these; the bytes themselves are never read.
            self.files[path] = ""
            self.seams["modinfo"][path.replace("/usr/lib/", "/lib/", 1)] = {"filename": path, **fields}
            return
        content = kernel_module(183 if self.arch == "aarch64" else 62, fields)
        if path.endswith(".xz"):
            import lzma

            content = lzma.compress(content, check=lzma.CHECK_CRC32)
        self.binary[path] = base64.b64encode(content).decode()

    def ib_core(self, mode="Y"):
        self.files["/sys/module/ib_core/parameters/netns_mode"] = mode

    def package(self, **packages):
        self.packages.update({name.replace("__", "."): version for name, version in packages.items()})

    def process(self, pid, name, command, unit, net=4026531840, namespaces=True):
        folder = f"/proc/{pid}"
        self.put(
            folder, comm=name, cmdline=command.replace(" ", "\0") + "\0", stat=f"{pid} ({name}) S 1 {pid} {pid} 0 -1"
        )
        self.files[f"{folder}/cgroup"] = f"0::/{unit}"
        if namespaces:
            self.links[f"{folder}/ns/net"] = f"net:[{net}]"

    def service(self, name, unit_text, *, pid=None, command=None, memlock="8388608", drop_ins=None):
        """A systemd service with its unit file, and its process when it runs."""
        path = (
            f"/etc/systemd/system/{name}.service"
            if name.startswith("k3s")
            else f"/usr/lib/systemd/system/{name}.service"
        )
        self.files[path] = textwrap.dedent(unit_text).strip()
        self.link(f"/etc/systemd/system/multi-user.target.wants/{name}.service", path)
        for drop_in, text in (drop_ins or {}).items():
            self.files[f"/etc/systemd/system/{name}.service.d/{drop_in}"] = text
        if pid:
            self.process(pid, name, command or f"/usr/local/bin/{name}", f"system.slice/{name}.service")
            self.files[f"/sys/fs/cgroup/system.slice/{name}.service/cgroup.procs"] = str(pid)
            self.files[f"/proc/{pid}/limits"] = (
                "Limit                     Soft Limit           Hard Limit           Units     \n"
                "Max open files            1048576              1048576              files     \n"
                f"Max locked memory         {memlock:<20} {memlock:<20} bytes     "
            )

    # The file.

    def fixture(self):
        """The finished description, in the folded form that fixtures are kept in."""
        self.finish()
        body = {
            **self.head,
            "seams": self.seams,
            "links": fold(self.links),
            "files": fold(self.files),
            "binary": self.binary,
            "errors": fold(self.errors),
            "mtimes": self.mtimes,
            "directories": sorted(set(self.directories)),
            "repeat": self.repeat,
        }
        return {key: value for key, value in body.items() if value or key in ("seams", "links", "files")}

    def finish(self):
        last = max((int(value) for path, value in self.files.items() if path.endswith("/numa_node")), default=0)
        self.files["/sys/devices/system/node/online"] = f"0-{last}" if last > 0 else "0"
        header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
        rows = [
            f"{name}\t00000000\t{hex_address(gateway)}\t0003\t0\t0\t100\t00000000\t0\t0\t0"
            for name, _net, gateway in self.routes
        ]
        for name, addresses in self.seams["addresses"].items():
            if name != "lo":
                rows += [
                    f"{name}\t{network}\t00000000\t0001\t0\t0\t100\t{mask}\t0\t0\t0"
                    for network, mask in map(hex_network, addresses)
                ]
        self.files["/proc/net/route"] = "\n".join([header, *rows])
        self.files["/proc/net/if_inet6"] = "\n".join(self.routes6)
        self.files["/proc/net/ipv6_route"] = ""
        if self.system in DEBIAN_LIKE:
            architecture = "arm64" if self.arch == "aarch64" else "amd64"
            self.files["/var/lib/dpkg/status"] = "\n\n".join(
                f"Package: {name}\nStatus: install ok installed\nArchitecture: {architecture}\nVersion: {version}"
                for name, version in sorted(self.packages.items())
            )
        else:
            self.files["/var/lib/rpm/rpmdb.sqlite"] = ""
            self.seams["rpm"] = "".join(f"{name} {version}\n" for name, version in sorted(self.packages.items()))


def hex_address(address):
    """An IPv4 address as /proc/net/route prints it: host byte order, so reversed here."""
    return "".join(f"{int(octet):02X}" for octet in reversed(address.split(".")))


def hex_network(cidr):
    address, _slash, length = cidr.partition("/")
    mask = (0xFFFFFFFF << (32 - int(length))) & 0xFFFFFFFF
    value = int.from_bytes(bytes(int(octet) for octet in address.split(".")), "big") & mask
    return value.to_bytes(4, "little").hex().upper(), mask.to_bytes(4, "little").hex().upper()


# The nodes.

K3S_UNIT = """
    [Unit]
    Description=Lightweight Kubernetes
    Wants=network-online.target
    After=network-online.target

    [Install]
    WantedBy=multi-user.target

    [Service]
    Type=notify
    EnvironmentFile=-/etc/systemd/system/k3s.service.env
    KillMode=process
    Delegate=yes
    LimitNOFILE=1048576
    LimitNPROC=infinity
    LimitCORE=infinity
    TasksMax=infinity
    ExecStart=/usr/local/bin/k3s server
"""
CONTAINERD_UNIT = """
    [Unit]
    Description=containerd container runtime
    After=network.target local-fs.target

    [Service]
    ExecStart=/usr/bin/containerd
    Type=notify
    Delegate=yes
    KillMode=process
    LimitNPROC=infinity
    LimitCORE=infinity
    LimitNOFILE=infinity

    [Install]
    WantedBy=multi-user.target
"""
RDMA_CORE = {"rdma-core": "39.0-1", "libibverbs1": "39.0-1", "ibverbs-providers": "39.0-1"}


def gh200_cx7_roce():
    guide = '"Dual-Network Kubernetes Pods with RDMA on NVIDIA GH200: A Hands-On Guide" (its command output)'
    node = Node(
        "gh200-cx7-roce",
        "GH200 with one dual-port ConnectX-7 in RoCE: port 1 carries the default route, port 2 has no cable",
        [
            guide,
            "changed: its public address 66.42.90.253/23 reads 198.51.100.253/23 here, and the gateway is ours",
            "ours: PSID, PCI bridges, GID table, sizes and versions that the output does not show",
            KERNEL_SYSFS,
            DEVICE_IDS,
        ],
        kernel="6.8.0-1050-nvidia-64k",
        arch="aarch64",
    )
    node.bridge("0000:00:00.0", device="0x22b2", vendor="0x10de", cpus="0-71")
    node.bridge("0009:00:00.0", device="0x22b1", vendor="0x10de", cpus="0-71")
    for function, port in ((0, True), (1, False)):
        address = f"0000:01:00.{function}"
        node.card(address, "cx7", "0000:00:00.0", cpus="0-71", sriov=(8, 0))
        mac = f"a0:88:c2:a7:5c:d{4 + function}"
        node.roce(
            f"mlx5_{function}",
            address,
            "cx7",
            mac,
            f"enp1s0f{function}np{function}",
            active=port,
            rate=200,
            slots=256,
            port=f"p{function}",
            cidr="198.51.100.253/23" if port else None,
            gateway="198.51.101.254" if port else None,
            system_guid=mlx5_guid("a0:88:c2:a7:5c:d4"),
            gids=None if port else [],
        )
    node.gpu(
        "0009:01:00.0", "0009:00:00.0", model="NVIDIA GH200 480GB", device="0x2342", version="580.95.05", cpus="0-71"
    )
    node.files["/proc/driver/nvidia/version"] = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs-builder)"
    )
    sizes = {"mlx5_ib": 655360, "ib_uverbs": 327680, "ib_core": 589824, "mlx5_core": 2686976}
    node.modules(
        *MLX5,
        "ib_ipoib",
        "nvidia",
        "nvidia_peermem",
        versions={"nvidia": "580.95.05", "nvidia_peermem": "580.95.05"},
        sizes=sizes,
    )
    node.ib_core("Y")
    node.package(**RDMA_CORE, **{"linux-image-6.8.0-1050-nvidia-64k": "6.8.0-1050.53~22.04.1"})
    node.service("k3s", K3S_UNIT, pid=1893, command="/usr/local/bin/k3s server")
    # Pods run: the RDMA netns mode could not be changed any more.
    node.process(
        4021, "pause", "/pause", "kubepods.slice/kubepods-besteffort.slice/cri-containerd-1f.scope", net=4026532623
    )
    return node


def h100_8x_cx7_ib():
    node = Node(
        "h100-8x-cx7-ib",
        "8 H100 and 8 ConnectX-7 InfiniBand NDR 400, each pair behind its own PCIe switch; DOCA-OFED",
        [
            "GPU and HCA behind one PCIe switch, and their NUMA nodes: ndv5-topo.xml (Azure/azhpc-images, MIT)",
            "ours: bus numbers of a bare-metal machine in place of that file's virtual PCI domains",
            KERNEL_SYSFS,
            DEVICE_IDS,
        ],
        kernel="6.8.0-60-generic",
        cmdline="iommu=pt",
    )
    # (root bus, switch buses follow it, GPU bus, HCA bus) in the order of the topology file, four pairs a NUMA node.
    pairs = [
        ("15", "18", "1b"),
        ("37", "3a", "3d"),
        ("48", "4b", "4e"),
        ("59", "5c", "5f"),
        ("84", "87", "8a"),
        ("a7", "aa", "ad"),
        ("b7", "ba", "bd"),
        ("c7", "ca", "cd"),
    ]
    cpus = ("0-55,112-167", "56-111,168-223")
    for number, (root, hca, gpu) in enumerate(pairs):
        numa = number // 4
        where = {"numa": numa, "cpus": cpus[numa]}
        first = int(root, 16)
        upstream, inner = f"0000:{first + 1:02x}:00.0", f"{first + 2:02x}"
        node.bridge(f"0000:{root}:01.0", **where)
        node.bridge(upstream, f"0000:{root}:01.0", device="0xc030", vendor="0x1000", **where)
        node.bridge(f"0000:{inner}:00.0", upstream, device="0xc030", vendor="0x1000", **where)
        node.bridge(f"0000:{inner}:01.0", upstream, device="0xc030", vendor="0x1000", **where)
        address = f"0000:{hca}:00.0"
        node.card(address, "cx7", f"0000:{inner}:00.0", infiniband=True, sriov=(16, 0), **where)
        node.infiniband(
            f"mlx5_{number}",
            address,
            "cx7",
            f"58:a2:e1:2a:0{number}:d8",
            f"ibp{int(hca, 16)}s0",
            rate=400,
            lid=f"0x{0x40 + number:x}",
        )
        node.gpu(f"0000:{gpu}:00.0", f"0000:{inner}:01.0", model="NVIDIA H100 80GB HBM3", device="0x2330", **where)
    node.bridge("0000:00:1c.0", cpus=cpus[0], device="0x1bb8")
    management = node.pci(
        "0000:02:00.0",
        "0000:00:1c.0",
        vendor="0x8086",
        device="0x1563",
        kind="0x020000",
        cpus=cpus[0],
        driver="ixgbe",
        speed="8.0 GT/s PCIe",
        width="4",
        subsystem="0x0001",
    )
    node.netdev("eno1", management, "3c:ec:ef:10:00:01", speed=10000, cidr="192.0.2.21/24", gateway="192.0.2.1")
    node.modules(
        *MLX5,
        "ib_ipoib",
        "mlx_compat",
        "nvidia",
        "nvidia_peermem",
        ofed="24.10-2.1.8",
        versions={"nvidia": "535.183.06", "nvidia_peermem": "535.183.06"},
    )
    node.ib_core("Y")
    node.files["/proc/driver/nvidia/version"] = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024"
    )
    node.files["/etc/infiniband/openib.conf"] = "ONBOOT=yes\nRDMA_UCM_LOAD=yes\nUMAD_LOAD=yes\nIPOIB_LOAD=yes"
    node.package(
        **{
            "doca-ofed": "2.9.2-0.1.6",
            "mlnx-ofed-kernel-dkms": "24.10.OFED.24.10.2.1.8.1-1",
            "mlnx-ofed-kernel-utils": "24.10.OFED.24.10.2.1.8.1-1",
            "rdma-core": "2410mlnx54-1.2410068",
            "libibverbs1": "2410mlnx54-1.2410068",
            "linux-image-6.8.0-60-generic": "6.8.0-60.63~22.04.1",
        }
    )
    node.service("containerd", CONTAINERD_UNIT, pid=2210, memlock="unlimited")
    return node


def a100_8x_cx6():
    node = Node(
        "a100-8x-cx6",
        "8 A100 and 8 ConnectX-6 InfiniBand HDR 200, two of each behind one PCIe switch, 4 NUMA nodes; inbox driver",
        [
            "GPUs and HCAs behind one PCIe switch, and their NUMA nodes: ndv4-topo.xml (Azure/azhpc-images, MIT)",
            "ours: bus numbers of a bare-metal machine in place of that file's virtual PCI domains",
            KERNEL_SYSFS,
            DEVICE_IDS,
        ],
        kernel="5.15.0-140-generic",
    )
    # In the order of the GPUs' addresses in the topology file: NUMA nodes 1, 0, 3, 2.
    groups = [
        ("00", 1, ("07", "0f"), ("0c", "12")),
        ("40", 0, ("47", "4e"), ("4b", "54")),
        ("80", 3, ("87", "90"), ("8d", "94")),
        ("b0", 2, ("b7", "bd"), ("ba", "cc")),
    ]
    count = 0
    for root, numa, gpus, hcas in groups:
        where = {"numa": numa, "cpus": f"{24 * numa}-{24 * numa + 23}"}
        first = int(root, 16)
        upstream, inner = f"0000:{first + 1:02x}:00.0", f"{first + 2:02x}"
        node.bridge(f"0000:{root}:01.1", device="0x1483", vendor="0x1022", **where)
        node.bridge(upstream, f"0000:{root}:01.1", device="0xc010", vendor="0x1000", **where)
        for slot, bus in enumerate((*gpus, *hcas)):
            port = f"0000:{inner}:{slot:02x}.0"
            node.bridge(port, upstream, device="0xc010", vendor="0x1000", **where)
            address = f"0000:{bus}:00.0"
            if bus in gpus:
                node.gpu(
                    address,
                    port,
                    model="NVIDIA A100-SXM4-40GB",
                    device="0x20b0",
                    version="535.183.06",
                    speed="16.0 GT/s PCIe",
                    **where,
                )
                continue
            node.card(address, "cx6", port, infiniband=True, **where)
            node.infiniband(
                f"mlx5_{count}",
                address,
                "cx6",
                f"0c:42:a1:3a:5{count}:62",
                f"ibs{count + 1}",
                rate=200,
                lid=f"0x{0x80 + count:x}",
            )
            count += 1
    management = node.pci(
        "0000:e1:00.0",
        vendor="0x8086",
        device="0x1533",
        kind="0x020000",
        numa=2,
        cpus="48-71",
        driver="igb",
        speed="2.5 GT/s PCIe",
        width="1",
        subsystem="0x1533",
    )
    node.netdev("enp225s0", management, "3c:ec:ef:20:00:01", speed=1000, cidr="192.0.2.31/24", gateway="192.0.2.1")
    node.modules(*MLX5, "ib_ipoib", "nvidia", available=[], versions={"nvidia": "535.183.06"})
    node.ib_core("Y")
    node.files["/proc/driver/nvidia/version"] = (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.06  Wed Jun 26 06:46:07 UTC 2024"
    )
    node.package(**RDMA_CORE, **{"linux-image-5.15.0-140-generic": "5.15.0-140.150"})
    return node


def small(name, about, *sources, **options):
    return Node(name, about, [*sources, KERNEL_SYSFS, DEVICE_IDS], **options)


def management(node, name="eno1", cidr="192.0.2.11/24", bus="0000:02:00.0"):
    """A plain Ethernet port with the default route, so that the HCAs are free for rails."""
    device = node.pci(
        bus,
        vendor="0x8086",
        device="0x1533",
        kind="0x020000",
        driver="igb",
        speed="2.5 GT/s PCIe",
        width="1",
        subsystem="0x1533",
        cpus="0-31",
    )
    node.netdev(name, device, "3c:ec:ef:30:00:01", speed=1000, cidr=cidr, gateway="192.0.2.1")


def two_cards_cx6dx():
    node = small(
        "two-cards-cx6dx", "Two single-port ConnectX-6 Dx cards in RoCE on two NUMA nodes, jumbo frames, rdma-core only"
    )
    management(node)
    for number, (root, bus, numa) in enumerate(
        (("0000:3a:00.0", "0000:3b:00.0", 0), ("0000:ae:00.0", "0000:af:00.0", 1))
    ):
        node.bridge(root, numa=numa)
        node.card(bus, "cx6dx", root, numa=numa, cpus=f"{32 * numa}-{32 * numa + 31}", width="8", max_width="16")
        node.roce(
            f"mlx5_{number}",
            bus,
            "cx6dx",
            f"b8:ce:f6:10:00:0{number}",
            f"ens{number + 1}np0",
            port="p0",
            mtu=9000,
            cidr=f"10.18.{number}.1/24",
        )
    node.modules(*MLX5)
    node.ib_core()
    node.package(**RDMA_CORE)
    return node


def bond():
    node = small(
        "bond", "Both ports of a ConnectX-6 Dx in an 802.3ad bond: one HCA mlx5_bond_0, none on the second function"
    )
    management(node)
    mac = "b8:ce:f6:20:00:00"
    node.bridge("0000:3a:00.0")
    node.netdev("bond0", "/sys/devices/virtual", mac, speed=200000, cidr="10.18.0.1/24")
    node.files[f"{node.netdevs['bond0']}/bonding/slaves"] = "enp59s0f0np0 enp59s0f1np1"
    node.files[f"{node.netdevs['bond0']}/bonding/mode"] = "802.3ad 4"
    for function in (0, 1):
        address = f"0000:3b:00.{function}"
        node.card(address, "cx6dx", "0000:3a:00.0", cpus="0-31")
        node.netdev(
            f"enp59s0f{function}np{function}",
            node.devices[address],
            mac,
            speed=100000,
            port=f"p{function}",
            master="bond0",
        )
    _device, _subsystem, hca_type, psid, firmware, _speed, _width = CARDS["cx6dx"]
    node.hca(
        "mlx5_bond_0",
        node.devices["0000:3b:00.0"],
        guid=mlx5_guid(mac),
        firmware=firmware,
        psid=psid,
        hca_type=hca_type,
        hw_rev=0,
        ports=[{"rate": 100, "gids": roce_gids(mac, "bond0", "10.18.0.1/24")}],
    )
    node.modules(*MLX5)
    node.ib_core()
    node.package(**RDMA_CORE)
    return node


def vfs():
    node = small("vfs", "ConnectX-7 in RoCE with SR-IOV: one PF, two of eight VFs enabled, one VF bound to vfio-pci")
    management(node)
    node.bridge("0000:3a:00.0")
    pf = node.card("0000:3b:00.0", "cx7", "0000:3a:00.0", cpus="0-31", sriov=(8, 2))
    node.roce(
        "mlx5_0", "0000:3b:00.0", "cx7", "a0:88:c2:30:00:00", "enp59s0f0np0", port="p0", rate=200, cidr="10.18.0.1/24"
    )
    for number in range(2):
        address = f"0000:3b:00.{number + 2}"
        driver = "mlx5_core" if number == 0 else "vfio-pci"
        folder = node.card(address, "vf", "0000:3a:00.0", driver=driver, cpus="0-31")
        node.link(f"{folder}/physfn", pf)
        node.link(f"{pf}/virtfn{number}", folder)
    node.roce("mlx5_1", "0000:3b:00.2", "vf", "0a:11:22:30:00:02", "enp59s0f0v0", rate=200)
    node.modules(*MLX5)
    node.ib_core()
    node.package(**RDMA_CORE)
    return node


def sfs():
    node = small(
        "sfs",
        "ConnectX-6 Dx with two sub-functions on the auxiliary bus, each with an HCA and a netdev of its own",
        kernel="6.8.0-60-generic",
    )
    management(node)
    node.bridge("0000:07:00.0")
    parent = node.card("0000:08:00.0", "cx6dx", "0000:07:00.0", cpus="0-31")
    node.roce("mlx5_0", "0000:08:00.0", "cx6dx", "b8:ce:f6:40:00:00", "enp8s0f0np0", port="p0", cidr="10.18.0.1/24")
    for number, function in ((4, 88), (5, 89)):
        folder = f"{parent}/mlx5_core.sf.{number}"
        node.put(folder, sfnum=function)
        node.link(f"{folder}/driver", "/sys/bus/auxiliary/drivers/mlx5_core.sf")
        node.link(f"/sys/bus/auxiliary/devices/mlx5_core.sf.{number}", folder)
        node.roce(
            f"mlx5_{number - 2}", None, "cx6dx", f"00:00:00:00:{function}:00", f"enp8s0f0s{function}", device=folder
        )
    node.modules(*MLX5)
    node.ib_core()
    node.package(**RDMA_CORE)
    return node


def names_persistent():
    node = small(
        "names-persistent",
        "rdma-core's persistent names: rocep1s0f0 and rocep1s0f1 of a RoCE card beside ibp24s0 of an InfiniBand card",
        "names: 60-rdma-persistent-naming.rules of rdma-core (NAME_FALLBACK)",
        system="rocky-9",
        kernel="5.14.0-427.13.1.el9_4.x86_64",
    )
    management(node)
    node.bridge("0000:00:01.0")
    node.bridge("0000:17:00.0")
    for function in (0, 1):
        node.card(f"0000:01:00.{function}", "cx5", "0000:00:01.0", cpus="0-31")
        node.roce(
            f"rocep1s0f{function}",
            f"0000:01:00.{function}",
            "cx5",
            f"ec:0d:9a:50:00:0{function}",
            f"enp1s0f{function}np{function}",
            port=f"p{function}",
            rate=100,
            cidr=f"10.18.{function}.1/24",
        )
    node.card("0000:18:00.0", "cx6", "0000:17:00.0", infiniband=True, cpus="0-31")
    node.infiniband("ibp24s0", "0000:18:00.0", "cx6", "0c:42:a1:50:00:02", "ibp24s0", rate=200, lid="0x7")
    node.modules(*MLX5, "ib_ipoib", available=("mlx4_core", "mlx4_ib"), suffix=".xz")
    node.ib_core()
    node.package(**{"rdma-core": "48.0-1.el9", "libibverbs": "48.0-1.el9", "kernel-core": "5.14.0-427.13.1.el9_4"})
    return node


def ipoib_children():
    node = small("ipoib-children", "ConnectX-7 InfiniBand with two IPoIB children (partitions) on its interface ib0")
    management(node)
    node.bridge("0000:3a:00.0")
    device = node.card("0000:3b:00.0", "cx7", "0000:3a:00.0", infiniband=True, cpus="0-31")
    mac = "58:a2:e1:60:00:00"
    folder = node.infiniband("mlx5_0", "0000:3b:00.0", "cx7", mac, "ib0", rate=400, lid="0x11", cidr="10.18.60.1/24")
    for index, key in enumerate(("0x8001", "0x8002"), 1):
        node.files[f"{folder}/ports/1/pkeys/{index}"] = key
        node.netdev(
            f"ib0.{key[2:]}",
            device,
            node.ipoib_address(mlx5_guid(mac), f"00:00:11:{40 + index}"),
            mtu=2044,
            kind=32,
            mode="datagram",
            pkey=key,
            parent="ib0",
            umcast=0,
            cidr=f"10.18.6{index}.1/24",
        )
    node.modules(*MLX5, "ib_ipoib")
    node.ib_core()
    node.package(**RDMA_CORE)
    return node


def mlx4_two_ports():
    node = small(
        "mlx4-two-ports",
        "ConnectX-3 Pro: two ports on one PCI function and one HCA, port 1 InfiniBand, port 2 Ethernet",
        system="debian-12",
        kernel="6.1.0-37-amd64",
    )
    management(node)
    node.bridge("0000:03:00.0")
    device = node.pci(
        "0000:04:00.0",
        "0000:03:00.0",
        vendor="0x15b3",
        device="0x1007",
        kind="0x028000",
        driver="mlx4_core",
        speed="8.0 GT/s PCIe",
        width="8",
        subsystem="0x0017",
        cpus="0-15",
    )
    guid, mac = "0002:c903:0070:0000", "00:02:c9:70:00:02"
    port_guid = "0002:c903:0070:0001"
    node.netdev(
        "ibs3", device, node.ipoib_address(port_guid, "a0:00:02:20"), mtu=2044, kind=32, mode="datagram", pkey="0xffff"
    )
    node.netdev("ens3d1", device, mac, speed=40000, dev_port=1, cidr="10.18.0.1/24")
    node.hca(
        "mlx4_0",
        device,
        guid=guid,
        system_guid="0002:c903:0070:0003",
        firmware="2.42.5000",
        psid="MT_1090111019",
        hca_type="MT4103",
        hw_rev=0,
        ports=[
            {
                "rate_text": "56 Gb/sec (4X FDR)",
                "layer": "InfiniBand",
                "lid": "0x5",
                "sm_lid": "0x1",
                "slots": 8,
                "gids": [(0, f"fe80:0000:0000:0000:{port_guid}", "IB/RoCE v1", None)],
            },
            {"rate": 40, "gids": roce_gids(mac, "ens3d1", "10.18.0.1/24")},
        ],
    )
    node.modules(*VERBS, "mlx4_core", "mlx4_en", "mlx4_ib", "ib_ipoib")
    node.ib_core()
    node.package(**{"rdma-core": "44.0-2", "libibverbs1": "44.0-2"})
    return node


def hfi1():
    node = small(
        "hfi1",
        "Omni-Path 100: InfiniBand link layer without hca_type or PSID of the usual form",
        "attributes: drivers/infiniband/hw/hfi1/sysfs.c",
        system="rocky-9",
        kernel="5.14.0-427.13.1.el9_4.x86_64",
    )
    management(node)
    node.bridge("0000:80:02.0", numa=1)
    device = node.pci(
        "0000:82:00.0",
        "0000:80:02.0",
        vendor="0x8086",
        device="0x24f0",
        kind="0x020800",
        numa=1,
        driver="hfi1",
        speed="8.0 GT/s PCIe",
        width="16",
        subsystem="0x24f0",
        cpus="32-63",
    )
    guid = "0011:7501:0170:0000"
    node.netdev(
        "ib0", device, node.ipoib_address(guid, "80:81:00:02"), mtu=2044, kind=32, mode="datagram", pkey="0x8001"
    )
    folder = node.hca(
        "hfi1_0",
        device,
        guid=guid,
        firmware="1.27.0",
        hw_rev=11,
        psid="Intel Omni-Path Host Fabric Interface Adapter 100 Series",
        ports=[
            {
                "rate": 100,
                "layer": "InfiniBand",
                "lid": "0x3",
                "sm_lid": "0x1",
                "slots": 2,
                "cap_mask": "0x00490020",
                "gids": [(0, f"fe80:0000:0000:0000:{guid}", "IB/RoCE v1", None)],
            }
        ],
    )
    node.put(
        folder, boardversion="ChipABI 3.0, ChipRev 7.17, SW Compat 3", serial="0x00700000", nctxts=160, nfreectxts=160
    )
    node.modules(*VERBS, "rdmavt", "hfi1", "ib_ipoib", available=("mlx5_core", "mlx5_ib"), suffix=".xz")
    node.ib_core()
    node.package(**{"rdma-core": "48.0-1.el9", "libpsm2": "11.2.230-1.el9.1", "kernel-core": "5.14.0-427.13.1.el9_4"})
    return node


def irdma():
    node = small(
        "irdma",
        "Intel E810 in RoCE v2 (irdma): no board_id, hca_type or hw_rev; one port up, one down",
        "no board_id: prometheus/node_exporter issue 2769",
        system="debian-12",
        kernel="6.1.0-37-amd64",
    )
    management(node)
    node.bridge("0000:64:00.0")
    for function, active in ((0, True), (1, False)):
        address, netdev = f"0000:65:00.{function}", f"ens6f{function}"
        device = node.pci(
            address,
            "0000:64:00.0",
            vendor="0x8086",
            device="0x1592",
            kind="0x020000",
            driver="ice",
            speed="16.0 GT/s PCIe",
            width="16",
            subsystem="0x0002",
            cpus="0-31",
        )
        mac = f"b4:96:91:80:00:0{function}"
        node.netdev(
            netdev,
            device,
            mac,
            state="up" if active else "down",
            speed=100000 if active else None,
            cidr="10.18.0.1/24" if active else None,
        )
        port = (
            {"rate": 100, "gids": roce_gids(mac, netdev, "10.18.0.1/24")}
            if active
            else {"rate_text": "2.5 Gb/sec (1X SDR)", "state": "1: DOWN", "phys": "3: Disabled"}
        )
        node.hca(f"rocep101s0f{function}", device, guid=eui64(mac), firmware="1.55", ports=[port])
    node.modules(*VERBS, "ice", "irdma")
    node.ib_core()
    node.package(**{"rdma-core": "44.0-2", "libibverbs1": "44.0-2"})
    return node


def efa():
    node = small(
        "efa",
        "Elastic Fabric Adapter: an HCA without netdev, its link layer reads Unknown",
        "link_layer Unknown and zero GUIDs: linux-rdma/rdma-core pull request 884",
        system="amzn-2023",
        kernel="6.1.129-138.220.amzn2023.x86_64",
    )
    device = node.pci(
        "0000:00:05.0",
        vendor="0x1d0f",
        device="0xec20",
        kind="0x020000",
        driver="ena",
        subsystem="0xec20",
        cpus="0-95",
        group=False,
    )
    node.netdev("ens5", device, "02:00:00:90:00:01", mtu=9001, cidr="192.0.2.41/24", gateway="192.0.2.1")
    device = node.pci(
        "0000:00:06.0",
        vendor="0x1d0f",
        device="0xefa1",
        kind="0x020000",
        driver="efa",
        subsystem="0xefa1",
        cpus="0-95",
        group=False,
    )
    gid = "fe80:0000:0000:0000:0090:00ff:fe90:0002"
    node.hca(
        "rdmap0s6",
        device,
        guid="0000:0000:0000:0000",
        firmware="0.0.0.0",
        node_type="7: <unknown>",
        ports=[{"rate": 100, "layer": "Unknown", "slots": 1, "gids": [(0, gid, "IB/RoCE v1", None)]}],
        mad=False,
    )
    node.modules(*(name for name in VERBS if name != "ib_umad"), "efa", available=("ib_umad", "mlx5_core", "mlx5_ib"))
    node.ib_core()
    node.package(**{"rdma-core": "54.0-1.amzn2023", "efa": "2.13.0-1.amzn2023"})
    return node


def rxe_and_siw():
    node = small(
        "rxe-and-siw",
        "Software HCAs only: soft-RoCE on two interfaces and soft-iWARP on one, no PCI device behind them",
        CAPTURED_RXE,
        "siw: drivers/infiniband/sw/siw of Linux 6.1",
        system="debian-12",
        kernel="6.1.0-56-amd64",
    )
    for number, cidr in ((0, "192.0.2.51/24"), (1, "10.18.0.1/24"), (2, "10.18.1.1/24")):
        device = node.pci(
            f"0000:00:0{3 + number}.0",
            vendor="0x1af4",
            device="0x1000",
            kind="0x020000",
            driver="virtio-pci",
            subsystem="0x0001",
            numa=-1,
            cpus="0-1",
            group=False,
        )
        node.netdev(
            f"eth{number}",
            f"{device}/virtio{number}",
            f"52:54:00:00:00:0{number + 1}",
            cidr=cidr,
            gateway="192.0.2.1" if number == 0 else None,
        )
    for number in (0, 1):
        mac, netdev = f"52:54:00:00:00:0{number + 1}", f"eth{number}"
        table = [
            (index, gid, "RoCE v2", netdev)
            for index, gid in enumerate((link_local_gid(mac), mapped_gid(node.seams["addresses"][netdev][0])))
        ]
        guid = eui64(mac)
        node.hca(
            f"rxe{number}",
            "/sys/devices/virtual",
            guid=guid,
            parent=netdev,
            describe=f"node rxe{number}",
            ports=[{"rate_text": "2.5 Gb/sec (1X SDR)", "gids": table, "slots": 1024, "cap_mask": "0x00010000"}],
        )
    mac = "52:54:00:00:00:03"
    gid = "5254:0000:0003:0000:0000:0000:0000:0000"
    node.hca(
        "siw_eth2",
        "/sys/devices/virtual",
        guid=eui64(mac),
        node_type="4: RNIC",
        system_guid="0000:0000:0000:0000",
        mad=False,
        ports=[
            {
                "rate_text": "2.5 Gb/sec (1X SDR)",
                "gids": [(0, gid, "IB/RoCE v1", "eth2")],
                "slots": 1,
                "cap_mask": "0x00090000",
            }
        ],
    )
    node.modules(*VERBS, "rdma_rxe", "siw")
    node.ib_core()
    node.package(**{"rdma-core": "44.0-2", "libibverbs1": "44.0-2"})
    return node


def card_without_mlx5_ib():
    node = small(
        "card-without-mlx5-ib",
        "ConnectX-7 whose mlx5_ib is blacklisted by a file that a driver container left behind",
        "blacklist: blacklist-ofed-modules.conf as the Network Operator's driver container writes it",
        system="ubuntu-24.04",
        kernel="6.8.0-60-generic",
    )
    management(node)
    node.bridge("0000:3a:00.0")
    for function in (0, 1):
        address = f"0000:3b:00.{function}"
        node.card(address, "cx7", "0000:3a:00.0", cpus="0-31")
        node.netdev(
            f"enp59s0f{function}np{function}",
            node.devices[address],
            f"a0:88:c2:70:00:0{function}",
            speed=200000,
            port=f"p{function}",
        )
    node.files["/etc/modprobe.d/blacklist-ofed-modules.conf"] = "\n".join(
        f"blacklist {name}"
        for name in (
            "mlx5_core",
            "mlx5_ib",
            "ib_umad",
            "ib_uverbs",
            "ib_ipoib",
            "rdma_cm",
            "rdma_ucm",
            "ib_core",
            "ib_cm",
        )
    )
    node.modules("mlx5_core", suffix=".zst")
    node.package(
        **{"rdma-core": "50.0-2build2", "libibverbs1": "50.0-2build2", "linux-image-6.8.0-60-generic": "6.8.0-60.63"}
    )
    return node


def card_on_vfio():
    node = small("card-on-vfio", "Two ConnectX-6 Dx: one in RoCE, one given to virtual machines through vfio-pci")
    management(node)
    for number, driver in ((0, "mlx5_core"), (1, "vfio-pci")):
        root = f"0000:{0x3A + 0x10 * number:02x}:00.0"
        node.bridge(root)
        node.card(f"0000:{0x3B + 0x10 * number:02x}:00.0", "cx6dx", root, driver=driver, cpus="0-31")
    node.roce("mlx5_0", "0000:3b:00.0", "cx6dx", "b8:ce:f6:90:00:00", "enp59s0np0", port="p0", cidr="10.18.0.1/24")
    node.modules(*MLX5)
    node.ib_core()
    node.package(**RDMA_CORE)
    return node


def exclusive_netns_foreign_file():
    node = small(
        "exclusive-netns-foreign-file",
        "RDMA netns mode exclusive by the SR-IOV operator's file; pods and a transient unit hold network namespaces",
        "file: pkg/host of k8snetworkplumbingwg/sriov-network-operator (its tests show the content)",
        kernel="6.8.0-60-generic",
    )
    management(node)
    node.bridge("0000:3a:00.0")
    node.card("0000:3b:00.0", "cx6dx", "0000:3a:00.0", cpus="0-31", sriov=(8, 0))
    node.roce("mlx5_0", "0000:3b:00.0", "cx6dx", "b8:ce:f6:a0:00:00", "enp59s0np0", port="p0", cidr="10.18.0.1/24")
    node.files["/etc/modprobe.d/sriov_network_operator_modules_config.conf"] = (
        "# This file is managed by sriov-network-operator do not edit.\noptions ib_core netns_mode=0"
    )
    node.modules(*MLX5)
    node.ib_core("N")
    node.package(**RDMA_CORE)
    node.service("k3s", K3S_UNIT, pid=1200, command="/usr/local/bin/k3s server")
    pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7c1d2e3f.slice/cri-containerd-9a8b.scope"
    node.process(2301, "pause", "/pause", pod, net=4026532500)
    node.process(2344, "coredns", "/coredns -conf /etc/coredns/Corefile", pod, net=4026532500)
    node.process(
        950,
        "systemd-hostnam",
        "/usr/lib/systemd/systemd-hostnamed",
        "system.slice/systemd-hostnamed.service",
        net=4026532710,
    )
    node.files["/proc/1/mountinfo"] += "\n612 25 0:4 net:[4026532800] /run/netns/blue rw shared:310 - nsfs nsfs rw"
    node.links["/proc/self"] = "1"
    node.files["/run/netns/blue"] = ""
    return node


def doca_loaded_differs_from_disk():
    node = small(
        "doca-loaded-differs-from-disk",
        "DOCA-OFED upgraded on disk while the previous build is still loaded (mlx_compat present): a reload is due",
        kernel="6.8.0-60-generic",
    )
    management(node)
    node.bridge("0000:3a:00.0")
    node.card("0000:3b:00.0", "cx7", "0000:3a:00.0", cpus="0-31")
    node.roce(
        "mlx5_0", "0000:3b:00.0", "cx7", "a0:88:c2:b0:00:00", "enp59s0np0", port="p0", rate=400, cidr="10.18.0.1/24"
    )
    node.modules(*MLX5, "mlx_compat", ofed="24.10-1.1.4", disk_ofed="25.04-0.6.0")
    node.ib_core()
    node.package(
        **{
            "doca-ofed": "3.0.0-058000",
            "mlnx-ofed-kernel-dkms": "25.04.OFED.25.04.0.6.0.1-1",
            "mlnx-ofed-kernel-utils": "25.04.OFED.25.04.0.6.0.1-1",
            "rdma-core": "2501mlnx56-1.2504061",
            "linux-image-6.8.0-60-generic": "6.8.0-60.63~22.04.1",
        }
    )
    return node


def netns_gids_256():
    node = small(
        "gids-256",
        "ConnectX-7 in RoCE with a full-size GID table: 256 slots with holes, empty ones answer EINVAL; a VLAN",
    )
    management(node)
    node.bridge("0000:3a:00.0")
    node.card("0000:3b:00.0", "cx7", "0000:3a:00.0", cpus="0-31")
    mac, name = "a0:88:c2:c0:00:00", "enp59s0np0"
    table = roce_gids(mac, name, "10.18.0.1/24")
    # A removed address leaves a hole; a VLAN on top has entries of its own with its own netdev.
    table += [
        (index + 7, gid, kind, f"{name}.100") for index, gid, kind, _netdev in roce_gids(mac, name, "10.18.100.1/24")
    ]
    node.roce(
        "mlx5_0",
        "0000:3b:00.0",
        "cx7",
        mac,
        name,
        port="p0",
        rate=400,
        cidr="10.18.0.1/24",
        gids=table,
        slots=256,
        mtu=4200,
    )
    node.netdev(f"{name}.100", "/sys/devices/virtual", mac, mtu=4200, speed=400000, cidr="10.18.100.1/24")
    node.stack(upper=f"{name}.100", lower=name)
    node.modules(*MLX5)
    node.ib_core()
    node.package(**RDMA_CORE)
    return node


NODES = (
    gh200_cx7_roce,
    h100_8x_cx7_ib,
    a100_8x_cx6,
    two_cards_cx6dx,
    bond,
    vfs,
    sfs,
    names_persistent,
    ipoib_children,
    mlx4_two_ports,
    hfi1,
    irdma,
    efa,
    rxe_and_siw,
    card_without_mlx5_ib,
    card_on_vfio,
    exclusive_netns_foreign_file,
    doca_loaded_differs_from_disk,
    netns_gids_256,
)


def compose():
    """{file name: text} of every composed node."""
    nodes = [describe() for describe in NODES]
    return {f"{node.name}.yml": fixture_text(node.fixture()) for node in nodes}


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HOSTS
    for file, content in compose().items():
        (folder / file).write_text(content)
        print(f"{file}: {len(content) // 1024} KiB")
