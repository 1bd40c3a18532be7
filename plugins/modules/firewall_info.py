# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_info
short_description: Tell which firewall runs on a node, and which ports are in use
version_added: 0.1.0
description:
  - Reads which of ufw and firewalld runs, which rules for a source they have, and which of them are ours. Whether a
    port can be reached says M(gpufabric.rdma.port_probe).
  - Changes nothing and loads no kernel module.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
"""

EXAMPLES = r"""
- name: Read the firewall
  gpufabric.rdma.firewall_info:
  register: firewall
"""

RETURN = r"""
firewall:
  description: The firewall.
  returned: success
  type: dict
  contains:
    tool:
      description: V(ufw) or V(firewalld), if it runs, V(nftables), if only its program is there; else null.
      type: str
    rules:
      description: Rules of C(tool) that accept from a source, each as kind, source, protocol, ports and zone.
      type: list
      elements: list
    zones:
      description: Interfaces and sources of firewalld's active zones.
      type: dict
    default_zone:
      description: The zone of interfaces that no zone names.
      type: str
    names_vrrp:
      description: Whether C(tool) can name VRRP in a rule.
      type: bool
    address:
      description: IPv4 address of the interface with the default route; null without exactly one.
      type: str
    netdev:
      description: That interface.
      type: str
    addresses:
      description: Addresses with their prefix length, by interface.
      type: dict
    bound:
      description: Ports in use, by protocol.
      type: dict
    installed:
      description: Which of ufw and firewalld the node has.
      type: list
      elements: str
    recorded:
      description: Rules that are the role node_firewall's, by its record on the node.
      type: list
      elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firewall
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


@guarded
def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    module.exit_json(changed=False, firewall=firewall.info(Tree(module.params["root"]), module.run_command))


if __name__ == "__main__":
    main()
