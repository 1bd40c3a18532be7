# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Socket files beside those of the kubelet and of other plugins: published whole, removed only when they are ours."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from typing import Optional

MAX_PATH = 107  # sockaddr_un.sun_path without its zero
# Seconds: a socket has a name a moment before it is listened on, and does not answer then.
_YOUNG = 1.0

Identity = tuple[int, int, int]


def identity(path: str) -> Optional[Identity]:
    """What stands at a path: device, inode, and its time, because inode numbers are used again; None for nothing."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def answers(path: str) -> bool:
    """Whether someone listens at a socket."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        probe.connect(path)
    except BlockingIOError:
        return True  # its backlog is full
    except OSError:
        return False
    finally:
        probe.close()
    return True


def hidden(directory: str, name: str, generation: int) -> str:
    """Where a socket is bound before it gets its name. The kubelet's watcher skips names with a leading dot."""
    path = f"{directory}/.{name}.{generation}"
    return path if len(os.fsencode(path)) <= MAX_PATH else f"{directory}/.{os.getpid():x}.{generation:x}"


class Silence:
    """How long the socket at a path has been known not to answer, by a clock that nobody sets."""

    def __init__(self) -> None:
        self._who: Optional[Identity] = None
        self._since = 0.0

    def seconds(self, found: Identity) -> float:
        """Since it was first seen here; its time of change counts too, unless it lies ahead of the clock."""
        if found != self._who:
            self._who, self._since = found, time.monotonic()
        return max(time.monotonic() - self._since, (time.time_ns() - found[2]) / 1e9)


def publish(bound: str, path: str, before: Optional[Identity] = None, silence: Optional[Silence] = None) -> Identity:
    """Give a bound, listening socket its name. Whoever looks sees the old one or the new one, never none.

    before: the one of ours that it replaces. silence: what is known of one that does not answer. OSError (EADDRINUSE)
    when someone else serves the path, also someone who came while ours was made: then the path stays his.
    """
    os.chmod(bound, 0o600)
    found = identity(bound)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "the socket was removed before it was published", bound)
    try:
        os.link(bound, path)  # never over another one, as a rename would
    except FileExistsError:
        there = identity(path)
        if there and there != before and (answers(path) or (silence or Silence()).seconds(there) < _YOUNG):
            os.unlink(bound)
            raise in_use(path) from None
        os.rename(bound, path)
    else:
        os.unlink(bound)
    return found


def in_use(path: str) -> OSError:
    return OSError(errno.EADDRINUSE, "another process serves this socket, stop it (the Go plugin?)", path)


def withdraw(path: str, ours: Optional[Identity]) -> bool:
    """Remove a socket if it is still the one that we published there."""
    if ours is None or identity(path) != ours:
        return False
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


class Claim:
    """The right to serve a socket name on this node, held by one process at a time (flock on a file beside it).

    A lock and not a probe of the socket: two instances that start together would both find nobody.
    """

    def __init__(self, directory: str, name: str):
        self.path = f"{directory}/.{name}.lock"
        self._fd: Optional[int] = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def take(self) -> bool:
        """Try once. OSError when the directory cannot be written."""
        if self.held:
            return True
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._at_path(fd):
                os.close(fd)  # its holder removed it while we opened it: what we locked is no longer a file
                return self.take()
            self._sign(fd)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

    @staticmethod
    def _sign(fd: int) -> None:
        """Write who holds it, for messages only: a full disk is not a reason not to serve."""
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except OSError:
            pass

    def holder(self) -> str:
        """Process id that the holder wrote, for a message."""
        try:
            with open(self.path, encoding="ascii", errors="replace") as file:
                return file.read(20).strip() or "unknown"
        except OSError:
            return "unknown"

    def release(self) -> None:
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        if self._at_path(fd):
            try:
                os.unlink(self.path)
            except OSError:
                pass  # a lock file that stays is no harm: the lock is on the open file
        os.close(fd)

    def _at_path(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self.path))
        except OSError:
            return False
