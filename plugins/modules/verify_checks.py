# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_checks
short_description: Judge nodes, fabric and cluster by named checks
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - A check has C(id), C(object), C(status) (passed, failed, not_verified, unused), C(wanted), C(seen) and C(next_step).
    One in the catalogue of failures has C(failure), its id there, and C(root) (true for the root cause) or
    C(consequence_of) (the id of its cause).
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
  hosts:
    description: All hosts of the play; one that lacks O(variables.node) fails its check.
    type: list
    elements: str
    required: true
  variables:
    description: Names of the variables that hold what is known of a host.
    type: dict
    required: true
    suboptions:
      node:
        description: Data of the host, as M(gpufabric.rdma.plan_fabric) takes it.
        type: str
        required: true
      results:
        description: What M(gpufabric.rdma.fabric_client) returned on the host, if it ran.
        type: str
        required: true
      servers:
        description: What M(gpufabric.rdma.fabric_server) returned on the host, if it ran.
        type: str
        required: true
      failure:
        description: Why the fabric tests were aborted on the host, if they were.
        type: str
        required: true
  plan:
    description: The RV(gpufabric.rdma.plan_fabric#module:plan).
    type: dict
    required: true
  unplanned:
    description: Why there is no O(plan), or empty.
    type: str
    default: ""
  cluster:
    description: What M(gpufabric.rdma.cluster_info), M(gpufabric.rdma.test_pods) and M(gpufabric.rdma.pod_info)
      returned, and the hosts with their rails and interfaces; empty without a cluster.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Evaluate checks
  gpufabric.rdma.verify_checks:
    hosts: "{{ ansible_play_hosts_all }}"
    variables: {node: known, results: connected, servers: served, failure: aborted}
    plan: "{{ fabric['plan'] }}"
  register: judgement
  run_once: true
"""

RETURN = r"""
judged:
  description: Each host with its checks and its part of the report; C(diagnosis) has the root failure, its cause
    and fix, and the checks that follow from it.
  returned: success
  type: list
  elements: dict
checks:
  description: The checks of each host.
  returned: success
  type: dict
"""
