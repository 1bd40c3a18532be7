"""The number of virtual functions of each port, now and at boot.

Pure: sysfs and options in, Plan out. The kernel changes the number only from or to zero, so a new
number removes existing VFs first, even those in use.

On InfiniBand a new VF has no GUID and its link is down, even if the port's is up. It gets a GUID derived from the
port's GUID and its number, the same at each boot, and follows the port; a VF with a GUID keeps it.
"""

from __future__ import annotations

import hashlib

from .._core import text
from .._core.change import Plan, kernel_out_of_reach
from .._core.files import HEADER, plan_file, plan_removal
from .._core.units import IS_CHILD, NIC_SANDBOX, plan_unit
from ..hca import paths, pci

UNIT, SCRIPT = paths.OWN_VFS_UNIT, paths.OWN_VFS_SCRIPT
_UNIT = (
    HEADER
    + f"""[Unit]
Description=Virtual functions of RDMA NICs
After=openibd.service rdma-hw.target
Before=network-online.target k3s.service k3s-agent.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh {SCRIPT}
{NIC_SANDBOX}RestrictAddressFamilies=AF_UNIX AF_NETLINK

[Install]
WantedBy=multi-user.target
"""
)
_SCRIPT = """
failed=0
# The driver takes its time at boot, so a device is waited for; one that never shows up fails the unit, not the others.
appears() {
    waited=0
    while [ ! -e "$1" ] && [ "$waited" -lt "${VF_WAIT_SECONDS:-60}" ]; do
        sleep 1
        waited=$((waited + 1))
    done
    [ -e "$1" ]
}
# set_vfs PCI NUMBER
set_vfs() {
    file=/sys/bus/pci/devices/$1/sriov_numvfs
    if ! appears "$file"; then
        echo "gpufabric-rdma-vfs: $1 has no SR-IOV" >&2
        failed=1
    elif [ "$(cat "$file")" = 0 ]; then
        echo "$2" >"$file" || failed=1
    fi
}
"""
# Only with InfiniBand ports. The driver's own files (DOCA) need no interface; the kernel's way needs that of IPoIB.
_GUIDS = """
# set_guids PCI GUID ...: for VF 0, 1 ... without a GUID. The driver reads it when it binds.
set_guids() {
    port=/sys/bus/pci/devices/$1
    shift
    number=0
    for guid; do
        vf=$(readlink "$port/virtfn$number") && vf=${vf##*/}
        if [ -z "$vf" ]; then
            echo "gpufabric-rdma-vfs: ${port##*/} has no VF $number" >&2
            failed=1
        else
            driver=$(readlink "/sys/bus/pci/devices/$vf/driver")
            case ${driver##*/}:$(cat "/sys/bus/pci/devices/$vf/infiniband/"*/node_guid 2>/dev/null) in
            : | mlx5_core: | mlx5_core:0000:0000:0000:0000 | mlx5_core:ffff:ffff:ffff:ffff)
                set_guid "$port" "$number" "$vf" "$guid" || failed=1
                ;;
            esac
        fi
        number=$((number + 1))
    done
}

set_guid() {
    if [ -d "$1/sriov/$2" ]; then
        echo "$4" >"$1/sriov/$2/node" && echo "$4" >"$1/sriov/$2/port" && echo Follow >"$1/sriov/$2/policy" || return 1
    else
        if ! appears "$1/net"; then
            echo "gpufabric-rdma-vfs: ${1##*/} has no interface to set the GUID of VF $2 on; load ib_ipoib" >&2
            return 1
        fi
        for netdev in "$1/net/"*; do is_child "$netdev" || break; done
        ip link set dev "${netdev##*/}" vf "$2" node_guid "$4" &&
            ip link set dev "${netdev##*/}" vf "$2" port_guid "$4" &&
            ip link set dev "${netdev##*/}" vf "$2" state auto || return 1
    fi
    driver=/sys/bus/pci/drivers/mlx5_core
    if [ -e "/sys/bus/pci/devices/$3/driver" ]; then
        echo "$3" >"$driver/unbind" || return 1
    fi
    echo "$3" >"$driver/bind"
}
"""


