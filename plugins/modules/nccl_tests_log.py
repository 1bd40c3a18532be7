# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_tests_log
short_description: Evaluate the log of an nccl-tests job
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call and changes nothing.
  - Fails where traffic went over TCP (C(NET/Socket)), GPUDirect RDMA was absent, a rail stayed idle, a GID index was
    set, a value was wrong or the bandwidth is too low. The log may come from any job.
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
  path:
    description: A file on the controller, produced with NCCL_DEBUG=INFO.
    type: path
    required: true
  hcas:
    description: HCAs that must be in use on each node. Empty accepts any.
    type: list
    elements: str
    default: []
  minimum_gbyte_per_s:
    description: The minimum bus bandwidth of the largest size.
    type: float
"""

EXAMPLES = r"""
- name: Evaluate the log of a job
  gpufabric.rdma.nccl_tests_log:
    path: all_reduce.log
"""

RETURN = r"""
checks:
  description: Named checks of the log, as M(gpufabric.rdma.verify_checks) makes them.
  returned: when the log can be read
  type: list
  elements: dict
hcas:
  description: HCAs used by connections, by host.
  returned: when the log can be read
  type: dict
"""
