"""PCI functions: identity, link, NUMA place, SR-IOV, and which of them are GPUs or Mellanox network cards.

Source: /sys/bus/pci/devices, Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Optional

from . import paths
from .text import hexadecimal, integer, unknown
from .tree import Tree

ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
MELLANOX = "15b3"
NVIDIA = "10de"

# Display controllers and compute accelerators. Other vendors' VGA adapters (a BMC's) do not count as GPUs.
GPU_CLASSES = {
    NVIDIA: ("0x0300", "0x0302"),
    "1002": ("0x0300", "0x0302", "0x0380", "0x1200"),
    "8086": ("0x0380",),
    "1da3": ("0x1200",),
}
NETWORK_CLASS = "0x02"
BRIDGE_CLASS = "0x0604"
_RECOVERY_CLASS = "0x0580"  # a memory controller: a NIC whose firmware does not start
_PASSED_ON = ("pciback", "pci-stub", "uio_pci_generic", "igb_uio")

# Vendor: its devices, by id.
_DEVICES = {
    "15b3": (
        "1003 ConnectX-3, 1004 ConnectX-3 VF, 1007 ConnectX-3 Pro, 1013 ConnectX-4, 1014 ConnectX-4 VF, "
        "1015 ConnectX-4 Lx, 1016 ConnectX-4 Lx VF, 1017 ConnectX-5, 1018 ConnectX-5 VF, 1019 ConnectX-5 Ex, "
        "101a ConnectX-5 Ex VF, 101b ConnectX-6, 101c ConnectX-6 VF, 101d ConnectX-6 Dx, 101e ConnectX VF, "
        "101f ConnectX-6 Lx, 1021 ConnectX-7, 1023 ConnectX-8, 1025 ConnectX-9, a2d2 BlueField, "
        "a2d3 BlueField VF, a2d6 BlueField-2, a2dc BlueField-3, a2df BlueField-4"
    ),
    "1d0f": (
        "efa0 Elastic Fabric Adapter, efa1 Elastic Fabric Adapter 2, efa2 Elastic Fabric Adapter 3, "
        "efa3 Elastic Fabric Adapter 4"
    ),
    "8086": (
        "1591 E810-C backplane, 1592 E810-C QSFP, 1593 E810-C SFP, 159b E810-XXV SFP, 24f0 Omni-Path HFI 100, "
        "24f1 Omni-Path HFI 100"
    ),
    "14e4": "1750 BCM57508, 1760 BCM57608",
    "10de": (
        "1db4 V100 PCIe 16GB, 1db5 V100 SXM2 32GB, 20b0 A100 SXM4 40GB, 20b2 A100 SXM4 80GB, 20b5 A100 PCIe 80GB, "
        "20f1 A100 PCIe 40GB, 2321 H100 NVL, 2330 H100 SXM5 80GB, 2331 H100 PCIe, 2335 H200 SXM 141GB, "
        "2342 GH200, 2348 GH200 144G, 26b5 L40, 26b9 L40S, 27b8 L4, 2901 B200, 2941 GB200, 3182 B300, 31c2 GB300"
    ),
    "1002": "740c MI250X, 740f MI210, 74a1 MI300X, 74a5 MI325X, 75a0 MI350X, 75a3 MI355X",
}
MODELS = {f"{vendor}:{entry[:4]}": entry[5:] for vendor, listed in _DEVICES.items() for entry in listed.split(", ")}
# Functions of this vendor without their own RDMA device: Data Direct is a ConnectX-8's helper, Spectrum a switch.
_NO_NIC = ("2100",)
_NO_DRIVER = ("mlx5_data_direct", "mlxsw", "mlxbf")
_NO_MODEL = "not in the table of models"
_DEEPEST = 8  # bond over VLAN over NIC; more would be a loop


def model(vendor: Optional[str], device: Optional[str]) -> str:
    """Marketing name of a PCI id; for an unknown one its id."""
    return MODELS.get(f"{vendor}:{device}") or unknown(f"{vendor}:{device} is {_NO_MODEL}")


def classes(tree: Tree) -> dict[str, str]:
    """{address: class such as `0x020700`} of every PCI function, in address order."""
    there = sorted(filter(ADDRESS.match, tree.listdir(paths.PCI)), key=order)
    return {address: code for address in there if (code := tree.read(f"{paths.PCI}/{address}/class"))}


def full(address: str) -> str:
    """An address in the kernel's form; people leave the domain out."""
    address = address.lower()
    return f"0000:{address}" if address.count(":") == 1 else address


