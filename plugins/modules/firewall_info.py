# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_info
short_description: Tell which of the connections that a node needs its firewall drops
version_added: 0.1.0
description:
  - Reads the kernel's packet filters, those of nftables and of both back ends of iptables, and follows the first packet
    of each connection of O(needs) through them. ufw and firewalld are filters of the kernel as well; which of them runs
    says how a port is opened.
  - Follows the hooks prerouting, input and forward. What the node sends itself is not looked at.
  - A condition that it does not know, or a table that it cannot read, makes an answer V(unknown), never V(open).
  - Changes nothing and loads no kernel module.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
options:
  needs:
    description: Connections, as M(gpufabric.rdma.plan_firewall) plans them.
    type: list
    elements: dict
    default: []
  partial:
    description: Whether peers are missing from O(needs), because this run leaves nodes out. No rule is then given up.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Read the firewall
  gpufabric.rdma.firewall_info:
    needs: "{{ planned['hosts'][inventory_hostname] }}"
  register: firewall
"""

RETURN = r"""
firewall:
  description: The firewall.
  returned: success
  type: dict
  contains:
    tool:
      description: V(ufw) or V(firewalld), if it filters now; else null.
      type: str
    filters:
      description: Whether the kernel has any packet filter with a rule or a policy, or one that could not be read.
      type: bool
    address:
      description: IPv4 address of the interface with the default route; null without exactly one.
      type: str
    addresses:
      description: Addresses with their prefix length, by interface.
      type: dict
    answers:
      description: What becomes of O(needs), each with C(id), C(what), C(hook), C(protocol), C(ports), C(every) (whether
        these are all ports of the need), C(peers), C(state) (V(open), V(blocked) or V(unknown)), C(by) (the rule or the
        reason), C(tool) (whose rule it is) and C(remove) (the command that removes the rule).
      type: list
      elements: dict
    installed:
      description: Which of ufw and firewalld the node has.
      type: list
      elements: str
    at_boot:
      description: What differs between now and after the next boot.
      type: list
      elements: str
    unread:
      description: What could not be read, and why.
      type: list
      elements: str
    add:
      description: Rules that would open what C(tool) drops.
      type: list
      elements: dict
    remove:
      description: Rules that the role node_firewall opened and that no need asks for any longer.
      type: list
      elements: dict
    record:
      description: Rules that are the role's after C(add) and C(remove).
      type: list
      elements: dict
    recorded:
      description: Rules that are the role's now, by its record on the node.
      type: list
      elements: dict
not_verified:
  description: Why some of O(needs) have the answer V(unknown); each is a warning, too.
  returned: success
  type: list
  elements: str
notes:
  description: What differs between now and after the next boot, and which ports of pods are dropped; warnings, too.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.firewall import told
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "needs": {"type": "list", "elements": "dict", "default": []},
            "partial": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )

    root, needs, partial = (module.params[name] for name in ("root", "needs", "partial"))
    module.exit_json(changed=False, **told(module, Tree(root), needs, partial))


if __name__ == "__main__":
    main()
