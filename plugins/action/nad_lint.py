"""Controller side of gpufabric.rdma.nad_lint: _cni.nad_lint decides; this hands it objects, files and nodes."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import as_dict, at
from ansible_collections.gpufabric.rdma.plugins.modules import nad_lint as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=options(documented.DOCUMENTATION))
        networks = nad_lint.from_objects(args["objects"], nad_lint.files_by_name(args["nodes"]))
        findings = nad_lint.lint(networks, args["nodes"], args["cluster"])
        if findings and args["refuse"]:
            hosts = text.names([node["host"] for node in args["nodes"]])
            terminal.show(text.four_facts(at(hosts, findings)) + "\n")
            return {
                "failed": True,
                "findings": [as_dict(finding) for finding in findings],
                "msg": f"{text.count(len(findings), 'finding')} about networks of pods; each is listed above",
            }
        return {"changed": False, "findings": [as_dict(finding) for finding in findings]}
