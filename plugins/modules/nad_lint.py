# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nad_lint
short_description: Find problems in NetworkAttachmentDefinitions before a pod hangs
version_added: 0.1.0
description:
  - Compares NetworkAttachmentDefinitions, from a cluster or from files, with what was read from the nodes. Finds
    host-local addresses assigned twice across nodes, a C(resourceName) of a shared plugin on host-device, macvlan on
    InfiniBand or on the interface of the default route, an MTU above that of the master, subnets that overlap with
    pods, services, routes of hosts or each other, resources that no device plugin serves, a missing name, an odd
    cniVersion, address blocks and pools that do not suffice for nodes and pods, exclusions and gateways elsewhere,
    second default routes, networks that share a record of addresses, and plugins that need the netns mode exclusive.
    All plugins of a chain are looked at.
  - Runs on the controller, makes no remote call and changes nothing.
author:
  - The gpufabric founders (@gpufabric)
extends_documentation_fragment:
  - gpufabric.rdma.deciding
options:
  objects:
    description: NetworkAttachmentDefinitions, and the IPPools and CIDRPools of nv-ipam that they draw from.
    type: list
    elements: dict
    required: true
  nodes:
    description:
      - The nodes, each with C(host) and the C(netdevs), C(routes) and C(files) that M(gpufabric.rdma.node_facts)
        returned.
    type: list
    elements: dict
    required: true
  cluster:
    description:
      - C(pod_cidrs), C(service_cidrs), C(shared_resources), C(device_resources), C(pods_per_node) and
        C(forbidden_masters_allowed). What is omitted is not checked.
    type: dict
    default: {}
  refuse: {description: Whether to fail when there are findings., type: bool, default: false}
"""

EXAMPLES = r"""
- name: Lint the networks in a Git folder
  gpufabric.rdma.nad_lint:
    objects: "{{ lookup('ansible.builtin.file', 'networks.yml') | from_yaml_all }}"
    nodes: "{{ nodes }}"
    refuse: true
"""

RETURN = r"""
findings:
  description: The problems, with C(id), C(object), C(wanted), C(seen) and C(next_step).
  returned: always
  type: list
  elements: dict
"""
