# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.nccl_tests_log: _nccl.log decides; this reads, prints and fails."""

from __future__ import annotations

import pathlib

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import log


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "path": {"type": "path", "required": True},
                "hcas": {"type": "list", "elements": "str", "default": []},
                "minimum_gbyte_per_s": {"type": "float"},
            }
        )
        try:
            text = pathlib.Path(args["path"]).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            msg = f"the NCCL log {args['path']} cannot be read: {error.strerror}; give the file with nccl_tests_log"
            return {"changed": False, "failed": True, "msg": msg}
        parsed = log.parse(text)
        checks = log.checks(parsed, args["hcas"], args["minimum_gbyte_per_s"])
        terminal.show(f"{log.report(args['path'], parsed, checks)}\n")
        failed = [item for item in checks if item["status"] == "failed"]
        outcome = {"changed": False, "checks": checks, "hcas": log.used_hcas(parsed)}
        if failed:
            what = core_text.listing(item["object"] for item in failed)
            return {**outcome, "failed": True, "msg": f"{args['path']}: {what} failed; each is listed above"}
        return outcome
