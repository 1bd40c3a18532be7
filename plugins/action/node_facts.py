"""Controller side of the modules that run on nodes and need no other: guarded, see meta/runtime.yml."""

from __future__ import annotations

from ansible.plugins.action.normal import ActionModule as Normal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded


class ActionModule(Normal):
    @guarded
    def run(self, tmp=None, task_vars=None):
        return super().run(tmp, task_vars)
