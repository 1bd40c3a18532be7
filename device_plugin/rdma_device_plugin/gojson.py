# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON as Go's encoding/json reads it into typed fields.

Config files were written for a Go program: keys in any case, unknown keys ignored, null for "not set", integers that
must be integer tokens. Anything else that Python's json accepts (NaN, lone surrogates, 10.0 for 10) is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Optional

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z")
_INT64 = 1 << 63

Decode = Callable[["Decoder", Any, Any, str], Any]


class Number(str):
    """A number as its token: 10, 10.0 and 1e1 are different."""


class Members(list):
    """An object as its (key, value) pairs in order: duplicates are decoded one after the other."""


class Decoder:
    """Decodes parsed values into fields. Continues after a problem, so that all of them are reported at once."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.unknown: list[str] = []

    def refuse(self, path: str, wanted: str, value: Any) -> None:
        self.problems.append(f"{path or 'the document'}: wanted {wanted}, got {describe(value)}")


def parse(data: bytes) -> Any:
    """Bytes of a document as Members, list, str, Number, bool and None. ValueError has the place of an error."""
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(
            text,
            object_pairs_hook=Members,
            parse_int=Number,
            parse_float=Number,
            parse_constant=_no_constant,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno} column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(token: str) -> Any:
    raise ValueError(f"{token} is not a JSON value")


def clean(text: str) -> str:
    """Printable text: half of a surrogate pair becomes U+FFFD, as in Go."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def describe(value: Any) -> str:
    if isinstance(value, Members):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, Number):
        return f"the number {value[:40]}"
    if isinstance(value, str):
        return f"the string {json.dumps(clean(value[:80]))}"
    return json.dumps(value)


# Field types. Each is called with the decoder, the parsed value, the field's current value, and its path.


def text(decoder: Decoder, value: Any, before: Any, path: str) -> Any:
    if value is None:
        return before
    if isinstance(value, str) and not isinstance(value, Number):
        return clean(value)
    decoder.refuse(path, "a string", value)
    return before


def boolean(decoder: Decoder, value: Any, before: Any, path: str) -> Any:
    if value is None or isinstance(value, bool):
        return before if value is None else value
    decoder.refuse(path, "true or false", value)
    return before


def integer(decoder: Decoder, value: Any, before: Any, path: str) -> Any:
    if value is None:
        return before
    # Twenty characters are enough for every 64 bit integer; int() of thousands of digits would raise.
    if isinstance(value, Number) and _INTEGER.match(value) and len(value) <= 20 and -_INT64 <= int(value) < _INT64:
        return int(value)
    decoder.refuse(path, "an integer of 64 bits", value)
    return before


def seconds(decoder: Decoder, value: Any, before: Any, path: str) -> Any:
    if value is None:
        return before
    if isinstance(value, Number) and 0 <= float(value) <= 86400:
        return float(value)
    decoder.refuse(path, "0 to 86400 seconds", value)
    return before


def nullable(inner: Decode) -> Decode:
    """A Go pointer: null resets the value of an earlier duplicate key."""

    def decode(decoder: Decoder, value: Any, before: Any, path: str) -> Any:
        return None if value is None else inner(decoder, value, before, path)

    return decode


def listing(inner: Decode, zero: Callable[[], Any]) -> Decode:
    """A Go slice."""

    def decode(decoder: Decoder, value: Any, before: Any, path: str) -> Any:
        if value is None:
            return []
        if not isinstance(value, list) or isinstance(value, Members):
            decoder.refuse(path, "a list", value)
            return before
        return [inner(decoder, item, zero(), f"{path}[{index}]") for index, item in enumerate(value)]

    return decode


def struct(fields: dict[str, tuple[Decode, Callable[[], Any]]]) -> Decode:
    """A Go struct as a dict with every field. fields: {name: (type, zero value)}."""
    lower = {name.lower(): name for name in fields}

    def decode(decoder: Decoder, value: Any, before: Any, path: str) -> Any:
        made = {name: zero() for name, (_type, zero) in fields.items()} if before is None else dict(before)
        if value is None:
            return made
        if not isinstance(value, Members):
            decoder.refuse(path, "an object", value)
            return made
        for key, item in value:
            here = f"{path}.{clean(key)}" if path else clean(key)
            name = key if key in fields else lower.get(key.lower())
            if name is None:
                decoder.unknown.append(here)
            else:
                made[name] = fields[name][0](decoder, item, made[name], f"{path}.{name}" if path else name)
        return made

    return decode


def decode(schema: Decode, data: bytes) -> tuple[Any, list[str], list[str]]:
    """(value, problems, paths of unknown keys). ValueError for anything but JSON."""
    decoder = Decoder()
    value = schema(decoder, parse(data), None, "")
    return value, decoder.problems, decoder.unknown


def nothing() -> Optional[Any]:
    return None