def plan(facts: dict, settings: list[dict], recreate_allowed, root: str = "/") -> Plan:
    """facts: devices {PCI address: {total, enabled, virtual, infiniband, node_guid, vf_guids, lag, held}}, owned_files,
    enabled, node. vf_guids: one per existing VF, in order; None without a GUID, empty if another driver has the VF.
    lag: the one HCA of bonded ports. held: why the existing VFs cannot go.

    settings: items pci, vfs and guids. recreate_allowed: None refuses if VFs would have to be removed first, True
    removes them, False leaves them.
    """
    made = Plan()
    wanted = {pci.full(item["pci"]): item["vfs"] for item in settings}
    own = {pci.full(item["pci"]): item.get("guids", True) for item in settings}
    chosen = {address: vfs for address, vfs in wanted.items() if _usable(facts, address, vfs, made)}
    if made.findings:
        return made
    if not settings:
        plan_unit(made, facts, UNIT, _UNIT, needed=False)
        plan_removal(made, facts, SCRIPT)
        return made
    offline = kernel_out_of_reach(facts, root)
    for address, vfs in chosen.items():
        _running(facts["devices"][address], address, vfs, recreate_allowed, offline, made)
    if made.findings:
        return made
    guids = {address: _guids(facts["devices"][address], vfs) for address, vfs in chosen.items() if own[address]}
    plan_file(made, facts, SCRIPT, script(chosen, guids))
    plan_unit(made, facts, UNIT, _UNIT, needed=True)
    for address, given in guids.items():
        _running_guids(facts["devices"][address], address, given, offline, made)
    made.notes.append(
        "in shared RDMA netns mode a pod sees the RDMA devices of all VFs: they separate traffic and queues, not access"
    )
    return made


def script(wanted: dict, guids: dict | None = None) -> str:
    """wanted: {PCI address: VFs}; guids: {PCI address: the GUIDs of its VFs}."""
    calls = [f"set_vfs {address} {vfs}\n" for address, vfs in sorted(wanted.items()) if vfs]
    given = [f"set_guids {address} {' '.join(own)}\n" for address, own in sorted((guids or {}).items()) if own]
    return "".join([HEADER, _SCRIPT, *([_GUIDS, IS_CHILD] if given else []), *calls, *given, "exit $failed\n"])


def guid(port: str, number: int) -> str:
    """The GUID of a VF in ip's format, locally administered so that it cannot be a card's."""
    return ":".join(["02", *(f"{byte:02x}" for byte in hashlib.sha256(f"{port} vf {number}".encode()).digest()[:7])])


def _guids(device: dict, vfs: int) -> list[str]:
    if not device.get("infiniband") or not device.get("node_guid"):
        return []
    return [guid(device["node_guid"], number) for number in range(vfs)]


def _running_guids(device: dict, address: str, given: list[str], offline, made: Plan) -> None:
    obj, there = f"PCI {address} VF GUIDs", device.get("vf_guids") or []
    anew = any(change.object == f"PCI {address} sriov_numvfs" for change in made.changes)
    missing = given if anew else [own for own, seen in zip(given, there) if seen is None]
    if missing and offline:
        made.not_verified.append(f"{obj}: {offline}")
    elif missing:
        made.change(obj, "run", "", " ".join(missing))


def _usable(facts: dict, address: str, vfs: int, made: Plan) -> bool:
    obj, device = f"SR-IOV of PCI {address}", facts["devices"].get(address)
    wanted = f"{vfs} VFs"
    if device is None:
        seen = f"no such function; HCAs here: {text.listing(sorted(facts['devices'])) or 'none'}"
        made.finding(obj, wanted, seen, "correct the address, or set it only for the hosts that have it")
    elif device["virtual"]:
        made.finding(obj, wanted, "it is itself a VF", "use the physical function")
    elif vfs and not device["total"]:
        step = "enable it in the firmware: mlxconfig -d ADDRESS set SRIOV_EN=1 NUM_OF_VFS=N, then a cold reboot"
        made.finding(obj, wanted, "the function supports no VFs", step)
    elif vfs > device["total"]:
        step = "raise it in the firmware: mlxconfig -d ADDRESS set NUM_OF_VFS=N, then a cold reboot; or request fewer"
        made.finding(obj, wanted, f"the firmware allows {device['total']}", step)
    elif vfs and not device["enabled"] and device.get("lag"):
        step = "take the ports out of the bond; or set up VF LAG yourself: VFs, then switchdev mode, then the bond"
        made.finding(obj, wanted, f"its ports are bonded, and VFs would end RoCE LAG: {device['lag']} would go", step)
    return not any(finding.object == obj for finding in made.findings)


def _running(device: dict, address: str, vfs: int, recreate_allowed, offline, made: Plan) -> None:
    obj, there = f"PCI {address} sriov_numvfs", device["enabled"]
    if there == vfs:
        return
    if offline:
        made.not_verified.append(f"{obj}: {offline}")
    elif there == 0:
        made.change(obj, "set", "0", str(vfs))
    elif recreate_allowed is not False and device.get("held"):
        step = "stop the virtual machine, or move management elsewhere; networks_sriov_recreate_allowed: false waits"
        made.finding(obj, f"{vfs} VFs", f"{there}, which would be removed: {text.listing(device['held'])}", step)
    elif recreate_allowed is None:
        made.finding(
            obj,
            f"{vfs} VFs",
            f"{there}: a new number removes all of them first, even those in use by pods",
            "drain the pods and set networks_sriov_recreate_allowed: true; false leaves the VFs until a reboot",
        )
    elif recreate_allowed:
        made.change(obj, "set", str(there), str(vfs))
    else:
        why = "networks_sriov_recreate_allowed is false"
        made.not_applied.append(f"{obj} stays {there} until the next boot: {why}")
