# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.plan_matrix: _matrix.plan and _matrix.pods decide; this prints."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import plan as matrix_plan
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import pods


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
                "cluster": {"type": "dict"},
            }
        )
        known = fleet.each(task_vars, args["hosts"], args["variable"])
        nodes, options = [matrix_plan.known(node) for node in known], matrix_plan.settings(known)
        try:
            plan = pods.plan(args["cluster"], nodes, options) if args["cluster"] else matrix_plan.plan(nodes, options)
        except Refused as refused:
            return {"changed": False, "failed": True, "msg": str(refused)}
        if not args["cluster"]:
            findings = matrix_plan.consent_findings([plan], nodes)
            if findings and not self._task.check_mode:
                terminal.show(f"{core_text.four_facts(findings)}\n")
                return {
                    "changed": False,
                    "failed": True,
                    "msg": f"{core_text.count(len(findings), 'HCA')} in use and matrix_load_allowed is not set; "
                    "nothing has been sent. Each is listed above.",
                }
            if not options["host"]:
                plan = {**plan, "rounds": [], "tests": {}, "alone": []}
        # Nothing to announce for hosts if matrix_host is off.
        if plan["tests"] or plan["alone"]:
            terminal.show(f"{matrix_plan.announcement([plan], nodes, options)}\n")
        return {
            "changed": False,
            "plan": plan,
            "parts": {} if args["cluster"] else matrix_plan.steps(plan),
            "grace_seconds": matrix_plan.grace_seconds(len(nodes)),
            "wait_seconds": matrix_plan.wait_seconds(plan, len(nodes), options),
        }
