# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the role networks: facts in, what attachments are planned from out."""

from __future__ import annotations

DOCUMENTATION = r"""
name: network_rails
short_description: Rails of a node with what networks are planned from
version_added: 0.1.0
description:
  - One item a rail, with C(index), C(hca), C(port), C(kind), C(netdev), C(pci), C(link_layer), C(active_mtu) and
    C(char_devices).
options:
  _input:
    description:
      - C(ansible_facts.rdma) of the node.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the interfaces of the rails
  ansible.builtin.debug:
    msg: "{{ ansible_facts['rdma'] | gpufabric.rdma.network_rails }}"
"""

RETURN = r"""
_value:
  description: The rails, in their order.
  type: list
  elements: dict
"""

from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.rails import network_rails


class FilterModule:
    def filters(self) -> dict:
        return {"network_rails": network_rails}
