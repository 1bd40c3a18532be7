"""What a driver change would disturb on a node: users of the HCAs, devices on top of them, state that would be lost.

Reads files below a root, like the facts; nothing is run. A list is empty if nothing was found, so the gate needs no
special case for a small node.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Callable, Optional

from ..hca import boot, driver, paths, pci, rails, routes
from ..hca.management import addresses, below, ways
from ..hca.modules import Catalogue
from ..hca.netdevs import Network
from ..hca.netns import unit_of
from ..hca.seams import Seams, socket_address
from ..hca.text import integer, is_unknown
from ..hca.tree import Tree
from . import names
from .dkms import secure_boot

# Consumers of the RDMA stack that openibd and `modprobe -r` of the HCA driver do not unload (openibd knows ipoib and
# the verbs modules). DOCA ships some of them, but each holds ib_core while in use.
CONSUMERS = {
    "ib_iser": "iSER initiator", "ib_isert": "iSER target", "ib_srp": "SRP initiator", "ib_srpt": "SRP target",
    "nvme_rdma": "NVMe over RDMA", "nvmet_rdma": "NVMe target over RDMA", "rpcrdma": "NFS over RDMA",
    "xprtrdma": "NFS over RDMA", "svcrdma": "NFS server over RDMA", "ko2iblnd": "Lustre over RDMA",
    "rds_rdma": "RDS over RDMA", "smc": "SMC sockets", "smbdirect": "SMB Direct", "ksmbd": "SMB server",
    "cifs": "SMB client", "9pnet_rdma": "9P over RDMA", "beegfs": "BeeGFS", "mmfslinux": "Storage Scale",
    "rnbd_client": "RDMA block device", "rtrs_core": "RDMA transport", "hfi1": "Omni-Path",
    "rdma_rxe": "software RoCE device", "siw": "software iWARP device",
}  # fmt: skip
# Modules that a reload unloads, users before providers; they may hold one another without blocking it.
STACK = (
    "mlx5_vdpa", "mlx5_fwctl", "mlx5_dpll", "ib_ipoib", "rdma_ucm", "rdma_cm", "iw_cm", "ib_cm", "ib_umad",
    "mlx5_ib", "ib_uverbs", "ib_core", "mlx5_core", "mlxdevm", "mlxfw", "mlx_compat",
)  # fmt: skip
PEERMEM = ("nvidia_peermem", "nv_peer_mem")
_REMOTE = ("nfs", "cifs", "smb3", "ceph", "lustre", "beegfs", "gpfs", "9p", "fuse.")
_TCP_ESTABLISHED = "01"
_AUXILIARY = "/sys/bus/auxiliary/devices"
_POD = re.compile(r"kubepods.*/?pod([0-9a-f]{8}[0-9a-f_-]+)")
_SERVERS = re.compile(r",(?:mount|mon_)?(?:addr|ip)=([^,]+)")
_ADDRESS = re.compile(r"\d+(?:\.\d+){3}|[0-9a-fA-F]*:[0-9a-fA-F:]+")
_ISCSI = "/sys/class/iscsi_connection"
_Table = list[routes.Route]


def read(
    tree: Tree, facts: dict, software_hcas: bool = False, told: Optional[dict] = None, routed: Optional[list] = None
) -> dict[str, Any]:
    """Everything the gate needs besides the facts. told, routed: what devlink() and routes_lost() returned, or None."""
    tree = tree.snapshot()
    kinds = ("pci", "software") if software_hcas else ("pci",)
    facts = {**facts, "hcas": [hca for hca in facts["hcas"] if hca["kind"] in kinds]}
    ours = hca_netdevs(facts)
    holding, sockets = processes(tree)
    access, running = management(tree, ours, sockets), pods(tree)
    return {
        "modules": loaded_modules(tree),
        "processes": holding,
        "management": access,
        "named": named(tree, access),
        "storage": storage(tree, ours),
        "virtual_functions": virtual_functions(tree, facts),
        "switched": switched(tree, facts, told or {}),
        "devlink": told is not None,
        "netdevs": settings(tree, facts, routed or ()),
        "routed": routed is not None,
        "secure_boot": secure_boot(tree),
        "pods": running,
        "operators": operators(tree, running),
        "next_kernel": next_kernel(tree, facts),
    }


def next_kernel(tree: Tree, facts: dict) -> Optional[dict[str, Any]]:
    """The kernel that boots next, if it is not the running one: {release, has_stack}.

    has_stack is None if the running kernel uses the inbox driver too, so nothing would be lost.
    """
    disk = facts["driver"]["on_disk"]
    entry, _source = boot.following(tree)
    release = entry and entry.release
    if release is None or release == facts["node"]["kernel"]:
        return None
    if disk["flavor"] == driver.INBOX or is_unknown(disk["flavor"]):
        return {"release": release, "has_stack": None}
    path = Catalogue(tree, release).path("mlx5_core")
    return {"release": release, "has_stack": bool(path) and not driver.is_inbox(path or "")}


def hca_netdevs(facts: dict) -> list[str]:
    """Interfaces that vanish with the HCA driver: those of HCAs and of cards that have no RDMA device yet."""
    netdevs = {netdev["name"] for hca in facts["hcas"] for netdev in hca["netdevs"]}
    return sorted(netdevs.union(*(card["netdevs"] for card in facts["cards_without_rdma"])))


def loaded_modules(tree: Tree) -> dict[str, dict[str, Any]]:
    """{name: {refcount, holders}} of the loadable modules in the kernel that belong to the stack or use it.

    A refcount above the number of holders means users other than modules: open files, mounts, bound devices.
    """
    names = (*STACK, *PEERMEM, *CONSUMERS)
    wanted = {name for name in names if tree.isdir(f"{paths.MODULE}/{name}")}
    for name in sorted(wanted):
        wanted.update(tree.listdir(f"{paths.MODULE}/{name}/holders"))
    loaded = {}
    for name in sorted(wanted):
        refcount = integer(tree.read(f"{paths.MODULE}/{name}/refcnt"))
        if refcount is not None:
            loaded[name] = {"refcount": refcount, "holders": tree.listdir(f"{paths.MODULE}/{name}/holders")}
    return loaded


def processes(tree: Tree) -> tuple[list[dict[str, Any]], set[str]]:
    """(processes with an RDMA character device open, inodes of the sockets of SSH servers), in one walk of /proc."""
    holding, sockets = [], set()
    for pid in sorted(int(name) for name in tree.listdir("/proc") if name.isdigit()):
        command = tree.read(f"/proc/{pid}/comm") or "?"
        devices = set()
        for descriptor in tree.listdir(f"/proc/{pid}/fd"):
            target = tree.readlink(f"/proc/{pid}/fd/{descriptor}") or ""
            if target.startswith("/dev/infiniband/"):
                devices.add(target)
            elif command.startswith("sshd") and target.startswith("socket:["):
                sockets.add(target[len("socket:[") : -1])
        if devices:
            pod = _POD.search(tree.read(f"/proc/{pid}/cgroup") or "")
            holding.append(
                {
                    "pid": pid,
                    "command": command,
                    "unit": unit_of(tree, pid),
                    "pod": pod.group(1).replace("_", "-") if pod else None,
                    "devices": sorted(devices),
                }
            )
    return holding, sockets


def management(tree: Tree, ours: list[str], sockets: set[str]) -> list[dict[str, str]]:
    """Management access that uses an HCA: [{netdev, via, why}].

    Both ends of the SSH servers' sockets count: packets may leave by another interface than they came.
    """
    table, seams = routes.usable(tree), Seams.of(tree)
    access = []

    def add(via: str, why: str) -> None:
        for netdev in sorted(below(tree, via) & set(ours)):
            entry = {"netdev": netdev, "via": via, "why": why}
            if entry not in access:
                access.append(entry)

    for via, why in ways(tree, seams):
        add(via, why)
    held = addresses(tree, seams)
    for own, peer in sorted(_ssh_ends(tree, sockets)):
        for via in {*held.get(own, ()), _route_to(table, ipaddress.ip_address(peer))} - {None}:
            add(via, f"the SSH session from {peer}")
    return access


def named(tree: Tree, access: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Interfaces that carry management and are configured by name: [{netdev, mac, places}]."""
    interfaces = []
    for netdev in sorted({way["netdev"] for way in access}):
        places = names.configured(tree, netdev)
        if places:
            interfaces.append({"netdev": netdev, "mac": names.hardware_address(tree, netdev), "places": places})
    return interfaces


