"""RDMA devices: everything below /sys/class/infiniband.

Source: Documentation/ABI/stable/sysfs-class-infiniband (infiniband, infiniband_verbs and infiniband_mad).
"""

from __future__ import annotations

import re
from typing import Any, Callable, Optional

from . import paths, pci, topology
from .netdevs import ROCE_OVERHEAD, RXE_OVERHEAD, ZERO_GID, Network, ib_mtu
from .text import hexadecimal, integer, meaning, natural, unknown
from .tree import Tree

NEEDS_VERBS = unknown("needs verbs")
_DEVICE = ("node_type", "node_guid", "sys_image_guid", "hca_type", "hw_rev", "fw_ver", "board_id")
_PORT = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
_RATE = re.compile(r"^([0-9.]+) Gb/sec")


def names(tree: Tree) -> list[str]:
    """Names of the RDMA devices, in natural order."""
    return sorted(tree.listdir(paths.INFINIBAND), key=natural)


def hcas(
    tree: Tree, network: Optional[Network] = None, gids: bool = True, functions: Optional[dict[str, str]] = None
) -> list[dict[str, Any]]:
    """All HCAs as in the facts, PCI ones in address order, then software ones by name.

    A device that disappears while it is read is left out; an unreadable attribute is None. Distances to
    GPUs and other HCAs are added by `place`. gids: read the GID tables. functions: `pci.classes`, if already read.
    """
    tree = tree.snapshot()
    network = network or Network(tree)
    characters = _character_devices(tree)
    functions = pci.classes(tree) if functions is None else functions
    there = (_hca(tree, network, name, characters.get(name) or _no_characters(), gids) for name in names(tree))
    found = [hca for hca in there if hca]
    taken = {hca["pci"]["address"] for hca in found if hca["pci"]}
    free = [address for address in functions if address not in taken]
    for hca in found:
        owners, overhead = hca.pop("_owners"), hca.pop("_overhead")
        _join_bond(tree, network, hca, free)
        hca["bonded_functions"] += [address for address in _secondaries(tree, hca) if address in free]
        hca["netdevs"].sort(key=lambda netdev: natural(netdev["name"]))
        for port in hca["ports"]:
            _set_netdev(port, hca["netdevs"], owners[port["number"]], overhead)
    return sorted(found, key=_order)


def _order(hca: dict[str, Any]) -> tuple[Any, ...]:
    where = pci.order(hca["pci"]["address"] if hca["pci"] else "")
    return (hca["kind"] != "pci", where, hca["auxiliary"] is not None, natural(hca["auxiliary"] or hca["name"]))


def _no_characters() -> dict[str, Any]:
    return {"uverbs": None, "umad": [], "issm": []}


def _character_devices(tree: Tree) -> dict[str, dict[str, Any]]:
    """{HCA: {uverbs: name, umad: [names], issm: [names]}}, the names below /dev/infiniband."""
    found: dict[str, dict[str, Any]] = {}
    for directory, prefixes in ((paths.VERBS, ("uverbs",)), (paths.MAD, ("umad", "issm"))):
        for name in sorted(tree.listdir(directory), key=natural):
            prefix = name.rstrip("0123456789")
            device = tree.read(f"{directory}/{name}/ibdev") if prefix in prefixes else None
            if not device:
                continue
            entry = found.setdefault(device, _no_characters())
            if prefix == "uverbs":
                entry["uverbs"] = name
            else:
                entry[prefix].append(name)
    return found


def _where(tree: Tree, name: str) -> tuple[Optional[str], str, Optional[str]]:
    """(PCI address, directory of the parent device, auxiliary device) of an HCA.

    rxe and siw live below /sys/devices/virtual. A sub-function's parent is a device on the auxiliary bus, which lies
    below its PCI function.
    """
    parent = tree.realpath(f"{paths.INFINIBAND}/{name}").rpartition("/infiniband/")[0]
    address, below = pci.above(parent)
    return address, parent, below[0] if below else None


