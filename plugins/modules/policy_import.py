# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: policy_import
short_description: Read a NicClusterPolicy as variables of the roles
version_added: 0.1.0
description:
  - Reads a NicClusterPolicy of NVIDIA's Network Operator with its NicNodePolicies, MacvlanNetworks, IPoIBNetworks,
    HostDeviceNetworks, SriovNetworks, SriovNetworkNodePolicies and IPPools, and the ConfigMap of the RDMA shared device
    plugin. Reports every field as taken, wrong (and what it became), left out (and why) or
    unknown.
  - Runs on the controller, makes no remote call and changes nothing.
requirements:
  - netaddr (the Python library, on the controller)
extends_documentation_fragment: [gpufabric.rdma.reading.deciding]
options:
  files:
    description: YAML files on the controller; a file may contain several objects.
    type: list
    elements: path
    required: true
  dest:
    description:
      - File that the variables are for. Those of a NicNodePolicy go into the folder of its group.
      - If omitted, the file of the group in the inventory's C(group_vars), or C(policy.yml) in the folder of the group.
    type: path
  nodes:
    description: Nodes that the files are compared with, each with C(host) and C(facts) (what
      M(gpufabric.rdma.hca_facts) returns as C(rdma), or nothing for a node that could not be read).
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Read the policy
  gpufabric.rdma.policy_import:
    files: [nic-cluster-policy.yaml]
  register: policy

- name: Write its variables
  ansible.builtin.copy:
    content: "{{ policy['text'] }}"
    dest: group_vars/gpu_nodes/policy.yml
    mode: "0644"
"""

RETURN = r"""
variables:
  description: Variables of the roles device_plugin, driver and networks. With NicNodePolicies also C(groups), by the
    group of the inventory, each with C(selector) (labels of its nodes) and C(variables).
  returned: always
  type: dict
lines:
  description: One for each field, with C(source), C(object), C(field), C(verdict) (V(taken), V(wrong), V(left out),
    V(unknown)), C(was), C(became) and C(why).
  returned: always
  type: list
  elements: dict
explanation: {description: The lines as readable text. It is also printed., returned: always, type: str}
text: {description: The variables as a file of C(group_vars)., returned: success, type: str}
texts:
  description: The same, and one for each group of a NicNodePolicy, with C(group) (empty for all nodes), C(text),
    C(dest) and C(block), true if C(dest) has variables of the user too.
  returned: success
  type: list
  elements: dict
findings:
  description: What cannot be imported, with C(object), C(wanted), C(seen) and C(next_step); all at once.
  returned: failure
  type: list
  elements: dict
"""
