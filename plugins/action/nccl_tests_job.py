# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.nccl_tests_job: _nccl.job decides; this prints and fails."""

from __future__ import annotations

import json

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import job

HEADER = (
    "# All-reduce over the rails of these nodes. Evidence level E5 (hardware): not verified by the tests of\n"
    "# gpufabric.rdma.\n"
)

OPTIONS = {
    **{key: {"type": "str"} for key in ("image", "namespace", "address_range", "form", "script")},
    "networks": {"type": "list", "elements": "str"},
    "gpus_per_node": {"type": "int"},
    "resources": {"type": "raw"},
}


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
                "options": {"type": "dict", "required": True, "options": OPTIONS},
            }
        )
        nodes = fleet.each(task_vars, args["hosts"], args["variable"])
        findings = job.findings(nodes, args["options"])
        if findings:
            terminal.show(f"{core_text.four_facts(findings)}\n")
            count = core_text.count(len(findings), "problem")
            return {
                "changed": False,
                "failed": True,
                "msg": f"{count} with the nccl-tests job; nothing was written. Each is listed above.",
            }
        # The controller tags the values it templates; YAML needs plain ones.
        made = json.loads(json.dumps(job.objects(nodes, args["options"])))
        return {
            "changed": False,
            "objects": made,
            "text": HEADER + yaml.safe_dump_all(made, sort_keys=False, width=1000),
        }
