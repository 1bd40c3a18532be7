"""What a container would find on a node: character devices, memory locked under a service's limit, test tools.

Functions with an effect state it.
"""

from __future__ import annotations

import ctypes
import grp
import json
import mmap
import os
import pwd
import resource
import shutil
import stat

from ..hca.text import is_unknown

# Modules that the kernel loads when a program opens a device or asks for one over netlink.
OPENED = frozenset(("ib_core", "ib_cm", "iw_cm", "rdma_cm", "ib_uverbs", "rdma_ucm", "ib_umad"))
TOOLS = ("rping", "ib_write_bw")

# More than systemd's default limit of 8 MiB, which containers get unless it was raised.
LOCKED = 16 * 2**20


def lock_memory(limit, user: str, size: int = LOCKED) -> dict:
    """Lock memory in a child that has this limit and runs as user.

    Effect: a short-lived child process. limit is a number of bytes or "infinity". Returns locked (bytes), error (why
    it failed) and reason (why it could not be tried), each None if it does not apply.
    """
    outcome = {"locked": 0, "error": None, "reason": None}
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        return {**outcome, "reason": f"no user {user} on the node"}
    if os.geteuid() != 0:
        return {**outcome, "reason": "only root can switch to another user"}
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            outcome.update(_lock(limit, account.pw_uid, account.pw_gid, size))
        except (OSError, ValueError) as failure:
            outcome["reason"] = str(failure)
        os.write(writing, json.dumps(outcome).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else {**outcome, "reason": "the child process ended without a result"}


def _lock(limit, uid: int, gid: int, size: int) -> dict:
    value = resource.RLIM_INFINITY if limit == "infinity" else int(limit)
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (value, value))
    except ValueError as refused:
        return {"reason": f"RLIMIT_MEMLOCK cannot be set to {limit} here: {refused}"}
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    libc = ctypes.CDLL(None, use_errno=True)
    area = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)) != 0:
        return {"error": f"mlock of {size // 2**20} MiB: {os.strerror(ctypes.get_errno())}"}
    return {"locked": size}


def rdma_modules() -> set[str]:
    """The modules of OPENED that are loaded now, or built in."""
    return {name for name in OPENED if os.path.isdir(f"/sys/module/{name}")}


def char_devices(user: str, directory: str = "/dev/infiniband") -> dict[str, dict]:
    """The character devices that user space opens, by name.

    mode: as 0666. owner, group: names, or numbers without a name. usable: whether `user` may read and write it by
    its mode; without such a user on the node, whether everybody may.
    """
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return {}
    devices = {name: _char_device(os.path.join(directory, name), user) for name in names}
    return {name: device for name, device in devices.items() if device}


def _char_device(path: str, user: str) -> dict | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISCHR(status.st_mode):
        return None
    return {
        "mode": f"{status.st_mode & 0o7777:04o}",
        "owner": _name(pwd.getpwuid, status.st_uid, "pw_name"),
        "group": _name(grp.getgrgid, status.st_gid, "gr_name"),
        "usable": _usable(status, user),
    }


def _name(look, number: int, field: str) -> str:
    try:
        return getattr(look(number), field)
    except KeyError:
        return str(number)


def _usable(status: os.stat_result, user: str) -> bool:
    """By the first matching class: a member of the group has only the group's rights, even if others have more."""
    shift = 0
    try:
        account = pwd.getpwnam(user)
        if account.pw_uid == status.st_uid:
            shift = 6
        elif status.st_gid in os.getgrouplist(user, account.pw_gid):
            shift = 3
    except KeyError:
        pass
    return status.st_mode >> shift & 0o6 == 0o6


def memlock(states: dict, services: list[str], user: str) -> dict:
    """{service: as lock_memory returns it}, for the services with a known limit; each distinct limit is tried once.

    states: limits.services of the node's facts.
    """
    there = [(service, states[service]["memlock"]) for service in services if states.get(service, {}).get("exists")]
    limits = {service: limit for service, limit in there if limit is not None}
    untried = {limit: {"locked": 0, "error": None, "reason": limit} for limit in limits.values() if is_unknown(limit)}
    answers = {limit: untried.get(limit) or lock_memory(limit, user) for limit in set(limits.values())}
    return {service: answers[limit] for service, limit in limits.items()}


def probe(facts: dict, services: list[str], user: str, root: str = "/") -> dict:
    """char_devices and memlock (None and empty below another root than /, where nothing can be tried), and tools."""
    if root.rstrip("/"):
        return {"char_devices": None, "memlock": {}, "tools": []}
    return {
        "char_devices": char_devices(user),
        "memlock": memlock(facts["limits"]["services"], services, user),
        "tools": [name for name in TOOLS if shutil.which(name)],
    }
