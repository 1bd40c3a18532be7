# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.verify_checks: _verify.judge decides."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import judge


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                **fleet.several("node", "results", "servers", "failure"),
                "plan": {"type": "dict", "required": True},
                "unplanned": {"type": "str", "default": ""},
                "cluster": {"type": "dict", "default": {}},
            }
        )
        known = fleet.variables(task_vars, args["hosts"], args["variables"])
        # Those that have left the play since, too: what they showed is known.
        known = [of_host for of_host in known if "node" in of_host]
        seen = {
            **args,
            "nodes": [of_host["node"] for of_host in known],
            "results": [of_host.get("results", {}) for of_host in known],
            "servers": [of_host.get("servers", {}) for of_host in known],
            "failures": [of_host.get("failure", "") for of_host in known],
        }
        return {"changed": False, **judge.judge(seen, self._task.check_mode)}
