# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_test_pods
short_description: Plan the test pods that a cluster can run
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - The number of pods and their attachments follow from the nodes' rails, networks and device plugins.
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
  cluster:
    description: C(hosts) with their rails, interfaces and routes, what M(gpufabric.rdma.cluster_info) returned as
      C(read), C(namespace) and C(image); with a C(pod_name), the name of a user's pod, no test pod is planned.
    type: dict
    required: true
  bandwidth:
    description: Keep only the pods for bandwidth tests, and report for each host why it has none.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Plan the test pods
  gpufabric.rdma.plan_test_pods:
    cluster: "{{ cluster }}"
  register: planned
  run_once: true
"""

RETURN = r"""
plan:
  description: C(namespace), C(objects), C(pods), and the hosts C(left_out) with the reason.
  returned: success
  type: dict
"""
