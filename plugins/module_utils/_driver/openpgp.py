# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fingerprints of the OpenPGP keys in a key file, so that trusting one needs no gpg and no network.

PRIVATE to the collection. RFC 9580: a version 4 fingerprint is SHA-1 over 0x99, the length and the key packet.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_PUBLIC_KEY = 6
_BLOCK = re.compile(
    r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*\n(?:[A-Za-z]+: .*\n)*\s*(.*?)(?:\n=[A-Za-z0-9+/]{4})?\s*"
    r"-----END PGP PUBLIC KEY BLOCK-----",
    re.DOTALL,
)


def fingerprints(text: str) -> list[str]:
    """Fingerprints of all primary keys in an armored file, upper case; empty when it holds none.

    All of them count: a program trusts every key in the file.
    """
    found = []
    for block in _BLOCK.finditer(text.replace("\r\n", "\n")):
        try:
            data = base64.b64decode("".join(block.group(1).split()), validate=True)
            for tag, body in _packets(data):
                if tag == _PUBLIC_KEY:
                    found.append(_fingerprint(body))
        except (binascii.Error, IndexError, ValueError):
            return []
    return found


def _fingerprint(body: bytes) -> str:
    if body[0] == 4:
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    if body[0] == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ValueError(f"key version {body[0]}")


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(tag, body) of each packet; key packets are never written in parts."""
    start = 0
    while start < len(data):
        head = data[start]
        if not head & 0x80:
            raise ValueError("no packet")
        if head & 0x40:
            tag, first = head & 0x3F, data[start + 1]
            if first < 192:
                length, size = first, 2
            elif first < 224:
                length, size = ((first - 192) << 8) + data[start + 2] + 192, 3
            elif first == 255:
                length, size = int.from_bytes(data[start + 2 : start + 6], "big"), 6
            else:
                raise ValueError("packet in parts")
        else:
            tag, kind = (head >> 2) & 0x0F, head & 0x03
            if kind == 3:
                raise ValueError("packet without a length")
            width = 1 << kind
            length, size = int.from_bytes(data[start + 1 : start + 1 + width], "big"), 1 + width
        body = data[start + size : start + size + length]
        if len(body) != length:
            raise ValueError("packet cut short")
        yield tag, body
        start += size + length
