# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The prepared claims on disk, so that a restart knows them. One file, replaced atomically, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from typing import Any

from . import files
from .claims import Key, Prepared, Record, Result, valid_uid

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
    files.replace(path, encode(records), 0o600)


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
