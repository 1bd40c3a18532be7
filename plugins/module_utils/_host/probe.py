# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a container would find on a node: character devices, memory locked under a service's limit, test tools.

PRIVATE to the collection. Functions with an effect say so.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pwd
import resource
import shutil
import stat

TOOLS = ("rping", "ib_write_bw")

# More than systemd's default limit of 8 MiB, which containers get unless it was raised.
LOCKED = 16 * 2**20


def lock_memory(limit, user: str, size: int = LOCKED) -> dict:
    """Lock memory in a child that has this limit and runs as user.

    Effect: a short-lived child process. limit is a number of bytes or "infinity". Returns locked (bytes), error (why
    it failed) and reason (why it could not be tried), each None where it does not apply.
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


def char_devices(directory: str = "/dev/infiniband") -> list[str]:
    """Names of the character devices that user space opens."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [name for name in names if _is_char_device(os.path.join(directory, name))]


def _is_char_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def memlock(states: dict, services: list[str], user: str) -> dict:
    """{service: as lock_memory returns it}, for the services whose limit is known; each distinct limit is tried once.

    states: limits.services of the node's facts.
    """
    answers, found = {}, {}
    for service in services:
        state = states.get(service) or {}
        limit = state.get("memlock")
        if not state.get("exists") or limit is None:
            continue
        if str(limit).startswith("unknown"):
            found[service] = {"locked": 0, "error": None, "reason": limit}
            continue
        if limit not in answers:
            answers[limit] = lock_memory(limit, user)
        found[service] = answers[limit]
    return found


def probe(facts: dict, services: list[str], user: str, root: str = "/") -> dict:
    """char_devices and memlock (None and empty below another root than /, where nothing can be tried), and tools."""
    if root.rstrip("/"):
        return {"char_devices": None, "memlock": {}, "tools": []}
    return {
        "char_devices": char_devices(),
        "memlock": memlock(facts["limits"]["services"], services, user),
        "tools": [name for name in TOOLS if shutil.which(name)],
    }
