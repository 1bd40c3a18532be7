# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter of the role device_plugin: resources and rails in, config.json and what follows from it out."""

from __future__ import annotations

DOCUMENTATION = r"""
name: device_plugin_files
short_description: Config of the RDMA shared device plugin from a node's rails
version_added: 0.1.0
description:
  - Renders C(config.json), and says what the unit or the pod needs for it.
positional: rails, interval, api, dra_rails
options:
  _input:
    description:
      - V(rails) for one resource a rail, or the list that becomes C(configList) as it is.
    type: raw
    required: true
  rails:
    description:
      - C(ansible_facts.rdma.rails) of the node, or null if it was not read.
    type: list
    elements: dict
    required: true
  interval:
    description:
      - Seconds between two scans, C(periodicUpdateInterval).
    type: int
    required: true
  api:
    description:
      - C(device_plugin_api).
    type: str
    default: device-plugin
  dra_rails:
    description:
      - With C(both), the rails that DRA serves.
    type: list
    elements: int
    default: []
"""

EXAMPLES = r"""
- name: Show the config
  ansible.builtin.debug:
    msg: "{{ ('rails' | gpufabric.rdma.device_plugin_files(ansible_facts['rdma']['rails'], 300))['config'] }}"
"""

RETURN = r"""
_value:
  description:
    - C(config), the text; C(links_up), whether an entry has the plugin set interfaces up, which takes CAP_NET_ADMIN;
      and C(problem), empty or what is wrong with the input. The text is empty then.
  type: dict
"""

from ansible.module_utils.common.validation import check_type_list
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config


def device_plugin_files(resources, rails, interval: int, api: str = config.PLUGIN, dra_rails=()) -> dict:
    try:
        entries = config.entries(resources, rails, api, [int(index) for index in check_type_list(dra_rails or [])])
    except ValueError as error:
        return {"config": "", "links_up": False, "problem": str(error)}
    return {
        "config": config.document(entries, None, interval),
        "links_up": config.sets_links_up(entries),
        "problem": "",
    }


class FilterModule:
    def filters(self) -> dict:
        return {"device_plugin_files": device_plugin_files}
