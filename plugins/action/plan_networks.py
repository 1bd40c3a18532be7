# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.plan_networks: networks renders, nad_lint checks it."""

from __future__ import annotations

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import at
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host, networks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as preflight_variables


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "variables": {"type": "dict", "required": True},
                "nodes": {"type": "list", "elements": "dict", "required": True},
                "hosts": {"type": "list", "elements": "str", "default": []},
                "pod_cidrs": {"type": "list", "elements": "str", "default": []},
                "service_cidrs": {"type": "list", "elements": "str", "default": []},
                "device_plugin_resources": {"type": "raw"},
                "collect": {"type": "bool", "default": False},
            }
        )
        variables, findings = host.validate(preflight_variables.options(["networks"]), args["variables"])
        made = self._plan(variables, args) if not findings else None
        findings += made["findings"] if made else []
        if findings:
            hosts = core_text.names([node["host"] for node in args["nodes"]])
            findings = at(hosts, findings)
            if not args["collect"]:
                text = core_text.four_facts(findings)
                terminal.show(f"{core_text.count(len(findings), 'problem')} with the networks:\n\n{text}\n")
            listed = "; ".join(f"{item['object']}: {item['seen']}" for item in findings)
            return {
                "failed": True,
                "findings": findings,
                "msg": f"{core_text.count(len(findings), 'problem')} with the networks, "
                f"nothing has been changed: {listed}",
            }
        return {"changed": False, "warnings": terminal.warnings(made["notes"]), **made}

    @staticmethod
    def _plan(variables, args):
        nodes = args["nodes"]
        made = networks.plan(variables, nodes, args["hosts"], args["device_plugin_resources"])
        config, refused = networks.sriov_config(variables["networks_sriov_resources"], nodes)
        made["findings"] += refused
        made["sriov_config"] = config
        device = [f"{item['prefix']}/{item['name']}" for item in variables["networks_sriov_resources"]]
        shared = networks.shared_resources(args["device_plugin_resources"], nodes)
        made["findings"] += nad_lint.lint(
            made["networks"],
            nodes,
            {
                "pod_cidrs": args["pod_cidrs"],
                "service_cidrs": args["service_cidrs"],
                "shared_resources": shared,
                "device_resources": device + variables["networks_known_resources"],
                "pods_per_node": variables["networks_pods_per_node"],
                "forbidden_masters_allowed": variables["networks_default_route_masters"],
            },
        )
        return made