def _hca(
    tree: Tree, network: Network, name: str, characters: dict[str, Any], with_gids: bool
) -> Optional[dict[str, Any]]:
    base = f"{paths.INFINIBAND}/{name}"
    value = tree.attributes(base, _DEVICE)
    numbers = sorted(int(number) for number in tree.listdir(f"{base}/ports") if number.isdecimal())
    node_type, node_guid = meaning(value["node_type"]), value["node_guid"]
    if not numbers and node_type is None and node_guid is None:
        return None
    address, parent, auxiliary = _where(tree, name)
    function = pci.function(tree, address) if address else None
    role = None
    if function:
        role = "sf" if auxiliary and ".sf." in auxiliary else "vf" if function["physfn"] else "pf"
    ports = [_port(tree, f"{base}/ports/{number}", number, with_gids) for number in numbers]
    owners = {port["number"]: _gid_netdev(tree, f"{base}/ports/{port['number']}", port) for port in ports}
    netdevs, representors = _netdevs(tree, network, name, parent if function else None, numbers, owners, node_guid)
    overhead = _overhead(function, node_type, rxe=not function and bool(tree.read(f"{base}/parent")))
    return {
        "name": name,
        "kind": "pci" if function else "software",
        "function": role,
        "auxiliary": auxiliary if role == "sf" else None,
        "pci": function,
        "node_type": node_type,
        "hca_type": value["hca_type"] or None,
        "hw_rev": value["hw_rev"] or None,
        "firmware": value["fw_ver"] or None,
        "psid": value["board_id"] or None,
        "node_guid": node_guid,
        "sys_image_guid": value["sys_image_guid"],
        "char_devices": characters,
        "netdevs": netdevs,
        "representors": representors,
        "bonded_functions": [],
        "ports": ports,
        "nearest_gpus": [],
        "nic_distances": {},
        "_owners": owners,
        "_overhead": overhead,
    }


def _overhead(function: Optional[dict[str, Any]], node_type: Optional[str], rxe: bool) -> int:
    """Header bytes that the driver subtracts from the netdev's MTU before it rounds down to an RDMA MTU."""
    driver = function["driver"] if function else None
    if node_type == "RNIC" or driver in ("ice", "i40e", "irdma"):
        return 0  # iWARP, and irdma in RoCE mode too: ib_mtu_int_to_enum(netdev->mtu)
    return RXE_OVERHEAD if rxe else ROCE_OVERHEAD


def _gids(tree: Tree, port: str, link_layer: Optional[str]) -> list[dict[str, Any]]:
    """[{index, gid, type, netdev}] of the slots in use; the others, and InfiniBand's netdevs, return EINVAL."""
    table = tree.slots(f"{port}/gids", ZERO_GID)
    used = [str(index) for index, _gid in table]
    types = tree.attributes(f"{port}/gid_attrs/types", used)
    netdevs = tree.attributes(f"{port}/gid_attrs/ndevs", used) if link_layer != "InfiniBand" else {}
    return [
        {"index": index, "gid": gid, "type": types[str(index)], "netdev": netdevs.get(str(index))}
        for index, gid in table
    ]


def _gid_netdev(tree: Tree, base: str, port: dict[str, Any]) -> Optional[str]:
    """The netdev that the port's first GID belongs to: the port's own, or the bond above it."""
    if port["gids"] or port["link_layer"] == "InfiniBand":
        return next((gid["netdev"] for gid in port["gids"] if gid["netdev"]), None)
    return tree.read(f"{base}/gid_attrs/ndevs/0") or None


def _netdevs(
    tree: Tree,
    network: Network,
    name: str,
    parent: Optional[str],
    numbers: list[int],
    owners: dict[int, Optional[str]],
    node_guid: Optional[str],
) -> tuple[list[dict[str, Any]], list[str]]:
    """(interfaces with their port, names of representors)."""
    if parent:
        known = tree.listdir(f"{parent}/net")
    else:
        # rxe names its parent. GIDs may also belong to a macvlan on top of the netdev, so they come second.
        stated = tree.read(f"{paths.INFINIBAND}/{name}/parent")
        known = [stated] if stated else sorted({owner for owner in owners.values() if owner})
    candidates = known or [found for found in [network.by_mac(_mac(node_guid))] if found]
    representors, found = [], []
    for candidate in candidates:
        netdev = network.netdev(candidate)
        if network.representor(candidate):
            representors.append(candidate)
        elif netdev:
            port = netdev.pop("dev_port") + 1
            owned = next((number for number, owner in owners.items() if owner == candidate), None)
            netdev["port"] = owned or (numbers[0] if len(numbers) == 1 else port if port in numbers else None)
            found.append(netdev)
    return found, representors


def _mac(guid: Optional[str]) -> str:
    """The MAC inside an EUI-64 node GUID: the only hint at the netdev of siw, and of erdma, whose function has none."""
    digits = (guid or "").replace(":", "")
    if not re.fullmatch("[0-9a-fA-F]{6}fffe[0-9a-fA-F]{6}", digits):
        return ""
    raw = bytes.fromhex(digits[:6] + digits[10:])
    return ":".join(f"{byte:02x}" for byte in bytes([raw[0] ^ 2]) + raw[1:])


