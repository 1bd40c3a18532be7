# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The prepared claims on disk: a checkpoint that a restart reads, and one CDI spec file per claim.

The checkpoint is one file, replaced atomically, with a checksum. The end of a claim is the removal of its spec's file.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from typing import Any, Optional

from . import cdi
from .claims import Key, Prepared, Record, Result, valid_uid
from .devices import DRIVER

VERSION = 1


class Damaged(ValueError):
    """The file does not hold what was written; the text says what is wrong."""


def load(path: str) -> dict[str, Record]:
    """{uid: Record}; empty without a file. Damaged; OSError when it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return {}
    return decode(data)


def decode(data: bytes) -> dict[str, Record]:
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise Damaged(f"version {document['version']!r}, wanted {VERSION}")
        if document["checksum"] != _checksum(document["claims"]):
            raise Damaged("its checksum does not match its content")
        found = [_record(uid, entry) for uid, entry in document["claims"].items()]
    except Damaged:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"not a checkpoint: {type(error).__name__}: {str(error)[:80]}") from None
    return {record.key.uid: record for record in found}


def encode(records: Iterable[Record]) -> bytes:
    claims = {record.key.uid: _entry(record) for record in records}
    document = {"version": VERSION, "checksum": _checksum(claims), "claims": claims}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def save(path: str, records: Iterable[Record]) -> None:
    """Replace the file; what it says is on disk when this returns. OSError leaves the old one."""
    cdi.replace_file(path, encode(records), 0o600)


def set_aside(path: str) -> str:
    """Move a damaged file out of the way, for whoever wants to know; its new name."""
    aside = f"{path}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    os.replace(path, aside)
    return aside


def _checksum(claims: Any) -> str:
    return hashlib.sha256(json.dumps(claims, sort_keys=True).encode()).hexdigest()


def _entry(record: Record) -> dict[str, Any]:
    return {
        "namespace": record.key.namespace,
        "name": record.key.name,
        "devices": [
            {
                "device": one.result.device,
                "pool": one.result.pool,
                "requests": list(one.result.requests),
                "share": one.result.share,
                "hca": one.hca,
                "port": one.port,
                "files": list(one.files),
                "env": dict(one.env),
            }
            for one in record.devices
        ],
    }


def _record(uid: str, entry: dict[str, Any]) -> Record:
    if not valid_uid(uid):
        raise Damaged("a uid that is none")
    devices = tuple(
        Prepared(
            result=Result(
                _text(one["device"]), _text(one["pool"]), _texts(one["requests"]), _text(one["share"], none=True)
            ),
            hca=_text(one["hca"]),
            port=_number(one["port"]),
            files=_texts(one["files"]),
            env=tuple((_text(key), _text(value)) for key, value in one["env"].items()),
        )
        for one in entry["devices"]
    )
    return Record(Key(_text(entry["namespace"]), _text(entry["name"]), uid), devices)


def _text(value: Any, none: bool = False) -> Any:
    if not isinstance(value, str) and not (none and value is None):
        raise Damaged(f"wanted text, seen {type(value).__name__}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Damaged(f"wanted a list, seen {type(value).__name__}")
    return tuple(_text(one) for one in value)


def _number(value: Any) -> Any:
    if value is not None and not isinstance(value, int):
        raise Damaged(f"wanted a number, seen {type(value).__name__}")
    return value


CLASS = "rdma-claim"
KIND = f"{cdi.VENDOR}/{CLASS}"
CDI_VERSION = "0.6.0"  # the first with annotations
NAMESPACE, NAME = f"{DRIVER}/namespace", f"{DRIVER}/name"


def spec_file(uid: str) -> str:
    return f"{cdi.VENDOR}_{CLASS}_{uid}.json"


def _uid_of(name: str) -> Optional[str]:
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
        "cdiVersion": CDI_VERSION,
        "kind": KIND,
        "annotations": {NAMESPACE: record.key.namespace, NAME: record.key.name},
        "devices": devices,
    }


def write_spec(directory: str, record: Record) -> bool:
    """Update a claim's file; True when it changed."""
    return cdi.update(directory, f"{directory}/{spec_file(record.key.uid)}", spec(record))


def remove_spec(directory: str, uid: str) -> bool:
    return cdi.remove_file(f"{directory}/{spec_file(uid)}")


def specs(directory: str) -> dict[str, Optional[Key]]:
    """{uid: Key} of the claims that have a file; None where the file does not say whose it is."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return {}
    return {uid: _key(f"{directory}/{name}", uid) for name in sorted(names) for uid in [_uid_of(name)] if uid}


def _key(path: str, uid: str) -> Optional[Key]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)["annotations"]
        namespace, name = found[NAMESPACE], found[NAME]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Key(namespace, name, uid) if isinstance(namespace, str) and isinstance(name, str) else None
