# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.matrix_progress: _matrix.judge joins; this prints."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import judge


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "plan": {"type": "dict", "required": True},
                "numbers": {"type": "list", "elements": "int", "required": True},
                "answers": {"type": "list", "elements": "dict", "required": True},
            }
        )
        results, total = judge.joined(args["answers"]), len(args["plan"]["rounds"])
        for number in args["numbers"]:
            terminal.show(judge.round_line(number, total, args["plan"], results))
        return {"changed": False, "results": results}
