# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write a verification's results as JSON, JUnit and one self-contained page
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call, and writes files there, the same bytes for the same input.
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
  results:
    description: The file that M(gpufabric.rdma.verify_results) wrote.
    type: path
    required: true
  drift:
    description: A file with a drift document, which replaces the one in O(results).
    type: path
  matrix:
    description: A file with a matrix document, which replaces the one in O(results).
    type: path
  directory:
    description: The folder to write C(report.html), C(report.json) and C(report.xml) (JUnit) into. It need not exist.
    type: path
    required: true
  title:
    description: The title of the page.
    type: str
    default: RDMA report
"""

EXAMPLES = r"""
- name: Write the page
  gpufabric.rdma.report:
    results: results.json
    directory: report
"""

RETURN = r"""
files:
  description: The files, each with C(path), C(bytes) and C(changed). In check mode none of them is written.
  type: list
  elements: dict
  returned: success
level:
  description: The worst state of a node on the page, C(ok), C(open) (something is unproven or pending) or C(bad).
  type: str
  returned: success
headline:
  description: The first sentence of the page.
  type: str
  returned: success
"""
