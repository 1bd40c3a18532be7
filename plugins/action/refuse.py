# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.refuse: _preflight.roles judges a role's variables; sentences are made here."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import libraries, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import roles, variables


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        fact = {"type": "str", "required": True}
        options = {**dict.fromkeys(Finding._fields, fact), "id": {"type": "str", "default": ""}}
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "findings": {"type": "list", "elements": "dict", "options": options},
                "variables_of": {"type": "str"},
                "libraries": {"type": "list", "elements": "str"},
                "summary": {"type": "str"},
            },
            required_one_of=[("findings", "variables_of", "libraries")],
            mutually_exclusive=[("findings", "variables_of", "libraries")],
        )
        if args["variables_of"]:
            # No task validates the arguments of the role common. The rules see the default of an invalid value.
            own = variables.options([args["variables_of"]])
            typed, invalid = variables.effective(variables.options(), task_vars, self._templar.template)
            facts = (task_vars.get("ansible_facts") or {}).get("rdma")
            bundle = bundle_folder.described(typed["k3s_bundle_dir"])
            findings = [it for it in invalid if it.object.removeprefix("variable ") in own]
            findings += roles.findings(args["variables_of"], typed, facts, task_vars["groups"], bundle)
        elif args["libraries"]:
            findings = libraries.findings(args["libraries"])
        else:
            findings = [Finding(**finding) for finding in args["findings"] or []]
        if not findings:
            return {"changed": False, "findings": []}
        lead = [args["summary"]] if args["summary"] else []
        return {
            "changed": False,
            "failed": True,
            "msg": terminal.here("\n".join([*lead, *map(sentence, findings)])),
            "findings": at(task_vars["inventory_hostname"], findings),
        }


# Here, where Ansible loads the plugin, and not in each of the processes that it forks for a task of a host.
variables.documented_roles()
