"""Programs and kernel modules as ELF files (elf(5)): what modinfo prints, and symbols with the CRCs that the kernel
compares. No fork for .ko, .ko.xz and .ko.gz.

The standard library of the Pythons on nodes cannot unpack a .ko.zst; for those modinfo and zstd are run.
"""

from __future__ import annotations

import lzma
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Callable, NamedTuple, Optional

from .seams import Seams
from .text import module_info
from .tree import Tree

_GZIP = 16 + zlib.MAX_WBITS
BROKEN = (struct.error, IndexError, ValueError)
# elf(5), e_machine: the architectures of GPU nodes, as in `uname -m`.
MACHINES = {62: "x86_64", 183: "aarch64"}
_SYMTAB = 2  # SHT_SYMTAB
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1  # SHN_UNDEF, SHN_ABS
_VERSION_ENTRY = 64  # sizeof(struct modversion_info) on 64-bit: an unsigned long and a name of 56 bytes


class ModuleFile(NamedTuple):
    """imports: {symbol: CRC, None without one}; exports likewise; info: see `modinfo`."""

    path: str
    info: dict[str, str]
    imports: dict[str, Optional[int]] = {}
    exports: dict[str, Optional[int]] = {}

    @property
    def depends(self) -> list[str]:
        return [name for name in self.info.get("depends", "").split(",") if name]


def modinfo(tree: Tree, path: str, seams: Optional[Seams] = None) -> Optional[dict[str, str]]:
    """{field: value} of a module file (version, srcversion, depends, license, …; the first value of a repeated field).

    `build_id` is added if the file has one and was read here. None if the file is absent or is not a module. A
    captured tree seldom holds the module files; recorded answers replace them.
    """
    data = tree.read_bytes(path)
    fields = parse(data, path) if data else None
    if fields is None and seams is not None and (not tree.live or (data and path.endswith(".zst"))):
        fields = seams.modinfo(path)
    return fields


def parse(data: bytes, name: str) -> Optional[dict[str, str]]:
    """Fields of a module file's content; `name` gives the compression. None for zstd and for anything but a module."""
    plain = decompressed(data, name)
    section = None if plain is None else _section(plain, b".modinfo")
    if section is None:
        return None
    fields = module_info(section.decode("utf-8", "replace"))
    built = build_id(_section(plain, b".note.gnu.build-id"))
    return {**fields, "build_id": built} if built else fields


def build_id(note: Optional[bytes]) -> Optional[str]:
    """The build id in an ELF note, in hexadecimal.

    The kernel shows the same note of a loaded module in /sys/module/<name>/notes/.note.gnu.build-id.
    """
    if not note or len(note) < 16:
        return None
    name, size = struct.unpack_from("<II", note)
    start = 12 + (name + 3) // 4 * 4
    return note[start : start + size].hex() or None


def decompressed(data: bytes, name: str) -> Optional[bytes]:
    """Content of a .ko, .ko.xz or .ko.gz, unpacked; None if it is truncated. Anything else is returned unchanged."""
    try:
        if name.endswith(".xz"):
            return lzma.decompress(data)
        if name.endswith(".gz"):
            return zlib.decompress(data, _GZIP)
    except (lzma.LZMAError, zlib.error, EOFError):
        return None
    return data


def program(start: bytes) -> Optional[dict[str, Any]]:
    """The data in a program's first 4 KiB; None if it is not a 64-bit ELF file.

    machine: as in `uname -m`, else `ELF machine <number>`. size: minimum size of the complete file in bytes (the
    end of its last segment and of both its tables).
    """
    if start[:5] != b"\x7fELF\x02":
        return None
    order = byte_order(start)
    try:
        (machine,) = struct.unpack_from(order + "H", start, 0x12)
        segments, sections = struct.unpack_from(order + "QQ", start, 0x20)
        _own, segment_size, segment_count, section_size, section_count = struct.unpack_from(order + "5H", start, 0x34)
    except struct.error:
        return None
    ends = [segments + segment_size * segment_count, sections + section_size * section_count]
    for index in range(segment_count):
        try:
            offset, _virtual, _physical, length = struct.unpack_from(
                order + "QQQQ", start, segments + index * segment_size + 8
            )
        except struct.error:
            break
        ends.append(offset + length)
    return {"machine": MACHINES.get(machine, f"ELF machine {machine}"), "size": max(ends)}


