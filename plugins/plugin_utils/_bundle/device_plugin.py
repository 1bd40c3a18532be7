"""The device plugin as one file that Python runs: its package and the discovery library in a zip archive.

PRIVATE to the collection. The same sources give the same bytes on every controller: members are sorted, stored without
compression (zlib's output differs between versions) and carry one date. So a checksum tells whether a node has it.
"""

from __future__ import annotations

import hashlib
import io
import pathlib
import zipfile

from . import folder

MAIN = """\
import sys

from rdma_device_plugin.__main__ import main

sys.exit(main())
"""
COLLECTION = pathlib.Path(__file__).resolve().parents[3]
_DATE = (1980, 1, 1, 0, 0, 0)
_KINDS = (".py", ".json")


def locked() -> dict:
    """Options of the module device_plugin that say which code and which libraries a node is to have."""
    names = ("name", "version", "files")
    wheels = [{key: row[key] for key in names} for row in folder.lock()["wheels"] if row["used_by"] == "device_plugin"]
    return {"code_sha256": hashlib.sha256(archive(COLLECTION)).hexdigest(), "wheels": wheels}


def archive(collection: pathlib.Path) -> bytes:
    """The archive of the collection at this path. FileNotFoundError when its device plugin is not there."""
    plugin = collection / "device_plugin/rdma_device_plugin"
    library = collection / "plugins/module_utils/hca"
    members = {"__main__.py": MAIN.encode()}
    for source, prefix in ((plugin, "rdma_device_plugin"), (library, "rdma_device_plugin/hca")):
        found = [path for path in source.rglob("*") if path.suffix in _KINDS]
        if not found:
            raise FileNotFoundError(f"{source}: no Python files; the installed collection is not complete")
        for path in found:
            members[f"{prefix}/{path.relative_to(source).as_posix()}"] = path.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as target:
        for name, content in sorted(members.items()):
            member = zipfile.ZipInfo(name, _DATE)
            member.create_system = 3  # as on any Unix, whatever this controller is
            member.external_attr = 0o644 << 16
            target.writestr(member, content)
    return buffer.getvalue()
