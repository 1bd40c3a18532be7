# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.k3s_backup_plan: which server is saved, and where to."""

from __future__ import annotations

import os

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, Refused, at, failure
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._backup import folder as backup_folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "nodes": {"type": "list", "elements": "dict", "required": True},
                "folder": {"type": "path"},
                "name": {"type": "str", "required": True},
            },
        )
        server, findings = backup_folder.server_to_save(args["nodes"])
        findings += at("the controller", _folder(args["folder"]))
        if findings:
            refused = Refused([Finding(**{key: row[key] for key in Finding._fields}) for row in findings])
            return {**failure(refused), "failed": True, "findings": findings}
        place = os.path.join(args["folder"], args["name"])
        partial = os.path.join(args["folder"], f".{args['name']}.partial")
        return {"changed": False, "server": server, "place": place, "partial": partial}


def _folder(folder: str | None) -> list[Finding]:
    if not folder:
        step = "run again with -e k3s_backup_dir=FOLDER"
        return [Finding("k3s_backup_dir", "the folder of the controller for backups", "not set", step)]
    there = os.path.abspath(folder)
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there) or not os.access(there, os.W_OK):
        seen = f"{there} is {'not writable for this user' if os.path.isdir(there) else 'not a folder'}"
        return [Finding(f"k3s_backup_dir {folder}", "a folder that this user can write to", seen, "name another one")]
    return []
