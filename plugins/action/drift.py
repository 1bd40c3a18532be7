# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.drift: marks for the drift recorder, which sees them as results."""

from __future__ import annotations

import os
import pathlib

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded

FILES = ("json_file", "junit_file", "verdict_file")
LISTENING = "GPUFABRIC_RDMA_DRIFT_RECORDER"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "mark": {"type": "str", "required": True, "choices": ["begin", "note", "end"]},
                "hosts": {"type": "list", "elements": "str", "default": []},
                "text": {"type": "str", "default": ""},
                "run": {"type": "str", "default": ""},
                "directory": {"type": "str", "default": "drift"},
                **{name: {"type": "str", "default": ""} for name in FILES},
            },
        )
        result = {"changed": False, "drift_mark": args["mark"]}
        if args["mark"] == "note":
            return {**result, "text": args["text"]}
        if args["mark"] == "end":
            return {**result, "hosts": args["hosts"]}
        problem = self._problem(task_vars)
        if problem:
            return {**result, "failed": True, "msg": problem}
        folder = pathlib.Path(os.environ.get("PWD") or os.getcwd(), args["directory"])
        settings = {name: str(folder / args[name]) if args[name] else "" for name in FILES}
        try:
            begin(folder, settings)
        except OSError as error:
            wanted = "wanted a path that this controller may write"
            step = "set drift_directory or the file's variable to one"
            return {
                **result,
                "failed": True,
                "msg": f"{error.filename}: {wanted}, seen {error.strerror}. Next step: {step}",
            }
        return {**result, "hosts": args["hosts"], "settings": {**settings, "run": args["run"]}}

    def _problem(self, task_vars):
        if not task_vars.get("ansible_check_mode"):
            return "drift: wanted a run in check mode, seen one without. Next step: run again with --check"
        if os.environ.get(LISTENING) != "1":
            return (
                "drift recorder: wanted it loaded with the playbook, seen none. Next step: run the "
                "collection's playbook gpufabric.rdma.drift, or set callbacks_enabled to gpufabric.rdma.drift"
            )
        return None


def begin(folder: pathlib.Path, settings: dict) -> None:
    """Remove an earlier run's results before this run starts: an old one must not be mistaken for the new one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if settings[name]:
            pathlib.Path(settings[name]).unlink(missing_ok=True)
