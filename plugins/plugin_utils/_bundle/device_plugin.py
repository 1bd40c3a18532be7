"""The device plugin as one file that Python runs: its package and the discovery library in a zip archive.

The same sources give the same bytes on every controller: members are sorted, stored without compression (zlib's output
differs between versions) and have one date. So a checksum tells whether a node has it.
"""

import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

from ...module_utils._bundle import plugin_image
from ...module_utils._core import files
from ...module_utils._core.change import Refused, at
from ...module_utils._core.text import grouped
from ...module_utils._device_plugin.config import PLUGIN, RAILS
from . import folder

MAIN = """\
import sys

from rdma_device_plugin.__main__ import main

sys.exit(main())
"""
CODE = "plugin.pyz"
COLLECTION = pathlib.Path(__file__).resolve().parents[3]
_DATE = (1980, 1, 1, 0, 0, 0)


def locked() -> dict:
    """Options of the module device_plugin for the code and the libraries that a node needs."""
    names = ("name", "version", "files")
    wheels = [{key: row[key] for key in names} for row in folder.lock()["wheels"] if row["used_by"] == "device_plugin"]
    return {"code_sha256": hashlib.sha256(archive(COLLECTION)).hexdigest(), "wheels": wheels}


def supply(given: dict) -> folder.Supply:
    """What the module device_plugin gets. given: its options. Refused if the plugin rejects the config."""
    if given["state"] != "present":
        return folder.Supply({}, {}, dict)
    code, options, wheel_dir = archive(COLLECTION), locked(), given["wheel_dir"]
    check_config(code, given["config"] or "", given["api"])
    wheels = [row["file"] for wheel in options["wheels"] for row in wheel["files"]] if wheel_dir else []
    return folder.Supply(options, {CODE: code, **{name: pathlib.Path(wheel_dir, name) for name in wheels}}, _there)


def checked(planned: dict, nodes: list[dict]) -> tuple[list[dict], list[str]]:
    """(findings, warnings) of the plugin about the configs in a plan that are not made from rails."""
    configs = {node["host"]: planned["hosts"][node["host"]].get("device_plugin", {}).get("config") for node in nodes}
    given = grouped(
        ((configs[node["host"]], node["variables"]["device_plugin_api"]), node["host"])
        for node in nodes
        if configs[node["host"]] and node["variables"]["device_plugin_resources"] != RAILS
    )
    found, warnings = [], []
    for config, hosts in given.items():
        try:
            warnings += check_config(archive(COLLECTION), *config)
        except Refused as refused:
            found += [{**row, "role": "device_plugin"} for row in at(", ".join(hosts), refused.findings)]
    return found, list(dict.fromkeys(warnings))


def check_config(code: bytes, text: str, api: str) -> list[str]:
    """Warnings of the plugin that is about to be installed about a config. Refused if it rejects it."""
    with tempfile.TemporaryDirectory(prefix="rdma-device-plugin-") as scratch:
        program, path = os.path.join(scratch, CODE), os.path.join(scratch, "config.json")
        files.write(program, code)
        files.write(path, text)
        mode = [] if api == PLUGIN else ["-mode", api]
        command = [sys.executable, "-I", "-B", program, "check-config", "-strict", *mode, path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PATH": os.defpath})
    said = [line.replace(f"{path}: ", "") for line in done.stderr.splitlines()]
    if done.returncode:
        raise Refused.because(
            "variable device_plugin_resources",
            "a config that the plugin accepts (check-config -strict)",
            " | ".join(said),
            "correct it where it is set (inventory, group_vars or -e); docs/device-plugin.md lists the keys",
        )
    return [f"device_plugin_resources: {line.partition('warning: ')[2]}" for line in said if "warning: " in line]


def _there(contents: dict) -> dict:
    """The same files; Refused if one of them is missing."""
    missing = [path for path in contents.values() if isinstance(path, pathlib.Path) and not path.is_file()]
    if missing:
        where, program = missing[0].parent, COLLECTION / "device_plugin/fetch_wheels.py"
        step = f"python3 {program} {where} --python X.Y with the node's Python and --architecture with its processor"
        raise Refused.because(
            "variable device_plugin_wheel_dir",
            f"{', '.join(path.name for path in missing)} in {where}",
            "no such file",
            f"{step}, both of which the files state",
        )
    return contents


def archive(collection: pathlib.Path) -> bytes:
    """The archive of the collection at this path. Refused if it has no device plugin."""
    members = {"__main__.py": MAIN.encode(), **plugin_image.code(os.fspath(collection))}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as target:
        for name, content in sorted(members.items()):
            member = zipfile.ZipInfo(name, _DATE)
            member.create_system = 3  # as on any Unix, independent of this controller
            member.external_attr = 0o644 << 16
            target.writestr(member, content)
    return buffer.getvalue()