def order(address: str) -> tuple[int, str]:
    """Sort key of a PCI address; a domain may have more than four digits (VMD, Hyper-V)."""
    return len(address), address


def numbers(address: str) -> list[int]:
    """[segment, bus, device, function]."""
    return [int(part, 16) for part in address.replace(".", ":").split(":")]


def slot(address: str) -> str:
    """The card: an address without its function."""
    return address.rpartition(".")[0]


def kind(tree: Tree, address: str) -> str:
    """`15b3:1021`: vendor and device."""
    base = f"{paths.PCI}/{address}"
    return f"{hexadecimal(tree.read(f'{base}/vendor'))}:{hexadecimal(tree.read(f'{base}/device'))}"


def driver(tree: Tree, address: str) -> Optional[str]:
    """Name of the bound driver; None if none is bound."""
    return tree.target(f"{paths.PCI}/{address}/driver")


def is_card(tree: Tree, address: str, code: str) -> bool:
    """Whether a function is a physical one of a Mellanox NIC, which has an RDMA device once its drivers are loaded."""
    base = f"{paths.PCI}/{address}"
    if not code.startswith((NETWORK_CLASS, _RECOVERY_CLASS)) or tree.read(f"{base}/vendor") != f"0x{MELLANOX}":
        return False
    other = hexadecimal(tree.read(f"{base}/device")) in _NO_NIC or (driver(tree, address) or "").startswith(_NO_DRIVER)
    return not other and not virtual(tree, address)


def virtual(tree: Tree, address: str) -> bool:
    return tree.readlink(f"{paths.PCI}/{address}/physfn") is not None


def passes_on(bound: Optional[str]) -> bool:
    """Whether a driver passes its functions to virtual machines or to user space; some vendors have their own vfio."""
    return bool(bound) and (bound in _PASSED_ON or "vfio" in bound)


def numa_node(tree: Tree, address: str) -> int:
    """NUMA node of a function; -1 if the firmware reports none."""
    return _numa(tree.read(f"{paths.PCI}/{address}/numa_node"))


def above(path: str) -> tuple[Optional[str], list[str]]:
    """(address of the function above a resolved sysfs path, the parts of the path below it); None without one."""
    parts = path.split("/")
    for index in range(len(parts) - 1, -1, -1):
        if ADDRESS.match(parts[index]):
            return parts[index], parts[index + 1 :]
    return None, []


def below(tree: Tree, netdev: Optional[str]) -> Optional[str]:
    """PCI function below an interface, through virtio, VLANs and bonds; None for a virtual one, or if they differ."""
    found = set(_functions(tree, netdev, _DEEPEST)) if netdev else set()
    if len(found) == 1:
        return found.pop()
    # Members of one bond on one card are functions of it: the first represents them.
    return min(found, key=order) if len({slot(address) for address in found}) == 1 else None


def _functions(tree: Tree, netdev: str, deeper: int) -> Iterator[str]:
    address = above(tree.realpath(f"{paths.NET}/{netdev}/device"))[0]
    if address:
        yield address
    elif deeper:
        for entry in tree.listdir(f"{paths.NET}/{netdev}"):
            if entry.startswith("lower_"):
                yield from _functions(tree, entry[len("lower_") :], deeper - 1)


def _numa(text: Optional[str]) -> int:
    node = integer(text)
    return -1 if node is None else node


