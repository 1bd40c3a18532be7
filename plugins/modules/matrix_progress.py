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
  plan:
    description: The RV(gpufabric.rdma.plan_matrix#module:plan).
    type: dict
    required: true
  numbers:
    description: Numbers of rounds, from 0.
    type: list
    elements: int
    required: true
  answers:
    description: What M(gpufabric.rdma.matrix_rounds) returned on each host, or M(gpufabric.rdma.pod_traffic).
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the results of the rounds
  gpufabric.rdma.matrix_progress:
    plan: "{{ planned['plan'] }}"
    numbers: "{{ planned['tranches'][0] }}"
    answers: "{{ ansible_play_hosts | map('extract', hostvars, 'collected') }}"
  register: progress
  run_once: true
"""

RETURN = r"""
results:
  description: Results of both ends by test.
  returned: success
  type: dict
"""
