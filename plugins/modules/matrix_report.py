# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: matrix_report
short_description: Judge the tests of the bandwidth matrix and print them
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
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
      - In check mode every test is not verified.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  hosts:
    description: Hosts that took part.
    type: list
    elements: str
    required: true
  variables:
    description: Names of the variables that hold what is known of a host.
    type: dict
    required: true
    suboptions:
      node:
        description: C(host), C(address), C(variables), C(facts) and what M(gpufabric.rdma.matrix_info) returned as
          C(read).
        type: str
        required: true
      failure:
        description: Why the host returned no results, if it returned none.
        type: str
        required: true
      nodes:
        description: What M(gpufabric.rdma.matrix_rounds) returned. A host without it gave no answer.
        type: str
        required: true
      pods:
        description: What M(gpufabric.rdma.pod_traffic) returned, on the host that asked.
        type: str
        required: true
  planned:
    description: Names of the variables that hold what M(gpufabric.rdma.plan_matrix) returned for hosts and for pods.
      Those that hold no plan count for nothing.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Judge and print
  gpufabric.rdma.matrix_report:
    hosts: "{{ ansible_play_hosts }}"
    variables: {node: known, failure: aborted, nodes: collected, pods: collected_from_pods}
    planned: [planned]
  run_once: true
"""

RETURN = r"""
document:
  description: The matrix, as docs/schemas/results-1.json describes it.
  returned: success
  type: dict
text:
  description: What was printed.
  returned: success
  type: str
tally:
  description: How many tests have each verdict.
  returned: success
  type: dict
"""
