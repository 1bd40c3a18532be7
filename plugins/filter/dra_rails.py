# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter of the role device_plugin: a node's facts in, the rails that it serves over DRA out."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dra_rails
short_description: Rails that a node serves over DRA
version_added: 0.1.0
description:
  - Applies the selectors of the device plugin's entries to the node's facts.
positional: facts, api, rails
options:
  _input:
    description:
      - C(device_plugin_resources).
    type: raw
    required: true
  facts:
    description:
      - C(ansible_facts.rdma) of the node, or null if it was not read.
    type: dict
    required: true
  api:
    description:
      - C(device_plugin_api).
    type: str
    required: true
  rails:
    description:
      - C(device_plugin_dra_rails).
    type: list
    elements: int
    required: true
"""

EXAMPLES = r"""
- name: Show the rails
  ansible.builtin.debug:
    msg: "{{ 'rails' | gpufabric.rdma.dra_rails(ansible_facts['rdma'], 'dra', []) }}"
"""

RETURN = r"""
_value:
  description:
    - By the number of the rail, as text, the extended resource that stands for it, or null. Empty without facts.
  type: dict
"""

from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.rails import dra_rails


class FilterModule:
    def filters(self) -> dict:
        return {"dra_rails": dra_rails}
