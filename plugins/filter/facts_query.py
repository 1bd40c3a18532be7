# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One JMESPath expression over the facts of many nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
name: facts_query
short_description: Ask one question of the RDMA facts of many nodes
version_added: 0.1.0
description:
  - Evaluates a JMESPath expression on the facts of each node. An expression that cannot be evaluated is an error.
requirements:
  - jmespath (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
options:
  _input:
    description:
      - Node names, each with C(facts), the RDMA facts of M(gpufabric.rdma.hca_facts), or with C(failure), the reason
        why there are none.
    type: dict
    required: true
  query:
    description: The expression, see U(https://jmespath.org), such as V(hcas[].[name,firmware]).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Print the firmware of this node's HCAs
  gpufabric.rdma.show:
    text: "{{ (nodes | gpufabric.rdma.facts_query('hcas[].[name,firmware]'))['text'] }}"
  vars:
    nodes: "{{ {inventory_hostname: {'facts': ansible_facts['rdma']}} }}"
"""

RETURN = r"""
_value:
  description:
    - C(answers), what the expression gives for each node, any JSON value; C(unread), the reason for each node without
      facts; and C(text), all of it for people, a line an answer or, where an answer is a list, an element.
  type: dict
"""

import contextlib
import json

from ansible.errors import AnsibleError
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import clean, sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import libraries


def facts_query(nodes: dict, query: str) -> dict:
    try:
        import jmespath
    except ImportError:
        raise AnsibleError(sentence(libraries.missing("jmespath"))) from None
    # Ansible tags what it templates, and jmespath knows plain types only.
    nodes, query = json.loads(json.dumps(nodes)), str(query)
    facts = {name: node["facts"] for name, node in nodes.items() if node.get("facts")}
    unread = {name: node.get("failure") or "no reason given" for name, node in nodes.items() if name not in facts}
    try:
        parsed = jmespath.compile(query)
        with contextlib.suppress(jmespath.exceptions.JMESPathTypeError):
            parsed.search({})  # a function that does not exist is refused without facts too
        answers = {name: parsed.search(one) for name, one in facts.items()}
    except jmespath.exceptions.JMESPathError as error:
        wanted, seen = "a JMESPath expression that fits the facts", " ".join(str(error).split())
        step = 'correct it, such as hcas[].[name,firmware]; one with spaces takes -e \'{"discover_query": "…"}\''
        raise AnsibleError(sentence(Finding(f"query {query}", wanted, seen, step))) from error
    rows = [(name, row) for name, said in answers.items() for row in (said if isinstance(said, list) else [said])]
    lines = [f"{name}: {json.dumps(row, ensure_ascii=False)}" for name, row in rows]
    lines += [f"{name}: not read: {reason}" for name, reason in unread.items()]
    return {"answers": answers, "unread": unread, "text": clean("\n".join(lines) + "\n")}


class FilterModule:
    """facts_query"""

    def filters(self):
        return {"facts_query": facts_query}