def _port(tree: Tree, port: str, number: int, with_gids: bool) -> dict[str, Any]:
    value = tree.attributes(port, _PORT)
    rate = value["rate"]
    matched = _RATE.match(rate or "")
    return {
        "number": number,
        "state": meaning(value["state"]),
        "phys_state": meaning(value["phys_state"]),
        "rate_gbps": float(matched.group(1)) if matched else None,
        "rate_text": rate,
        "link_layer": value["link_layer"] or None,
        "lid": integer(value["lid"]),
        "sm_lid": integer(value["sm_lid"]),
        "active_mtu": NEEDS_VERBS,
        "netdev": None,
        "gids": _gids(tree, port, value["link_layer"]) if with_gids else [],
    }


def _join_bond(tree: Tree, network: Network, hca: dict[str, Any], free: list[str]) -> None:
    """Complete an HCA whose ports are bonded: mlx5 creates one RDMA device for two functions, attached to the first.

    The other function has a netdev under the same bond, but no RDMA device. The bond itself is added to the netdevs,
    because it has the addresses, the MTU and the GIDs.
    """
    masters = {netdev["master"] for netdev in hca["netdevs"]} - {None}
    if not hca["pci"] or len(masters) != 1:
        return
    bond = masters.pop()
    card = pci.slot(hca["pci"]["address"])
    joined = []
    for address in (address for address in free if pci.slot(address) == card):
        names = tree.listdir(f"{paths.PCI}/{address}/net")
        members = [network.netdev(name) for name in names if network.master(name) == bond]
        if any(members):
            hca["bonded_functions"].append(address)
            joined += members
            # The one RDMA device has ports for the representors of both functions.
            hca["representors"] += [name for name in names if network.representor(name)]
    ports = hca["ports"] if hca["representors"] or len(hca["ports"]) == 1 else []
    port = ports[0]["number"] if ports else None
    hca["netdevs"] += [{**netdev, "port": port} for netdev in joined if netdev]
    whole = network.netdev(bond)
    if whole and network.aggregates(whole, hca["netdevs"]):
        hca["netdevs"].append({**whole, "port": port})


def _secondaries(tree: Tree, hca: dict[str, Any]) -> list[str]:
    """Functions on other sockets that share the netdev and RDMA device of this one: Socket Direct as multi-PF netdev.

    Source: debugfs of mlx5, drivers/net/ethernet/mellanox/mlx5/core/lib/sd.c: `0000:af:00.0 vhca 0x1`.
    """
    if not hca["pci"] or hca["pci"]["address"] not in tree.listdir(paths.MLX5_DEBUG):
        return []
    base = f"{paths.MLX5_DEBUG}/{hca['pci']['address']}/multi-pf"
    texts = [tree.read(f"{base}/{name}") for name in tree.listdir(base) if name.startswith("secondary_")]
    return [text.split()[0] for text in texts if text]


def _set_netdev(port: dict[str, Any], netdevs: list[dict[str, Any]], owner: Optional[str], overhead: int) -> None:
    """Set the netdev of a port, and the RDMA MTU that follows from it."""
    own = [netdev for netdev in netdevs if netdev["port"] == port["number"] and not netdev["parent"]]
    bonds = [netdev for netdev in own if any(netdev["name"] == other["master"] for other in own)]
    named = [netdev for netdev in netdevs if netdev["name"] == owner]
    chosen = next(iter(named or bonds or own), None)
    if chosen:
        port["netdev"] = chosen["name"]
        if port["link_layer"] == "Ethernet" and chosen["mtu"] is not None:
            port["active_mtu"] = ib_mtu(chosen["mtu"], overhead)


def place(tree: Tree, found: list[dict[str, Any]], gpus: list[dict[str, Any]]) -> None:
    """Add to each GPU and PCI HCA its path in the PCI tree, and to each PCI HCA its distances.

    These are the nearest GPUs (nearest class only) and every other PCI HCA.
    """
    distances = topology.Topology(tree)
    for function in (*gpus, *(hca["pci"] for hca in found if hca["pci"])):
        function["path"] = list(distances.chain(function["address"]))
    addresses = [gpu["address"] for gpu in gpus]
    hardware = [hca for hca in found if hca["pci"]]
    for at, hca in enumerate(hardware, 1):
        here = hca["pci"]["address"]
        hca["nearest_gpus"] = distances.nearest(here, addresses)
        for other in hardware[at:]:
            far = distances.distance(here, other["pci"]["address"])
            if far:
                hca["nic_distances"][other["name"]] = other["nic_distances"][hca["name"]] = far


