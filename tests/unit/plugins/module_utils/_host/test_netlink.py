"""The one netlink message, byte by byte, and the kernel's answers."""

from __future__ import annotations

import errno
import struct

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import netlink

little_endian = pytest.mark.skipif(struct.pack("=H", 1) != b"\x01\x00", reason="the bytes below are little-endian")


@little_endian
@pytest.mark.parametrize(("mode", "value"), [("shared", "01"), ("exclusive", "00")])
def test_the_bytes_of_the_request(mode, value):
    # As `strace -e sendto rdma system set netns` shows them: nlmsghdr, then one u8 attribute padded to four bytes.
    expected = (
        "18000000"  # length 24
        "0714"  # RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_SET) = 5127
        "0500"  # NLM_F_REQUEST | NLM_F_ACK
        "07000000"  # sequence
        "00000000"  # port, filled in by the kernel
        "0500" + "4200" + value + "000000"  # length 5, RDMA_NLDEV_SYS_ATTR_NETNS_MODE, mode
    )
    assert netlink.set_netns_mode_message(mode, 7).hex() == expected


def answer(code: int, sequence: int, message_type: int = netlink.NLMSG_ERROR) -> bytes:
    body = struct.pack("=i", -code) + netlink.set_netns_mode_message("shared", sequence)[:16]
    return struct.pack("=IHHII", 16 + len(body), message_type, 0, sequence, 4711) + body


@pytest.mark.parametrize("code", [0, errno.EBUSY, errno.EPERM])
def test_the_acknowledgement_carries_the_errno(code):
    assert netlink.acknowledged_errno(answer(code, 7), 7) == code


def test_other_messages_are_passed_over():
    noise = answer(errno.EINVAL, 6) + answer(0, 7, message_type=3)
    assert netlink.acknowledged_errno(noise, 7) is None
    assert netlink.acknowledged_errno(noise + answer(errno.EBUSY, 7), 7) == errno.EBUSY


def test_a_short_answer_is_an_error():
    with pytest.raises(ValueError, match="truncated"):
        netlink.acknowledged_errno(answer(0, 7)[:-1], 7)
