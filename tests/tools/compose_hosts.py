"""Composed nodes: each row of tests/fixtures/machines.yml as the files that kernel and packages would show.

Paths and links follow the kernel's sources (drivers/infiniband/core/sysfs.c, drivers/pci/pci-sysfs.c,
net/core/net-sysfs.c, each driver's attributes), values come from the sources in a row's `from`. Nothing is random.
Each method of Node in a row's `parts` adds one part of a machine.
"""

import base64
import hashlib
import ipaddress
import lzma
import os
import pathlib
import struct
import uuid
from functools import cache

import yaml

TABLE = pathlib.Path(__file__).resolve().parents[1] / "fixtures/machines.yml"
VIRTUAL = "/sys/devices/virtual"
ROUTES = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max open files            1048576              1048576              files     \n\
Max locked memory         {0:<20} {0:<20} bytes     """


@cache
def table() -> dict:
    """The table; every scalar is text, as in a file of sysfs."""
    return yaml.load(TABLE.read_text(), Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))


def names() -> list[str]:
    return list(table()["machines"])


def compose(name: str, **changes) -> dict:
    """The node of that name in the form of tests/fixtures/README.md. changes: of its row in the table."""
    return Node(name, **{**table()["machines"][name], **changes}).fixture()


def eui64(mac: str) -> str:
    """Interface identifier of a MAC, as four groups (RFC 4291)."""
    octets = [int(octet, 16) for octet in mac.split(":")]
    return grouped(bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]]).hex())


def mlx5_guid(mac: str) -> str:
    """Node GUID, derived from the base MAC like in mlx5 firmware."""
    return grouped((mac[:8] + "0300" + mac[8:]).replace(":", ""))


def grouped(digits: str) -> str:
    return ":".join(digits[i : i + 4] for i in range(0, len(digits), 4))


def gid_table(rows: list[dict]) -> list[tuple]:
    """(index, GID, type, netdev): a row has one `gid`, or the MAC and address of a RoCE netdev, v1 before v2."""
    found = []
    for row in rows:
        if "gid" in row:
            found.append((0, row["gid"], "IB/RoCE v1", row.get("netdev")))
            continue
        gids = [f"fe80:0000:0000:0000:{eui64(row['mac'])}"]
        if row.get("cidr"):
            gids.append(grouped(bytes(10).hex() + "ffff" + ipaddress.ip_interface(row["cidr"]).ip.packed.hex()))
        pairs = [(gid, kind) for gid in gids for kind in row.get("kinds", ("IB/RoCE v1", "RoCE v2"))]
        found += [(index, *pair, row["netdev"]) for index, pair in enumerate(pairs)]
    return found


def digest(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


def kernel_module(fields: dict, order: str = "<", build_id: bytes = b"") -> bytes:
    """The smallest ELF file with a .modinfo section and, on request, a note with a build id."""
    info = b"".join(f"{key}={value}\0".encode() for key, value in fields.items())
    strings = b"\0.shstrtab\0.modinfo\0.note.gnu.build-id\0"
    parts = {b".shstrtab": strings, b".modinfo": info, **({b".note.gnu.build-id": build_id} if build_id else {})}
    table = 64 + sum(map(len, parts.values()))
    header = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + b"\x01" + bytes(9)
    header += struct.pack(order + "HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, len(parts) + 1, 1)
    sections, offset = bytes(64), 64
    for name, content in parts.items():
        sections += struct.pack(order + "IIQQQQIIQQ", strings.index(name), 1, 0, 0, offset, len(content), 0, 0, 1, 0)
        offset += len(content)
    return header + b"".join(parts.values()) + sections


class Node:
    """One machine under construction."""

    def __init__(self, name, *, about, parts, system="ubuntu-22.04", management="", **row):
        self.name, self.system = name, system
        self.kernel, self.arch = row.get("kernel", "6.8.0-60-generic"), row.get("arch", "x86_64")
        self.debian_like = not system.startswith(("rocky", "amzn"))
        self.head = {"name": name, "about": about}
        self.head["provenance"] = {"kind": "composed", "from": [*row.get("from", ()), *table()["from"]]}
        self.files, self.links, self.errors, self.binary, self.mtimes = {}, {}, {}, {}, {}
        self.directories = ["/etc/modules-load.d", "/etc/modprobe.d", "/usr/lib/modprobe.d", "/usr/lib/modules-load.d"]
        self.seams = {"addresses": {"lo": ["127.0.0.1/8"]}, "machine": self.arch, "modinfo": {}, "rpm": None}
        self.devices, self.netdevs, self.gateways, self.inet6 = {}, {}, [], []
        self.counts = {"uverbs": 0, "umad": 0, "issm": 0, "group": 10}
        self.boot(row.get("cmdline", ""))
        self.netdev("lo", VIRTUAL, "00:00:00:00:00:00", mtu="65536", state="unknown", type="772")
        if management != "none":
            self.management()
        for part in parts:
            for kind, options in part.items():
                getattr(self, kind)(**options)
        self.modules(**row.get("modules", table()["default_modules"]))
        if row.get("netns_mode", "Y"):
            self.file("/sys/module/ib_core/parameters/netns_mode", row.get("netns_mode", "Y"))
        self.close(row.get("packages", table()["default_packages"]))

    def fixture(self):
        sections = ("seams", "links", "files", "binary", "errors", "mtimes", "directories")
        return {**self.head, "modes": {}, **{name: getattr(self, name) for name in sections}}

    # Plain pieces.

    def put(self, folder, **attributes):
        self.files |= {f"{folder}/{name}": str(text) for name, text in attributes.items() if text is not None}

    def file(self, path, text):
        self.files[path] = text.rstrip("\n")

    def link(self, path, target):
        """A relative link, like in sysfs."""
        self.links[path] = os.path.relpath(target, os.path.dirname(path)) if target.startswith("/") else target

    def boot(self, cmdline):
        kernel, identity = self.kernel, digest(self.name)
        major = tuple(int(part) for part in kernel.split(".")[:2])
        self.put("/proc/sys/kernel", osrelease=kernel, hostname="node", arch=self.arch if major >= (6, 1) else None)
        boot_id = uuid.UUID(f"{identity[:12]}4{identity[13:16]}8{identity[17:]}")
        self.put("/proc/sys/kernel/random", boot_id=boot_id)
        self.file("/etc/machine-id", digest(identity))
        self.file("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=/dev/nvme0n1p2 ro {cmdline}".strip())
        self.file("/usr/lib/os-release", table()["systems"][self.system])
        self.link("/etc/os-release", "../usr/lib/os-release")
        for folder in ("lib", "bin", "sbin"):
            self.link(f"/{folder}", f"usr/{folder}")
        self.put("/proc/1", mountinfo="25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw")
        self.process("1", "systemd", "/sbin/init", "init.scope")
        self.put("/proc/1", environ="HOME=/\0TERM=linux\0")
        if self.debian_like:
            self.file("/usr/sbin/update-initramfs", "#!/bin/sh")
        else:
            self.file("/usr/bin/dracut", "#!/bin/bash")
        image = f"/boot/initrd.img-{kernel}" if self.debian_like else f"/boot/initramfs-{kernel}.img"
        self.file(image, "")
        self.mtimes[image] = 1748736000
        self.file("/boot/initramfs-5.0.img", "")  # of a kernel that was removed

    # PCI.

    def pci(
        self, at, vendor, device, type, below=None, numa="0", cpus=None, driver=None, speed=None, width=None,
        max_width=None, subsystem=None, sriov=None, group=True,
    ):  # fmt: skip
        """A PCI function below the bridge at `below`, or on the root bus; returns its folder."""
        if below and below not in self.devices:
            self.bridge(below, numa=numa)
        folder = f"{self.devices[below] if below else f'/sys/devices/pci{at[:7]}'}/{at}"
        self.devices[at] = folder
        self.put(folder, vendor=vendor, device=device, numa_node=numa, local_cpulist=cpus, **{"class": type})
        self.put(folder, current_link_speed=speed, max_link_speed=speed, current_link_width=width)
        self.put(folder, max_link_width=max_width or width, subsystem_device=subsystem)
        self.put(folder, subsystem_vendor=vendor if subsystem else None)
        if sriov:
            self.put(folder, sriov_totalvfs=sriov[0], sriov_numvfs=sriov[1])
        if driver:
            self.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")
            self.link(f"/sys/bus/pci/drivers/{driver}/{at}", folder)
        if group is True and not type.startswith("0x0604"):
            iommu_group = f"/sys/kernel/iommu_groups/{self.counts['group']}"
            self.link(f"{folder}/iommu_group", iommu_group)
            self.directories.append(iommu_group)
            self.counts["group"] += 1
        self.link(f"/sys/bus/pci/devices/{at}", folder)
        return folder

    def bridge(self, at, device="0x352a", vendor="0x8086", **options):
        """A root port (not below anything), or an upstream or downstream port of a switch."""
        self.pci(at, vendor, device, "0x060400", driver="pcieport", **options)

    def switch(self, of, at, numa, ports):
        """A PCIe switch below its own root port, with a GPU or an InfiniBand card behind each of its ports."""
        kind, first = table()["switches"][of], int(at[5:7], 16)
        where, upstream = {"numa": numa, "cpus": kind["cpus"][int(numa)]}, f"0000:{first + 1:02x}:00.0"
        self.bridge(at, **where, **kind["root"])
        self.bridge(upstream, kind["device"], "0x1000", below=at, **where)
        for slot, port in enumerate(ports):
            downstream = f"0000:{first + 2:02x}:{slot:02x}.0"
            self.bridge(downstream, kind["device"], "0x1000", below=upstream, **where)
            if "gpu" in port:
                self.gpu(port["gpu"], below=downstream, **where, **kind["gpu"])
                continue
            if "roce" in port:
                self.roce_card(port["roce"], int(port["number"]), kind["mac"], below=downstream, **kind["hca"], **where)
                continue
            number = self.counts["uverbs"]
            card = {
                "mac": kind["mac"].format(number),
                "lid": hex(int(kind["lid"], 16) + number),
                **kind["hca"],
                **where,
            }
            self.infiniband(f"mlx5_{number}", port["hca"], netdev=port["netdev"], below=downstream, **card)

    def roce_card(self, slot, number, mac, name, **options):
        """A card with two functions of one RoCE port each, up and with an address."""
        mac = mac.format(number)
        for port in range(2):
            index = 2 * number + port
            own = {"mac": f"{mac[:-1]}{port}", "netdev": f"rdma{index}", "port": f"p{port}", "system_guid": mac}
            cidr = f"192.168.{index}.5/24"
            self.roce(at=f"{slot}.{port}", hca=f"{name}{index}", cidr=cidr, **own, **options)

    def data_direct(self, nic, segment, numa):
        """A ConnectX-8's function for direct access beside a GPU, behind a switch of their PCI segment; the VPD of both
        functions of the NIC has the same mark."""
        places = ("00:00", "01:00", "02:01", "02:00", "03:00", "06:00")
        root, up, port, beside, at, gpu = (f"{segment}:{place}.0" for place in places)
        self.bridge(root, device="0x22b1", vendor="0x10de", numa=numa)
        for switch, above in ((up, root), (port, up), (beside, up)):
            self.bridge(switch, device="0x197c", vendor="0x15b3", below=above, numa=numa)
        self.pci(at, "0x15b3", "0x2100", "0x080100", below=port, driver="mlx5_data_direct", numa=numa)
        self.gpu(gpu, "NVIDIA GB300", "0x31c2", below=beside, numa=numa)
        mark = digest(nic).encode()
        content = b"\x90" + struct.pack("<H", len(mark) + 3) + b"V3" + bytes([len(mark)]) + mark + b"\x78"
        for function in (nic, at):
            self.binary[f"{self.devices[function]}/vpd"] = base64.b64encode(content).decode()

    def card(self, at, model, infiniband=False, cpus="0-31", **options):
        row = table()["cards"][model]
        known = {key: row[key] for key in ("device", "subsystem", "speed", "width")}
        known |= {"vendor": row.get("vendor", "0x15b3"), "driver": row.get("driver", "mlx5_core"), "cpus": cpus}
        return self.pci(at, type="0x020700" if infiniband else "0x020000", **{**known, **options})

    def gpu(self, at, model, device, speed="32.0 GT/s PCIe", vendor="0x10de", **where):
        known = {"width": "16", "subsystem": "0x16c1", "speed": speed}
        if vendor == "0x1002":
            self.pci(at, vendor, device, "0x120000", driver="amdgpu", **known, **where)
            return
        self.pci(at, vendor, device, "0x030200", driver="nvidia", **known, **where)
        self.put(f"/proc/driver/nvidia/gpus/{at}", information=f"Model: \t\t {model}\nBus Type: \t PCIe")

    # Network.

    def nic(self, at, netdev, mac, cidr, gateway, rate="1000", mtu="1500", **options):
        """A plain Ethernet port with the default route, so that the HCAs are free for rails."""
        self.pci(at, type="0x020000", **options)
        self.netdev(netdev, self.devices[at], mac, speed=rate, cidr=cidr, gateway=gateway, mtu=mtu)

    def management(self):
        igb = {"device": "0x1533", "subsystem": "0x1533", "driver": "igb", "speed": "2.5 GT/s PCIe", "width": "1"}
        address = {"cidr": "192.0.2.11/24", "gateway": "192.0.2.1"}
        self.nic("0000:02:00.0", "eno1", "3c:ec:ef:30:00:01", vendor="0x8086", cpus="0-31", **igb, **address)

    def netdev(
        self, name, at, mac, mtu="1500", state="up", speed=None, port=None, type="1", dev_port="0", cidr=None,
        master=None, gateway=None, **attributes,
    ):  # fmt: skip
        """A network device of the PCI function or below the folder `at`; 20 octets of a MAC are an IPoIB address."""
        device = self.devices.get(at, at)
        virtual, folder, index = device.startswith(VIRTUAL), f"{device}/net/{name}", len(self.netdevs) + 1
        self.netdevs[name] = folder
        up = state in ("up", "unknown")
        self.put(folder, address=mac, mtu=mtu, operstate=state, type=type, ifindex=index, dev_id="0x0")
        self.put(folder, dev_port=dev_port, flags="0x1003" if up else "0x1002", phys_port_name=port, **attributes)
        if up or master:
            self.put(folder, carrier="1" if up else "0")
        else:  # reading carrier of an interface that is administratively down fails
            self.errors[f"{folder}/carrier"] = "EINVAL"
        self.put(folder, speed=speed or (None if virtual else "-1"))
        if port is None and "/pci" in device:
            self.errors[f"{folder}/phys_port_name"] = "EOPNOTSUPP"
        if not virtual:
            self.link(f"{folder}/device", device)
        if master:
            for link in (f"{folder}/master", f"{folder}/upper_{master}"):
                self.link(link, self.netdevs[master])
            self.link(f"{self.netdevs[master]}/lower_{name}", folder)
        self.link(f"/sys/class/net/{name}", folder)
        if cidr:
            self.seams["addresses"].setdefault(name, []).append(cidr)
        if gateway:
            self.gateways.append((name, gateway))
        if up and name != "lo" and type == "1":
            local = eui64(mac).replace(":", "")
            self.inet6.append(f"fe80000000000000{local} {index:02x} 40 20 80 {name:>8}")

    # RDMA.

    def hca(
        self, hca, at, guid, ports, model=None, node_type="1: CA", system_guid=None, mad=True, describe=None, verbs="",
        **attributes,
    ):  # fmt: skip
        """An HCA of the PCI function or below the folder `at`; software ones are below /sys/devices/virtual."""
        device = self.devices.get(at, at)
        virtual, folder = device.startswith(VIRTUAL), f"{device}/infiniband/{hca}"
        if model:
            known = table()["cards"][model]
            attributes |= {"fw_ver": known["fw_ver"], "board_id": known["psid"], "hca_type": known["type"]}
            attributes["hw_rev"] = "0"
        self.put(folder, node_type=node_type, node_guid=guid, sys_image_guid=system_guid or guid)
        self.put(folder, node_desc=describe or f"node {hca}", **{"fw_ver": "", **attributes})
        self.link(f"/sys/class/infiniband/{hca}", folder)
        if not virtual:
            self.link(f"{folder}/device", device)
        for number, port in enumerate(ports, 1):
            self.port(f"{folder}/ports/{number}", **port)
            kinds = ("umad", "issm") if port.get("layer") == "InfiniBand" else ("umad",)
            for kind in kinds if mad is True else ():
                self.character_device("infiniband_mad", kind, device, ibdev=hca, port=number)
        if verbs != "none":
            self.character_device("infiniband_verbs", "uverbs", device, ibdev=hca, abi_version=2 if virtual else 1)

    def character_device(self, subsystem, kind, device, **attributes):
        number = self.counts[kind]
        self.counts[kind] += 1
        folder = f"{device}/{subsystem}/{kind}{number}"
        self.put(folder, dev="231:" + str({"uverbs": 192, "umad": 0, "issm": 64}[kind] + number), **attributes)
        if not device.startswith(VIRTUAL):
            self.link(f"{folder}/device", device)
        self.link(f"/sys/class/{subsystem}/{kind}{number}", folder)

    def port(
        self, folder, rate, layer="Ethernet", state="4: ACTIVE", phys="5: LinkUp", lid="0x0", sm_lid="0x0", gids=(),
        slots="16",
    ):  # fmt: skip
        self.put(folder, state=state, phys_state=phys, rate=table()["rates"][rate], link_layer=layer)
        self.put(folder, lid=lid, sm_lid=sm_lid)
        self.put(f"{folder}/pkeys", **{"0": "0xffff"})
        used = {index: entry for index, *entry in gid_table(gids)}
        for index in {*range(int(slots)), *used}:
            gid, kind, netdev = used.get(index, (grouped(bytes(16).hex()), None, None))
            self.put(f"{folder}/gids", **{str(index): gid})
            for name, value in (("types", kind), ("ndevs", netdev)):
                if value:
                    self.put(f"{folder}/gid_attrs/{name}", **{str(index): value})
                else:
                    self.errors[f"{folder}/gid_attrs/{name}/{index}"] = "EINVAL"

    def roce(
        self, model, mac, netdev, hca="mlx5_0", at="0000:3b:00.0", below="0000:3a:00.0", folder=None, rate="100",
        cidr=None, down=False, slots="16", gids=None, system_guid=None, numa="0", **options,
    ):  # fmt: skip
        """A function of a ConnectX card with one Ethernet port: its netdev and its HCA."""
        if not folder:
            of_card = {key: options.pop(key) for key in ("cpus", "width", "max_width", "sriov") if key in options}
            self.card(at, model, below=below, numa=numa, **of_card)
        link = {"state": "down"} if down else {"speed": f"{rate}000"}
        self.netdev(netdev, folder or at, mac, cidr=cidr, **link, **options)
        # mlx5 answers 4X QDR for a port without link (mlx5_query_port_roce).
        port = {"rate": "40", "state": "1: DOWN", "phys": "3: Disabled"} if down else {"rate": rate}
        gids = [{"mac": mac, "netdev": netdev, "cidr": cidr}] if gids is None else gids
        system = {"system_guid": mlx5_guid(system_guid or mac)}
        self.hca(hca, folder or at, mlx5_guid(mac), [{**port, "gids": gids, "slots": slots}], model, **system)

    def infiniband(
        self, hca="mlx5_0", at="0000:3b:00.0", *, model, mac, netdev, lid, rate="400", cidr=None, below="0000:3a:00.0",
        system_guid=None, **of_card,
    ):  # fmt: skip
        """A function of a ConnectX card with one InfiniBand port and its IPoIB interface."""
        self.card(at, model, infiniband=True, below=below, **of_card)
        guid = mlx5_guid(mac)
        self.ipoib(netdev, at, guid, cidr=cidr)
        port = {"rate": rate, "layer": "InfiniBand", "slots": "8", "lid": lid}
        gids = [{"gid": f"fe80:0000:0000:0000:{guid}"}]
        system = mlx5_guid(system_guid) if system_guid else None
        self.hca(hca, at, guid, [{**port, "sm_lid": "0x1", "gids": gids}], model, system_guid=system)

    def ipoib(self, netdev, at, guid, prefix="00:00:10:29", pkey="0xffff", **options):
        address = f"{prefix}:fe:80:00:00:00:00:00:00:{bytes.fromhex(guid.replace(':', '')).hex(':')}"
        self.netdev(netdev, at, address, mtu="2044", type="32", mode="datagram", pkey=pkey, **options)

    def virtual_function(self, at, of, number, **options):
        """A VF of the PF `of`: with an HCA if it has a name, else bound to vfio-pci."""
        if "hca" in options:
            self.roce(at=at, model="vf", **options)
        else:
            self.card(at, "vf", driver="vfio-pci", **options)
        self.link(f"{self.devices[at]}/physfn", self.devices[of])
        self.link(f"{self.devices[of]}/virtfn{number}", self.devices[at])

    def sub_function(self, of, number, **options):
        folder = f"{self.devices[of]}/mlx5_core.sf.{number}"
        self.link(f"{folder}/driver", "/sys/bus/auxiliary/drivers/mlx5_core.sf")
        self.link(f"/sys/bus/auxiliary/devices/mlx5_core.sf.{number}", folder)
        self.roce(folder=folder, **options)

    # Modules, packages, services.

    def modules(self, loaded, available=None, ofed=None, disk_ofed=None, versions=None, suffix=""):
        """Loaded modules and those on disk, all known ones if `available` is empty. ofed: version of the MLNX_OFED or
        DOCA build that is loaded; disk_ofed: the one on disk, if it differs."""
        loaded, available = self.expand(loaded), self.expand(available or ())
        disk, versions = disk_ofed or ofed, versions or {}
        absent = {"mlx_compat", "nvidia", "nvidia_peermem"} - {*loaded}
        on_disk = [*loaded, *available] if available else [name for name in table()["modules"] if name not in absent]
        base, dependencies = f"/usr/lib/modules/{self.kernel}", []
        for name in on_disk:
            place, needs = self.module(name, disk)
            wanted = " ".join(self.module(need, disk)[0] + suffix for need in needs)
            dependencies.append(f"{place}{suffix}: {wanted}")
            if name in table()["read_modules"]:
                self.module_file(f"{base}/{place}{suffix}", name, needs, disk, versions.get(name))
        self.put(base, **{"modules.dep": "\n".join(sorted(dependencies)), "modules.builtin": ""})
        for name in loaded:
            users = [user for user in loaded if name in self.module(user, ofed)[1]]
            self.live(name, users, self.module_fields(name, ofed, versions.get(name)))

    def live(self, name, users, fields):
        folder = f"/sys/module/{name}"
        # Debian builds without MODULE_SRCVERSION_ALL: only modules with a version carry one.
        known = {key: fields.get(key) for key in ("version", "srcversion")}
        self.put(folder, initstate="live", refcnt=len(users), **known)
        self.directories.append(f"{folder}/holders")
        for user in users:
            self.link(f"{folder}/holders/{user}", f"/sys/module/{user}")

    @staticmethod
    def expand(names):
        """A name of the table's `groups` stands for its modules."""
        return [name for group in names for name in table()["groups"].get(group, [group])]

    @staticmethod
    def replaced(name, ofed):
        """Whether MLNX_OFED or DOCA brings its own build of a module."""
        return bool(ofed) and name in (*table()["replaced_by_ofed"], "mlx_compat")

    def module(self, name, ofed):
        """The path of a module below /lib/modules/VERSION, and its dependencies."""
        place, *needs = table()["modules"][name]
        if self.replaced(name, ofed) and name != "mlx_compat":
            return f"updates/dkms/{os.path.basename(place)}", [*needs, "mlx_compat"]
        return place, needs

    def module_fields(self, name, ofed, version=None):
        version = ofed if self.replaced(name, ofed) else version
        fields = {"version": version} if version else {}
        fields["license"] = "NVIDIA" if name.startswith("nvidia") else "Dual BSD/GPL"
        if self.system != "debian-12" or version:
            fields["srcversion"] = digest(f"{name} {version or self.kernel}")[:23].upper()
        return fields

    def module_file(self, path, name, needs, ofed, version):
        fields = self.module_fields(name, ofed, version)
        fields |= {"depends": ",".join(needs), "name": name, "vermagic": f"{self.kernel} SMP preempt mod_unload"}
        if path.endswith(".zst"):
            # The reader asks modinfo for these; the bytes themselves are never read.
            self.file(path, "")
            self.seams["modinfo"][path.replace("/usr/lib/", "/lib/", 1)] = {"filename": path, **fields}
            return
        content = kernel_module(fields)
        if path.endswith(".xz"):
            content = lzma.compress(content, check=lzma.CHECK_CRC32)
        self.binary[path] = base64.b64encode(content).decode()

    def process(self, pid, name, command, unit, net="4026531840"):
        command = command.replace(" ", "\0") + "\0"
        stat = f"{pid} ({name}) S 1 {pid} {pid} 0 -1"
        self.put(f"/proc/{pid}", comm=name, cmdline=command, stat=stat, cgroup=f"0::/{unit}")
        self.link(f"/proc/{pid}/ns/net", f"net:[{net}]")

    def service(self, name, pid, command, memlock="8388608"):
        unit = f"/{'etc' if name == 'k3s' else 'usr/lib'}/systemd/system/{name}.service"
        self.file(unit, table()["units"][name])
        self.link(f"/etc/systemd/system/multi-user.target.wants/{name}.service", unit)
        self.process(pid, name, command, f"system.slice/{name}.service")
        self.put(f"/sys/fs/cgroup/system.slice/{name}.service", **{"cgroup.procs": pid})
        self.put(f"/proc/{pid}", limits=LIMITS.format(memlock))

    def close(self, packages):
        """Files that depend on all parts: NUMA nodes, routes, packages."""
        last = max((int(text) for path, text in self.files.items() if path.endswith("/numa_node")), default=0)
        self.put("/sys/devices/system/node", online=f"0-{last}" if last > 0 else "0")
        rows = [(name, "00000000", kernel_hex(gateway), "0003", "00000000") for name, gateway in self.gateways]
        for name, addresses in self.seams["addresses"].items():
            for network in (ipaddress.ip_interface(cidr).network for cidr in addresses if name != "lo"):
                rows.append((name, kernel_hex(network[0]), "00000000", "0001", kernel_hex(network.netmask)))
        lines = [f"{name}\t{to}\t{via}\t{flags}\t0\t0\t100\t{mask}\t0\t0\t0" for name, to, via, flags, mask in rows]
        self.put("/proc/net", route="\n".join([ROUTES, *lines]), if_inet6="\n".join(self.inet6), ipv6_route="")
        packages = sorted(packages.items())
        if not self.debian_like:
            self.file("/var/lib/rpm/rpmdb.sqlite", "")
            self.seams["rpm"] = "".join(f"{name} {version}\n" for name, version in packages)
            return
        status = f"Status: install ok installed\nArchitecture: {'arm64' if self.arch == 'aarch64' else 'amd64'}"
        blocks = (f"Package: {name}\n{status}\nVersion: {version}" for name, version in packages)
        self.file("/var/lib/dpkg/status", "\n\n".join(blocks))


def kernel_hex(address):
    """An IPv4 address as /proc/net/route prints it: host byte order, so reversed here."""
    return ipaddress.ip_address(str(address)).packed[::-1].hex().upper()