_IDENTITY = ("vendor", "device", "numa_node", "local_cpulist")
_FUNCTION = (
    *_IDENTITY, "subsystem_vendor", "subsystem_device", "current_link_speed", "current_link_width", "max_link_speed",
    "max_link_width", "sriov_totalvfs", "sriov_numvfs",
)  # fmt: skip


def function(tree: Tree, address: str) -> dict[str, Any]:
    """A PCI function as the facts show it; fields that vanish or do not exist are None.

    Speeds in GT/s, widths in lanes; vendor and device ids in hexadecimal without 0x. `sriov` is {0, 0} if the
    function has no SR-IOV.
    """
    base = f"{paths.PCI}/{address}"
    value = tree.attributes(base, _FUNCTION)
    vendor, device = hexadecimal(value["vendor"]), hexadecimal(value["device"])
    physfn = tree.target(f"{base}/physfn")
    named = model(vendor, device)
    if physfn:
        # One id serves the VFs of every recent ConnectX; the PF knows which card it is.
        named = MODELS.get(f"{vendor}:{hexadecimal(tree.read(f'{paths.PCI}/{physfn}/device'))}", named)
    enabled = integer(value["sriov_numvfs"]) or 0
    names = tree.listdir(base) if enabled else []
    virtual = [tree.target(f"{base}/{name}") for name in names if name.startswith("virtfn")]
    return {
        "address": address,
        "vendor": vendor,
        "device": device,
        "subsystem_vendor": hexadecimal(value["subsystem_vendor"]),
        "subsystem_device": hexadecimal(value["subsystem_device"]),
        "model": named,
        "driver": driver(tree, address),
        "numa_node": _numa(value["numa_node"]),
        "local_cpus": value["local_cpulist"] or None,
        "link": {
            "speed_gts": _speed(value["current_link_speed"]),
            "width": integer(value["current_link_width"]),
            "max_speed_gts": _speed(value["max_link_speed"]),
            "max_width": integer(value["max_link_width"]),
        },
        "iommu_group": tree.target(f"{base}/iommu_group"),
        "sriov": {"total": integer(value["sriov_totalvfs"]) or 0, "enabled": enabled},
        "physfn": physfn,
        "virtfns": sorted((name for name in virtual if name), key=order),
    }


def _speed(text: Optional[str]) -> Optional[float]:
    """`32.0 GT/s PCIe` as 32.0; `Unknown` as None."""
    try:
        return float(text.split()[0]) if text else None
    except ValueError:
        return None


def gpus(tree: Tree, functions: Optional[dict[str, str]] = None) -> list[dict[str, Any]]:
    """GPUs in PCI order: [{index, address, vendor, device, model, driver, numa_node, local_cpus}].

    nvidia-smi and CUDA_DEVICE_ORDER=PCI_BUS_ID use the same order. The model comes from the NVIDIA driver if it is
    loaded (/proc/driver/nvidia/gpus/<address>/information), else from the PCI id.
    """
    found: list[dict[str, Any]] = []
    for address, code in (classes(tree) if functions is None else functions).items():
        if not code.startswith(("0x03", "0x12")):
            continue
        value = tree.attributes(f"{paths.PCI}/{address}", _IDENTITY)
        vendor, device = hexadecimal(value["vendor"]), hexadecimal(value["device"])
        if not vendor or code[:6] not in GPU_CLASSES.get(vendor, ()) or virtual(tree, address):
            continue  # a VF is a share of its GPU (vGPU)
        found.append(
            {
                "index": len(found),
                "address": address,
                "vendor": vendor,
                "device": device,
                "model": (_nvidia_model(tree, address) if vendor == NVIDIA else None) or model(vendor, device),
                "driver": driver(tree, address),
                "numa_node": _numa(value["numa_node"]),
                "local_cpus": value["local_cpulist"] or None,
            }
        )
    return found


def _nvidia_model(tree: Tree, address: str) -> Optional[str]:
    text = tree.read(f"/proc/driver/nvidia/gpus/{address}/information") or ""
    named = re.search(r"^[ \t]*Model[ \t]*:[ \t]*(.*\S)", text, re.MULTILINE)
    return named[1] if named else None
