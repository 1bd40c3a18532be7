# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CDI over DRA: one spec file per claim, so that the end of a claim is the removal of a file."""

from __future__ import annotations

import json
import os
from typing import Any, Optional

from . import cdi, files
from .claims import Key, Record, valid_uid
from .devices import DRIVER

CLASS = "rdma-claim"
KIND = f"{cdi.VENDOR}/{CLASS}"
VERSION = "0.6.0"  # the first with annotations
NAMESPACE, NAME = f"{DRIVER}/namespace", f"{DRIVER}/name"


def file(uid: str) -> str:
    return f"{cdi.VENDOR}_{CLASS}_{uid}.json"


def uid_of(name: str) -> Optional[str]:
    """The uid in a file name of ours; None for any other name."""
    start, end = f"{cdi.VENDOR}_{CLASS}_", ".json"
    uid = name[len(start) : -len(end)] if name.startswith(start) and name.endswith(end) else ""
    return uid if valid_uid(uid) else None


def ids(record: Record) -> list[str]:
    """The fully qualified name of each device of a claim, in its order."""
    return [f"{KIND}={record.key.uid}-{index}" for index in range(len(record.devices))]


def spec(record: Record) -> dict[str, Any]:
    """What containers get: each device its own entry, because a container may use one request of a claim only."""
    devices = []
    for index, one in enumerate(record.devices):
        edits: dict[str, Any] = {
            "deviceNodes": [{"path": path, "hostPath": path, "permissions": "rw"} for path in one.files]
        }
        if one.env:
            edits["env"] = [f"{name}={value}" for name, value in one.env]
        devices.append({"name": f"{record.key.uid}-{index}", "containerEdits": edits})
    return {
        "cdiVersion": VERSION,
        "kind": KIND,
        "annotations": {NAMESPACE: record.key.namespace, NAME: record.key.name},
        "devices": devices,
    }


def write(directory: str, record: Record) -> bool:
    """Update a claim's file; True when it changed."""
    return cdi.update(directory, f"{directory}/{file(record.key.uid)}", spec(record))


def remove(directory: str, uid: str) -> bool:
    return files.remove(f"{directory}/{file(uid)}")


def present(directory: str) -> dict[str, Optional[Key]]:
    """{uid: Key} of the claims that have a file; None where the file does not say whose it is."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return {}
    return {uid: _key(f"{directory}/{name}", uid) for name in sorted(names) for uid in [uid_of(name)] if uid}


def _key(path: str, uid: str) -> Optional[Key]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)["annotations"]
        namespace, name = found[NAMESPACE], found[NAME]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Key(namespace, name, uid) if isinstance(namespace, str) and isinstance(name, str) else None
