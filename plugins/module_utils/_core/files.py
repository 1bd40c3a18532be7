"""The files this collection owns: planned from facts, written atomically, never through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Collection, Iterator
from typing import IO, Callable

from ..hca import Tree, paths
from .change import Change, Plan, Refused
from .text import json_object, listing

MODE = f"{paths.MODE:04o}"
HEADER = paths.HEADER + "\n"
# Prefix of temporary files. A killed run leaves one behind, which the next write in its folder removes.
BESIDE = ".gpufabric-"
_LEFT = re.compile(re.escape(BESIDE) + "[0-9a-f]{16}")
_LINK_SECONDS = 60  # a link cannot be locked; creating one takes no time
_LINKS_MAX = 40  # the kernel's own limit (ELOOP)
# Search permission on a folder is enough; it need not be readable.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def with_times(facts: dict, tree: Tree) -> dict:
    """Add the modification time of each of our files, to compare an initramfs with."""
    for path, owned in facts["owned_files"].items():
        owned["mtime"] = tree.mtime(path)
    return facts


def recorded(tree: Tree, path: str) -> dict:
    """The JSON object in a file; empty if the file is missing or damaged."""
    return json_object(tree.read(path))


def seen_file(tree: Tree, path: str) -> dict | None:
    """Content and mode of a file, as plan_text compares them; None if it is missing."""
    data = tree.read_bytes(path)
    return None if data is None else {"content": data.decode("utf-8", "replace"), "mode": f"{tree.mode(path) or 0:04o}"}


def plan_file(plan: Plan, facts: dict, path: str, text: str) -> bool:
    """Plan the file with this text and mode 0644; True if its text would change."""
    return plan_text(plan, path, facts["owned_files"].get(path), text)


def plan_text(plan: Plan, path: str, seen: dict | None, text: str, mode: str = MODE) -> bool:
    """The same for a file whose content and mode were read before, None if it is missing."""
    if seen is None or seen["content"] != text:
        plan.change(path, "write", seen["content"] if seen else "", text)
        return True
    if seen["mode"] != mode:
        plan.change(path, "mode", seen["mode"], mode)
    return False


def plan_removal(plan: Plan, facts: dict, path: str) -> None:
    owned = facts["owned_files"].get(path)
    if owned is not None:
        plan.change(path, "remove", owned["content"], "")


def with_directive(content: str, directive: str, line: str | None) -> str:
    """A modprobe.d file with its line for this directive set or removed and all other lines kept.

    Two roles share the file, so each touches only its own line. When the last line goes, the
    header remains: the file's age shows that an initramfs still holds the old content.
    """
    lines = [kept for kept in content.splitlines() if kept.strip() and not kept.startswith("#")]
    lines = [kept for kept in lines if kept.split()[:2] != directive.split()]
    if line:
        lines.append(line)
    return HEADER + "".join(f"{kept}\n" for kept in sorted(lines))


def apply_file(root: str, change: Change, mode: int = paths.MODE) -> None:
    """Apply one change to a file, written with this mode, or to a link."""
    path = under(root, change.object)
    if change.action in ("remove", "unlink"):
        remove(path)
    elif change.action == "mode":
        set_mode(path, int(change.after, 8))
    elif change.action == "link":
        link(path, change.after)
    else:
        write(path, change.after, mode)


def is_special(path: str) -> bool:
    """Whether it is a device or a pipe, or may lead to one in /dev: replacing it would break the machine."""
    exists = os.path.exists(path) and not os.path.isfile(path)
    return exists or os.path.dirname(path) in ("/dev", "/dev/fd")


def put(path: str, data: bytes) -> None:
    """Replace a file atomically; a device or a pipe stays, and takes the data."""
    if is_special(path):
        with open(path, "ab") as stream:
            stream.write(data)
    else:
        write(path, data)


def write(path: str, content: str | bytes, mode: int = paths.MODE) -> None:
    """Replace the file, or a link of that name, atomically."""
    with replacing(path, mode) as stream:
        stream.write(content if isinstance(content, bytes) else content.encode())


@contextlib.contextmanager
def replacing(path: str, mode: int = paths.MODE) -> Iterator[IO[bytes]]:
    """A temporary file next to the path: renamed to it when the block succeeds, deleted when it fails.

    Whenever the run or the machine stops, the path has the old content or the new one. The file is created readable
    by its owner only and gets its mode, regardless of the umask, before its content. Missing folders are created,
    owner-only if the file is owner-only.
    """
    with _folder_of(path, make=True, private=not mode & 0o077) as (folder, name):
        _remove_left(folder)
        beside, handle = _beside(folder)
        try:
            with os.fdopen(handle, "wb") as stream:
                os.fchmod(handle, mode)
                yield stream
                stream.flush()
                os.fsync(handle)
                os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(beside, dir_fd=folder)
            raise
        _sync(folder)


def _beside(folder: int) -> tuple[str, int]:
    """Create a new file in the folder, locked as long as it is open."""
    while True:
        name = f"{BESIDE}{secrets.token_hex(8)}"
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        with contextlib.suppress(OSError):  # a file system without locks, where no run takes it for a leftover either
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return name, handle
        os.close(handle)  # removed by _remove_left before it was locked


def _remove_left(folder: int) -> None:
    """Remove what killed runs left in the folder: unlocked files, and links that are not new."""
    try:
        listed = os.open(".", _LISTED, dir_fd=folder)
    except PermissionError:
        return  # a folder that is writable but not readable
    try:
        for name in filter(_LEFT.fullmatch, os.listdir(listed)):
            with contextlib.suppress(OSError):  # locked, or gone
                status = os.stat(name, dir_fd=listed, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    if time.time() - status.st_mtime > _LINK_SECONDS:
                        os.unlink(name, dir_fd=listed)
                    continue
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=listed)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=listed)
                finally:
                    os.close(handle)
    finally:
        os.close(listed)


@contextlib.contextmanager
def built_beside(path: str) -> Iterator[str]:
    """A name next to the path for a program to write to: its output replaces the path if the block succeeds.

    Even if the program fails, the path has the old content or the new one.
    """
    # Always the same name: a killed run's leftover is as large as an initramfs, and goes before the next one.
    beside = os.path.join(os.path.dirname(path), f"{BESIDE}{os.path.basename(path)}")
    with contextlib.suppress(FileNotFoundError):
        remove(beside)
    try:
        yield beside
        rename(beside, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            remove(beside)
        raise


def sync(path: str) -> None:
    """Sync a file that another program wrote, and its name, to disk."""
    with _folder_of(path) as (folder, name):
        _sync(folder, name)
        _sync(folder)


def set_attribute(path: str, value: str) -> None:
    """Write a kernel attribute (sysfs, /proc/sys) in place; OSError when the kernel rejects the value."""
    with open(path, "w", encoding="ascii") as stream:
        stream.write(value)


def rename(source: str, target: str) -> None:
    """Move a file, its content synced, or a folder within one file system; a file at the target is replaced."""
    with _folder_of(source) as (folder, name), _folder_of(target, make=True) as (other, new_name):
        if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            _sync(folder, name)
        os.replace(name, new_name, src_dir_fd=folder, dst_dir_fd=other)
        _sync(other)
        _sync(folder)


def link(path: str, target: str) -> None:
    """Create a symbolic link; it replaces a file or link of that name."""
    with _folder_of(path, make=True) as (folder, name):
        _remove_left(folder)
        beside = f"{BESIDE}{secrets.token_hex(8)}"
        os.symlink(target, beside, dir_fd=folder)
        try:
            os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(beside, dir_fd=folder)
            raise
        _sync(folder)


def remove(path: str) -> None:
    """Remove a file, or the link itself, not its target."""
    with _folder_of(path) as (folder, name):
        os.unlink(name, dir_fd=folder)
        _sync(folder)


def remove_tree(root: str, path: str, keep: Collection[str] = ()) -> None:
    """Remove a folder below root recursively; Refused if something else is mounted in it, which stays with its path.

    Never follows a link, in the folder or above it, and never enters another file system. A bind mount can have the
    same st_dev, so mount IDs are compared as well. A mount point is emptied but not removed. keep: names in it to keep.
    """
    left: list[str] = []
    with _folder_of(under(os.path.realpath(root), path), follow=False) as (parent, last):
        top = os.open(last, _LISTED, dir_fd=parent)
        entered = [(top, path, [name for name in os.listdir(top) if name not in keep])]
        try:
            place = _place(top)
            while entered:
                folder, where, names = entered[-1]
                if not names:
                    entered.pop()
                    os.close(folder)
                    outer = entered[-1][0] if entered else parent
                    _drop(os.rmdir, outer, where, left, spared=where == path or bool(left))
                    continue
                there = f"{where}/{names.pop()}"
                try:
                    inner = os.open(os.path.basename(there), _LISTED, dir_fd=folder)
                except OSError as error:
                    if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                        raise
                    _drop(os.unlink, folder, there, left)
                    continue
                entered.append((inner, there, []))
                if _place(inner) == place:
                    entered[-1][2].extend(os.listdir(inner))
                else:
                    left.append(there)
                    os.close(entered.pop()[0])
        finally:
            for folder, _where, _names in entered:
                os.close(folder)
        _sync(parent)
    if left:
        raise Refused.because(
            path,
            "a folder that nothing is mounted in",
            f"mounted: {listing(left)}",
            "unmount it (umount PATH) and run again; the mount's content is unchanged",
        )


def _place(folder: int) -> tuple[int, str]:
    """File system and mount ID of an open folder."""
    with open(f"/proc/self/fdinfo/{folder}", encoding="ascii") as stream:
        return os.fstat(folder).st_dev, next(line for line in stream if line.startswith("mnt_id:"))


def _drop(remove_one: Callable, folder: int, path: str, left: list[str], spared: bool = False) -> None:
    """Remove an entry of an open folder. spared: whether a mount point or a non-empty folder may stay."""
    try:
        remove_one(os.path.basename(path), dir_fd=folder)
    except OSError as error:
        if error.errno == errno.EBUSY and not spared:
            left.append(path)
        elif not (spared and error.errno in (errno.EBUSY, errno.ENOTEMPTY)):
            raise


def set_mode(path: str, mode: int) -> None:
    """Set the mode and keep the modification time; a link is replaced by a file with the same content."""
    if os.path.islink(path):
        with open(path, "rb") as stream:
            write(path, stream.read(), mode)
        return
    with _folder_of(path) as (folder, name):
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fchmod(handle, mode)
        finally:
            os.close(handle)


def restorer(path: str) -> Callable[[], None]:
    """A function that restores the file or link as it is now."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return lambda: remove(path) if os.path.lexists(path) else None
    if stat.S_ISLNK(status.st_mode):
        target = os.readlink(path)
        return lambda: link(path, target)
    with open(path, "rb") as stream:
        content = stream.read()
    return lambda: write(path, content, stat.S_IMODE(status.st_mode))


