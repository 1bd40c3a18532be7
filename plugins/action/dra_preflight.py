# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.dra_preflight: _preflight.dra decides."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import dra


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "name": {"type": "str", "required": True},
                "runtime": {"type": "dict", "required": True},
                "cluster": {"type": "dict"},
                "extended_resources": {"type": "bool", "default": True},
            }
        )
        found = dra.findings(args["name"], args["runtime"], args["cluster"])
        if found:
            text = "\n".join(map(sentence, found))
            return {"failed": True, "msg": text, "findings": at(task_vars["inventory_hostname"], found)}
        return {"changed": False, "findings": [], "notes": dra.notes(args["cluster"], args["extended_resources"])}
