# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes rendered cluster objects into a folder of the controller; _gitops.folder decides which files."""

from __future__ import annotations

import json
import os
import pathlib
import re

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, failure, result, settle
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._gitops import folder as planner

# What every version of YAML reads as the same string; all else is quoted, as 1e3, y or 0x1 might not be one.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9./_-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "folder": {"type": "path", "required": True},
                "objects": {"type": "dict", "required": True},
            }
        )
        folder = pathlib.Path(args["folder"]).absolute()
        try:
            wanted = planner.files(args["objects"], text)
            made, changes = settle(
                read=lambda: read(folder, wanted),
                plan=lambda found: planner.plan(found, wanted),
                apply=lambda decided: apply(folder, decided),
                check_mode=self._task.check_mode,
            )
        except Refused as refused:
            return {"failed": True, "folder": str(folder), **failure(refused)}
        except OSError as error:
            return {"failed": True, "folder": str(folder), **failure(_unreadable(folder, error))}
        return {"folder": str(folder), "warnings": terminal.warnings(made.notes), **result(made, changes)}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data):
        return True

    def scalar(self, value):
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=_style(value))


_Dumper.add_representer(str, _Dumper.scalar)


def _style(value: str) -> str | None:
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return None
    lines = value.split("\n")
    block = len(lines) > 1 and value[0] not in " \n" and value.isascii()
    return "|" if block and all(line == line.rstrip() and line.isprintable() for line in lines) else '"'


def text(item: dict) -> str:
    """An object as YAML, keys in alphabetical order as kubectl prints them. The same object gives the same bytes."""
    # The controller tags the values it templates; YAML needs plain ones.
    plain = json.loads(json.dumps(item))
    return yaml.dump(plain, Dumper=_Dumper, width=float("inf"), allow_unicode=True)


def read(folder: pathlib.Path, wanted: dict) -> dict[str, str | None]:
    """{path: text} of the entries in the folder and in our directories in it; hidden ones are left out."""
    found: dict = {}
    ours = {path.partition("/")[0] for path in wanted if "/" in path}
    for entry in _entries(folder):
        if entry.is_symlink() or not entry.is_dir():
            found[entry.name] = _text(entry)
            continue
        inner = {f"{entry.name}/{child.name}": _text(child) for child in _entries(entry)}
        if entry.name in ours or any(content and content.startswith(planner.MARK) for content in inner.values()):
            found.update(inner)
    return found


def _entries(directory: pathlib.Path) -> list[pathlib.Path]:
    if not directory.exists():
        return []
    return sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))


def _text(path: pathlib.Path) -> str | None:
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return None


def apply(folder: pathlib.Path, changes: list):
    for change in changes:
        path = folder / change.object
        if change.action == "remove":
            files.remove(os.fspath(path))
            if path.parent != folder and not any(path.parent.iterdir()):
                path.parent.rmdir()
        else:
            files.write(os.fspath(path), change.after)
        yield change


def _unreadable(folder: pathlib.Path, error: OSError) -> Refused:
    return Refused.because(
        error.filename or str(folder),
        "a folder that can be read and written",
        error.strerror or str(error),
        "correct its permissions, or set cluster_objects_folder to another folder, and run again",
    )
