# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The config file on disk: whichever way it is swapped (in place, by rename, as a ConfigMap), its change is seen."""

from __future__ import annotations

import logging
import os
from typing import Any

from . import log
from .config import Config, load
from .worker import Worker


class ConfigFile:
    """One file, read in a thread of `files`: it may lie on a network file system."""

    def __init__(self, path: str, strict: bool, files: Worker):
        self.path = path
        self.directory = os.path.dirname(path) or "."
        self._strict = strict
        self._files = files
        self._seen: Any = None

    async def read(self) -> Config:
        """The config now. OSError, ConfigError."""
        try:
            self._seen, data = await self._files.run(_read, self.path)
        except OSError:
            self._seen = await self._files.run(_stamp, self.path)
            raise
        config = load(data, self._strict)
        for warning in config.warnings:
            log.on_change(f"config {warning}", warning, logging.WARNING)
        return config

    async def changed(self) -> bool:
        """Whether it is another one than was read last."""
        return self._seen is None or await self._files.run(_stamp, self.path) != self._seen

    def forget(self) -> None:
        """Take the next one for changed, whatever it is."""
        self._seen = None

    @property
    def forgotten(self) -> bool:
        return self._seen is None


def _read(path: str) -> tuple[Any, bytes]:
    with open(path, "rb") as file:
        return _stamp_of(os.fstat(file.fileno())), file.read()


def _stamp(path: str) -> Any:
    try:
        return _stamp_of(os.stat(path))
    except OSError as error:
        return error.errno


def _stamp_of(status: os.stat_result) -> Any:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
