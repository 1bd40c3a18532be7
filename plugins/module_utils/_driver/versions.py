"""Order of package versions, as dpkg compares them (deb-version(7)). RPM versions without `^` compare the same."""

from __future__ import annotations

import re
from itertools import zip_longest


def compare(left: str, right: str) -> int:
    """Below zero when left is older, zero when equal, above zero when newer."""
    for part, other in zip(_parts(left), _parts(right)):
        order = _compare_part(part, other)
        if order:
            return order
    return 0


def satisfies(version: str, wanted: str) -> bool:
    """Whether a package version is the wanted release: equal, or the wanted one with a suffix (3.2.1-044000)."""
    bare = version.partition(":")[2] or version
    return bare == wanted or version == wanted or re.match(rf"{re.escape(wanted)}(?![0-9])[-.+~]?", bare) is not None


def _parts(version: str) -> tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    rest, epoch = (rest, epoch) if colon else (version, "0")
    upstream, dash, revision = rest.rpartition("-")
    return epoch, *((upstream, revision) if dash else (rest, "0"))


def _compare_part(part: str, other: str) -> int:
    """Alternating runs of non-digits and digits; `~` sorts before the end, letters before everything else."""
    left, right = re.findall(r"([^0-9]*)([0-9]*)", part), re.findall(r"([^0-9]*)([0-9]*)", other)
    for (text, number), (other_text, other_number) in zip_longest(left, right, fillvalue=("", "")):
        for char, other_char in zip_longest(text, other_text, fillvalue=""):
            order = _weight(char) - _weight(other_char)
            if order:
                return order
        order = int(number or 0) - int(other_number or 0)
        if order:
            return order
    return 0


def _weight(char: str) -> int:
    if not char:
        return 0
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256
