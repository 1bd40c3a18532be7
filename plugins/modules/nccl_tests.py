# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests
short_description: Render the nccl-tests job, judge its log
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - The job (all_reduce_perf) is evidence level E5, real hardware; no test of this project has run it. The log is judged
    wherever it comes from.
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
  stage:
    description:
      - V(job) makes the objects from the facts of O(nodes); it fails with all problems at once.
      - V(log) reads O(path) and fails where traffic went over TCP (C(NET/Socket)), GPUDirect RDMA was absent, a rail
        stayed idle, a GID index was set, a value was wrong or the bandwidth is too low.
    type: str
    required: true
    choices: [job, log]
  nodes:
    description: For V(job), host and facts of each node.
    type: list
    elements: dict
    default: []
  options:
    description: For V(job) C(image), C(namespace), C(networks), C(gpus_per_node), C(address_range).
    type: dict
    default: {}
  path:
    description: For V(log), a file on the controller, made with NCCL_DEBUG=INFO.
    type: path
  hcas:
    description: For V(log), HCAs that have to be in use on each node. Empty asks for any.
    type: list
    elements: str
    default: []
  minimum_gbyte_per_s:
    description: For V(log), the bus bandwidth that the largest size has to reach.
    type: float
"""

EXAMPLES = r"""
- name: Check the log of a job
  gpufabric.rdma.nccl_tests:
    stage: log
    path: all_reduce.log
"""

RETURN = r"""
objects:
  description: The namespace and the job.
  returned: O(stage=job)
  type: list
  elements: dict
text:
  description: The same as YAML.
  returned: O(stage=job)
  type: str
checks:
  description: Named checks of the log, as M(gpufabric.rdma.verify_checks) makes them.
  returned: O(stage=log)
  type: list
  elements: dict
hcas:
  description: HCAs that connections went over, by host.
  returned: O(stage=log)
  type: dict
"""
