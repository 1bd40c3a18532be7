"""Controller side of gpufabric.rdma.nad_lint: _cni.nad_lint and _preflight.networks decide, for nodes of any source."""

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import as_dict, at
from ansible_collections.gpufabric.rdma.plugins.modules import nad_lint as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host, networks, variables


class ActionModule(ActionBase):
    _requires_connection = False

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=options(documented.DOCUMENTATION))
        nodes = [{**node, **(node.get("networks") or {})} for node in args["nodes"]]
        planned: dict = {}
        if args["variables"] is None:
            given = nad_lint.from_objects(args["objects"], nad_lint.files_by_name(nodes))
            findings, planned = nad_lint.lint(given, nodes, args["cluster"]), {"notes": nad_lint.notes(given)}
        else:
            typed, findings = host.validate(variables.options(["networks"]), args["variables"])
            if not findings:
                cidrs = tuple(args["cluster"].get(name) or () for name in ("pod_cidrs", "service_cidrs"))
                made = networks.checked(typed, nodes, (), args["device_plugin_resources"], cidrs)
                findings = made["findings"]
                planned = {name: made[name] for name in ("objects", "files", "notes")}
        result = {"changed": False, **planned, "findings": [as_dict(finding) for finding in findings]}
        if findings and args["refuse"]:
            rows = at(text.names([node["host"] for node in nodes]), findings)
            terminal.show(f"{text.four_facts(rows)}\n")
            what = f"{text.count(len(findings), 'finding')} about networks of pods"
            return {**result, "failed": True, "msg": f"{what}; each is listed above"}
        return result
