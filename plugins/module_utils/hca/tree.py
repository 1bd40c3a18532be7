"""Reading a node's files below a root directory: `/` for the machine itself, else a captured or mounted tree."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

# O_NONBLOCK: a FIFO in a captured tree must not hang the reader.
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LINKS_MAX = 40  # the kernel's own limit (ELOOP)
# Attributes of sysfs arrive in one read. Elsewhere (procfs, cgroups) a short read does not mean the end of the file.
_ATTRIBUTES = ("/sys/class/", "/sys/bus/", "/sys/devices/", "/sys/module/")
# No descriptor left, in this process or on this machine, which says nothing about the file.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
_REMEMBERED = 1 << 16  # anything larger (a module file, a package database) is read only once


class Exhausted(OSError):
    """No file descriptor is left to read with, so nothing can be said about the node."""


def _unreadable(error: Exception) -> None:
    """Treat an error as an absent file, unless the reader itself is the problem."""
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        raise Exhausted(error.errno, error.strerror, error.filename) from error


class Tree:
    """The only class in this library that touches files. It never writes and never raises for the node's content;
    Exhausted is about the reader.

    Paths are absolute paths of the node. Below another root than `/` symbolic links are resolved inside that root, so
    an absolute link of a captured machine does not lead into the reading machine.

    record: called as `record(operation, path)` for each access that reaches the file system; capture uses it to learn
    which files carry the facts.
    """

    def __init__(self, root: str = "/", record: Optional[Callable[[str, str], None]] = None):
        real = os.path.realpath(root)
        self.root = real
        self._prefix = "" if real == "/" else real
        # Below another root we follow the last component ourselves, inside that root.
        self._flags = _FLAGS | os.O_NOFOLLOW if self._prefix else _FLAGS
        self._record = record

    @property
    def live(self) -> bool:
        """Whether this is the machine itself."""
        return not self._prefix

    def snapshot(self) -> Snapshot:
        """The same tree with a cache: each file is read once, and every reader sees the same value."""
        return Snapshot(self.root, self._record)

    def once(self, make: Callable[[Tree], Any]) -> Any:
        """The result of a function on this tree; a snapshot calls each function once."""
        return make(self)

    # Methods that touch the file system.

    def read_bytes(self, path: str) -> Optional[bytes]:
        """Content of a file; None if it is absent or unreadable."""
        if self._record:
            self._record("read", path)
        try:
            fd = self._open(path)
        except (OSError, ValueError) as error:
            _unreadable(error)
            return None
        try:
            data = os.read(fd, 4096)
            if not data or (len(data) < 4096 and path.startswith(_ATTRIBUTES)):
                return data
            return b"".join([data, *iter(lambda: os.read(fd, 1 << 20), b"")])
        except OSError:  # EINVAL of an empty GID slot, ENODEV of a removed device, EISDIR
            return None
        finally:
            os.close(fd)

    def attributes(self, directory: str, names: Sequence[str]) -> dict[str, Optional[str]]:
        """Several files of one directory as {name: what `read` would give}, by one path walk if they are many."""
        if len(names) < 4:
            return {name: self.read(f"{directory}/{name}") for name in names}
        if self._record:
            for name in names:
                self._record("read", f"{directory}/{name}")
        found: dict[str, Optional[str]] = dict.fromkeys(names)
        for name, data in self._contents(directory, names, 4096):
            text = self.read(f"{directory}/{name}") if data is None else data.decode("utf-8", "replace").strip()
            found[name] = text
        return found

    def slots(self, directory: str, empty: bytes, first: bool = False) -> list[tuple[int, str]]:
        """Numbered files of a directory whose content does not start with `empty`, as [(number, stripped text)].

        first: only one of them, the lowest.

        For the GID tables: 256 to 1024 slots per port, nearly all empty. All are read, because a table has holes once
        addresses were removed and neither the directory nor any counter shows which slots are in use. It is cheap: one
        path walk for the directory instead of one for each slot, and empty slots are not decoded. For 8 ports of 1024
        slots: 29 ms, less than plain open and read by path (35 ms); 0.45 s on a lab node (QEMU, TCG).
        """
        if self._record:
            self._record("slots", directory)
        names = self._names(directory)
        if first:
            names.sort(key=lambda name: (len(name), name))
        found = []
        for name, data in self._contents(directory, names, 256):
            if data and not data.startswith(empty) and name.isdecimal():
                found.append((int(name), data.decode("utf-8", "replace").strip()))
                if first:
                    break
        return sorted(found)

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if it is absent."""
        if self._record:
            self._record("list", path)
        return sorted(self._names(path))

    def readlink(self, path: str) -> Optional[str]:
        """Target of a symbolic link as written; None if it is not a link."""
        if self._record:
            self._record("link", path)
        try:
            return os.readlink(self._beside(path))
        except (OSError, ValueError):
            return None

    def stat(self, path: str) -> Optional[os.stat_result]:
        """Status of a path's target; None if it is absent."""
        if self._record:
            self._record("stat", path)
        try:
            status = os.lstat(self._beside(path))
            if (status.st_mode & 0o170000) != 0o120000:
                return status
            return os.stat(path) if self.live else os.lstat(self._inside(path))
        except (OSError, ValueError):
            return None

    # Methods built from the above.

    def read(self, path: str) -> Optional[str]:
        """Content of a file, stripped; None if it is absent or unreadable (EINVAL, ENODEV and EIO included)."""
        data = self.read_bytes(path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def exists(self, path: str) -> bool:
        return self.stat(path) is not None

    def isdir(self, path: str) -> bool:
        status = self.stat(path)
        return status is not None and (status.st_mode & 0o170000) == 0o040000

    def mode(self, path: str) -> Optional[int]:
        status = self.stat(path)
        return None if status is None else status.st_mode & 0o7777

    def mtime(self, path: str) -> Optional[int]:
        status = self.stat(path)
        return None if status is None else int(status.st_mtime)

    def realpath(self, path: str) -> str:
        """The path with every symbolic link resolved, inside the root. A missing rest is kept unchanged."""
        try:
            return self._resolve(path, [_LINKS_MAX])
        except OSError:  # a symlink loop
            return path

    def target(self, path: str) -> Optional[str]:
        """Last component of a link's target: the name of the driver, bond or IOMMU group that sysfs links to."""
        link = self.readlink(path)
        return link.rstrip("/").rpartition("/")[2] or None if link else None

    # Inside the root.

    def _open(self, path: str) -> int:
        try:
            return os.open(self._beside(path), self._flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        return os.open(self._prefix + self._resolve(path, [_LINKS_MAX]), self._flags)

    def _names(self, directory: str) -> list[str]:
        try:
            return os.listdir(self._inside(directory))
        except (OSError, ValueError) as error:
            _unreadable(error)
            return []

    def _contents(self, directory: str, names: Sequence[str], size: int) -> Iterator[tuple[str, Optional[bytes]]]:
        """The start of each readable file among the named ones of a directory, by one path walk; None of a link."""
        try:
            directory_fd = os.open(self._inside(directory), _FLAGS | os.O_DIRECTORY)
        except (OSError, ValueError) as error:
            _unreadable(error)
            return
        try:
            for name in names:
                try:
                    fd = os.open(name, self._flags, dir_fd=directory_fd)
                    try:
                        data = os.read(fd, size)
                    finally:
                        os.close(fd)
                except OSError as error:  # EINVAL, ENODEV, …: unreadable right now is as good as absent
                    _unreadable(error)
                    if error.errno != errno.ELOOP:
                        continue
                    data = None
                yield name, data
        finally:
            os.close(directory_fd)

    def _inside(self, directory: str) -> str:
        """A directory as the operating system sees it."""
        return self._prefix + self._resolve(directory, [_LINKS_MAX]) if self._prefix else directory

    def _beside(self, path: str) -> str:
        """The path as the operating system sees it, its last component not followed."""
        if not self._prefix:
            return path
        directory, slash, name = path.rpartition("/")
        return self._prefix + self._resolve(directory, [_LINKS_MAX]) + slash + name

    def _resolve(self, path: str, budget: list[int]) -> str:
        """A path with all links resolved, component by component: the kernel would follow an absolute link from the
        real root.
        """
        directory, _slash, name = path.rpartition("/")
        parent = self._resolve(directory, budget) if directory else ""
        if name in ("", "."):
            return parent
        if name == "..":
            return parent.rpartition("/")[0]
        here = f"{parent}/{name}"
        try:
            link = os.readlink(self._prefix + here)
        except (OSError, ValueError):
            return here
        budget[0] -= 1
        while link.startswith("../"):
            parent, link = parent.rpartition("/")[0], link[3:]
        try:
            if budget[0] >= 0:
                return self._resolve(link if link[:1] == "/" else f"{parent}/{link}", budget)
        except RecursionError:  # a target of many hundred components
            pass
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), here)


