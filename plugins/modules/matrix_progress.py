# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: matrix_progress
short_description: Join the results of some rounds of the bandwidth matrix and print a line for each
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
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
  planned:
    description: Name of the variable that holds what M(gpufabric.rdma.plan_matrix) returned.
    type: str
    required: true
  numbers:
    description: Numbers of rounds, from 0.
    type: list
    elements: int
    required: true
  hosts:
    description: Hosts that ran them.
    type: list
    elements: str
    required: true
  variable:
    description:
      - Name of the variable that holds what M(gpufabric.rdma.matrix_rounds) or M(gpufabric.rdma.pod_traffic) returned
        on a host. A host without it gave no answer.
    type: str
    required: true
  earlier:
    description: Name of the variable that holds what this module returned for the rounds before, if there were any.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the results of the rounds
  gpufabric.rdma.matrix_progress:
    planned: planned
    numbers: "{{ planned['tranches'][0] }}"
    hosts: "{{ ansible_play_hosts }}"
    variable: collected
    earlier: progress
  register: progress
  run_once: true
"""

RETURN = r"""
results:
  description: Results of both ends by test, of these rounds and of the ones before.
  returned: success
  type: dict
"""
