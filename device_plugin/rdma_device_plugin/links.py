# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set a network interface up, as upstream does for the interfaces of the HCAs it selects."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Optional

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_REQUEST = struct.Struct("16sh22x")  # struct ifreq with ifr_flags, 40 bytes as on 64 bit


def set_up(name: str) -> Optional[str]:
    """Set an interface up and read back. None, or what went wrong."""
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        flags = _flags(control, name)
        if flags & _IFF_UP:
            return None
        fcntl.ioctl(control, _SIOCSIFFLAGS, _REQUEST.pack(name.encode(), flags | _IFF_UP))
        if not _flags(control, name) & _IFF_UP:
            return "the kernel accepted the request but left the interface down"
    except PermissionError:
        return "not permitted: give the plugin CAP_NET_ADMIN, or set linkUp: false and set it up elsewhere"
    except OSError as error:
        return error.strerror or str(error)
    finally:
        control.close()
    return None


def _flags(control: socket.socket, name: str) -> int:
    answer = fcntl.ioctl(control, _SIOCGIFFLAGS, _REQUEST.pack(name.encode(), 0))
    return _REQUEST.unpack(answer)[1] & 0xFFFF
