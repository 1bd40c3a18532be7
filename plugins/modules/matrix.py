# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: matrix
short_description: Plan the bandwidth matrix, judge it and print it
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - Every two nodes that share a rail are measured in both directions, in rounds in which no HCA and no PCIe link serves
    two tests.
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
      - In check mode every test is not verified, and no consent is asked.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  stage:
    description:
      - V(plan) plans the rounds between the hosts, says what load they put and for how long, and fails where an HCA is
        in use and nobody was asked.
      - V(pods) plans the test pods, V(pod_plan) the rounds between them.
      - V(steps) says what each host runs in the rounds O(numbers).
      - V(progress) joins O(answers) and prints a line for each of the rounds O(numbers).
      - V(report) judges all tests and prints them.
    type: str
    required: true
    choices: [plan, pods, pod_plan, steps, progress, report]
  nodes:
    description: What is known of each host, that is host, address, variables, facts and read.
    type: list
    elements: dict
    default: []
  plan:
    description: The RV(plan) of V(plan) or V(pod_plan).
    type: dict
  plans:
    description: For V(report), all of them.
    type: list
    elements: dict
    default: []
  numbers:
    description: Numbers of rounds, from 0.
    type: list
    elements: int
    default: []
  results:
    description: For V(report), the RV(results) of all calls of V(progress).
    type: dict
    default: {}
  answers:
    description: For V(progress), what M(gpufabric.rdma.matrix_test) or M(gpufabric.rdma.pod_test) returned.
    type: list
    elements: dict
    default: []
  failures:
    description: For V(report), why a host gave no results, by host.
    type: dict
    default: {}
  cluster:
    description: For V(pods) and V(pod_plan), the hosts with rails and interfaces, and what M(gpufabric.rdma.pod_test)
      returned.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Plan the rounds
  gpufabric.rdma.matrix:
    stage: plan
    nodes: "{{ ansible_play_hosts | map('extract', hostvars, 'what_is_known') }}"
  run_once: true
"""

RETURN = r"""
plan:
  description: For V(plan) and V(pod_plan) C(rounds) (names of tests), C(tests), what is left C(alone) and why; for
    V(pods) C(namespace), C(objects), C(pods), C(left_out).
  returned: O(stage=plan), O(stage=pods), O(stage=pod_plan)
  type: dict
tranches:
  description: Numbers of the rounds that one call runs.
  returned: O(stage=plan), O(stage=pod_plan)
  type: list
  elements: list
grace_seconds:
  description: How long the first node waits for the last one to start.
  returned: O(stage=plan), O(stage=pod_plan)
  type: int
hosts:
  description: What each host runs.
  returned: O(stage=steps)
  type: dict
results:
  description: Results of both ends by test.
  returned: O(stage=progress)
  type: dict
document:
  description: The matrix, as docs/schemas/matrix-1.json describes it.
  returned: O(stage=report)
  type: dict
text:
  description: What was printed.
  returned: O(stage=report)
  type: str
tally:
  description: How many tests have each verdict.
  returned: O(stage=report)
  type: dict
"""
