#!/usr/bin/python

# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_settled
short_description: Read in one call what several modules would change on a node
version_added: 0.1.0
description:
  - Takes the options of tasks of M(gpufabric.rdma.node_files), M(gpufabric.rdma.cni_plugins),
    M(gpufabric.rdma.k3s_node) and M(gpufabric.rdma.device_plugin), decides as these modules do, and changes nothing.
  - A node on which none of them has anything to do can be left out of a play.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
options:
  node_files:
    description: Options of M(gpufabric.rdma.node_files) by any name, such as that of the role.
    type: dict
    default: {}
  cni_plugins:
    description: Options C(binaries) and C(directory) of M(gpufabric.rdma.cni_plugins).
    type: dict
  k3s_node:
    description: Options of M(gpufabric.rdma.k3s_node).
    type: dict
    suboptions:
      role:
        description: As there.
        type: str
        choices: [server, agent]
        required: true
      options:
        description: As there.
        type: dict
        required: true
      registries:
        description: As there, as JSON. Ansible hides each value of a secret dict, also where a path contains it.
        type: str
        default: "{}"
      token:
        description: As there.
        type: str
      token_allowed_to_be_made:
        description: As there.
        type: bool
        default: false
      takeover_allowed:
        description: As there.
        type: bool
  device_plugin:
    description: Options of M(gpufabric.rdma.device_plugin).
    type: dict
"""

EXAMPLES = r"""
- name: Look at what would change
  gpufabric.rdma.node_settled:
    node_files:
      modules:
        files:
          - path: /etc/modules-load.d/example.conf
            content: |
              br_netfilter
        kernel_modules: [br_netfilter]
  register: node

- name: Show what is not as wanted
  ansible.builtin.debug:
    msg: "{{ node['unsettled'] }}"
"""

RETURN = r"""
unsettled:
  description: >-
    What would change, or stands against it, by the name under O(node_files), or C(cni_plugins), C(k3s_node) and
    C(device_plugin); the objects of each.
  returned: success
  type: dict
contents:
  description: Texts of the files that tasks of M(gpufabric.rdma.node_files) ask for, by path.
  returned: success
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import plugins as cni_plugins
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import node as device_plugin
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan as device_plugin_plan
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import node_files
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import plan as k3s_plan
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import state as k3s_state


def unsettled(params: dict, root: str, run) -> tuple[dict, dict]:
    """({name: objects that would change or have a finding}, {path: text} of what node_files tasks ask)."""
    plans, contents, further = {}, {}, {}
    for name, given in params["node_files"].items():
        wanted = _options(node_files.ARGUMENTS, given)
        state = node_files.read(root, wanted, run)
        plans[name] = node_files.plan(state, wanted)
        asked = node_files.further(root, state, wanted)
        contents.update(asked["contents"])
        further[name] = asked["missing_secrets"] + [program for program, runs in asked["programs"].items() if runs]
    if params["cni_plugins"] is not None:
        binaries, directory = params["cni_plugins"]["binaries"], params["cni_plugins"]["directory"]
        plans["cni_plugins"] = cni_plugins.plan(cni_plugins.read(root, binaries, directory), binaries, directory)
    if params["k3s_node"] is not None:
        plans["k3s_node"] = _k3s(params["k3s_node"], root, run)
    if params["device_plugin"] is not None:
        given = _options(device_plugin.ARGUMENTS, params["device_plugin"])
        state = device_plugin.read_for(root, given)
        plans["device_plugin"] = device_plugin_plan.plan(state, device_plugin.wants(given, state))
    objects = {
        name: [item.object for item in [*plan.changes, *plan.findings]] + further.get(name, [])
        for name, plan in plans.items()
    }
    return {name: listed for name, listed in objects.items() if listed}, contents


def _options(spec: dict, given: dict) -> dict:
    """Typed and with defaults, as the module itself gets them."""
    checked = ArgumentSpecValidator(spec).validate(given)
    if checked.error_messages:
        raise ValueError("; ".join(checked.error_messages))
    return checked.validated_parameters


def _k3s(given: dict, root: str, run):
    wanted = k3s_plan.wanted_of({**given, "registries": json.loads(given["registries"])})
    return k3s_plan.plan(k3s_state.converging(root, run, given["token"]), wanted, root)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node_files": {"type": "dict", "default": {}},
            "cni_plugins": {"type": "dict"},
            "k3s_node": {
                "type": "dict",
                "options": {
                    "role": {"type": "str", "choices": ["server", "agent"], "required": True},
                    "options": {"type": "dict", "required": True},
                    "registries": {"type": "str", "default": "{}", "no_log": True},
                    "token": {"type": "str", "no_log": True},
                    "token_allowed_to_be_made": {"type": "bool", "default": False, "no_log": False},
                    "takeover_allowed": {"type": "bool"},
                },
            },
            "device_plugin": {"type": "dict"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    with reported(module):
        listed, contents = unsettled(module.params, module.params["root"], module.run_command)
        module.exit_json(changed=False, unsettled=listed, contents=contents)


if __name__ == "__main__":
    main()