def _ssh_ends(tree: Tree, sockets: set[str]) -> set[tuple[str, str]]:
    """(own address, peer) of established connections of SSH servers, on any port."""
    ends = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (tree.read(path) or "").splitlines()[1:]:
            part = line.split()
            if len(part) > 9 and part[3] == _TCP_ESTABLISHED and part[9] in sockets:
                own, peer = (socket_address(part[at].partition(":")[0]) for at in (1, 2))
                if own and peer and not peer.is_loopback:
                    ends.add((str(own), str(peer)))
    return ends


def _route_to(table: _Table, address: Any) -> Optional[str]:
    """The interface of the most specific route."""
    matching = [route for route in table if address in route.network]
    return max(matching, key=lambda route: route.network.prefixlen).netdev if matching else None


def storage(tree: Tree, ours: list[str]) -> list[dict[str, str]]:
    """Mounts and swap through modules of the stack or over an HCA: [{mount, device, why}]."""
    nvme_behind_stack = any(holder.startswith("nvme") for holder in tree.listdir(f"{paths.MODULE}/mlx_compat/holders"))
    table = routes.usable(tree)
    mounts = []
    for mount, kind, source, options in _mounts(tree):
        if kind.startswith(_REMOTE):
            why = _remote(tree, kind, source, options, table, ours)
        else:
            disks = sorted(_disks(tree, source)) if source.startswith("/dev/") else ()
            whys = (_disk(tree, disk, nvme_behind_stack, table, ours) for disk in disks)
            why = next(filter(None, whys), None)
        if why:
            mounts.append({"mount": mount, "device": source, "why": why})
    return mounts


