# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_slices
short_description: Delete the ResourceSlices of nodes whose RDMA plugin no longer runs
version_added: 0.1.0
description:
  - Deletes those of driver C(rdma.gpufabric.io) of the named nodes, and no others. The scheduler gives out what they
    list for as long as they exist.
  - Runs where O(kubectl) does. An API server that does not respond is not verified, and not a failure.
extends_documentation_fragment:
  - gpufabric.rdma.changing
author:
  - The gpufabric founders (@gpufabric)
options:
  nodes:
    description: Names of the nodes in the cluster.
    type: list
    elements: str
    required: true
  kubectl:
    description: The command as a list of words.
    type: list
    elements: str
    default: [k3s, kubectl]
  api_seconds:
    description: For how long an API server that gives no answer is asked again.
    type: int
    default: 10
"""

EXAMPLES = r"""
- name: Delete what node2 published
  gpufabric.rdma.dra_slices:
    nodes: [node2]
"""

RETURN = r"""
changes:
  description:
    - What was deleted, or would be in check mode, each with C(object), C(action), C(before) and C(after).
  returned: always
  type: list
  elements: dict
findings:
  description:
    - Why something could not be deleted, each with C(object), C(wanted), C(seen), C(next_step) and C(id).
  returned: always
  type: list
  elements: dict
not_verified:
  description: What could not be checked from here, with the reason.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import dra
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Unreachable, last_words, patient


def plan(state: dict) -> Plan:
    """state: slices (names), down (why no API server responds, or None)."""
    made = Plan()
    for name in state["slices"]:
        made.change(f"ResourceSlice {name}", "delete", "present", "")
    if state["down"]:
        made.not_verified.append(
            f"whether ResourceSlices of the nodes are left: no API server responds ({state['down']})"
        )
    return made


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "str", "required": True},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "api_seconds": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    kubectl = patient(module.params["kubectl"], module.params["api_seconds"])

    def read() -> dict:
        try:
            return {"slices": dra.left_slices(kubectl, module.params["nodes"]), "down": None}
        except Unreachable as silent:
            return {"slices": [], "down": last_words(silent.reason)}

    def apply(changes):
        for change in changes:
            dra.remove_slice(kubectl, change.object.split()[1])
            yield change

    converge(module, read, plan, apply)


if __name__ == "__main__":
    main()
