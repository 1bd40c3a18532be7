# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_quorum
short_description: Wait until the cluster can spare a node, or has it back
version_added: 0.1.0
description:
  - Waits until the kubelet of each server reports and the etcd inside k3s has a leader and all its members; with
    O(left_boot) also until the node has reported its new boot, and with O(ready) until it is Ready.
  - Fails with what is missing when the time is over.
  - Runs on a server of the cluster. One whose datastore is not the etcd inside k3s is asked for its nodes only.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
options:
  name:
    description:
      - Name of the node in the cluster.
    type: str
    required: true
  left_boot:
    description:
      - The boot that the node is to have left, as RV(gpufabric.rdma.reboot_gate#module:boot_id) named it.
    type: str
    default: ""
  ready:
    description:
      - Whether the node has to be Ready.
    type: bool
    default: false
  timeout_seconds:
    description:
      - How long to wait.
    type: int
    default: 60
  kubectl:
    description:
      - The command as a list of words.
    type: list
    elements: str
    default: [k3s, kubectl]
seealso:
  - module: gpufabric.rdma.reboot_gate
  - module: gpufabric.rdma.node_drain
"""

EXAMPLES = r"""
- name: Wait until the cluster can spare the node
  gpufabric.rdma.cluster_quorum:
    name: node1
  delegate_to: server1
  register: before

- name: Wait until it is back
  gpufabric.rdma.cluster_quorum:
    name: node1
    left_boot: "{{ gate.boot_id }}"
    ready: "{{ before.was_ready }}"
    timeout_seconds: 900
  delegate_to: server1
"""

RETURN = r"""
was_ready:
  description: Whether the node is Ready.
  returned: success
  type: bool
findings:
  description: What the cluster lacks.
  returned: always
  type: list
  elements: dict
  contains:
    object:
      description: The object.
      type: str
    wanted:
      description: The wanted state.
      type: str
    seen:
      description: What was found.
      type: str
    next_step:
      description: What to do about it.
      type: str
    id:
      description: Id of a known finding, else empty.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Kubectl
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.quorum import against, is_ready, wait
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "left_boot": {"type": "str", "default": ""},
            "ready": {"type": "bool", "default": False},
            "timeout_seconds": {"type": "int", "default": 60},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    seconds = 0 if module.check_mode else given["timeout_seconds"]
    with reported(module):
        nodes, findings = wait(
            Kubectl(given["kubectl"], patience=seconds),
            Tree(given["root"]),
            seconds,
            lambda nodes, etcd: against(nodes, etcd, given["name"], given["left_boot"], given["ready"]),
        )
        if findings:
            raise Refused(findings)
    module.exit_json(changed=False, was_ready=is_ready(nodes, given["name"]), findings=[])


if __name__ == "__main__":
    main()
