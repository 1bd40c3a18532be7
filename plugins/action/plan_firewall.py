# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.plan_firewall: _preflight.firewall decides."""

from __future__ import annotations

import importlib.util

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import as_dict
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall, variables


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
                "listening": {"type": "str"},
                "told": {"type": "str"},
                "all_nodes": {"type": "list", "elements": "str", "default": []},
            }
        )
        names = {key: args[key] for key in ("variable", "listening", "told") if args[key]}
        known = fleet.variables(task_vars, args["hosts"], names)
        nodes = [{**one, **one.pop("variable")} for one in known if (one.get("variable") or {}).get("firewall")]
        for node in nodes:  # an invalid value is found where the variables are validated
            node["variables"], _invalid = variables.typed(node["variables"])
        partial = not {node["host"] for node in nodes} >= set(args["all_nodes"])
        planned = firewall.plan(nodes, partial)
        lacking = {tool: name for tool, name in firewall.COLLECTIONS.items() if not installed(name)}
        for node in nodes:
            mine = planned[node["host"]]
            mine["findings"] = [as_dict(finding) for finding in firewall.findings(node, mine, lacking)]
        return {"changed": False, "hosts": planned, "lacking": lacking, "seconds": max(300, 5 * len(nodes))}


def installed(collection: str) -> bool:
    """Whether Ansible on this controller finds a collection."""
    try:
        return importlib.util.find_spec(f"ansible_collections.{collection}") is not None
    except ModuleNotFoundError:  # not even its namespace
        return False
