# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications to a service manager, sd_notify(3)."""

from __future__ import annotations

import os
import socket

# Seconds: the loop that answers the kubelet waits no longer for a manager whose queue is full.
_PATIENCE = 0.2


def tell(*lines: str) -> None:
    """Send lines such as READY=1 or STATUS=text to the socket in NOTIFY_SOCKET; nothing if nothing is listening."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.settimeout(_PATIENCE)
        try:
            channel.sendto("\n".join(lines).encode(), target)
        except OSError:
            pass  # a manager that does not listen is not a reason to stop serving pods
