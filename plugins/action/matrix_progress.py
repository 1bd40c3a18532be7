# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.matrix_progress: _matrix.judge joins; this prints."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet, terminal
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
                **fleet.ONE,
                "planned": {"type": "str", "required": True},
                "numbers": {"type": "list", "elements": "int", "required": True},
                "earlier": {"type": "str", "required": True},
            }
        )
        plan = fleet.registered(task_vars, args["planned"])["plan"]
        results = judge.joined(fleet.some(task_vars, args["hosts"], args["variable"]))
        for number in args["numbers"]:
            terminal.show(judge.round_line(number, len(plan["rounds"]), plan, results))
        earlier = fleet.registered(task_vars, args["earlier"]).get("results") or {}
        return {"changed": False, "results": {**earlier, **results}}
