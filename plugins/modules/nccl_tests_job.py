# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests_job
short_description: Render the nccl-tests job
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - The job (all_reduce_perf) is evidence level E5, real hardware; no test of this project has run it. All problems
    are reported at once.
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
    description: Nodes the job runs on.
    type: list
    elements: str
    required: true
  variable:
    description:
      - Name of the variable that holds what is known of a host, that is C(host) and C(facts).
      - A host that lacks it fails the task.
    type: str
    required: true
  options:
    description: What the job is made of.
    type: dict
    required: true
    suboptions:
      form: {description: C(job) or C(mpijob)., type: str}
      image: {description: The image with its digest., type: str}
      namespace: {description: Namespace of the job., type: str}
      networks: {description: Network attachments of its pods., type: list, elements: str}
      gpus_per_node: {description: Null takes what each node has., type: int}
      address_range: {description: Null is worked out from the rails., type: str}
      resources: {description: As C(device_plugin_resources)., type: raw}
      script: {description: What C(job) runs., type: str}
"""

EXAMPLES = r"""
- name: Render the job
  gpufabric.rdma.nccl_tests_job:
    hosts: "{{ ansible_play_hosts }}"
    variable: known
    options: {image: "example.test/nccl-tests@sha256:...", namespace: default, form: job, resources: rails}
  register: job
  run_once: true
"""

RETURN = r"""
objects:
  description: The namespace and the job.
  returned: success
  type: list
  elements: dict
text:
  description: The same as YAML.
  returned: success
  type: str
"""
