"""Controller side of gpufabric.rdma.refuse: sentences are made of findings here."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import libraries, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        fact = {"type": "str", "required": True}
        # With host and role, as the plan has them.
        options = {
            **dict.fromkeys(Finding._fields, fact),
            "id": {"type": "str", "default": ""},
            "host": {"type": "raw"},
            "role": {"type": "raw"},
        }
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "findings": {"type": "list", "elements": "dict", "options": options},
                "libraries": {"type": "list", "elements": "str"},
                "summary": {"type": "str"},
            },
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
