# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's firewall keeps from working."""

from __future__ import annotations

DOCUMENTATION = r"""
name: firewall_findings
short_description: What a node's firewall keeps from working
version_added: 0.1.0
description:
  - One finding for each connection that the node needs and its firewall drops, with the peers, the rule and how to open
    it.
requirements:
  - netaddr (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
options:
  _input:
    description: What M(gpufabric.rdma.firewall_info) returned as C(firewall).
    type: dict
    required: true
  mode:
    description:
      - V(verify) finds all that is dropped, V(open) what the role node_firewall cannot open.
    type: str
    default: verify
  collections:
    description: For each collection that opens a firewall whether the controller has it. With V(verify) of no account.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Fail if the firewall is in the way
  gpufabric.rdma.refuse:
    findings: "{{ read['firewall'] | gpufabric.rdma.firewall_findings }}"
"""

RETURN = r"""
_value:
  description: The findings, each with C(object), C(wanted), C(seen), C(next_step) and C(id).
  type: list
  elements: dict
"""

from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import as_dict
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import firewall


def findings(read: dict, mode: str = "verify", collections: dict | None = None) -> list[dict]:
    return [as_dict(finding) for finding in firewall.findings(read, mode, collections or {})]


class FilterModule:
    """firewall_findings"""

    def filters(self):
        return {"firewall_findings": findings}
