# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: refuse
short_description: Fail with findings, each with its object, what is wanted, what is seen and the next step
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call.
  - Fails when there is a finding, and passes when there is none.
requirements:
  - netaddr (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
extends_documentation_fragment:
  - gpufabric.rdma.deciding
options:
  findings:
    description: What to refuse. At least one of O(findings) and O(libraries) is required.
    type: list
    elements: dict
    suboptions:
      object: {description: The object., type: str, required: true}
      wanted: {description: The wanted state., type: str, required: true}
      seen: {description: What was found., type: str, required: true}
      next_step: {description: What to do., type: str, required: true}
      id: {description: 'Id of a known finding, if it is one.', type: str, default: ""}
      host: {description: Not used. Findings of M(gpufabric.rdma.plan) have it., type: raw}
      role: {description: Not used. Findings of M(gpufabric.rdma.plan) have it., type: raw}
  libraries: {description: Python libraries that must be importable by the controller., type: list, elements: str}
  summary: {description: First line of the message., type: str}
"""

EXAMPLES = r"""
- name: Ask for consent
  gpufabric.rdma.refuse:
    findings:
      - object: variable k3s_reset_allowed
        wanted: true or false
        seen: not set
        next_step: run again with -e k3s_reset_allowed=true
  when: k3s_reset_allowed is none
"""

RETURN = r"""
findings:
  description: What was refused.
  returned: always
  type: list
  elements: dict
  contains:
    host: {description: The inventory name of the host., type: str}
    object: {description: The object., type: str}
    wanted: {description: The wanted state., type: str}
    seen: {description: What was found., type: str}
    next_step: {description: What to do., type: str}
    id: {description: 'Id of a known finding, else empty.', type: str}
"""
