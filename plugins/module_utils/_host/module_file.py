"""Imports and exports of a kernel module file: symbols with the CRCs that the kernel compares.

Reads the ELF object itself (elf(5), kernel/module/version.c): imports with their CRCs are in the section __versions,
exports are symbols named __ksymtab_*, their CRCs are found through symbols named __crc_*.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Callable, Optional

from ..hca import elf
from ..hca.text import module_info
from ..hca.tree import Tree

_SYMTAB = 2  # SHT_SYMTAB
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1  # SHN_UNDEF, SHN_ABS
_VERSION_ENTRY = 64  # sizeof(struct modversion_info) on 64-bit: an unsigned long and a name of 56 bytes


@dataclass
class ModuleFile:
    """imports: {symbol: CRC, None without one}; exports likewise; info: fields of .modinfo, the first of each."""

    path: str
    info: dict[str, str] = field(default_factory=dict)
    imports: dict[str, Optional[int]] = field(default_factory=dict)
    exports: dict[str, Optional[int]] = field(default_factory=dict)

    @property
    def depends(self) -> list[str]:
        return [name for name in self.info.get("depends", "").split(",") if name]


def read(tree: Tree, path: str, run: Optional[Callable[[list[str]], bytes]] = None) -> Optional[ModuleFile]:
    """The file; None if it is absent, not a 64-bit module, or cannot be unpacked here.

    run: executes a command and returns its output; only needed for .ko.zst, which Python unpacks from 3.14 on.
    """
    data = tree.read_bytes(path)
    plain = _unpacked(data, path, run) if data else None
    return None if plain is None else parse(plain, path)


def parse(data: bytes, path: str) -> Optional[ModuleFile]:
    if data[:5] != b"\x7fELF\x02":
        return None
    order = elf.byte_order(data)
    try:
        sections = [(name, kind, link, data[place]) for name, kind, link, place in elf.sections(data)]
        module = ModuleFile(path)
        by_name = {name: content for name, _type, _link, content in sections}
        module.info = module_info(by_name.get(b".modinfo", b"").decode("utf-8", "replace"))
        crcs = {}
        for name, index, value in _symbols(sections, order):
            if index == _UNDEFINED and name:
                module.imports[name] = None
            elif name.startswith("__ksymtab_"):
                module.exports[name[len("__ksymtab_") :]] = None
            elif name.startswith("__crc_"):
                content = b"" if index == _ABSOLUTE else sections[index][3]
                crcs[name[len("__crc_") :]] = (
                    value & 0xFFFFFFFF if index == _ABSOLUTE else struct.unpack_from(order + "I", content, value)[0]
                )
        module.exports.update({name: crc for name, crc in crcs.items() if name in module.exports})
        module.imports.update(_versions(by_name.get(b"__versions", b""), order))
    except elf.BROKEN:
        return None  # truncated: an incomplete copy
    return module


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


def _unpacked(data: bytes, path: str, run: Optional[Callable[[list[str]], bytes]]) -> Optional[bytes]:
    if path.endswith(".zst"):
        return run(["zstd", "--decompress", "--stdout", "--quiet", path]) if run else None
    return elf.decompressed(data, path)


def symvers(text: str) -> dict[str, tuple[int, str]]:
    """{symbol: (CRC, module)} of a Module.symvers."""
    symbols = {}
    for line in text.splitlines():
        part = line.split("\t")
        if len(part) >= 3:
            try:
                symbols[part[1]] = (int(part[0], 16), part[2])
            except ValueError:
                continue
    return symbols
