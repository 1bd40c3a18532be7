# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The config file on disk: changes are noticed however it is replaced (in place, by rename, as a ConfigMap)."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from typing import Any, Callable

from . import log
from .config import Config, load
from .worker import Worker


class ConfigFile:
    """One file, read in its own thread: it may be on a network file system, and nothing else may wait for that.

    patience: seconds after which an unresponsive file is an error (OSError, ETIMEDOUT).
    """

    def __init__(self, path: str, strict: bool, patience: float):
        self.path = path
        self.directory = os.path.dirname(path) or "."
        self._strict = strict
        self._patience = patience
        self._worker = Worker("config")
        self._seen: Any = None

    async def read(self, lenient: bool = False) -> Config:
        """The current config. OSError, ConfigError. lenient: see config.load."""
        try:
            self._seen, data = await self._ask(_read)
        except OSError as error:
            self._seen = error.errno if error.errno == errno.ETIMEDOUT else await self._ask(_stamp)
            raise
        config = load(data, self._strict, lenient)
        for warning in config.warnings:
            log.on_change(f"config {warning}", warning, logging.WARNING)
        return config

    async def changed(self) -> bool:
        """Whether it differs from the last read. OSError when it does not respond."""
        return self._seen is None or await self._ask(_stamp) != self._seen

    async def _ask(self, job: Callable[[str], Any]) -> Any:
        try:
            return await self._worker.within(self._patience, job, self.path)
        except asyncio.TimeoutError:
            text = f"has not answered for {self._patience:g} s (a hung mount?)"
            raise OSError(errno.ETIMEDOUT, text, self.path) from None

    def close(self) -> None:
        self._worker.close()

    def forget(self) -> None:
        """Treat the next one as changed, whatever it is."""
        self._seen = None

    @property
    def forgotten(self) -> bool:
        return self._seen is None


def _read(path: str) -> tuple[Any, bytes]:
    # O_NONBLOCK: opening a FIFO would wait for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        return _stamp_of(status), file.read()


def _stamp(path: str) -> Any:
    try:
        return _stamp_of(os.stat(path))
    except OSError as error:
        return error.errno


def _stamp_of(status: os.stat_result) -> Any:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
