"""Controller side of gpufabric.rdma.plan_networks: for nodes of any description; _preflight.networks decides."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import count, names, sentence
from ansible_collections.gpufabric.rdma.plugins.modules import plan_networks as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host, networks, variables


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(argument_spec=options(documented.DOCUMENTATION))
        typed, wrong = host.validate(variables.options(["networks"]), args["variables"])
        planned = {"notes": []}
        if not wrong:
            both = (args["pod_cidrs"], args["service_cidrs"])
            planned = networks.checked(typed, args["nodes"], args["hosts"], args["device_plugin_resources"], both)
            wrong = planned["findings"]
        if wrong:
            rows = at(names([node["host"] for node in args["nodes"]]), wrong)
            msg = "\n".join([f"{count(len(wrong), 'problem')} with the networks", *map(sentence, wrong)])
            return {"failed": True, "findings": rows, "msg": terminal.here(msg)}
        return {"changed": False, "warnings": terminal.warnings(planned["notes"]), **planned}
