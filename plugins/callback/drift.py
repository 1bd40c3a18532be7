# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The drift recorder: keeps a guarded play in check mode, records its results, writes the verdict at the end."""

DOCUMENTATION = r"""
name: drift
type: aggregate
short_description: Records what the drift playbook finds, and keeps it from changing anything
version_added: 0.1.0
description:
  - Used by the playbook C(gpufabric.rdma.drift), which loads it. Elsewhere it does nothing.
  - Forces every task of that playbook into check mode, even one that opts out of it, and fails a task whose action is
    not known to respect check mode.
  - Writes the reports and the verdict file at the end of the run; writes none if a host has not finished.
author: The gpufabric founders (@gpufabric)
"""

import datetime
import json
import os

from ansible.plugins.callback import CallbackBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._drift import verdicts

OURS = "gpufabric.rdma."
# Only its results are marks: such keys in any other result come from a node.
MARKING = "gpufabric.rdma.report"
# Actions that change nothing on a host in check mode, or at all.
_NAMES = """
    add_host assert command copy debug dnf fail file find get_url group_by import_role import_tasks include_role
    include_tasks meta package set_fact slurp stat wait_for
"""
# Actions of other collections; only the role node_firewall uses any.
_OTHERS = ("ansible.posix.firewalld", "community.general.ufw")
HARMLESS = frozenset({*(f"ansible.builtin.{name}" for name in _NAMES.split()), *_OTHERS})
GUARD_VARIABLE = "__drift_guarded"
# Another file for the verdict, set by bin/drift.py, which cannot know the options of this run.
ANSWER = "GPUFABRIC_RDMA_DRIFT_ANSWER"


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gpufabric.rdma.drift"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self):
        super().__init__()
        os.environ[verdicts.LISTENING] = "1"
        self._record = None
        self._settings = {}
        self._guarding = False

    def v2_playbook_on_play_start(self, play):
        self._guarding = bool(play.get_vars().get(GUARD_VARIABLE))

    def v2_playbook_on_task_start(self, task, is_conditional):
        if self._guarding:
            guard(task)

    def v2_playbook_on_handler_task_start(self, task):
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_ok(self, result):
        seen = result._result
        mark = seen.get("drift_mark") if result._task.action == MARKING else None
        if mark == "begin":
            self._settings = seen["settings"]
            self._record = verdicts.Record(seen["hosts"])
        elif self._record is not None:
            if mark == "note":
                self._record.note(result._host.get_name(), seen["text"])
            elif mark == "end":
                for host in seen["hosts"]:
                    self._record.end(host)
            else:
                self._record.ok(result._host.get_name(), _task(result), seen)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if self._record is not None:
            self._record.failed(result._host.get_name(), _task(result), result._result)

    def v2_runner_on_unreachable(self, result):
        if self._record is not None:
            self._record.unreachable(result._host.get_name(), _task(result), result._result)

    def v2_playbook_on_stats(self, stats):
        if self._record is None:
            return
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = self._record.document(now)
        if document is None:
            lines = [f"failed: {text}" for text in self._record.broken]
            lines += [f"{name}: did not finish, see what failed above" for name in self._record.unfinished()]
            terminal.show("\n".join(["Drift: no verdict was reached.", *lines]), problem=True)
            return
        write_reports(document, self._settings)
        terminal.show(summary(document))


def guard(task) -> None:
    """Make it impossible for a task to change its host."""
    task.check_mode = True
    if task.action not in HARMLESS and not task.action.startswith(OURS):
        task.args = {
            "msg": f"task {task.get_name()}: wanted an action that is known to respect check mode, seen {task.action}. "
            "Next step: report it; it was not run"
        }
        task.action = "ansible.builtin.fail"


def _task(result) -> verdicts.Task:
    task = result._task
    role = task._role.get_name() if task._role else ""
    delegate = result._task_fields.get("delegate_to") or ""
    once = bool(result._task_fields.get("run_once"))
    return verdicts.Task(task.get_name(), task.action, role.rpartition(".")[2], str(delegate), once)


def summary(document: dict) -> str:
    lines = [f"Drift: {verdicts.title(document['verdict'])}"]
    for hosts, (verdict, differences, reasons) in core_text.alike(
        (
            host["host"],
            (host["verdict"], [f"{item['role']}: {item['object']}" for item in host["differences"]], host["reasons"]),
        )
        for host in document["hosts"]
    ):
        count = core_text.count(len(differences), "difference")
        lines.append(f"  {core_text.of_nodes(hosts)}: {verdicts.title(verdict)}, {count}")
        lines += [f"    {text}" for text in [*differences, *reasons]]
    return "\n".join(lines)


def write_reports(document: dict, settings: dict) -> None:
    """The verdict last: once it exists, so do the reports, each whole."""
    verdict = json.dumps(verdicts.verdict_of(document, settings["run"]), indent=2) + "\n"
    texts = {
        "json_file": json.dumps(document, indent=2) + "\n",
        "junit_file": verdicts.junit(document),
        "verdict_file": verdict,
    }
    for name, text in texts.items():
        if settings[name]:
            files.put(settings[name], text.encode())
    if os.environ.get(ANSWER):
        files.put(os.environ[ANSWER], verdict.encode())
