# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_report
short_description: Print the checks of a verification, and fail if any check failed
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
    details:
      - In check mode the report says so.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  judged:
    description: Name of the variable that holds the result of M(gpufabric.rdma.verify_checks).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Report, and fail if a check failed
  gpufabric.rdma.verify_report:
    judged: judgement
  run_once: true
"""

RETURN = r"""
tally:
  description: How many checks have each status.
  returned: when no check failed
  type: dict
report:
  description: The printed text.
  returned: when no check failed
  type: list
  elements: str
"""
