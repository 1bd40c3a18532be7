# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: report_page
short_description: Write the page of a run, or find out first whether it can be written
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call. It writes one file there and prints where it is.
  - Without O(judged) nothing is written; it fails if O(file) could not be.
  - For JSON and JUnit, and for a page from a file of results, there is M(gpufabric.rdma.report).
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
      - In check mode it prints where the page would be.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  file:
    description:
      - Where to write the page. Its folder need not exist.
      - If not set, beside the inventory, as C(NAME-report.html) of an inventory C(NAME) or C(NAME.yml); for an
        inventory that is not a file, C(report.html) in the working directory.
    type: path
  title:
    description: The title of the page.
    type: str
    default: RDMA report
  judged:
    description: Name of the variable that holds the result of M(gpufabric.rdma.verify_checks). Needs O(variable).
    type: str
  variable:
    description:
      - Name of the variable that holds a node's C(host) and what M(gpufabric.rdma.host_probe) returned as C(read).
      - Needs O(judged); a host of it that lacks the variable has no facts on the page.
    type: str
"""

EXAMPLES = r"""
- name: Fail if the page could not be written
  gpufabric.rdma.report_page:
    file: site.html

- name: Write the page
  gpufabric.rdma.report_page:
    file: site.html
    judged: judgement
    variable: known
  run_once: true
"""

RETURN = r"""
path:
  description: The page.
  type: str
  returned: success
findings:
  description: Why it could not be written, each with C(host), C(object), C(wanted), C(seen), C(next_step) and C(id).
  type: list
  elements: dict
  returned: without O(judged)
"""
