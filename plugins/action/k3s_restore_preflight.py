# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.k3s_restore_preflight: reads the backup; _backup.folder decides."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._backup import folder as backup_folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host

CONTROLLER = "the controller"


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
                "now": {"type": "str", "required": True},
                "allowed": {"type": "bool"},
                "again": {"type": "bool", "default": False},
            },
        )
        nodes = args["nodes"]
        if not args["folder"]:
            step = "run again with -e k3s_backup=FOLDER, one that playbooks/backup.yml has made"
            return _refused(nodes, at(CONTROLLER, [Finding("k3s_backup", "the backup to restore", "not set", step)]))
        manifest, wrong = backup_folder.read(args["folder"])
        if manifest is None:
            return _refused(nodes, at(CONTROLLER, wrong))
        findings = at(CONTROLLER, backup_folder.damaged(args["folder"], manifest))
        findings += backup_folder.against(nodes, manifest)
        if findings:
            return _refused(nodes, findings)
        named = backup_folder.stamp(nodes, manifest, args["again"], args["now"])
        hosts = backup_folder.left(nodes, manifest, named)
        if hosts and args["allowed"] is None and not self._task.check_mode:
            return _refused(nodes, at(CONTROLLER, [backup_folder.consent(nodes, manifest, hosts)]))
        notes = _notes(nodes, manifest, hosts)
        if hosts and args["allowed"] is not True:
            notes.append(backup_folder.consent(nodes, manifest, hosts).seen)
        return {
            "changed": False,
            "backup": manifest,
            "stamp": named,
            "hosts": hosts if args["allowed"] is not False else [],
            "warnings": terminal.warnings(notes),
        }


def _notes(nodes: list[dict], manifest: dict, hosts: list[str]) -> list[str]:
    joins = [node["host"] for node in nodes if not backup_folder.takes_part(node)]
    notes = [f"{host} is bare and takes no part: run site.yml afterwards, and it joins" for host in joins]
    if not hosts:
        notes.append(
            f"backup {manifest['name']} has been restored already: nothing is changed; to go back to it once more, run "
            "again with -e k3s_restore_again=true"
        )
    return notes


def _refused(nodes: list[dict], findings: list[dict]) -> dict:
    listed = [{"host": node["host"], "findings": []} for node in nodes]
    head, text = preflight_host.failure_text(preflight_host.with_further(listed, findings))
    terminal.show(f"{head}\n\n{text}\n")
    return {"changed": False, "failed": True, "msg": f"{head} Each is listed above.", "findings": findings}
