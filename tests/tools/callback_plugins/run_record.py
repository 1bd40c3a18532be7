# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records what a run did, for the tests: remote calls per host, and the changes each module named.

Enabled by RUN_RECORD=FOLDER with this folder in ANSIBLE_CALLBACK_PLUGINS and `run_record` in ANSIBLE_CALLBACKS_ENABLED.
Each run adds one file NN-PLAYBOOK[-check].json: {"playbook": str, "seconds": float, "check_mode": bool,
"hosts": {name: {"remote_calls": int, "calls": [task names], "changed": [task names],
"changes": [{object, action, before, after}], "failed": [task names], "unreachable": [task names]}}}.

A remote call is one command or one file transfer that a connection plugin carried out, so a module costs 1 with
pipelining and `copy` costs several. Workers are forked from the process that loads this callback, so a wrapper
around the connection classes is in force in all of them; they append to one file, a line a call.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time

from ansible.executor.task_executor import TaskExecutor
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import connection_loader

DOCUMENTATION = """
name: run_record
type: aggregate
short_description: Records remote calls and changes of a run as JSON
description:
  - For the tests of this repository; not part of the collection.
"""

_current = {"host": "", "task": None}


def _count_calls(log_path):
    """Wrap the effects of the connection classes so that each appends one line to log_path."""

    def wrap(method):
        def counted(self, *args, **kwargs):
            # To whom it goes, and not for whom: the same for a task that runs once, whichever host it is run for.
            host = _current["task"].delegate_to or _current["host"]
            line = json.dumps([host, _current["task"].get_name(), method.__name__]) + "\n"
            descriptor = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, line.encode())
            os.close(descriptor)
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
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        self._target = os.environ.get("RUN_RECORD")
        if not self._target:
            self.disabled = True
            return
        self._start = time.monotonic()
        self._hosts = {}
        self._check_mode = False
        self._playbook = ""
        handle, self._log = tempfile.mkstemp(prefix="run_record.")
        os.close(handle)
        _count_calls(self._log)

    def _host(self, name):
        return self._hosts.setdefault(
            name, {"remote_calls": 0, "calls": [], "changed": [], "changes": [], "failed": [], "unreachable": []}
        )

    def v2_playbook_on_start(self, playbook):
        self._playbook = pathlib.Path(playbook._file_name).stem

    def v2_playbook_on_play_start(self, play):
        self._check_mode = bool(play.check_mode)

    def _record(self, result, failed=False):
        host = self._host(result._host.name)
        name = result._task.get_name()
        if failed:
            host["failed"].append(name)
        if result._result.get("changed"):
            host["changed"].append(name)
        items = result._result.get("results")
        for item in items if isinstance(items, list) else [result._result]:
            changes = item.get("changes") if isinstance(item, dict) else None
            if isinstance(changes, list):
                host["changes"].extend(c for c in changes if isinstance(c, dict) and "object" in c)

    def v2_runner_on_ok(self, result):
        self._record(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._record(result, failed=not ignore_errors)

    def v2_runner_on_unreachable(self, result):
        self._host(result._host.name)["unreachable"].append(result._task.get_name())

    def v2_playbook_on_stats(self, stats):
        with open(self._log, encoding="utf-8") as stream:
            for line in stream:
                name, task, effect = json.loads(line)
                host = self._host(name)
                host["remote_calls"] += 1
                host["calls"].append(f"{task} [{effect}]")
        os.unlink(self._log)
        record = {
            "playbook": self._playbook,
            "seconds": round(time.monotonic() - self._start, 1),
            "check_mode": self._check_mode,
            "hosts": self._hosts,
        }
        folder = pathlib.Path(self._target)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{len(list(folder.glob('*.json'))):02d}-{self._playbook}{'-check' if self._check_mode else ''}.json"
        (folder / name).write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
