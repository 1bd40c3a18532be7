# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Captured nodes, the files that playbooks/capture.yml writes, read in memory.

A capture comes from someone else: no path or link in it reaches the controller's own files.

PRIVATE to the collection. Runs on the controller.
"""

from __future__ import annotations

import base64
import errno
import os
import pathlib
import stat
from collections.abc import Iterator, Mapping

import yaml

from ...module_utils.hca import Tree
from ...module_utils.hca.facts import gather
from ...module_utils.hca.seams import Seams

_SECTIONS = ("files", "links", "binary", "errors", "modes", "mtimes")
_FOLDER, _FILE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644


class NotACapture(ValueError):
    """The file is not what capture.yml writes; the message says why."""


def files(folder: str) -> list[pathlib.Path]:
    """The captures of a folder, by name."""
    return sorted(path for path in pathlib.Path(folder).glob("*.y*ml") if path.is_file())


def facts(path: pathlib.Path) -> dict:
    """The RDMA facts of one captured node, as hca_facts gives them; raises NotACapture."""
    try:
        fixture = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise NotACapture(" ".join(str(error).split())) from error
    if not isinstance(fixture, dict) or not isinstance(fixture.get("files"), dict):
        raise NotACapture("it has no mapping `files`")
    try:
        tree = CapturedTree(fixture)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise NotACapture(f"{type(error).__name__}: {error}") from error
    return gather(tree, Seams.recorded(fixture.get("seams") or {}), software_hcas=True)


def expand(fixture: Mapping) -> dict:
    """The fixture with one entry a path: folders are unfolded, `repeat` becomes one entry a number."""
    full = {section: dict(_unfold(fixture.get(section) or {})) for section in _SECTIONS}
    for pattern in fixture.get("repeat") or ():
        section, value = ("errors", pattern["error"]) if "error" in pattern else ("files", pattern["content"])
        for number in range(pattern["from"], pattern["to"] + 1):
            full[section][pattern["path"].replace("{n}", str(number))] = value
    return full


def _unfold(section: Mapping, folder: str = "") -> Iterator[tuple[str, object]]:
    for name, value in section.items():
        path = f"{folder}/{name}" if folder else name
        if isinstance(value, dict):
            yield from _unfold(value, path)
        else:
            yield path, value


class CapturedTree(Tree):
    """A Tree that has its files in memory. Paths are those of the node, and links stay inside."""

    def __init__(self, fixture: Mapping):
        super().__init__("/")
        full = expand(fixture)
        self._names: dict[str, set[str]] = {"": set()}
        self._targets: dict[str, str] = {}
        self._contents: dict[str, bytes] = {}
        self._modes: dict[str, int] = {}
        self._mtimes: dict[str, int] = {}
        # Links to folders (/lib -> usr/lib) come before the files that are reached through them.
        for path, goal in sorted(full["links"].items(), key=lambda item: item[0].count("/")):
            self._targets[self._place(path)] = goal
        for path in [*(fixture.get("directories") or ()), *full["errors"]]:
            self._make_folder(self.realpath(path))
        for path, content in full["files"].items():
            text = content if content.endswith("\n") or not content else f"{content}\n"
            self._contents[self._place(path)] = text.encode()
        for path, content in full["binary"].items():
            self._contents[self._place(path)] = base64.b64decode(content)
        for path, mode in full["modes"].items():
            self._modes[self.realpath(path)] = int(mode, 8)
        for path, seconds in full["mtimes"].items():
            self._mtimes[self.realpath(path)] = int(seconds)

    def _place(self, path: str) -> str:
        """Where a new entry stands: the links of its folders followed, its own name not."""
        folder, _slash, name = path.rpartition("/")
        here = self._make_folder(self.realpath(folder))
        self._names[here].add(name)
        return f"{here}/{name}"

    def _make_folder(self, path: str) -> str:
        path = path.rstrip("/")
        if path not in self._names:
            parent, _slash, name = path.rpartition("/")
            self._names[self._make_folder(parent)].add(name)
            self._names[path] = set()
        return path

    @property
    def live(self) -> bool:
        return False

    def snapshot(self) -> CapturedTree:
        return self

    def read_bytes(self, path: str) -> bytes | None:
        return self._contents.get(self._follow(path))

    def attributes(self, directory, names):
        return {name: self.read(f"{directory}/{name}") for name in names}

    def slots(self, directory, empty):
        found = []
        for name in self.listdir(directory):
            data = (self.read_bytes(f"{directory}/{name}") or b"")[:256]
            if data and not data.startswith(empty) and name.isdecimal():
                found.append((int(name), data.decode("utf-8", "replace").strip()))
        return sorted(found)

    def listdir(self, path: str) -> list[str]:
        return sorted(self._names.get(self._follow(path).rstrip("/"), ()))

    def readlink(self, path: str) -> str | None:
        folder, _slash, name = path.rpartition("/")
        return self._targets.get(f"{self._follow(folder)}/{name}")

    def stat(self, path: str) -> os.stat_result | None:
        here = self._follow(path).rstrip("/")
        if here not in self._names and here not in self._contents:
            return None
        kind = _FOLDER if here in self._names else _FILE
        mode = stat.S_IFMT(kind) | self._modes.get(here, stat.S_IMODE(kind))
        seconds, size = self._mtimes.get(here, 0), len(self._contents.get(here, b""))
        return os.stat_result((mode, 0, 0, 1, 0, 0, size, seconds, seconds, seconds))

    def realpath(self, path: str) -> str:
        return self._follow(path)

    def _follow(self, path: str) -> str:
        """The path with every link resolved; as it is where the links make a loop."""
        try:
            return self._walk(path, [40])
        except OSError:
            return path

    def _walk(self, path: str, budget: list[int]) -> str:
        here = ""
        for part in path.split("/"):
            if part in ("", "."):
                continue
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            goal = self._targets.get(f"{here}/{part}")
            if goal is None:
                here = f"{here}/{part}"
                continue
            budget[0] -= 1
            if budget[0] < 0:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            here = self._walk(goal if goal.startswith("/") else f"{here}/{goal}", budget)
        return here
