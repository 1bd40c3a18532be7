# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_networks
short_description: Interfaces, routes and network configuration files of a node
version_added: 0.1.0
description:
  - What M(gpufabric.rdma.nad_lint) compares NetworkAttachmentDefinitions with. Reads files only and changes nothing.
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  root:
    description: Folder that holds the node's tree.
    type: path
    default: /
  directory:
    description: Where Multus looks for configurations of networks whose object has none.
    type: path
    default: /etc/cni/multus/net.d
"""

EXAMPLES = r"""
- name: Read interfaces and routes
  gpufabric.rdma.host_networks:
  register: host_networks
"""

RETURN = r"""
netdevs:
  description: Each interface by name, with C(index), C(mtu), C(type) (ether, infiniband or a number), C(addresses)
    with their prefix length and C(default_route) (whether the default route stands on it).
  returned: success
  type: dict
routes:
  description: The routes, each with C(destination) and C(netdev); those of containers' interfaces too.
  returned: success
  type: list
  elements: dict
vfs_unit:
  description: Whether the unit that M(gpufabric.rdma.sriov_vfs) makes is on the node.
  returned: success
  type: bool
files:
  description: Text of each configuration file in O(directory), by name.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.sriov import UNIT
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Seams, Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.netdevs import Network
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.routes import destinations


def netdevs(tree: Tree) -> dict:
    network = Network(tree, Seams.of(tree).addresses())
    found = {}
    for name in network.names():
        netdev = network.netdev(name)
        if netdev:
            found[name] = {key: netdev[key] for key in ("mtu", "type", "addresses", "default_route")}
            index = tree.read(f"/sys/class/net/{name}/ifindex")
            found[name]["index"] = int(index) if index else None
            if isinstance(found[name]["addresses"], str):
                found[name]["addresses"] = []
    return found


def routes(tree: Tree) -> list[dict]:
    """IPv4 and IPv6 routes but the default ones."""
    return [route for route in destinations(tree) if not route["destination"].endswith("/0")]


def files(tree: Tree, directory: str) -> dict:
    """Those that Multus reads as configurations."""
    names = [name for name in sorted(tree.listdir(directory)) if name.endswith((".conf", ".conflist", ".json"))]
    return {name: tree.read(f"{directory}/{name}") or "" for name in names}


def main():
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "directory": {"type": "path", "default": "/etc/cni/multus/net.d"},
        },
        supports_check_mode=True,
    )
    tree = Tree(module.params["root"])
    module.exit_json(
        changed=False,
        netdevs=netdevs(tree),
        routes=routes(tree),
        files=files(tree, module.params["directory"]),
        vfs_unit=tree.read(UNIT) is not None,
    )


if __name__ == "__main__":
    main()
