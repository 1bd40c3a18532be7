"""Kills the run, all its processes, once a task has ended on a host: CUT_OFF_AFTER="HOST TASK"."""

from __future__ import annotations

import os
import signal

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: cut_off
type: notification
short_description: Kills the run
description: [Kills the run.]
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "cut_off"
    CALLBACK_NEEDS_ENABLED = True

    def v2_runner_on_ok(self, result):
        if os.environ["CUT_OFF_AFTER"] == f"{result._host.get_name()} {result._task.get_name().rpartition(' : ')[2]}":
            os.killpg(0, signal.SIGKILL)
