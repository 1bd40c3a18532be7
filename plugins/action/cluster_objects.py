# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.cluster_objects: answers `render` here, and has the module do all else."""

from __future__ import annotations

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan, Refused, failure, result
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import objects as planner
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded

MODULE = "gpufabric.rdma.cluster_objects"
# What another task needs to do the same for this owner.
PART = ("objects", "owner", "prune_types", "takeover_allowed", "applied_by", "wait")


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        args = dict(self._task.args)
        if not boolean(args.pop("render", False)):
            return self._execute_module(MODULE, module_args=args, task_vars=task_vars)
        return render(args)


def render(args: dict) -> dict:
    """The result of a task that only renders."""
    (part,), findings = planner.prepare([args])
    if findings:
        return {"failed": True, **failure(Refused(findings))}
    kept = {name: args[name] for name in PART if name in args}
    return {"part": kept, **planner.rendered(part), **result(Plan(), [])}