def cards_without_rdma(
    tree: Tree,
    found: list[dict[str, Any]],
    functions: dict[str, str],
    network: Network,
    modules: Callable[[list[str]], dict[str, dict[str, Any]]],
) -> list[dict[str, Any]]:
    """Mellanox network functions that have no RDMA device, each with the reason and the next step.

    VFs are left out: their PF has the reason, and a VF passed to a guest has no RDMA device here by design. So is the
    second function of a bonded or Socket Direct card, whose RDMA device is attached to the first.

    modules: names -> `modules.state`.
    """
    tree = tree.snapshot()
    places = topology.Topology(tree)
    taken = {hca["pci"]["address"] for hca in found if hca["pci"]}
    taken.update(address for hca in found for address in hca["bonded_functions"])
    cards = []
    for address, code in functions.items():
        if address in taken or not pci.is_card(tree, address, code):
            continue
        base = f"{paths.PCI}/{address}"
        device = hexadecimal(tree.read(f"{base}/device"))
        bound = pci.driver(tree, address)
        reason, step = _why_no_rdma(address, device, bound, modules)
        cards.append(
            {
                "address": address,
                "vendor": pci.MELLANOX,
                "device": device,
                "model": pci.model(pci.MELLANOX, device),
                "driver": bound,
                "numa_node": pci.numa_node(tree, address),
                "path": list(places.chain(address)),
                "netdevs": [name for name in tree.listdir(f"{base}/net") if not network.representor(name)],
                "reason": reason,
                "next_step": step,
            }
        )
    return cards


# mlx4_pci_table and mthca_pci_table of the kernel: ConnectX to ConnectX-3 Pro, InfiniHost.
_MLX4 = (range(0x6340, 0x6770), range(0x1002, 0x1011))
_RECOVERY = range(0x0191, 0x0222)  # "Flash Recovery" in the PCI ID database, ConnectX to BlueField-4
_MTHCA = (0x5A44, 0x5A46, 0x5E8C, 0x5E8D, 0x6274, 0x6278, 0x6279, 0x6282)


# {driver of the PCI function: driver of its RDMA device}
_RDMA_OF = {"mlx4_core": "mlx4_ib", "mlx5_core": "mlx5_ib", "ib_mthca": "ib_mthca"}


def _core(device: Optional[str]) -> str:
    """The driver of a function, by its Mellanox device id."""
    number = integer(f"0x{device}")
    if any(number in known for known in _MLX4):
        return "mlx4_core"
    return "ib_mthca" if number in _MTHCA else "mlx5_core"


def lacking(device: Optional[str], bound: Optional[str]) -> Optional[str]:
    """The module that a function needs next, by its Mellanox device id and its driver; None if that is not the way."""
    if bound is None:
        return None if integer(f"0x{device}") in _RECOVERY else _core(device)
    return _RDMA_OF.get(bound)


def _why_no_rdma(
    address: str, device: Optional[str], bound: Optional[str], modules: Callable[[list[str]], dict[str, dict[str, Any]]]
) -> tuple[str, str]:
    """(reason, next step): the first missing step from the PCI function to an RDMA device."""
    if integer(f"0x{device}") in _RECOVERY:
        return (
            "Its firmware does not start: the card is in flash recovery mode.",
            f"Burn an image for its part number (mstflint -d {address} -i IMAGE burn), then power-cycle the node.",
        )
    if pci.passes_on(bound):
        return (
            f"It is bound to {bound}, which passes it to a virtual machine or a user-space driver.",
            f"To use it on this node: echo {address} > /sys/bus/pci/drivers/{bound}/unbind, remove what binds it "
            f"(driverctl, vfio-pci.ids on the kernel command line), then echo {address} > /sys/bus/pci/drivers_probe.",
        )
    # If the vendor's driver is bound, with any id, that driver's RDMA part may be missing.
    core = bound if bound in _RDMA_OF else _core(device)
    rdma = _RDMA_OF[core]
    if bound not in (None, core):
        return (f"It is bound to {bound} instead of {core}.", f"Unbind {address} from {bound} and bind it to {core}.")
    name = lacking(device, bound) or core
    state = modules([name])[name]
    if state["blocked_by"] and not state["loaded"]:
        blocks = ", ".join(f"{entry['path']}:{entry['line']} ({entry['text']})" for entry in state["blocked_by"])
        return (f"{name} is not loaded and is blocked by {blocks}.", f"Remove that line, then modprobe {name}.")
    if state["available"] is False:
        return (
            f"{name} is not loaded and the running kernel has no such module.",
            f"Install the package with {name} for this kernel: linux-modules-extra, kernel-modules or the OFED driver.",
        )
    if not state["loaded"]:
        return (f"{name} is not loaded.", f"modprobe {name}; the role kernel_modules does it, now and at boot.")
    if bound is None:
        return (
            f"{core} is loaded but did not bind to the card.",
            f"Check dmesg | grep {address}. Firmware and slot power are the usual causes.",
        )
    return (
        f"{rdma} is loaded but created no RDMA device for it.",
        f"Check dmesg | grep {address}; devlink dev param show pci/{address} name enable_rdma; in netns mode "
        "exclusive the device may also have been moved into another network namespace.",
    )