class Snapshot(Tree):
    """A tree with a cache, for one gather only: it would hide later changes."""

    def __init__(self, root: str = "/", record: Optional[Callable[[str, str], None]] = None):
        super().__init__(root, record)
        self._text: dict[str, Optional[str]] = {}
        self._bytes: dict[str, Optional[bytes]] = {}
        self._resolved: dict[str, str] = {}
        self._answers: dict[tuple, Any] = {}

    def snapshot(self) -> Snapshot:
        return self

    def _answer(self, call: Callable, argument: Any) -> Any:
        # Not a cached bound method: that cycle would keep each snapshot of the daemon until a garbage collection.
        if (call, argument) not in self._answers:
            self._answers[call, argument] = call(self, argument)
        return self._answers[call, argument]

    def once(self, make: Callable[[Tree], Any]) -> Any:
        return self._answer(Tree.once, make)

    def listdir(self, path: str) -> list[str]:
        return self._answer(Tree.listdir, path)

    def readlink(self, path: str) -> Optional[str]:
        return self._answer(Tree.readlink, path)

    def stat(self, path: str) -> Optional[os.stat_result]:
        return self._answer(Tree.stat, path)

    def read(self, path: str) -> Optional[str]:
        if path not in self._text:
            data = self._bytes[path] if path in self._bytes else Tree.read_bytes(self, path)
            self._text[path] = None if data is None else data.decode("utf-8", "replace").strip()
        return self._text[path]

    def read_bytes(self, path: str) -> Optional[bytes]:
        if path in self._bytes:
            return self._bytes[path]
        data = super().read_bytes(path)
        if data is None or len(data) <= _REMEMBERED:
            self._bytes[path] = data
        return data

    def attributes(self, directory: str, names: Sequence[str]) -> dict[str, Optional[str]]:
        text, folder = self._text, f"{directory}/"
        new = [name for name in names if folder + name not in text]
        read = super().attributes(directory, new) if new else {}
        for name, value in read.items():
            text[folder + name] = value
        return read if len(new) == len(names) else {name: text[folder + name] for name in names}

    def _resolve(self, path: str, budget: list[int]) -> str:
        if path not in self._resolved:
            self._resolved[path] = super()._resolve(path, budget)
        return self._resolved[path]
