# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: network_info
short_description: Read interfaces, routes and network configuration files of a node, and what test pods need of it
version_added: 0.1.0
description:
  - Input for M(gpufabric.rdma.nad_lint). Reads files only and changes nothing.
author:
  - The gpufabric founders (@gpufabric)
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
options:
  directory:
    description: Where Multus looks for configurations of networks with an empty spec.
    type: path
    default: /etc/cni/multus/net.d
"""

EXAMPLES = r"""
- name: Read interfaces and routes
  gpufabric.rdma.network_info:
  register: network_info
"""

RETURN = r"""
netdevs:
  description: Each interface by name, with C(index), C(mtu), C(type) (ether, infiniband or a number), C(addresses)
    with their prefix length, C(default_route) (whether the default route uses it) and C(pci) (its address).
  returned: success
  type: dict
routes:
  description: The routes, each with C(destination) and C(netdev); including those of container interfaces.
  returned: success
  type: list
  elements: dict
vfs_unit:
  description: Whether the unit of M(gpufabric.rdma.sriov_vfs) exists on the node.
  returned: success
  type: bool
files:
  description: Text of each configuration file in O(directory), by name.
  returned: success
  type: dict
tools:
  description: What a test pod needs to run the node's own tools, with C(image) (that of the sandboxes in containerd's
    configuration; null where it names none) and C(mounts) (path in the pod to path on the node).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import node_tools
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "directory": {"type": "path", "default": "/etc/cni/multus/net.d"},
        },
        supports_check_mode=True,
    )
    module.exit_json(changed=False, **node_tools.networks(Tree(module.params["root"]), module.params["directory"]))


if __name__ == "__main__":
    main()
