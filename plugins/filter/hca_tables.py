# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables for people."""

from __future__ import annotations

DOCUMENTATION = r"""
name: hca_tables
short_description: Facts of many nodes as tables for people
version_added: 0.1.0
description:
  - A table of nodes, a table of HCA ports, and what is wrong with each node. At most 140 columns wide.
  - A port that is down is a problem if it is in a rail or expected; any other is shown as C(unused).
author:
  - The gpufabric founders (@gpufabric)
options:
  _input:
    description:
      - Node names, each with C(facts), the RDMA facts of M(gpufabric.rdma.hca_facts), or with C(failure), the reason
        why there are none. C(expected_ports) lists ports that must be up, such as C(mlx5_1/1).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Print the tables of this node
  gpufabric.rdma.show:
    text: "{{ {inventory_hostname: {'facts': ansible_facts['rdma']}} | gpufabric.rdma.hca_tables }}"
"""

RETURN = r"""
_value:
  description: The text.
  type: str
"""

from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings.tables import report


class FilterModule:
    """hca_tables"""

    def filters(self):
        return {"hca_tables": report}
