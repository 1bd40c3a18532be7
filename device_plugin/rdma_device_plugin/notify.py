# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Notifications to a service manager, sd_notify(3)."""

from __future__ import annotations

import os
import socket


def tell(*lines: str) -> None:
    """Send lines such as READY=1 or STATUS=text to the socket in NOTIFY_SOCKET; nothing if nothing is listening."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    target = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto("\n".join(lines).encode(), target)
        except OSError:
            pass  # a manager that no longer listens is not a reason to stop serving pods
