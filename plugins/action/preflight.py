# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.preflight: templates the host's variables; _preflight.host decides."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import folder as bundle_folder
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import alike, host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as preflight_variables


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "facts": {"type": "dict"},
                "failure": {"type": "str"},
                "unreachable": {"type": "str"},
                "results": {"type": "list", "elements": "dict"},
                "further": {"type": "list", "elements": "dict", "default": []},
            },
            mutually_exclusive=[("facts", "failure", "unreachable", "results")],
        )
        if args["results"] is not None:
            return self._report(host.with_further(args["results"], args["further"]))
        return {"changed": False, **self._examine(args, task_vars or {})}

    def _examine(self, args, task_vars):
        options = preflight_variables.options()
        variables, findings = preflight_variables.effective(options, task_vars, self._templar.template)
        findings += host.values(variables, options)
        roles = preflight_variables.documented_roles()
        findings += host.unknown(task_vars, options, roles, variables["discovery_known_variables"])
        result = {
            "host": task_vars["inventory_hostname"],
            # Ansible prints and stores results, so they must not hold a secret.
            "variables": {name: value for name, value in variables.items() if not options[name].get("no_log")},
            "plan": [],
            "settled": False,
            "reboot_reasons": [],
            "notes": [],
        }
        if args["unreachable"]:
            findings.insert(0, host.unreachable(args["unreachable"]))
        elif args["failure"]:
            findings.insert(0, host.unread(args["failure"]))
        elif args["facts"]:
            bundle = bundle_folder.described(variables["k3s_bundle_dir"])
            found, notes = host.combinations(args["facts"], variables, bundle)
            outcome = host.plan(args["facts"], variables)
            findings += found + outcome["findings"]
            result["rail_map"] = alike.rail_map(args["facts"])
            result.update(
                plan=outcome["changes"],
                settled=outcome["settled"],
                reboot_reasons=outcome["reboot_reasons"],
                notes=notes + outcome["notes"],
            )
        result["findings"] = [finding._asdict() for finding in findings]
        return result

    def _report(self, results):
        """One message for the whole play: all problems of all hosts, or the plan."""
        odd = alike.differing({one["host"]: one["rail_map"] for one in results if one.get("rail_map")})
        results = [
            {**one, "notes": [*one["notes"], odd[one["host"]]]} if one.get("host") in odd else one for one in results
        ]
        if any(result["findings"] for result in results):
            head, text = host.failure_text(results)
            terminal.show(f"{head}\n\n{text}\n")
            return {"changed": False, "failed": True, "msg": f"{head} Each is listed above."}
        text = host.plan_text(results, self._task.check_mode)
        terminal.show(f"{text}\n")
        return {"changed": False, "plan": text.splitlines()}


# Here, where Ansible loads the plugin, and not in each of the processes that it forks for a task of a host.
preflight_variables.documented_roles()
