# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write what a verification saw as JSON, JUnit and one self-contained page
version_added: 0.1.0
description:
  - Runs on the controller, makes no remote call, and writes files there. They are the same bytes for the same input.
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
  stage:
    description:
      - V(collect) writes the results document of a verification to O(path).
      - V(render) writes C(report.html), C(report.json) and C(report.xml) (JUnit) of O(results) into O(directory).
    type: str
    required: true
    choices: [collect, render]
  judged:
    description: For V(collect), RV(gpufabric.rdma.verify_checks#module:judged).
    type: list
    elements: dict
    default: []
  nodes:
    description: For V(collect), each node's C(host) and what M(gpufabric.rdma.host_probe) returned as C(read).
    type: list
    elements: dict
    default: []
  path:
    description: For V(collect), the file to write.
    type: path
  results:
    description: For V(render), the file with the results document.
    type: path
  drift:
    description: For V(render), a file with a drift document, which takes the place of the one in O(results).
    type: path
  matrix:
    description: For V(render), a file with a matrix document, which takes the place of the one in O(results).
    type: path
  directory:
    description: For V(render), the folder to write into; it is made if need be.
    type: path
  title:
    description: For V(render), the title of the page.
    type: str
    default: RDMA report
"""

EXAMPLES = r"""
- name: Write the page
  gpufabric.rdma.report:
    stage: render
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
  description: The worst that the page says of a node, C(ok), C(open) (something is not proven or waits) or C(bad).
  type: str
  returned: for stage render
headline:
  description: The first sentence of the page.
  type: str
  returned: for stage render
"""