@contextlib.contextmanager
def _folder_of(path: str, make: bool = False, follow: bool = True, private: bool = False) -> Iterator[tuple[int, str]]:
    """(descriptor of the path's folder, name in it), opened component by component.

    A link as the last component is never followed: nothing is opened by its full path. Folders above it may be links
    (/var/run is one, and sites move /var/lib/rancher to another disk) unless `follow` is False, but only links of root
    and of the current user: otherwise anyone who can write to one folder could make root write to another.
    """
    parent, name = os.path.split(os.path.abspath(path))
    folder, pending, links = os.open("/", _FOLDER), parent.split("/")[::-1], 0
    try:
        while pending:
            part = pending.pop()
            if not part:
                continue
            try:
                entered = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except FileNotFoundError:
                if not make:
                    raise
                os.mkdir(part, 0o700 if private and not pending else 0o755, dir_fd=folder)
                _sync(folder)
                pending.append(part)
                continue
            except OSError as error:
                if not follow:
                    raise
                target = _trusted_target(folder, part, error)
                links += 1
                if links > _LINKS_MAX:
                    raise
                pending += target.split("/")[::-1]
                if not target.startswith("/"):
                    continue
                entered = os.open("/", _FOLDER)
            os.close(folder)
            folder = entered
        yield folder, name
    except OSError as error:
        if error.filename is not None:
            error.filename = path  # only one of its components was opened
        raise
    finally:
        os.close(folder)


def _trusted_target(folder: int, name: str, error: OSError) -> str:
    """Target of the link that could not be opened; re-raises the error if it is not a link."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        raise error
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        raise error
    if status.st_uid not in (0, os.geteuid()):
        raise OSError(errno.ELOOP, f"folder {name} is a link owned by user {status.st_uid}", name)
    return os.readlink(name, dir_fd=folder)


def _sync(folder: int, name: str = ".") -> None:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        return  # a folder that is writable but not readable
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems cannot sync a folder: network and FUSE file systems on controllers.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or name != ".":
            raise
    finally:
        os.close(handle)


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def under(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))
