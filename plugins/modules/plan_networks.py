# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_networks
short_description: Render and check network attachments before anything changes
version_added: 0.1.0
description:
  - Turns the variables of the role C(networks) and data from the nodes into NetworkAttachmentDefinitions, address pools
    and node files, and refuses those that cannot work, all at once.
  - Runs on the controller, makes no remote call and changes nothing.
requirements:
  - netaddr (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
extends_documentation_fragment:
  - gpufabric.rdma.deciding
options:
  variables:
    description: The C(networks_*) variables of the play.
    type: dict
    required: true
  nodes:
    description:
      - The nodes, each with C(host), C(number) (of its address block), C(rails), C(netdevs) and C(routes).
    type: list
    elements: dict
    required: true
  hosts:
    description:
      - The names of all nodes. Those that are not in O(nodes) are named, and RV(complete) is false.
    type: list
    elements: str
    default: []
  pod_cidrs: {description: Networks of the pods., type: list, elements: str, default: []}
  service_cidrs: {description: Networks of the services., type: list, elements: str, default: []}
  device_plugin_resources:
    description: Resources of the shared device plugin, as in the role C(device_plugin).
    type: raw
"""

EXAMPLES = r"""
- name: Validate variables and plan the networks
  gpufabric.rdma.plan_networks:
    variables:
      networks_rails: true
    nodes: "{{ nodes }}"
  run_once: true
"""

RETURN = r"""
networks: {description: Input for M(gpufabric.rdma.nad_lint)., returned: success, type: list, elements: dict}
objects:
  description: NetworkAttachmentDefinitions, their namespaces and address pools.
  returned: success
  type: list
  elements: dict
files:
  description: For each host the configurations that Multus reads from files, by the name of their network.
  returned: success
  type: dict
sriov_config: {description: Configuration of the SR-IOV network device plugin., returned: success, type: dict}
complete:
  description: Whether all nodes took part. Objects from only some of them must not be applied.
  returned: success
  type: bool
notes: {description: What is worth knowing., returned: success, type: list, elements: str}
findings:
  description: The problems, with C(id), C(object), C(wanted), C(seen) and C(next_step).
  returned: failure
  type: list
  elements: dict
"""
