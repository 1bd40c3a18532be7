# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: policy_export
short_description: Write the variables of the roles as a NicClusterPolicy
version_added: 0.1.0
description:
  - Renders the variables of the roles device_plugin and networks as a NicClusterPolicy of NVIDIA's Network Operator
    with its networks and IPPools, and lists everything that such objects cannot express.
  - The driver is never exported. It stays on the nodes, and a policy that installs it too would load it twice.
  - Runs on the controller with the variables of the host it runs for, makes no remote call and changes nothing.
requirements:
  - netaddr (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
    support: full
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  hosts:
    description: Nodes whose rails and interfaces are exported.
    type: list
    elements: str
    required: true
  variable:
    description:
      - Name of the variable that holds a node's C(host) and C(facts) (what M(gpufabric.rdma.hca_facts) returns as
        C(rdma)).
      - A host that lacks it fails the task.
    type: str
    required: true
  version:
    description: Release of the Network Operator whose images the policy uses.
    type: str
    default: v25.7.0
  namespace:
    description: Namespace of the operator, from which its nv-ipam reads pools.
    type: str
    default: nvidia-network-operator
"""

EXAMPLES = r"""
- name: Show the variables as a policy
  gpufabric.rdma.policy_export:
    hosts: "{{ ansible_play_hosts_all }}"
    variable: known
  register: policy
  run_once: true
"""

RETURN = r"""
objects:
  description: The policy, the pools and the networks.
  returned: success
  type: list
  elements: dict
left_out:
  description: What they cannot express, with C(variable), C(value) and C(why).
  returned: success
  type: list
  elements: dict
explanation:
  description: The same as readable text. It is also printed.
  returned: success
  type: str
text:
  description: The objects as one file for C(kubectl apply).
  returned: success
  type: str
findings:
  description: Problems with the variables, with C(object), C(wanted), C(seen) and C(next_step); all at once.
  returned: failure
  type: list
  elements: dict
"""
