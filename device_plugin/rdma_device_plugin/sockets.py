# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Socket files next to the kubelet's and other plugins': published atomically, removed only if ours, served."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
import zlib
from typing import Any, Optional
from urllib.parse import quote

import grpc

MAX_PATH = 107  # sockaddr_un.sun_path without its zero
# Seconds: a socket exists a moment before anything listens on it, and does not respond then.
_YOUNG = 1.0

Identity = tuple[int, int, int]


def identity(path: str) -> Optional[Identity]:
    """The file at a path: device, inode and time, because inode numbers are reused; None for nothing."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def answers(path: str) -> bool:
    """Whether something listens on a socket."""
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
    """The path at which a socket is first bound. The kubelet's watcher skips names with a leading dot."""
    path = f"{directory}/.{name}.{generation}"
    short = f"{directory}/.{zlib.crc32(name.encode()):x}.{os.getpid():x}.{generation:x}"
    return path if len(os.fsencode(path)) <= MAX_PATH else short


class Silence:
    """How long the socket at a path has not responded, by the monotonic clock."""

    def __init__(self) -> None:
        self._who: Optional[Identity] = None
        self._since = 0.0

    def seconds(self, found: Identity) -> float:
        """Since it was first seen here; its change time counts too, unless it is in the future."""
        if found != self._who:
            self._who, self._since = found, time.monotonic()
        return max(time.monotonic() - self._since, (time.time_ns() - found[2]) / 1e9)


def publish(bound: str, path: str, before: Optional[Identity] = None, silence: Optional[Silence] = None) -> Identity:
    """Give a bound, listening socket its name. Clients see the old one or the new one, never none.

    before: our own socket that it replaces. silence: the record of one that does not respond. OSError (EADDRINUSE) if
    another process serves the path, even one that appeared while ours was being created: the path stays theirs.
    """
    os.chmod(bound, 0o600)
    found = identity(bound)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "the socket was removed before it was published", bound)
    try:
        os.link(bound, path)  # never over another one, unlike a rename
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


def withdraw(path: str, ours: Optional[Identity]) -> None:
    """Remove a socket if it is still the one that we published there."""
    if ours is not None and identity(path) == ours:
        with contextlib.suppress(OSError):
            os.unlink(path)


class Claim:
    """The right to serve a socket name on this node, held by one process at a time (flock on a file next to it).

    A lock instead of a probe of the socket: two instances that start together would both find it free.
    """

    def __init__(self, directory: str, name: str):
        self.path = f"{directory}/.{name}.lock"
        self._fd: Optional[int] = None

    @property
    def held(self) -> bool:
        return self._fd is not None

    def take(self) -> bool:
        """Try once. OSError if the directory cannot be written."""
        if self.held:
            return True
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self._at_path(fd):
                os.close(fd)  # its holder removed it while we opened it: we locked a deleted file
                return self.take()
            # The holder, for messages only: a full disk must not prevent serving.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        return True

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
            with contextlib.suppress(OSError):  # a leftover lock file is harmless: the lock is on the open file
                os.unlink(self.path)
        os.close(fd)

    def _at_path(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self.path))
        except OSError:
            return False


class Listener:
    """One gRPC server on one published socket."""

    def __init__(self, directory: str, name: str):
        self.path = f"{directory}/{name}"
        self._directory = directory
        self._name = name
        self._server: Optional[grpc.aio.Server] = None
        self._identity: Optional[Identity] = None
        self._silence = Silence()

    @property
    def published(self) -> bool:
        """Whether the socket at our path is ours; the kubelet removes all sockets when it starts."""
        return self._identity is not None and identity(self.path) == self._identity

    @property
    def foreign(self) -> bool:
        """Whether another process serves our path."""
        return not self.published and answers(self.path)

    async def start(self, service: Any, generation: int) -> None:
        """Serve, then publish: a visible socket responds. OSError if the directory does not allow it.

        service: adds its services to a server by `attach`.
        """
        if len(os.fsencode(self.path)) > MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, f"socket paths hold {MAX_PATH} bytes", self.path)
        # grpc only says "failed to bind" for any reason; find the reason first.
        if not os.access(self._directory, os.W_OK | os.X_OK):
            os.stat(f"{self._directory}/.")
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._directory)
        bound = hidden(self._directory, self._name, generation)
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        service.attach(server)
        try:
            try:
                server.add_insecure_port(f"unix:{quote(bound)}")
            except RuntimeError as error:
                raise OSError(errno.EIO, f"cannot bind: {error}", bound) from None
            await server.start()
            identity = publish(bound, self.path, self._identity, self._silence)
        except BaseException:
            await server.stop(0)
            raise
        before, self._server, self._identity = self._server, server, identity
        if before:
            await before.stop(0)

    async def stop(self, grace: float) -> None:
        """Unpublish and stop. A foreign socket at our path stays."""
        withdraw(self.path, self._identity)
        server, self._server, self._identity = self._server, None, None
        if server:
            await server.stop(grace)
