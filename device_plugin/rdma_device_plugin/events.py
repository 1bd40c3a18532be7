# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kernel events (uevents, link changes, changes in directories), and setting interfaces up. Standard library.

Each is only a hint that something may have changed; slow polls back them up, so a lost message only costs time.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Collection
from typing import Callable, Optional

from . import log

_NETLINK_KOBJECT_UEVENT = 15
_KERNEL_GROUP = 1  # messages of the kernel; group 2 is udevd's
_RTMGRP_LINK = 1
_BUFFER = 1 << 16

# Subsystems whose devices can change a pool: HCAs, their character devices, netdevs, functions and modules.
SUBSYSTEMS = frozenset(
    b"infiniband infiniband_verbs infiniband_mad infiniband_cm misc net pci auxiliary module".split()
)

_IN_MODIFY, _IN_CLOSE_WRITE, _IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 2, 8, 0x40, 0x80, 0x100, 0x200
_IN_DELETE_SELF, _IN_MOVE_SELF, _IN_Q_OVERFLOW, _IN_IGNORED, _IN_ONLYDIR = 0x400, 0x800, 0x4000, 0x8000, 0x1000000
_IN_MASK = _IN_CLOSE_WRITE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF
_EVENT = struct.Struct("iIII")
_ANY = "/"  # no entry of a directory has that name


def concerns_rdma(uevent: bytes) -> bool:
    """Whether a message of the kernel, `ACTION@devpath\\0KEY=value\\0…`, is about a device of interest."""
    values = dict(part.partition(b"=")[::2] for part in uevent.split(b"\0")[1:])
    return values.get(b"SUBSYSTEM") in SUBSYSTEMS and values.get(b"ACTION") != b"offline"


class _Netlink:
    """A multicast netlink socket on the event loop. `lost` is called when the kernel had to drop messages."""

    def __init__(self, protocol: int, group: int, receive: Callable[[bytes], None], lost: Callable[[], None]):
        self._receive = receive
        self._lost = lost
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            self._socket.bind((0, group))
        except OSError:
            self._socket.close()
            raise
        asyncio.get_running_loop().add_reader(self._socket, self._read)

    def _read(self) -> None:
        while True:
            try:
                message, sender = self._socket.recvfrom(_BUFFER)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self._lost()
                    continue
                log.on_change("netlink", f"netlink socket: {error.strerror}; only the slow poll is left")
                self.close()
                return
            if sender[0] == 0:  # the kernel; any process may send to a multicast group
                self._receive(message)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()


def watch_devices(changed: Callable[[], None]) -> Optional[_Netlink]:
    """Call `changed` when a device of interest is added, removed, renamed or bound."""

    def receive(message: bytes) -> None:
        if concerns_rdma(message):
            changed()

    return _open("device events", _NETLINK_KOBJECT_UEVENT, _KERNEL_GROUP, receive, changed)


def watch_links(changed: Callable[[], None]) -> Optional[_Netlink]:
    """Call `changed` when a network interface goes up or down, because a RoCE port sends no event itself."""
    return _open("link events", socket.NETLINK_ROUTE, _RTMGRP_LINK, lambda _message: changed(), changed)


def _open(
    what: str, protocol: int, group: int, receive: Callable[[bytes], None], lost: Callable[[], None]
) -> Optional[_Netlink]:
    try:
        return _Netlink(protocol, group, receive, lost)
    except OSError as error:
        log.warning(f"no {what} from the kernel: {error.strerror}; only the poll sees changes")
        return None


class _Watch:
    """A directory and the callbacks for its entries, in constant time, because thousands of pools share one."""

    def __init__(self, path: str):
        self.path = path
        self._names: dict[Callable[[str], None], Collection[str]] = {}
        self._by_name: dict[str, dict[Callable[[str], None], None]] = {}

    def add(self, changed: Callable[[str], None], names: Collection[str]) -> None:
        if changed not in self._names:
            self._names[changed] = names
            for name in names or (_ANY,):
                self._by_name.setdefault(name, {})[changed] = None

    def remove(self, changed: Callable[[str], None]) -> None:
        if changed in self._names:
            for name in self._names.pop(changed) or (_ANY,):
                del self._by_name[name][changed]
                if not self._by_name[name]:
                    del self._by_name[name]

    @property
    def wanted(self) -> bool:
        return bool(self._names)

    def wanting(self, name: str) -> list[Callable[[str], None]]:
        """The callbacks for an entry; all of them for the directory itself, which has no name."""
        return [*self._by_name.get(_ANY, ()), *self._by_name.get(name, ())] if name else list(self._names)


class Directories:
    """inotify on directories: `changed(name)` for each entry that was added, removed, replaced or written."""

    def __init__(self) -> None:
        self._watches: dict[int, _Watch] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            log.warning(f"no inotify: {os.strerror(ctypes.get_errno())}; files are only polled every few seconds")
            return
        asyncio.get_running_loop().add_reader(self._fd, self._read)

    def watch(self, path: str, changed: Callable[[str], None], names: Collection[str] = ()) -> bool:
        """Watch a directory. False if it cannot be watched (does not exist): try again later.

        names: the entries that matter; without any, all do.
        """
        if self._fd < 0:
            return False
        for watch in self._watches.values():
            if watch.path == path:
                watch.add(changed, names)
                return True
        number = self._libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MASK | _IN_ONLYDIR)
        if number < 0:
            return False
        self._watches[number] = _Watch(path)
        self._watches[number].add(changed, names)
        return True

    def forget(self, changed: Callable[[str], None]) -> None:
        """Remove a callback; a directory without callbacks is no longer watched."""
        for number, watch in list(self._watches.items()):
            watch.remove(changed)
            if not watch.wanted:
                del self._watches[number]
                self._libc.inotify_rm_watch(self._fd, number)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._fd, _BUFFER)
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            place = 0
            while place < len(data):
                number, mask, _cookie, length = _EVENT.unpack_from(data, place)
                place += _EVENT.size + length
                self._event(number, mask, os.fsdecode(data[place - length : place].rstrip(b"\0")))

    def _event(self, number: int, mask: int, name: str) -> None:
        if mask & _IN_Q_OVERFLOW:
            callbacks = [changed for watch in self._watches.values() for changed in watch.wanting("")]
        elif number in self._watches:
            callbacks = self._watches[number].wanting(name)
        else:
            return
        if mask & _IN_MOVE_SELF:
            self._libc.inotify_rm_watch(self._fd, number)
        if mask & (_IN_IGNORED | _IN_MOVE_SELF):
            self._watches.pop(number, None)  # the directory is gone; its users watch it again
        for changed in callbacks:
            changed(name)

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._watches.clear()


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
