# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI: one spec file per pool, written before its first device is advertised and replaced atomically on change."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import Any

from .allocation import Offer
from .pools import Hca

VENDOR, CLASS = "gpufabric.io", "rdma-shared"
KIND = f"{VENDOR}/{CLASS}"
VERSION = "0.5.0"
DIRECTORY = "/var/run/cdi"
ANNOTATION = f"cdi.k8s.io/{VENDOR}_{CLASS}"


def name(offer: Offer, hca: Hca) -> str:
    """The device's name. It includes the pool, because two pools may pass different files of one HCA."""
    return f"{offer.pool.name}:{hca.address or hca.name}{f':{hca.name}' if hca.address else ''}"


def qualified(offer: Offer, chosen: Iterable[Hca]) -> list[str]:
    """Fully qualified names for a container with these HCAs."""
    return [f"{KIND}={name(offer, hca)}" for hca in chosen]


def file(pool: str) -> str:
    """Name of a pool's spec file. One per pool, because only the instance that serves a pool writes it."""
    return f"{VENDOR}_{CLASS}_{pool}.json"


def is_ours(name: str) -> bool:
    """Whether a file of this name would be one of our specs."""
    return name.startswith(f"{VENDOR}_{CLASS}_") and name.endswith(".json")


def spec(offer: Offer) -> dict[str, Any]:
    devices = []
    for hca in offer.members:
        nodes = [{"path": path, "hostPath": path, "permissions": "rw"} for path in offer.files((hca,))]
        devices.append({"name": name(offer, hca), "containerEdits": {"deviceNodes": nodes}})
    return {"cdiVersion": VERSION, "kind": KIND, "devices": devices}


def write(directory: str, offer: Offer) -> None:
    """Update a pool's file. Other files are ignored.

    A pool without HCAs keeps its file: a spec without devices is invalid, and the HCAs may come back.
    """
    if offer.members:
        update(directory, f"{directory}/{file(offer.pool.name)}", json.dumps(spec(offer), indent=1) + "\n")


def update(directory: str, path: str, text: str) -> None:
    """Write a file unless it is there."""
    # An absent or damaged one is written again.
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as present:
        if present.read() == text:
            return
    os.makedirs(directory, exist_ok=True)
    replace_file(path, text.encode(), 0o644)


def remove(directory: str, pool: str) -> None:
    remove_file(f"{directory}/{file(pool)}")


def replace_file(path: str, data: bytes, mode: int) -> None:
    """Write, sync, rename, sync the directory. OSError leaves the old file and no unfinished one."""
    # Runtimes only read *.json and *.yaml; this suffix hides the unfinished file from them.
    unfinished = f"{path}.new"
    try:
        with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as made:
            made.write(data)
            made.flush()
            os.fchmod(made.fileno(), mode)
            os.fsync(made.fileno())
        os.rename(unfinished, path)
    except OSError:
        remove_file(unfinished)
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
