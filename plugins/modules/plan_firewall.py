# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_firewall
short_description: Plan who asks whom about the ports that nodes need, and judge the answers
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - Takes the ports from the options of the roles that use them. See C(docs/firewall.md).
requirements:
  - netaddr (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
    support: full
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  hosts:
    description: Hosts that need connections of each other.
    type: list
    elements: str
    required: true
  variable:
    description:
      - Name of the variable that holds what is known of a host, that is C(host), C(address), C(member) and C(server)
        (of the cluster), C(facts) of M(gpufabric.rdma.hca_facts), C(variables), and C(firewall), which is what
        M(gpufabric.rdma.firewall_info) returned.
      - A host that lacks it is left out.
    type: str
    required: true
  listening:
    description: Name of the variable that holds what M(gpufabric.rdma.port_probe) returned on a host as it listened.
    type: str
  told:
    description: The same for what the host was told as it asked.
    type: str
  all_nodes:
    description: Names of all nodes, also of those that this run leaves out.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Plan the connections
  gpufabric.rdma.plan_firewall:
    hosts: "{{ ansible_play_hosts_all }}"
    variable: known
  register: planned
  run_once: true
"""

RETURN = r"""
hosts:
  description:
    - For each host C(listen) and C(ask) for M(gpufabric.rdma.port_probe), C(add), C(remove) and C(record), rules of its
      firewall, C(results), one for each connection with its C(state), and C(findings).
  returned: success
  type: dict
lacking:
  description: The collections that open a firewall and that the controller does not have, by tool.
  returned: success
  type: dict
seconds:
  description: How long to listen, for all hosts to have asked.
  returned: success
  type: int
"""