def _mounts(tree: Tree) -> Iterator[tuple[str, str, str, str]]:
    """(mount point, file system, source, options), swap included."""
    text = tree.read("/proc/1/mountinfo") or tree.read("/proc/self/mountinfo") or ""
    seen = set()
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        part, more = left.split(), right.split()
        if not dash or len(part) < 6 or len(more) < 2:
            continue
        # A kubelet bind-mounts the same file system a hundred times: the first mount of a source is enough.
        key = (more[0], more[1])
        if key not in seen or part[4] == "/":
            seen.add(key)
            yield part[4], more[0], more[1], more[2] if len(more) > 2 else ""
    for line in (tree.read("/proc/swaps") or "").splitlines()[1:]:
        part = line.split()
        if part:
            yield "swap", "swap", part[0], ""


def _remote(tree: Tree, kind: str, source: str, options: str, table: _Table, ours: list[str]) -> Optional[str]:
    words = options.split(",")
    if "proto=rdma" in words or "rdma" in words or "@o2ib" in source:
        return f"{kind} over RDMA"
    return _through(tree, kind, " ".join([source, *_SERVERS.findall(f",{options}")]), table, ours)


def _through(tree: Tree, what: str, servers: str, table: _Table, ours: list[str]) -> Optional[str]:
    """The first HCA on the way to the servers, whose addresses are in a text."""
    for server in _ADDRESS.findall(servers):
        try:
            via = _route_to(table, ipaddress.ip_address(server))
        except ValueError:
            continue
        over = sorted(below(tree, via) & set(ours)) if via else []
        if over:
            return f"{what} from {server} over {over[0]}"
    return None


def _disks(tree: Tree, source: str) -> set[str]:
    """Names of the whole disks below a device: through partitions, device mapper and md."""
    disks: set[str] = set()
    pending = [tree.realpath(source).rpartition("/")[2]]
    while pending:
        name = pending.pop()
        base = f"/sys/class/block/{name}"
        slaves = tree.listdir(f"{base}/slaves")
        if slaves:
            pending += slaves
        elif tree.exists(f"{base}/partition"):
            pending.append(tree.realpath(base).split("/")[-2])
        else:
            disks.add(name)
    return disks


def _disk(tree: Tree, disk: str, nvme_behind_stack: bool, table: _Table, ours: list[str]) -> Optional[str]:
    """How a disk depends on the stack or on an HCA, or None."""
    controllers = _controllers(tree, disk)
    transports = {tree.read(f"{controller}/transport") or "pcie" for controller in controllers}
    if "rdma" in transports:
        return f"{disk} is NVMe over RDMA"
    if transports and nvme_behind_stack:
        return f"{disk} is driven by an nvme module that holds mlx_compat"
    device = tree.realpath(f"/sys/class/block/{disk}/device")
    host = re.search(r"/(host\d+)/", device + "/")
    module = tree.read(f"/sys/class/scsi_host/{host.group(1)}/proc_name") if host else None
    # An iSER disk appears as iscsi_iser, the name of its iSCSI transport.
    module = {"iscsi_iser": "ib_iser"}.get(module or "", module)
    if module in ("ib_iser", "ib_srp"):
        return f"{disk} is attached over {CONSUMERS[module]}"
    # NVMe over TCP, iSCSI and Ceph.
    files = [f"{controller}/address" for controller in controllers]
    session = re.search(r"/session(\d+)/", device)
    connections = tree.listdir(_ISCSI) if session else ()
    files += [f"{_ISCSI}/{name}/address" for name in connections if name.startswith(f"connection{session[1]}:")]
    files += [f"/sys/bus/rbd/devices/{disk[3:]}/config_info"] if disk.startswith("rbd") else []
    return _through(tree, disk, " ".join(filter(None, map(tree.read, files))), table, ours)


