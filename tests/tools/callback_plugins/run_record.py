# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records a run for tests, kills it on request, and shares built modules; each only if its variable is set.

RUN_RECORD=FOLDER: writes FOLDER/record.json: {host: {"remote_calls": int, "calls": [task names], "changed": [task
names], "changes": [{object, action, before, after}]}}. A remote call is one command or one file transfer that a
connection plugin carried out, so a module costs 1 with pipelining and `copy` costs several. Workers are forked from
the process that loads this, so a wrapper around the connection classes is in force in all; they append to one file.
CUT_OFF_STEPS=FILE: one line per result: {"host", "task", "place", "kind": changed|ok|skipped|failed}. A place is the
task's file and line in this checkout, and the number of this host's reports for it: FILE:LINE#TIMES.
CUT_OFF_AFTER="HOST PLACE": the result after which the run, its whole process group, is killed; it needs a session.
BUILT_MODULES=FOLDER: keeps the archives that AnsiballZ builds, which takes longer than the module itself.
"""

import collections
import json
import os
import pathlib
import signal
import tempfile

from ansible import constants
from ansible.executor.task_executor import TaskExecutor
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import connection_loader

DOCUMENTATION = """
name: run_record
type: aggregate
short_description: Records remote calls and changes of a run as JSON
description: For the tests of this collection only; it is not part of it.
"""
CHECKOUT = pathlib.Path(__file__).resolve().parents[3]

_current = {"host": "", "task": None}


def _append(path, entry):
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")


def _count_calls(log_path):
    """Wrap the effects of the connection classes so that each appends one line to log_path."""

    def wrap(method):
        def counted(self, *args, **kwargs):
            # The host of the call, not the host of the task: the same for a run_once task on any host.
            _append(log_path, [_current["task"].delegate_to or _current["host"], _current["task"].get_name()])
            return method(self, *args, **kwargs)

        return counted

    for name in ("ssh", "local"):
        connection = connection_loader.get(name, class_only=True)
        for effect in ("exec_command", "put_file", "fetch_file"):
            setattr(connection, effect, wrap(getattr(connection, effect)))

    run = TaskExecutor.run

    def run_named(self):
        _current.update(host=self._host.name, task=self._task)
        return run(self)

    TaskExecutor.run = run_named


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "run_record"

    def __init__(self):
        super().__init__()
        if "BUILT_MODULES" in os.environ:
            pathlib.Path(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache").symlink_to(os.environ["BUILT_MODULES"])
        self._target, self._steps = os.environ.get("RUN_RECORD"), os.environ.get("CUT_OFF_STEPS")
        self.disabled = not (self._target or self._steps)
        self._hosts, self._times = {}, collections.Counter()
        if self._target:
            handle, self._log = tempfile.mkstemp(prefix="run_record.")
            os.close(handle)
            _count_calls(self._log)

    def _host(self, name):
        return self._hosts.setdefault(name, {"remote_calls": 0, "calls": [], "changed": [], "changes": []})

    def _seen(self, result, kind):
        host, task = result._host.get_name(), result._task.get_name()
        record = self._host(host)
        if result._result.get("changed"):
            record["changed"].append(task)
        items = result._result.get("results")
        for item in items if isinstance(items, list) else [result._result]:
            changes = item.get("changes") if isinstance(item, dict) else None
            if isinstance(changes, list):
                record["changes"] += [each for each in changes if isinstance(each, dict) and "object" in each]
        if self._steps:
            self._step(host, task, os.path.relpath(os.path.realpath(result._task.get_path()), CHECKOUT), kind)

    def _step(self, host, task, line, kind):
        self._times[host, line] += 1
        place = f"{line}#{self._times[host, line]}"
        _append(self._steps, {"host": host, "task": task, "place": place, "kind": kind})
        if os.environ.get("CUT_OFF_AFTER") == f"{host} {place}":
            os.killpg(0, signal.SIGKILL)

    def v2_runner_on_ok(self, result):
        self._seen(result, "changed" if result._result.get("changed") else "ok")

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._seen(result, "failed")

    def v2_runner_on_skipped(self, result):
        self._seen(result, "skipped")

    def v2_playbook_on_stats(self, stats):
        if not self._target:
            return
        for line in pathlib.Path(self._log).read_text().splitlines():
            name, task = json.loads(line)
            host = self._host(name)
            host["remote_calls"] += 1
            host["calls"].append(task)
        os.unlink(self._log)
        folder = pathlib.Path(self._target)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "record.json").write_text(json.dumps(self._hosts, indent=1, sort_keys=True), encoding="utf-8")
