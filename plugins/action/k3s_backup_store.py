# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.k3s_backup_store: a fetched backup gets its name once it is whole."""

from __future__ import annotations

import json
import os

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, Plan, Refused, failure, result
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import rename, set_mode, sync, write
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import backup
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._backup import folder as backup_folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_diff = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "partial": {"type": "path", "required": True},
                "place": {"type": "path", "required": True},
                "backup": {"type": "dict", "required": True},
            },
        )
        made = [Change(args["place"], "store", "", f"backup {os.path.basename(args['place'])}")]
        if not self._task.check_mode:
            findings = backup_folder.damaged(args["partial"], args["backup"])
            if findings:
                return {"failed": True, **failure(Refused(findings))}
            _store(args["partial"], args["place"], args["backup"])
        return result(Plan(), made)


def _store(partial: str, place: str, manifest: dict) -> None:
    for name in manifest["files"]:
        set_mode(os.path.join(partial, name), 0o600)
        sync(os.path.join(partial, name))
    # The controller tags the values it templates; JSON needs plain ones.
    write(os.path.join(partial, backup.MANIFEST), json.dumps(manifest, indent=2) + "\n", 0o600)
    write(os.path.join(partial, backup_folder.SUMS), backup_folder.sums(manifest), 0o600)
    rename(partial, place)
