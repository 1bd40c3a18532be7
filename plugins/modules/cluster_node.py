# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_node
short_description: Take a node out of its cluster for maintenance, and back in
version_added: 0.1.0
description:
  - Waits until the cluster is whole, cordons a node and evicts its pods, uncordons it, or withdraws what its RDMA
    plugin has published.
  - Pods of DaemonSets stay; V(emptyDir) volumes are deleted.
  - Sets the annotation C(rdma.gpufabric.io/cordoned-for-driver) on nodes that it cordons, in the same patch and as
    field manager C(gpufabric.rdma), and only uncordons nodes that have both. So the next run completes one that failed
    in between, and a node that someone else cordoned stays cordoned, even after an uncordon by hand.
  - An annotation that outlived its cordon is removed.
  - If a disruption budget forbids an eviction, it is retried until O(timeout_seconds) have passed; then the module
    fails and lists the pods. The node stays cordoned.
  - Runs where O(kubectl) runs; for O(state=settled) that is a server of the cluster.
extends_documentation_fragment: [gpufabric.rdma.changing]
options:
  name: {description: Name of the node in the cluster., type: str, required: true}
  state:
    description:
      - V(settled) waits until the kubelet of each server reports and the etcd inside k3s has a leader and all its
        members, and fails with what is missing when the time is up. With another datastore only the nodes are
        checked. It tells whether the cluster can spare the node, and afterwards whether the node is back.
      - V(drained) cordons the node and evicts its pods.
      - V(uncordoned) uncordons the node if this module has cordoned it.
      - V(withdrawn) deletes the node's ResourceSlices of driver C(rdma.gpufabric.io) once its RDMA plugin no longer
        runs; the scheduler allocates what they list as long as they exist. An API server that does not respond is
        not verified, and not a failure.
    type: str
    choices: [settled, drained, uncordoned, withdrawn]
    required: true
  left_boot:
    description: For O(state=settled), the boot that the node must have left, as
      RV(gpufabric.rdma.node_facts#module:reboot) reported it.
    type: str
    default: ""
  ready: {description: 'For O(state=settled), whether the node has to be Ready.', type: bool, default: false}
  timeout_seconds:
    description: How long to wait for the cluster, or for the pods to terminate.
    type: int
    default: 600
  kubectl: {description: The command as a list of words., type: list, elements: str, default: [k3s, kubectl]}
  api_timeout_seconds:
    description: How long to wait for an API server that does not respond. Draining and uncordoning does not wait in
      check mode, O(state=settled) waits for O(timeout_seconds).
    type: int
    default: 120
  root:
    description: Root directory of the server, where O(state=settled) reads the addresses of its etcd.
    type: path
    default: /
seealso:
  - module: gpufabric.rdma.node_facts
  - module: gpufabric.rdma.driver_reload
"""

EXAMPLES = r"""
- name: Verify that the cluster can spare the node
  gpufabric.rdma.cluster_node:
    name: "{{ inventory_hostname }}"
    state: settled
    timeout_seconds: 60
  delegate_to: "{{ groups['k3s_servers'][0] }}"
  register: before

- name: Drain the node
  gpufabric.rdma.cluster_node:
    name: "{{ inventory_hostname }}"
    state: drained
  delegate_to: "{{ groups['k3s_servers'][0] }}"

- name: Wait until it is back
  gpufabric.rdma.cluster_node:
    name: "{{ inventory_hostname }}"
    state: settled
    left_boot: "{{ node.reboot.boot_id }}"
    ready: "{{ before.was_ready }}"
  delegate_to: "{{ groups['k3s_servers'][0] }}"

- name: Uncordon the node
  gpufabric.rdma.cluster_node:
    name: "{{ inventory_hostname }}"
    state: uncordoned
  delegate_to: "{{ groups['k3s_servers'][0] }}"
"""

RETURN = r"""
was_ready: {description: Whether the node is Ready., returned: with O(state=settled), type: bool}
changes:
  description: In each C(action) is C(cordon), C(drain), C(uncordon), C(delete), or C(remove) for the annotation;
    C(before) of C(drain) has the pods, one per line.
  returned: with any O(state) but V(settled)
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge, reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import dra
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.k3s import against, is_ready, wait
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Kubectl, patient
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.node import Node, plan_drain, plan_uncordon
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["settled", "drained", "uncordoned", "withdrawn"], "required": True},
            "left_boot": {"type": "str", "default": ""},
            "ready": {"type": "bool", "default": False},
            "timeout_seconds": {"type": "int", "default": 600},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "api_timeout_seconds": {"type": "int", "default": 120},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["state"] == "settled":
        settle_cluster(module)
        return
    if given["state"] == "withdrawn":
        slices = dra.Slices(patient(given["kubectl"], given["api_timeout_seconds"]), given["name"])
        converge(module, slices.read, dra.plan_withdrawal, slices.apply)
        return
    draining = given["state"] == "drained"
    patience = 0 if module.check_mode else given["api_timeout_seconds"]
    step = "check that kubectl reaches the API server from this host (role driver: driver_drain_host) and run again"
    node = Node(Kubectl(given["kubectl"], patience=patience, next_step=step), given["name"], given["timeout_seconds"])
    converge(
        module,
        read=lambda: node.read(pods=draining),
        plan=plan_drain if draining else plan_uncordon,
        apply=node.apply,
        quiet=True,
    )


def settle_cluster(module) -> None:
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
