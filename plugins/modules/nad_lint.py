# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nad_lint
short_description: Find problems in networks of pods before a pod hangs
version_added: 0.1.0
description:
  - Compares NetworkAttachmentDefinitions, from a cluster, from files or from variables of the role C(networks), with
    what was read from the nodes. Finds host-local addresses assigned twice across nodes, a C(resourceName)
    of a shared plugin on host-device, macvlan on InfiniBand or on the interface of the default route,
    an MTU above that of the master, subnets that overlap with pods, services, routes of hosts or each other, resources
    that no device plugin serves, a missing name, an odd cniVersion, address blocks and pools that are too small for
    nodes and pods, exclusions and gateways outside of them, addresses and values that a plugin refuses, routes that
    take the pod's own traffic, networks with one record of addresses, and plugins in a wrong netns mode or place.
  - Runs on the controller, makes no remote call and changes nothing.
requirements:
  - netaddr (the Python library, on the controller), for O(variables)
extends_documentation_fragment: [gpufabric.rdma.reading.deciding]
options:
  objects:
    description: NetworkAttachmentDefinitions, and the IPPools and CIDRPools of nv-ipam that they draw from.
    type: list
    elements: dict
    default: []
  variables:
    description: Variables C(networks_*); their objects are returned and linted instead of O(objects).
    type: dict
  nodes:
    description: The nodes, each with C(host) and as C(networks) what M(gpufabric.rdma.node_facts) returned, or with its
      C(netdevs), C(routes) and C(files). For O(variables) with C(number) (of its address block) and C(rails) too.
    type: list
    elements: dict
    required: true
  cluster:
    description: C(pod_cidrs), C(service_cidrs), C(shared_resources), C(device_resources), C(pods_per_node) and
      C(forbidden_masters_allowed). What is omitted is not checked.
    type: dict
    default: {}
  device_plugin_resources:
    description: For O(variables), resources of the shared device plugin, as in the role C(device_plugin).
    type: raw
  refuse: {description: Whether to fail when there are findings., type: bool, default: false}
"""

EXAMPLES = r"""
- name: Read interfaces, routes and files of the nodes
  gpufabric.rdma.node_facts:
    networks: {}
  register: node

- name: Lint the networks in a Git folder
  gpufabric.rdma.nad_lint:
    objects: "{{ lookup('ansible.builtin.file', 'networks.yml') | from_yaml_all | list }}"
    nodes: "{{ dict(ansible_play_hosts | zip(networks)) | dict2items('host', 'networks') }}"
    refuse: true
  vars:
    networks: "{{ ansible_play_hosts | map('extract', hostvars, ['node', 'networks']) }}"
  run_once: true
"""

RETURN = r"""
findings:
  description: The problems, with C(id), C(object), C(wanted), C(seen) and C(next_step).
  returned: always
  type: list
  elements: dict
objects:
  description: NetworkAttachmentDefinitions, their namespaces and address pools.
  returned: with O(variables) that make networks
  type: list
  elements: dict
files:
  description: For each host the configurations that Multus reads from files, by the name of their network.
  returned: with O(variables) that make networks
  type: dict
notes: {description: What is worth knowing., returned: without an error in O(variables), type: list, elements: str}
"""
