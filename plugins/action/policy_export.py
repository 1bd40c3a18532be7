# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.policy_export: templates the host's variables; _policy.exporter decides."""

from __future__ import annotations

import json

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import at
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._policy import exporter
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as preflight_variables

EXPORTED = ("device_plugin", "driver", "networks")


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
                "version": {"type": "str", "default": exporter.VERSION},
                "namespace": {"type": "str", "default": exporter.NAMESPACE},
            }
        )
        known = fleet.each(task_vars, args["hosts"], args["variable"])
        options = preflight_variables.options(EXPORTED)
        given, findings = preflight_variables.given(options, task_vars or {}, self._templar.template)
        effective, invalid = host.validate(options, given)
        findings += invalid
        made = {"objects": [], "left_out": []}
        if not findings:
            nodes = [node for node in known if node.get("facts")]
            made = exporter.run(effective, given, nodes, args)
            findings = made["findings"]
        if findings:
            findings = at("export", findings)
            count = core_text.count(len(findings), "problem")
            terminal.show(f"{count} with the variables:\n\n{core_text.four_facts(findings)}\n")
            listed = "; ".join(f"{item['object']}: {item['seen']}" for item in findings)
            return {"failed": True, "findings": findings, "msg": f"{count}, nothing is written: {listed}"}
        explanation = exporter.explanation(made["left_out"])
        unread = [node["host"] for node in known if not node.get("facts")]
        if unread:
            explanation += f"\nnot verified: {core_text.names(unread)} could not be read and may have other rails"
        terminal.show(f"{explanation or 'The policy expresses everything that is set.'}\n")
        return {
            "changed": False,
            "objects": made["objects"],
            "left_out": made["left_out"],
            "explanation": explanation,
            "text": text(made["objects"]),
        }


def text(objects: list[dict]) -> str:
    """The objects as one file; JSON strings stay readable."""
    # The controller tags the values it templates; YAML needs plain ones.
    plain = json.loads(json.dumps(objects))
    return "---\n" + "---\n".join(yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=120) for item in plain)


class _Dumper(yaml.SafeDumper):
    pass


def _readable(dumper, value):
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _readable)
