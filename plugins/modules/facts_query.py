# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: facts_query
short_description: Ask one question of the RDMA facts of many nodes
version_added: 0.1.0
description:
  - Evaluates a JMESPath expression on the facts of each node and prints the answers as a table, a row each.
  - With neither O(nodes) nor O(captures) it only checks the expression, for a playbook that asks its nodes later.
  - Texts that are versions are compared by their numbers with C(<), C(<=), C(>) and C(>=), so V(28.9) is less than
    V(28.40). What cannot be compared is named below the table.
  - Runs on the controller and makes no remote call.
requirements:
  - jmespath (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
    support: full
  check_mode:
    description: Prints in either mode and changes nothing.
    support: full
  diff_mode:
    description: There is no change to show.
    support: none
options:
  query:
    description: >-
      A JMESPath expression, see U(https://jmespath.org). It begins with a name of
      RV(gpufabric.rdma.hca_facts#module:ansible_facts.rdma).
    type: str
    required: true
  nodes:
    description:
      - Node names, each with C(facts), the RDMA facts of M(gpufabric.rdma.hca_facts), or with C(failure), the reason
        why there are none.
    type: dict
  captures:
    description: A folder of captures, as the playbook C(capture) writes them, that are asked instead of nodes.
    type: path
"""

EXAMPLES = r"""
- name: Name the HCAs with old firmware
  gpufabric.rdma.facts_query:
    query: hcas[?firmware < '28.40'].[name, firmware]
    captures: captured
"""

RETURN = r"""
query:
  description: The expression, whole even where the command line cut it at a space.
  returned: if nodes or captures were asked
  type: str
answers:
  description: What the expression gives for each node, any JSON value.
  returned: if nodes or captures were asked
  type: dict
unread:
  description: The reason for each node whose facts could not be read.
  returned: if nodes or captures were asked
  type: dict
unanswered:
  description: The reason for each node whose facts the expression does not fit.
  returned: if nodes or captures were asked
  type: dict
uncompared:
  description: For each node the comparisons with a value that is neither a number nor a version.
  returned: if nodes or captures were asked
  type: dict
"""
