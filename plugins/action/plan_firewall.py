# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.plan_firewall: _preflight.firewall decides."""

from __future__ import annotations

import importlib.util

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall


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
                "all_nodes": {"type": "list", "elements": "str", "default": []},
            }
        )
        hosts = firewall.plan(fleet.some(task_vars, args["hosts"], args["variable"]))
        partial = not hosts.keys() >= set(args["all_nodes"])
        collections = {name: installed(name) for name in firewall.COLLECTIONS.values()}
        return {"changed": False, "hosts": hosts, "partial": partial, "collections": collections}


def installed(collection: str) -> bool:
    """Whether Ansible on this controller finds a collection."""
    try:
        return importlib.util.find_spec(f"ansible_collections.{collection}") is not None
    except ModuleNotFoundError:  # not even its namespace
        return False