def _controllers(tree: Tree, disk: str) -> list[str]:
    """The folders of the controllers behind an NVMe disk; empty for any other disk."""
    match = re.match(r"nvme(\d+)", disk)
    if not match:
        return []
    number = match.group(1)
    subsystem = f"/sys/class/nvme-subsystem/nvme-subsys{number}"
    names = [name for name in tree.listdir(subsystem) if re.fullmatch(r"nvme\d+", name)] or [f"nvme{number}"]
    return [f"/sys/class/nvme/{name}" for name in names]


def virtual_functions(tree: Tree, facts: dict) -> list[dict[str, Any]]:
    """Physical functions with VFs, and the settings that a reload would lose.

    `settings` is what MLNX_OFED and DOCA show below device/sriov/<n>. The inbox driver reports them only by netlink:
    there it is None, unknown and so not restored.
    """
    functions = []
    for address, name, netdevs in _physical(tree, facts):
        function = pci.function(tree, address)
        enabled = function["sriov"]["enabled"]
        if enabled:
            functions.append(
                {
                    "hca": name,
                    "address": address,
                    "netdevs": netdevs,
                    "enabled": enabled,
                    "passed_through": [vf for vf in function["virtfns"] if pci.passes_on(pci.driver(tree, vf))],
                    "settings": _vf_settings(tree, f"{paths.PCI}/{address}", enabled),
                }
            )
    return functions


def _physical(tree: Tree, facts: dict) -> list[tuple[str, str, list[str]]]:
    """(PCI address, name, netdevs) of every physical function of the driver, with or without an RDMA device."""
    functions = {
        hca["pci"]["address"]: (hca["name"], [netdev["name"] for netdev in hca["netdevs"]])
        for hca in facts["hcas"]
        if hca["kind"] == "pci" and hca["function"] == "pf" and hca["pci"]["vendor"] == pci.MELLANOX
    }
    for address in (address for hca in facts["hcas"] for address in hca.get("bonded_functions") or ()):
        functions.setdefault(address, (address, tree.listdir(f"{paths.PCI}/{address}/net")))
    for card in facts["cards_without_rdma"]:
        functions.setdefault(card["address"], (card["address"], card["netdevs"]))
    return [(address, name, netdevs) for address, (name, netdevs) in functions.items()]


# Parameters of mlx5 with the driver's initial value: mlx5_devlink_set_params_init_values() and its kin in
# core/devlink.c of the kernel and of OFED; esw_multiport: Documentation/networking/devlink/mlx5.rst.
_PARAMETERS = {"enable_roce": True, "enable_rdma": True, "enable_eth": True, "enable_vnet": True,
               "enable_remote_dev_reset": True, "esw_multiport": False, "esw_port_metadata": True,
               "esw_pet_insert": False, "fdb_large_groups": 15, "io_eq_size": 1024, "event_eq_size": 4096,
               "num_doorbells": 8}  # fmt: skip
# Starts with the card's capability, so only a kernel that reports the default (6.19) shows a change; ct_: of OFED, used
# only in switchdev mode, which is a reason by itself.
_OF_CARD = ("flow_steering_mode", "max_macs", "hairpin_num_queues", "hairpin_queue_size",
            "ct_action_on_nat_conns", "ct_labels_mapping", "ct_max_offloaded_conns")  # fmt: skip


