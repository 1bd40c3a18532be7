# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pod network against the facts of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pod_network_problems
short_description: What speaks against a pod network on a node
version_added: 0.1.0
description:
  - Compares the pod network that is asked for with the NICs of a node, with the cluster's networks and with itself.
requirements:
  - netaddr (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
options:
  _input:
    description:
      - RDMA facts of the node, as M(gpufabric.rdma.hca_facts) returns them.
    type: dict
    required: true
  cidr:
    description: Addresses of all pods.
    type: str
    required: true
  backend:
    description: Flannel's back end.
    type: str
    choices: [vxlan, host-gw, wireguard]
    default: vxlan
  mtu:
    description: MTU of the pod network, V(0) to have Flannel choose.
    type: int
    default: 0
  interface:
    description: Name of the NIC; empty for the one with the node's address.
    type: str
    default: ""
  fabric_allowed:
    description: Whether it may be a NIC of the fabric.
    type: bool
  api_server:
    description: Address and port of the API server, or empty.
    type: str
    default: ""
  node_address:
    description: The node's address in the cluster; empty for the one of the default route.
    type: str
    default: ""
  cluster_cidr:
    description: What k3s has as C(cluster-cidr), or empty.
    type: str
    default: ""
  service_cidr:
    description: What k3s has as C(service-cidr), or empty.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Refuse a pod network that cannot work
  ansible.builtin.assert:
    that: ansible_facts['rdma'] | gpufabric.rdma.pod_network_problems(cidr='10.42.0.0/16') | length == 0
"""

RETURN = r"""
_value:
  description: Problems, each with object, wanted, seen, next_step and all of it as text.
  type: list
  elements: dict
"""

from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.pod_network import findings


def pod_network_problems(
    facts,
    cidr,
    backend="vxlan",
    mtu=0,
    interface="",
    fabric_allowed=None,
    api_server="",
    node_address="",
    cluster_cidr="",
    service_cidr="",
):
    wanted = {
        "cidr": cidr,
        "backend": backend,
        "mtu": int(mtu),
        "interface": interface,
        "fabric_allowed": fabric_allowed,
        "api_server": api_server,
        "node_address": node_address,
        "cluster_cidr": cluster_cidr,
        "service_cidr": service_cidr,
    }
    return [{**finding._asdict(), "text": sentence(finding)} for finding in findings(facts, wanted)]


class FilterModule:
    """pod_network_problems"""

    def filters(self):
        return {"pod_network_problems": pod_network_problems}
