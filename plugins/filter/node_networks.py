# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter of the role verification: the networks that pods on a node can get."""

from __future__ import annotations

DOCUMENTATION = r"""
name: node_networks
short_description: Networks that Multus attaches to pods of a node
version_added: 0.1.0
description:
  - The NetworkAttachmentDefinitions of the cluster whose resource the node offers, or that name none, with their
    configuration. Where the cluster could not be read, the configurations that are files on the node.
options:
  _input:
    description:
      - C(cluster) of M(gpufabric.rdma.cluster_info), which may be null.
    type: dict
    required: true
  node:
    description:
      - C(host), the node's name in the inventory, and its C(netdevs) and C(files) from M(gpufabric.rdma.network_info).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the networks of the node
  ansible.builtin.debug:
    msg: "{{ offered['cluster'] | gpufabric.rdma.node_networks(seen | combine({'host': inventory_hostname})) }}"
"""

RETURN = r"""
_value:
  description: Each network with C(name), as a finding names it, and C(config), its JSON.
  type: list
  elements: dict
"""

from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods


def node_networks(cluster: dict | None, node: dict) -> list:
    if not cluster:
        return [{"name": f"network file {name}", "config": text} for name, text in sorted(node["files"].items())]
    known = pods.find_node(node, cluster["nodes"])
    return [
        {"name": f"NetworkAttachmentDefinition {network['namespace']}/{network['name']}", "config": text}
        for network in nad_lint.from_objects(cluster["nads"], nad_lint.files_by_name([node]))
        if known and (network["resource"] is None or network["resource"] in known["capacity"])
        for text in network["configs"].values()
    ]


class FilterModule:
    def filters(self) -> dict:
        return {"node_networks": node_networks}
