# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Log lines in the shape of Go's log package, or JSON; repeated states are logged once."""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from typing import Any, Optional, TextIO

_LOGGER = logging.getLogger("rdma_device_plugin")
_said: dict[str, Any] = {}


def printable(text: str) -> str:
    """One line, even if a file name or another program's error text contains line breaks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


class _Text(logging.Formatter):
    """`2006/01/02 15:04:05 message key=value`, as upstream's operators grep it."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname.capitalize()}: " if record.levelno >= logging.WARNING else ""
        fields = "".join(f" {key}={value}" for key, value in getattr(record, "fields", {}).items())
        return printable(f"{when} {level}{record.getMessage()}{fields}") + _trace(record)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{when}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        line["msg"] = record.getMessage() + _trace(record)
        line.update(getattr(record, "fields", {}))
        return json.dumps(line, default=str)


def _trace(record: logging.LogRecord) -> str:
    return "\n" + logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


class _HungUp(logging.Filter):
    """Drops grpc's traceback for a peer that closed before its answer, such as a restarting kubelet."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("ExecuteBatchError raised in core by servicer method")


# Lines waiting to be written; more are dropped and counted.
_MOST_WAITING = 1000


class _Background(logging.Handler):
    """Writes to a descriptor in a thread: an unread pipe must block neither an RPC nor a signal."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: queue.Queue[str] = queue.Queue(_MOST_WAITING)
        self._lost = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record) + "\n")
        except queue.Full:
            self._lost += 1

    def _write(self) -> None:
        while True:
            data = self._lines.get().encode("utf-8", "backslashreplace")
            if self._lost:
                lost, self._lost = self._lost, 0
                data = f"{lost} lines were dropped here: stderr was not being read\n".encode() + data
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                pass  # closed: no reader left
            self._lines.task_done()

    def drain(self, seconds: float) -> None:
        """Wait until everything is written, at most this long."""
        deadline = time.monotonic() + seconds
        while self._lines.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.005)


def flush(seconds: float) -> None:
    """Write the logged lines, unless nothing reads them."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Background):
            handler.drain(seconds)


def set_up(as_json: bool = False, stream: Optional[TextIO] = None) -> None:
    """Send everything to stderr, including the messages of asyncio and grpc."""
    handler = logging.StreamHandler(stream) if stream else _Background(sys.stderr.fileno())
    handler.setFormatter(_Json() if as_json else _Text())
    handler.addFilter(_HungUp())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _LOGGER.setLevel(logging.INFO)


def info(text: str, **fields: Any) -> None:
    _LOGGER.info("%s", text, extra={"fields": fields})


def warning(text: str, **fields: Any) -> None:
    _LOGGER.warning("%s", text, extra={"fields": fields})


def error(text: str, **fields: Any) -> None:
    _LOGGER.error("%s", text, extra={"fields": fields})


def on_change(key: str, text: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log a state only if it differs from the last one for `key`."""
    state = (text, level, tuple(fields.items()))
    if _said.get(key) != state:
        _said[key] = state
        _LOGGER.log(level, "%s", text, extra={"fields": fields})


def forget(prefix: str) -> None:
    """Forget the logged states of an object that is gone."""
    for key in [key for key in _said if key.startswith(prefix)]:
        del _said[key]
