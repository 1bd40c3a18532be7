# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.matrix_report: _matrix.judge decides; this prints."""

from __future__ import annotations

import datetime

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import clean
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import judge
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import plan as matrix_plan


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                **fleet.several("node", "failure", "nodes", "pods"),
                "planned": {"type": "list", "elements": "str", "required": True},
            }
        )
        known = fleet.variables(task_vars, args["hosts"], args["variables"])
        planned = [fleet.registered(task_vars, name) for name in args["planned"]]
        plans = [one["plan"] for one in planned if "plan" in one]
        results = judge.joined([of_host[kind] for of_host in known for kind in ("nodes", "pods") if kind in of_host])
        seen = [of_host["node"] for of_host in known]
        options = {
            **matrix_plan.settings(seen),
            "hosts": args["hosts"],
            "failures": {host: of_host.get("failure", "") for host, of_host in zip(args["hosts"], known)},
            "check_mode": self._task.check_mode,
        }
        nodes = {node["host"]: node["read"] for node in seen}
        at = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = judge.document(plans, results, nodes, options, at)
        text = judge.table(document)
        clashes = [clash for plan in plans for clash in plan["clashes"]]
        for clash in clashes:
            seen = " and ".join(f"{end['host']} ({end['netdev']})" for end in clash["ends"])
            text = f"Address {clash['address']} is held by {seen}; give each node its own.\n\n{text}"
        terminal.show(f"{text}\n")
        return {"changed": False, "document": document, "text": clean(text), "tally": judge.tally(document)}
