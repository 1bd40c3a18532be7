"""Set the RDMA subsystem's network namespace mode over netlink, as `rdma system set netns` does.

iproute2 on older nodes has no `rdma system`, so the one message is built here. Numbers are those of
include/uapi/rdma/rdma_netlink.h and include/uapi/linux/netlink.h; they are kernel ABI.
"""

from __future__ import annotations

import os
import socket
import struct

NETLINK_RDMA = 20
RDMA_NL_NLDEV = 5
RDMA_NLDEV_CMD_SYS_SET = 7
RDMA_NLDEV_SYS_ATTR_NETNS_MODE = 66  # u8: 1 shared, 0 exclusive
NLM_F_REQUEST = 0x01
NLM_F_ACK = 0x04
NLMSG_ERROR = 0x02

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")  # nlattr: length, type
_MODES = {"exclusive": 0, "shared": 1}


def set_netns_mode_message(mode: str, sequence: int) -> bytes:
    """RDMA_NLDEV_CMD_SYS_SET with the wanted mode; the attribute is padded to four bytes."""
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + 1, RDMA_NLDEV_SYS_ATTR_NETNS_MODE) + bytes([_MODES[mode], 0, 0, 0])
    message_type = (RDMA_NL_NLDEV << 10) + RDMA_NLDEV_CMD_SYS_SET
    return _HEADER.pack(_HEADER.size + len(attribute), message_type, NLM_F_REQUEST | NLM_F_ACK, sequence, 0) + attribute


def acknowledged_errno(answer: bytes, sequence: int) -> int | None:
    """The errno in the acknowledgement of this sequence number (0 is success), None when it is missing."""
    offset = 0
    while offset + _HEADER.size <= len(answer):
        length, message_type, _flags, seen, _port = _HEADER.unpack_from(answer, offset)
        if length < _HEADER.size or offset + length > len(answer):
            raise ValueError(f"netlink answer is truncated: {answer[offset:].hex()}")
        if message_type == NLMSG_ERROR and seen == sequence:
            return -struct.unpack_from("=i", answer, offset + _HEADER.size)[0]
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
