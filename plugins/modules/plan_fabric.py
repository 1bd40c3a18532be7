# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_fabric
short_description: Plan verbs traffic between nodes for each rail
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - Peers are found by rail and subnet, never by name. Each rail's nodes form a chain, so that every node takes part.
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
    description: Hosts between which to plan.
    type: list
    elements: str
    required: true
  variable:
    description:
      - Name of the variable that holds what is known of a host, that is C(host), C(address), C(variables) and what
        M(gpufabric.rdma.host_probe) returned as C(read).
      - A host that lacks it fails the task.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Plan the fabric tests
  gpufabric.rdma.plan_fabric:
    hosts: "{{ ansible_play_hosts }}"
    variable: known
  register: fabric
  run_once: true
"""

RETURN = r"""
plan:
  description: C(tests), C(unpaired) ends with their reason and C(clashes) of addresses.
  returned: success
  type: dict
hosts:
  description: The tests each host serves (C(serve)), and those it runs the client of (C(connect)).
  returned: success
  type: dict
"""
