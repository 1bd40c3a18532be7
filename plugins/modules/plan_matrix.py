# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_matrix
short_description: Plan the rounds of the bandwidth matrix
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - Every two nodes that share a rail are measured in both directions, in rounds in which no HCA and no PCIe link serves
    two tests. With C(matrix_peers), each rail of a node is measured with at least so many other nodes.
  - Prints the load of the rounds and their duration. Fails where an HCA is in use and C(matrix_load_allowed) is not
    set, and where there are more tests than a plan can have.
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
    details:
      - Check mode needs no consent.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  hosts:
    description: Hosts between which to measure.
    type: list
    elements: str
    required: true
  variable:
    description:
      - Name of the variable that holds what is known of a host, that is C(host), C(address), C(variables), C(facts)
        and what M(gpufabric.rdma.matrix_info) returned as C(read).
      - A host that lacks it fails the task.
    type: str
    required: true
  cluster:
    description:
      - Plan the rounds between test pods instead. C(plan) of M(gpufabric.rdma.plan_test_pods), what
        M(gpufabric.rdma.test_pods) returned as C(run), and C(port), the first TCP port.
    type: dict
"""

EXAMPLES = r"""
- name: Plan the rounds
  gpufabric.rdma.plan_matrix:
    hosts: "{{ ansible_play_hosts }}"
    variable: known
  register: planned
  run_once: true
"""

RETURN = r"""
plan:
  description: C(rounds) (names of tests), C(tests), what has no peer (C(alone)) and why, and C(clashes) of addresses.
  returned: success
  type: dict
parts:
  description: What each host runs, round by round. Empty with O(cluster).
  returned: success
  type: dict
grace_seconds:
  description: How long the first node waits for the last one to start.
  returned: success
  type: int
wait_seconds:
  description: After how long every node has ended its rounds.
  returned: success
  type: int
"""
