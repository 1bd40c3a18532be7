# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: matrix_steps
short_description: Work out what each host runs in some rounds of the bandwidth matrix
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
"""

EXAMPLES = r"""
- name: Compute each node's part
  gpufabric.rdma.matrix_steps:
    planned: planned
    numbers: "{{ planned['tranches'][0] }}"
  register: parts
  run_once: true
"""

RETURN = r"""
hosts:
  description: What each host runs, round by round.
  returned: success
  type: dict
"""
