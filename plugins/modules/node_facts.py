# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_facts
short_description: Gather a node's facts, and in the same call what the preflights of several roles ask
version_added: 0.1.0
description:
  - Gathers the facts of M(gpufabric.rdma.hca_facts), and as far as O(k3s), O(networks) and O(firewall) say what
    M(gpufabric.rdma.k3s_info), M(gpufabric.rdma.network_info) and M(gpufabric.rdma.firewall_info) return.
  - Changes nothing.
author:
  - The gpufabric founders (@gpufabric)
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
  - gpufabric.rdma.reading.rails
options:
  software_hcas:
    description: Whether soft-RoCE and siw devices count as HCAs.
    type: bool
    default: false
  k3s:
    description: Read the k3s state. Without it that is left out.
    type: dict
    suboptions:
      tests_namespace:
        description: As for M(gpufabric.rdma.k3s_info).
        type: str
      shared_address:
        description: As for M(gpufabric.rdma.k3s_info).
        type: str
  networks:
    description: Read interfaces, routes and the network configuration files. Without it these are left out.
    type: dict
    suboptions:
      directory:
        description: As for M(gpufabric.rdma.network_info).
        type: path
        default: /etc/cni/multus/net.d
  firewall:
    description: Whether to read the firewall.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Read what host and cluster layer are planned by
  gpufabric.rdma.node_facts:
    k3s:
      tests_namespace: gpufabric-verification
    networks: {}
    firewall: true
  register: node
"""

RETURN = r"""
ansible_facts:
  description: The facts as M(gpufabric.rdma.hca_facts) returns them.
  returned: success
  type: dict
k3s:
  description: What M(gpufabric.rdma.k3s_info) returns as C(k3s).
  returned: with O(k3s)
  type: dict
networks:
  description: What M(gpufabric.rdma.network_info) returns.
  returned: with O(networks)
  type: dict
firewall:
  description: What M(gpufabric.rdma.firewall_info) returns as C(firewall).
  returned: with O(firewall)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import unreadable
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firewall
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gathering import RAILS, rdma_facts
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import k3s, node_tools
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "software_hcas": {"type": "bool", "default": False},
            "rails": RAILS,
            "k3s": {"type": "dict", "options": {"tests_namespace": {"type": "str"}, "shared_address": {"type": "str"}}},
            "networks": {
                "type": "dict",
                "options": {"directory": {"type": "path", "default": "/etc/cni/multus/net.d"}},
            },
            "firewall": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    facts, _forks = rdma_facts(module)
    try:
        found = further(module, Tree(module.params["root"]))
    except OSError as error:
        module.fail_json(msg=unreadable(error))
    module.exit_json(changed=False, ansible_facts={"rdma": facts}, **found)


def further(module: AnsibleModule, tree: Tree) -> dict:
    """What is asked besides the facts."""
    params, found = module.params, {}
    if params["k3s"] is not None:
        found["k3s"] = k3s.state(module.run_command, params["root"], **params["k3s"])
    if params["networks"] is not None:
        found["networks"] = node_tools.networks(tree, params["networks"]["directory"])
    if params["firewall"]:
        found["firewall"] = firewall.info(tree, module.run_command)
    return found


if __name__ == "__main__":
    main()