def devlink(run: Callable[[list[str]], tuple[int, str, str]], tree: Tree, facts: dict) -> Optional[dict]:
    """{PCI address: [settings that a new driver would lack]} from devlink; None if it does not answer."""
    lost: dict[str, list[str]] = {}
    try:
        code, out, _error = run(["devlink", "-j", "dev", "param", "show"])
        for handle, parameters in (json.loads(out)["param"] if code == 0 else {}).items():
            for row in parameters:
                for entry in (entry for entry in row["values"] if entry["cmode"] != "permanent"):
                    name, value = row["name"], entry["value"]
                    start = entry.get("default", value if name in _OF_CARD else _PARAMETERS.get(name))
                    if value != start:
                        lost.setdefault(handle.removeprefix("pci/"), []).append(f"{name} {json.dumps(value)}")
        for address, _name, _netdevs in _physical(tree, facts):
            answered, out, _error = run(["devlink", "-j", "dev", "eswitch", "show", f"pci/{address}"])
            mode = next(iter(json.loads(out)["dev"].values()))["mode"] if answered == 0 else "legacy"
            lost.setdefault(address, []).extend([] if mode == "legacy" else [f"eswitch mode {mode}"])
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return None
    return None if code else lost


def switched(tree: Tree, facts: dict, told: dict[str, list[str]]) -> list[dict[str, Any]]:
    """State of the embedded switch that exists only in the running driver: [{hca, address, evidence: [names]}].

    Sub-functions, with or without an RDMA device, representors, and devlink's answer; in switchdev mode a port has no
    GIDs.
    """
    below_pci: dict[Optional[str], list[str]] = {}
    for name in tree.listdir(_AUXILIARY):
        if ".sf." in name:
            below_pci.setdefault(pci.above(tree.realpath(f"{_AUXILIARY}/{name}"))[0], []).append(name)
    network = Network(tree)
    barren = {
        hca["name"]
        for hca in facts["hcas"]
        for port in hca["ports"]
        if hca["function"] == "pf" and port["link_layer"] == "Ethernet" and rails.unproven(tree, hca, port)
    }
    switches = []
    for address, name, _netdevs in _physical(tree, facts):
        there = [netdev for netdev in tree.listdir(f"{paths.PCI}/{address}/net") if network.representor(netdev)]
        evidence = [*below_pci.get(address, ()), *there, *told.get(address, ())]
        if name in barren:
            evidence.append("ports without GIDs")
        if evidence:
            switches.append({"hca": name, "address": address, "evidence": evidence})
    return switches


# Fields of `ip -j route` and the words of its command for them; other fields of a simple route; and who adds theirs
# again once the interface is back: the kernel and routing daemons (rt_protos of iproute2).
_ROUTE_WORDS = {"gateway": "via", "table": "table", "metric": "metric", "protocol": "proto", "scope": "scope",
                "prefsrc": "src"}  # fmt: skip
_ROUTE_REST = {"dst", "dev", "flags", "pref", "type"}
_RETURNING = ("kernel", "ra", "redirect", "bgp", "bird", "zebra", "ospf", "isis", "babel", "openr")


def routes_lost(run: Callable[[list[str]], tuple[int, str, str]]) -> Optional[list[dict[str, Any]]]:
    """[{netdevs, route, words}] of the routes that go with their interfaces, in order; None if `ip` does not answer.

    words: what `ip` needs to add the route again, without the interface; None if that takes more than words.
    """
    lost = []
    try:
        for family in ("-4", "-6"):
            code, out, _error = run(["ip", family, "-j", "route", "show", "table", "all"])
            for row in json.loads(out) if code == 0 else [None]:
                known = not set(row) - {*_ROUTE_WORDS, *_ROUTE_REST} and row.get("type", "unicast") == "unicast"
                words = [word for key, name in _ROUTE_WORDS.items() if key in row for word in (name, str(row[key]))]
                words += ["onlink"] if "onlink" in row["flags"] else []
                netdevs = [hop["dev"] for hop in (row, *row.get("nexthops", ())) if "dev" in hop]
                if row.get("protocol") not in _RETURNING:
                    full = [family, "route", "replace", row["dst"], *words] if known else None
                    lost.append({"netdevs": netdevs, "route": row["dst"], "words": full})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return sorted(lost, key=lambda route: "via" in (route["words"] or ()))


def _vf_settings(tree: Tree, device: str, count: int) -> Optional[list[dict[str, str]]]:
    if not tree.isdir(f"{device}/sriov/0"):
        return None
    settings = []
    for number in range(count):
        base = f"{device}/sriov/{number}"
        values = {name: tree.read(f"{base}/{name}") for name in ("mac", "node", "port", "policy", "trust")}
        settings.append({name: value for name, value in values.items() if value})
    return settings