def _section(data: bytes, name: bytes) -> Optional[bytes]:
    """Content of an ELF section of a 64-bit object (elf(5)); every architecture with GPUs and HCAs is 64-bit."""
    if data[:5] != b"\x7fELF\x02":
        return None
    try:
        return next((data[place] for own, _kind, _link, place in sections(data) if own == name), None)
    except BROKEN:
        return None


def sections(data: bytes) -> list[tuple[bytes, int, int, slice]]:
    """[(name, type, link, place in the data)] in the order of the section header table; BROKEN if that is truncated."""
    order = byte_order(data)
    (table,) = struct.unpack_from(order + "Q", data, 0x28)
    size, count, strings = struct.unpack_from(order + "HHH", data, 0x3A)
    headers = [struct.unpack_from(order + "IIQQQQI", data, table + index * size) for index in range(count)]
    found = []
    for name, kind, _flags, _address, offset, length, link in headers:
        start = headers[strings][4] + name
        found.append((data[start : data.index(b"\0", start)], kind, link, slice(offset, offset + length)))
    return found


def byte_order(data: bytes) -> str:
    return ">" if data[5:6] == b"\x02" else "<"


def module_file(tree: Tree, path: str, run: Optional[Callable[[list[str]], bytes]] = None) -> Optional[ModuleFile]:
    """The file with its symbols; None if it is absent, not a 64-bit module, or cannot be unpacked here.

    run: executes a command and returns its output; only needed for .ko.zst, which Python unpacks from 3.14 on.
    """
    data = tree.read_bytes(path)
    if data and path.endswith(".zst"):
        data = run(["zstd", "--decompress", "--stdout", "--quiet", path]) if run else None
    plain = decompressed(data, path) if data else None
    return None if plain is None else symbols(plain, path)


def symbols(data: bytes, path: str) -> Optional[ModuleFile]:
    """Imports with their CRCs are in the section __versions (kernel/module/version.c); exports are symbols named
    __ksymtab_*, their CRCs are found through symbols named __crc_*.
    """
    if data[:5] != b"\x7fELF\x02":
        return None
    order = byte_order(data)
    imports: dict[str, Optional[int]] = {}
    exports: dict[str, Optional[int]] = {}
    crcs = {}
    try:
        parts = [(name, kind, link, data[place]) for name, kind, link, place in sections(data)]
        by_name = {name: content for name, _kind, _link, content in parts}
        for name, index, value in _symbols(parts, order):
            if index == _UNDEFINED and name:
                imports[name] = None
            elif name.startswith("__ksymtab_"):
                exports[name[len("__ksymtab_") :]] = None
            elif name.startswith("__crc_"):
                content = b"" if index == _ABSOLUTE else parts[index][3]
                crcs[name[len("__crc_") :]] = (
                    value & 0xFFFFFFFF if index == _ABSOLUTE else struct.unpack_from(order + "I", content, value)[0]
                )
    except BROKEN:
        return None  # truncated: an incomplete copy
    exports.update({name: crc for name, crc in crcs.items() if name in exports})
    imports.update(_versions(by_name.get(b"__versions", b""), order))
    info = module_info(by_name.get(b".modinfo", b"").decode("utf-8", "replace"))
    return ModuleFile(path, info, imports, exports)


def _versions(content: bytes, order: str) -> Iterator[tuple[str, int]]:
    for start in range(0, len(content) - _VERSION_ENTRY + 1, _VERSION_ENTRY):
        (crc,) = struct.unpack_from(order + "Q", content, start)
        name = content[start + 8 : start + _VERSION_ENTRY].partition(b"\0")[0]
        yield name.decode("ascii", "replace"), crc & 0xFFFFFFFF


def _symbols(sections: list[tuple[bytes, int, int, bytes]], order: str) -> Iterator[tuple[str, int, int]]:
    """(name, section index, value) of every symbol."""
    for _name, kind, link, content in sections:
        if kind != _SYMTAB:
            continue
        names = sections[link][3]
        for name, _info, _other, index, value, _size in struct.iter_unpack(order + "IBBHQQ", content):
            yield names[name : names.index(b"\0", name)].decode("ascii", "replace"), index, value


def symvers(text: str) -> dict[str, int]:
    """{symbol: CRC} of a Module.symvers."""
    rows = re.findall(r"^(0x[0-9a-fA-F]+)\t([^\t\n]*)\t", text, re.MULTILINE)
    return {symbol: int(crc, 16) for crc, symbol in rows}
