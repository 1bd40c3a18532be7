# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_results
short_description: Write what a verification saw to a results document
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call, and writes a file there, the same bytes for the same input.
  - The schema of the results document is C(docs/schemas/results-1.json) of this collection.
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
  judged:
    description: Name of the variable that holds the result of M(gpufabric.rdma.verify_checks).
    type: str
    required: true
  variable:
    description:
      - Name of the variable that holds a node's C(host) and what M(gpufabric.rdma.host_probe) returned as C(read).
      - A host of O(judged) that lacks it has no facts in the results.
    type: str
    required: true
  path:
    description: The file to write.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Write the results
  gpufabric.rdma.verify_results:
    judged: judgement
    variable: known
    path: results.json
  run_once: true
"""

RETURN = r"""
files:
  description: The files, each with C(path), C(bytes) and C(changed). In check mode none of them is written.
  type: list
  elements: dict
  returned: success
"""
