# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes down each result of a run, and kills the run, all its processes, right after one of them.

CUT_OFF_STEPS=FILE: one line a result: {"host", "task", "place", "kind": changed|ok|skipped|failed, "at": seconds}. A
place is the task's file and line in this checkout, and for the how-many-th time this host reports it: FILE:LINE#TIMES.
CUT_OFF_AFTER="HOST TASK", the name with or without that of its role, or "HOST PLACE": the result after which to kill.
The run needs a session of its own, since its whole process group is killed.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import signal
import time

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: cut_off
type: notification
short_description: Writes down the results of a run and kills it after one of them
description: For the tests of this collection only; it is not part of it.
"""
CHECKOUT = pathlib.Path(__file__).resolve().parents[3]


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "cut_off"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._begun = time.monotonic()
        self._times = collections.Counter()

    def _step(self, result, kind):
        host, task = result._host.get_name(), result._task.get_name()
        line = os.path.relpath(os.path.realpath(result._task.get_path()), CHECKOUT)
        self._times[host, line] += 1
        place = f"{line}#{self._times[host, line]}"
        if "CUT_OFF_STEPS" in os.environ:
            step = {"host": host, "task": task, "place": place, "kind": kind, "at": time.monotonic() - self._begun}
            with open(os.environ["CUT_OFF_STEPS"], "a", encoding="utf-8") as stream:
                stream.write(json.dumps(step) + "\n")
        names = (task, task.rpartition(" : ")[2], place)
        if os.environ.get("CUT_OFF_AFTER") in {f"{host} {name}" for name in names}:
            os.killpg(0, signal.SIGKILL)

    def v2_runner_on_ok(self, result):
        self._step(result, "changed" if result._result.get("changed") else "ok")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._step(result, "failed")

    def v2_runner_on_skipped(self, result):
        self._step(result, "skipped")
