"""The few formats in which the kernel writes values into sysfs and procfs."""

from __future__ import annotations

import re
from typing import Any, Optional

_DIGITS = re.compile(r"(\d+)")


def integer(text: Optional[str]) -> Optional[int]:
    """`0x1f` or `31` as int; None for anything else."""
    if not text:
        return None
    try:
        return int(text, 16) if text[:2] in ("0x", "0X") else int(text)
    except ValueError:
        return None


def hexadecimal(text: Optional[str]) -> Optional[str]:
    """`0x15b3` as `15b3`, the form of lspci and the PCI id tables."""
    return text[2:].lower() if text and text[:2] == "0x" else text


def meaning(text: Optional[str]) -> Optional[str]:
    """`4: ACTIVE` as `ACTIVE` (state, phys_state and node_type in sysfs-class-infiniband)."""
    if text is None:
        return None
    return text.partition(":")[2].strip() or text


def module_info(text: str) -> dict[str, str]:
    """{field: value} of a .modinfo section or of `modinfo -0`, the first value of a repeated field."""
    fields: dict[str, str] = {}
    for entry in text.split("\0"):
        key, equals, value = entry.partition("=")
        if equals:
            fields.setdefault(key, value)
    return fields


def natural(name: str) -> list[Any]:
    """Sort key that puts rxe10 after rxe9."""
    return [int(part) if part.isdecimal() else part for part in _DIGITS.split(name)]


def unknown(why: str) -> str:
    """A fact that cannot be known: the reason instead of a guess."""
    return f"unknown: {why}"


def is_unknown(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("unknown: ")
