# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter of the role device_plugin: the nodes that serve over DRA in, the cluster's objects for them out."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dra_objects
short_description: DeviceClasses, accounts, rights and policy for shared RDMA over DRA
version_added: 0.1.0
description:
  - Renders what the API server needs before nodes can serve over DRA. Without nodes there is nothing.
positional: settings
options:
  _input:
    description:
      - C(name) in the cluster and C(rails) of each node that serves over DRA, the latter as from
        P(gpufabric.rdma.dra_rails#filter).
    type: list
    elements: dict
    required: true
  settings:
    description:
      - C(in_pods), C(namespace) and C(extended_resources).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the classes
  ansible.builtin.debug:
    msg: "{{ [{'name': 'node1', 'rails': rails}] | gpufabric.rdma.dra_objects(settings) }}"
  vars:
    rails: {"0": rdma/hca_shared_devices_0}
    settings: {in_pods: false, namespace: gpufabric-rdma, extended_resources: true}
"""

RETURN = r"""
_value:
  description: The objects.
  type: list
  elements: dict
"""

from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import dra


def dra_objects(nodes: list, settings: dict) -> list:
    # JSON, the form in which facts of other hosts come, has texts as keys.
    typed = [{**node, "rails": {int(index): name for index, name in node["rails"].items()}} for node in nodes]
    return dra.objects(typed, settings)


class FilterModule:
    def filters(self) -> dict:
        return {"dra_objects": dra_objects}
