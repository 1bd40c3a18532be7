# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many virtual functions each port has, now and at boot.

PRIVATE to the collection. Pure: what sysfs says and what is wanted in, Plan out. The kernel changes the number only
from or to zero, so a new number removes existing VFs first, even those in use.
"""

from __future__ import annotations

from .._core import text
from .._core.change import Plan, kernel_out_of_reach
from .._core.files import HEADER, plan_file, plan_removal

UNIT = "/etc/systemd/system/gpufabric-rdma-vfs.service"
SCRIPT = "/usr/local/libexec/gpufabric-rdma-vfs"
ENABLED = "/etc/systemd/system/multi-user.target.wants/gpufabric-rdma-vfs.service"
LINK_TARGET = "../gpufabric-rdma-vfs.service"

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

[Install]
WantedBy=multi-user.target
"""
)
_SCRIPT = """
# set_vfs PCI NUMBER: the driver takes its time at boot, so the device is waited for; one that never shows up fails the
# unit, not the others.
failed=0
set_vfs() {
    file=/sys/bus/pci/devices/$1/sriov_numvfs
    waited=0
    while [ ! -e "$file" ] && [ "$waited" -lt "${VF_WAIT_SECONDS:-60}" ]; do
        sleep 1
        waited=$((waited + 1))
    done
    if [ ! -e "$file" ]; then
        echo "gpufabric-rdma-vfs: $1 has no SR-IOV" >&2
        failed=1
    elif [ "$(cat "$file")" = 0 ]; then
        echo "$2" >"$file" || failed=1
    fi
}
"""


def plan(facts: dict, settings: list[dict], recreate_allowed, root: str = "/") -> Plan:
    """facts: devices {PCI address: {total, enabled, virtual, default_route, in_use}}, owned_files, enabled, node.

    settings: items pci and vfs. recreate_allowed: None refuses when VFs would have to be removed first, True removes
    them, False leaves them.
    """
    made = Plan()
    wanted = {_normal(item["pci"]): item["vfs"] for item in settings}
    chosen = {address: vfs for address, vfs in wanted.items() if _usable(facts, address, vfs, made)}
    if made.findings:
        return made
    if not settings:
        if facts["enabled"]:
            made.change(ENABLED, "unlink", LINK_TARGET, "")
        plan_removal(made, facts, UNIT)
        plan_removal(made, facts, SCRIPT)
        return made
    offline = kernel_out_of_reach(facts, root)
    for address, vfs in chosen.items():
        _running(facts["devices"][address], address, vfs, recreate_allowed, offline, made)
    if made.findings:
        return made
    plan_file(made, facts, SCRIPT, script(chosen))
    plan_file(made, facts, UNIT, _UNIT)
    if not facts["enabled"]:
        made.change(ENABLED, "link", "", LINK_TARGET)
    made.notes.append(
        "in shared RDMA netns mode a pod sees the RDMA devices of all VFs: they separate traffic and queues, not access"
    )
    return made


def script(wanted: dict) -> str:
    calls = [f"set_vfs {address} {vfs}\n" for address, vfs in sorted(wanted.items())]
    return "".join([HEADER, _SCRIPT, *calls, "exit $failed\n"])


def _normal(address: str) -> str:
    address = address.lower()
    return f"0000:{address}" if address.count(":") == 1 else address


def _usable(facts: dict, address: str, vfs: int, made: Plan) -> bool:
    obj, device = f"SR-IOV of PCI {address}", facts["devices"].get(address)
    wanted = f"{vfs} VFs"
    if device is None:
        seen = f"no such function; HCAs here: {text.listing(sorted(facts['devices'])) or 'none'}"
        made.finding(obj, wanted, seen, "correct the address, or set it only for the hosts that have it")
    elif device["virtual"]:
        made.finding(obj, wanted, "it is itself a VF", "name the physical function")
    elif not device["total"]:
        step = "enable it in the firmware: mlxconfig -d ADDRESS set SRIOV_EN=1 NUM_OF_VFS=N, then a cold reboot"
        made.finding(obj, wanted, "the function supports no VFs", step)
    elif vfs > device["total"]:
        step = "raise it in the firmware: mlxconfig -d ADDRESS set NUM_OF_VFS=N, then a cold reboot; or request fewer"
        made.finding(obj, wanted, f"the firmware allows {device['total']}", step)
    return not any(finding.object == obj for finding in made.findings)


def _running(device: dict, address: str, vfs: int, recreate_allowed, offline, made: Plan) -> None:
    obj, there = f"PCI {address} sriov_numvfs", device["enabled"]
    if there == vfs:
        return
    if offline:
        made.not_verified.append(f"{obj}: {offline}")
        return
    if there == 0:
        made.change(obj, "set", "0", str(vfs))
        return
    if recreate_allowed is None:
        made.finding(
            obj,
            f"{vfs} VFs",
            f"{there}: a new number removes all of them first, even those that pods use",
            "drain the pods and set networks_sriov_recreate_allowed: true; false leaves the VFs until a reboot",
        )
    elif recreate_allowed:
        made.change(obj, "set", str(there), str(vfs))
    else:
        why = "networks_sriov_recreate_allowed is false"
        made.not_applied.append(f"{obj} stays {there} until the next boot: {why}")
