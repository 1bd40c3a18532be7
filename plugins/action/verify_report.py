# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.verify_report: prints, and fails in one place."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import clean
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import diagnosis
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "judged": {"type": "str", "required": True},
            }
        )
        judged = task_vars[args["judged"]]["judged"]
        verdicts = {node["host"]: node["diagnosis"] for node in judged if node.get("diagnosis")}
        text = host_checks.report_text(judged, self._task.check_mode)
        if verdicts:
            text = f"Root causes\n{diagnosis.text(verdicts)}\n\n{text}"
        terminal.show(f"{text}\n")
        total = host_checks.tally([item for node in judged for item in node["checks"]])
        if total[host_checks.FAILED]:
            return {
                "changed": False,
                "failed": True,
                "msg": f"{total[host_checks.FAILED]} of the checks failed; each is listed above",
            }
        return {"changed": False, "tally": total, "report": clean(text).splitlines()}
