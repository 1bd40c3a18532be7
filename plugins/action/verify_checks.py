# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.verify_checks: _verify.judge decides."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
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
                "hosts": {"type": "list", "elements": "str", "required": True},
                "nodes": {"type": "list", "elements": "dict", "required": True},
                "plan": {"type": "dict", "required": True},
                "unplanned": {"type": "str", "default": ""},
                "results": {"type": "list", "elements": "dict", "default": []},
                "servers": {"type": "list", "elements": "dict", "default": []},
                "failures": {"type": "list", "elements": "str", "default": []},
                "cluster": {"type": "dict", "default": {}},
            }
        )
        return {"changed": False, **judge.judge(args, self._task.check_mode)}
