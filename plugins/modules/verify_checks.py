# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_checks
short_description: Plan fabric tests, judge nodes and fabric by named checks, report for people
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - A check has C(id), C(object), C(status) (passed, failed, not_verified, unused), C(wanted), C(seen) and C(next_step).
    One that the catalogue of failures names has C(failure), its id there, and C(root) (true on what shows the root) or
    C(consequence_of) (the id of what explains it).
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
      - In check mode a failure that a planned change explains is not verified instead.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  stage:
    description:
      - V(pair) plans who sends to whom over which rail.
      - V(pods) plans the test pods of O(cluster).
      - V(judge) turns facts, probes and results into checks.
      - V(report) prints them and fails if any check failed.
    type: str
    required: true
    choices: [pair, pods, judge, report]
  hosts:
    description: All hosts of the play; one without an entry in O(nodes) fails its check.
    type: list
    elements: str
    default: []
  nodes:
    description: For V(pair) and V(judge) what was read from each host; for V(report) the RV(judged) nodes.
    type: list
    elements: dict
    default: []
  plan:
    description: The RV(plan) of V(pair).
    type: dict
  results:
    description: What M(gpufabric.rdma.fabric_client) returned on each host.
    type: list
    elements: dict
    default: []
  servers:
    description: What M(gpufabric.rdma.fabric_server) returned on each host.
    type: list
    elements: dict
    default: []
  failures:
    description: Why the fabric tests broke off on each of O(nodes), or empty.
    type: list
    elements: str
    default: []
  cluster:
    description: What M(gpufabric.rdma.pod_test) returned, and the hosts with their rails and interfaces; empty where no
      cluster takes part.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Report, and fail if any check failed
  gpufabric.rdma.verify_checks:
    stage: report
    nodes: "{{ judgement['judged'] }}"
  run_once: true
"""

RETURN = r"""
plan:
  description: For V(pair) C(tests), C(unpaired) ends with their reason and C(clashes) of addresses; for V(pods)
    C(namespace), C(objects), C(pods), and which hosts were C(left_out) for which reason.
  returned: O(stage=pair), O(stage=pods)
  type: dict
hosts:
  description: The tests each host serves and those it connects for.
  returned: O(stage=pair)
  type: dict
judged:
  description: Each host with its checks and what the report says of it; C(diagnosis) has the root failure, its cause
    and fix, and the checks that follow from it.
  returned: O(stage=judge)
  type: list
  elements: dict
checks:
  description: The checks of each host.
  returned: O(stage=judge)
  type: dict
tally:
  description: How many checks have each status.
  returned: O(stage=report)
  type: dict
report:
  description: The printed text.
  returned: O(stage=report), when no check failed
  type: list
  elements: str
"""
