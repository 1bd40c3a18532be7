"""Controller side of gpufabric.rdma.refuse: sentences are made of findings here."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.modules import refuse as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import libraries, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec=options(documented.DOCUMENTATION),
            required_one_of=[("findings", "libraries")],
        )
        findings = libraries.findings(args["libraries"]) if args["libraries"] else []
        findings += [Finding(*(finding[fact] for fact in Finding._fields)) for finding in args["findings"] or []]
        if not findings:
            return {"changed": False, "findings": []}
        lead = [args["summary"]] if args["summary"] else []
        return {
            "changed": False,
            "failed": True,
            "msg": terminal.here("\n".join([*lead, *map(sentence, findings)])),
            "findings": at(task_vars["inventory_hostname"], findings),
        }
