# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter of the role device_plugin: the DaemonSet of device_plugin/deploy in, the cluster's objects out."""

from __future__ import annotations

DOCUMENTATION = r"""
name: device_plugin_objects
short_description: ConfigMap and DaemonSet of the RDMA shared device plugin
version_added: 0.1.0
description:
  - Takes the manifest that C(kubectl apply -k) uses too, so that there is one source of it, and sets what a role's
    variables say.
positional: config, links_up, settings
options:
  _input:
    description:
      - Text of C(device_plugin/deploy/daemonset.yaml).
    type: str
    required: true
  config:
    description:
      - Text of C(config.json).
    type: str
    required: true
  links_up:
    description:
      - Whether the plugin sets interfaces up.
    type: bool
    required: true
  settings:
    description:
      - C(image), C(node_selector), C(use_cdi), C(metrics_address), C(kubelet_root) and C(api).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the objects
  ansible.builtin.debug:
    msg: "{{ manifest | gpufabric.rdma.device_plugin_objects(config, false, settings) }}"
  vars:
    manifest: "{{ lookup('ansible.builtin.file', 'device_plugin/deploy/daemonset.yaml') }}"
    config: "{{ lookup('ansible.builtin.file', 'device_plugin/deploy/config.json') }}"
    settings:
      image: localhost/rdma-device-plugin:0.1.0
      node_selector: {}
      use_cdi: false
      metrics_address: ""
      kubelet_root: /var/lib/kubelet
      api: device-plugin
"""

RETURN = r"""
_value:
  description:
    - The objects, ConfigMap first.
  type: list
  elements: dict
"""

import yaml
from ansible.module_utils.common.validation import check_type_dict
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import objects


def device_plugin_objects(manifest: str, config: str, links_up: bool, settings: dict) -> list[dict]:
    typed = {**settings, "node_selector": check_type_dict(settings["node_selector"])}
    return objects.objects(yaml.safe_load(manifest), config, links_up, typed)


class FilterModule:
    def filters(self) -> dict:
        return {"device_plugin_objects": device_plugin_objects}
