"""The RDMA subsystem's network namespace mode: running, and at boot.

`plan` is pure. `set_netns_mode` replaces `rdma system set netns`, which iproute2 on older nodes lacks. Numbers come
from include/uapi/rdma/rdma_netlink.h; they are kernel ABI.
"""

from __future__ import annotations

import os
import struct

from .._core.change import Plan, kernel_out_of_reach
from .._core.files import plan_file, with_directive
from ..hca import netlink, paths
from ..hca.modprobe import CMDLINE, said
from .initramfs import mark_stale

OBJECT = "RDMA netns mode"
_VALUE = {"shared": 1, "exclusive": 0}


def plan(facts: dict, wanted: dict, root: str = "/", busy: bool = False) -> Plan:
    """wanted: mode (shared|exclusive), override_allowed (None|True|False).

    busy: the kernel has just refused the change although only short-lived units seemed to block it.
    """
    made = Plan()
    mode = wanted["mode"]
    subsystem = facts["subsystem"]
    if not _may_persist(subsystem["netns_sources"], mode, wanted["override_allowed"], made):
        return made

    owned = facts["owned_files"].get(paths.OWN_MODPROBE)
    option = f"options ib_core netns_mode={_VALUE[mode]}"
    text = with_directive(owned["content"] if owned else "", "options ib_core", option)
    mark_stale(made, facts, plan_file(made, facts, paths.OWN_MODPROBE, text), root)
    _plan_running(facts, mode, kernel_out_of_reach(facts, root), busy, made)
    return made


def _may_persist(sources: list[dict], mode: str, override_allowed: bool | None, made: Plan) -> bool:
    """Whether our file may be written and will win; reports other settings of the mode."""
    files = []
    for source in (source for source in sources if not source["ours"] and source["mode"] != mode):
        if source["path"] == CMDLINE:
            seen = f"the kernel command line says '{source['text']}', which no file can override"
            step = (
                "remove it from the boot loader's configuration (GRUB_CMDLINE_LINUX in /etc/default/grub, then "
                "update-grub or grub2-mkconfig; grubby --update-kernel=ALL --remove-args=...), reboot, and run again"
            )
        elif os.path.basename(source["path"]) > os.path.basename(paths.OWN_MODPROBE):
            seen = f"{said(source)}, and that file is read after {paths.OWN_MODPROBE}"
            step = "remove that line or rename the file so that it sorts before ours"
        else:
            files.append(source)
            if override_allowed is not None:
                continue
            seen = f"{said(source)}; the file is not ours (the SR-IOV network operator writes such files)"
            step = (
                "find out what owns it; then set rdma_netns_override_allowed: true to let our file win, or false to "
                "leave the node in the mode it sets"
            )
        made.finding(OBJECT, f"{mode} at boot", seen, step)
    if made.findings:
        return False
    if files and override_allowed is False:
        made.not_applied.append(
            f"{OBJECT} {mode}: left alone, because rdma_netns_override_allowed is false and "
            + " and ".join(said(source) for source in files)
        )
        return False
    made.notes.extend(f"{said(source)}; {paths.OWN_MODPROBE} is read later and wins" for source in files)
    return True


def _plan_running(facts: dict, mode: str, offline: str | None, busy: bool, made: Plan) -> None:
    subsystem = facts["subsystem"]
    running = subsystem["netns_mode"]
    if running == mode:
        return
    if offline:
        made.not_verified.append(f"the running RDMA netns mode is {running}, {mode} is only persisted: {offline}")
    elif running not in _VALUE:
        # Without ib_core there is no mode yet; the option applies when it is loaded.
        made.notes.append(f"the RDMA netns mode becomes {mode} when ib_core is loaded ({running})")
    elif busy or lasting(subsystem["namespaces"]):
        made.reboot_reasons.append(reboot_reason(running, mode, subsystem["namespaces"]))
    else:
        made.change(OBJECT, "set", running, mode)


def lasting(namespaces: list[dict] | str) -> list[dict]:
    """Namespaces that will not go away on their own: named ones, and those without a short-lived unit as holder.

    If the facts do not know (a string), the kernel decides.
    """
    if isinstance(namespaces, str):
        return []
    return [
        namespace
        for namespace in namespaces
        if namespace["name"] or not namespace["owners"] or not all(owner["transient"] for owner in namespace["owners"])
    ]


def reboot_reason(running: str, mode: str, namespaces: list[dict] | str) -> str:
    held = namespaces if isinstance(namespaces, str) else "; ".join(owners(namespace) for namespace in namespaces)
    return (
        f"{OBJECT} is {running}; {mode} is persisted and takes effect at boot, because the kernel does not change it "
        f"while another network namespace exists ({held or 'its owner is not visible from this process'})"
    )


def owners(namespace: dict) -> str:
    """One network namespace and its holders, for a message."""
    held = [f"named {namespace['name']}"] if namespace["name"] else []
    for owner in namespace["owners"]:
        held.append(f"pid {owner['pid']} {owner['command']}" + (f" of {owner['unit']}" if owner["unit"] else ""))
    return f"namespace {namespace['inode']}: {', '.join(held) or 'no visible owner'}"


_NETLINK_RDMA, _SET_SYSTEM, _ACK = 20, (5 << 10) + 7, 0x04  # RDMA_NLDEV_CMD_SYS_SET of RDMA_NL_NLDEV; NLM_F_ACK
_NETNS_MODE = 66  # RDMA_NLDEV_SYS_ATTR_NETNS_MODE: u8, 1 shared, 0 exclusive


def set_netns_mode(mode: str) -> None:
    """Ask the kernel for the mode; raises OSError (EBUSY while another network namespace exists, EPERM, ...)."""
    attribute = struct.pack("=HHB3x", 5, _NETNS_MODE, _VALUE[mode])
    answers = netlink.answers(_SET_SYSTEM, netlink.REQUEST | _ACK, attribute, _NETLINK_RDMA)
    code = next(code for code in map(netlink.failure, answers) if code is not None)
    if code:
        raise OSError(code, os.strerror(code))
