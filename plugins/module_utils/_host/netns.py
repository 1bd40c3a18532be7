"""The RDMA subsystem's network namespace mode: running, and at boot.

`plan` is pure. `set_netns_mode` replaces `rdma system set netns`, which iproute2 on older nodes lacks. Numbers come
from include/uapi/rdma/rdma_netlink.h; they are kernel ABI.
"""

from __future__ import annotations

import os
import socket
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
    against = [source for source in sources if not source["ours"] and source["mode"] != mode]
    cmdline = [source for source in against if source["path"] == CMDLINE]
    own = os.path.basename(paths.OWN_MODPROBE)
    later = [source for source in against if source not in cmdline and os.path.basename(source["path"]) > own]
    files = [source for source in against if source not in cmdline and source not in later]
    for source in cmdline:
        made.finding(
            OBJECT,
            f"{mode} at boot",
            f"the kernel command line says '{source['text']}', which no file can override",
            "remove it from the boot loader's configuration (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub "
            "or grub2-mkconfig; grubby --update-kernel=ALL --remove-args=...), reboot, and run again",
        )
    for source in later:
        made.finding(
            OBJECT,
            f"{mode} at boot",
            f"{said(source)}, and that file is read after {paths.OWN_MODPROBE}",
            "remove that line or rename the file so that it sorts before ours",
        )
    if files and override_allowed is None:
        for source in files:
            made.finding(
                OBJECT,
                f"{mode} at boot",
                f"{said(source)}; the file is not ours (the SR-IOV network operator writes such files)",
                "find out what owns it; then set rdma_netns_override_allowed: true to let our file win, or false to "
                "leave the node in the mode it sets",
            )
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


NETLINK_RDMA = 20
RDMA_NL_NLDEV = 5
RDMA_NLDEV_CMD_SYS_SET = 7
RDMA_NLDEV_SYS_ATTR_NETNS_MODE = 66  # u8: 1 shared, 0 exclusive
NLM_F_ACK = 0x04
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type


def set_netns_mode_message(mode: str, sequence: int) -> bytes:
    """RDMA_NLDEV_CMD_SYS_SET with the wanted mode; the attribute is padded to four bytes."""
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + 1, RDMA_NLDEV_SYS_ATTR_NETNS_MODE) + bytes([_VALUE[mode], 0, 0, 0])
    message_type = (RDMA_NL_NLDEV << 10) + RDMA_NLDEV_CMD_SYS_SET
    return (
        netlink.HEADER.pack(
            netlink.HEADER.size + len(attribute), message_type, netlink.REQUEST | NLM_F_ACK, sequence, 0
        )
        + attribute
    )


def acknowledged_errno(answer: bytes, sequence: int) -> int | None:
    """The errno in the acknowledgement of this sequence number (0 is success), None if it is missing."""
    offset = 0
    while offset + netlink.HEADER.size <= len(answer):
        length, message_type, _flags, seen, _port = netlink.HEADER.unpack_from(answer, offset)
        if length < netlink.HEADER.size or offset + length > len(answer):
            raise ValueError(f"netlink answer is truncated: {answer[offset:].hex()}")
        if message_type == netlink.ERROR and seen == sequence:
            return -struct.unpack_from("=i", answer, offset + netlink.HEADER.size)[0]
        offset += (length + 3) & ~3
    return None


def set_netns_mode(mode: str, timeout: float = 5.0) -> None:
    """Ask the kernel for the mode; raises OSError (EBUSY while another network namespace exists, EPERM, ...)."""
    sequence = 1
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_RDMA) as channel:
        channel.settimeout(timeout)
        channel.bind((0, 0))
        channel.send(set_netns_mode_message(mode, sequence))
        code = None
        while code is None:
            code = acknowledged_errno(channel.recv(8192), sequence)
    if code:
        raise OSError(code, os.strerror(code))
