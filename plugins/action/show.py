# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints a text as it is; debug would show it inside JSON or YAML."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    @guarded
    def run(self, tmp=None, task_vars=None):
        _checked, arguments = self.validate_argument_spec(
            {"text": {"type": "str", "required": True}, "warning": {"type": "bool", "default": False}}
        )
        if arguments["warning"]:
            return {"changed": False, "warnings": terminal.warnings([arguments["text"]])}
        terminal.show(arguments["text"])
        return {"changed": False}