def settings(tree: Tree, facts: dict, routed: Iterable[dict]) -> list[dict[str, Any]]:
    """Settings of HCA interfaces that a reload would lose. mode: of IPoIB, else None; routes: see routes_lost()."""
    netdevs = []
    for hca in facts["hcas"]:
        for netdev in hca["netdevs"]:
            base = f"{paths.NET}/{netdev['name']}"
            if not tree.readlink(f"{base}/device") or netdev.get("parent"):
                continue  # a bond that is the netdev of its HCA outlives the driver; a child goes with its parent
            children = [other["name"] for other in hca["netdevs"] if other.get("parent") == netdev["name"]]
            uppers = [entry[len("upper_") :] for entry in tree.listdir(base) if entry.startswith("upper_")]
            flags = integer(tree.read(f"{base}/flags")) or 0
            netdevs.append(
                {
                    "name": netdev["name"],
                    "hca": hca["name"],
                    "mac": netdev["mac"],
                    "mtu": netdev["mtu"],
                    "up": bool(flags & 0x1),
                    "master": netdev["master"],
                    "upper": sorted([*children, *uppers]),
                    "addresses": netdev["addresses"] if isinstance(netdev["addresses"], list) else [],
                    "mode": tree.read(f"{base}/mode"),
                    "routes": [route for route in routed if netdev["name"] in route["netdevs"]],
                }
            )
    return netdevs


def pods(tree: Tree) -> list[dict[str, str]]:
    """Running pods: their cgroup exists, and is not empty as after a killed kubelet. Names are those of its logs."""
    alive = set()
    for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/cpu"):
        for top in ("kubepods", "kubepods.slice"):
            alive.update(_pod_uids(tree, f"{base}/{top}"))
    named = {}
    for entry in tree.listdir("/var/log/pods"):
        namespace, _underscore, rest = entry.partition("_")
        name, _underscore, uid = rest.rpartition("_")
        named[uid] = {"namespace": namespace, "name": name, "containers": tree.listdir(f"/var/log/pods/{entry}")}
    unknown = {"namespace": "?", "containers": []}
    running = [{"uid": uid, **(named.get(uid) or {**unknown, "name": uid})} for uid in alive]
    return sorted(running, key=lambda pod: (pod["namespace"], pod["name"]))


def _pod_uids(tree: Tree, directory: str, depth: int = 2) -> Iterator[str]:
    for entry in tree.listdir(directory):
        match = re.fullmatch(r"(?:kubepods-)?(?:(?:burstable|besteffort)-)?pod([0-9a-f_-]+?)(?:\.slice)?", entry)
        if match:
            if "populated 0" not in (tree.read(f"{directory}/{entry}/cgroup.events") or ""):
                yield match.group(1).replace("_", "-")
        elif depth and ("burstable" in entry or "besteffort" in entry):
            yield from _pod_uids(tree, f"{directory}/{entry}", depth - 1)


# Containers and pods by which a cluster operator owns a driver on this node, the object to edit, where its driver
# containers put their builds, and the file that blocks the host's own modules: doca-driver-build writes it
# (OFED_BLACKLIST_MODULES_FILE) and removes it only when its container exits cleanly.
_OPERATORS = (
    (
        "NVIDIA Network Operator",
        re.compile(r"^(mofed-|doca-driver-|ofed-driver)"),
        re.compile(r"^mofed-container$"),
        "spec.ofedDriver of its NicClusterPolicy",
        "/run/mellanox/drivers",
        "/etc/modprobe.d/blacklist-ofed-modules.conf",
    ),
    (
        "NVIDIA GPU Operator",
        re.compile(r"^nvidia-driver-daemonset"),
        re.compile(r"^nvidia-(driver-ctr|peermem-ctr)$"),
        "spec.driver (enabled, rdma) of its ClusterPolicy",
        "/run/nvidia/driver/lib/modules",
        None,
    ),
)


def operators(tree: Tree, running: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cluster operators that own a driver here, running or gone: [{owner, policy, pods, traces, blacklists}]."""
    owners = []
    for owner, pod_name, container_name, policy, builds, blacklist in _OPERATORS:
        mine = [
            f"{pod['namespace']}/{pod['name']}"
            for pod in running
            if pod_name.match(pod["name"]) or any(container_name.match(name) for name in pod["containers"])
        ]
        traces = [builds] if tree.listdir(builds) else []
        blacklists = [blacklist] if blacklist and tree.exists(blacklist) else []
        if mine or traces or blacklists:
            owners.append({"owner": owner, "policy": policy, "pods": mine, "traces": traces, "blacklists": blacklists})
    return owners
