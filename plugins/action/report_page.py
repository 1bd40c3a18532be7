# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.report_page: the package _report decides where the page goes and what it holds."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import files, page


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "file": {"type": "path"},
                "title": {"type": "str", "default": "RDMA report"},
                "judged": {"type": "str"},
                "variable": {"type": "str"},
            },
            required_together=[("judged", "variable")],
        )
        path = files.page_path(args["file"], (task_vars or {}).get("ansible_inventory_sources") or [])
        if args["judged"] is None:
            return self._refuse(path)
        made = files.of_this_run(task_vars, args["judged"], args["variable"])
        files.write({path: terminal.here(page.page(made, args["title"]))}, self._task.check_mode)
        terminal.show(f"The report {'would be' if self._task.check_mode else 'is'} {path}\n")
        return {"changed": False, "path": str(path)}

    def _refuse(self, path):
        findings = files.unwritable(path)
        result = {"changed": False, "path": str(path), "findings": at("the controller", findings)}
        return {**result, "failed": True, "msg": "\n".join(map(sentence, findings))} if findings else result
