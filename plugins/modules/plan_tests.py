# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan_tests
short_description: Plan who measures whom
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call. Changes nothing but O(file). In check mode it asks for no consent.
  - Rails of the same index and network are peers. Takes what is known of each host by the names of variables, so that
    Ansible does not walk through it.
requirements:
  - netaddr (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
extends_documentation_fragment:
  - gpufabric.rdma.deciding
options:
  kind:
    description:
      - V(fabric), pairs of neighbouring nodes for M(gpufabric.rdma.fabric_tests), from C(read).
      - V(networks), the networks that pods on each node get, from C(read) and C(offered).
      - V(pods), the pods for M(gpufabric.rdma.test_pods), from C(read), C(offered) and, if it ran, C(cni).
      - V(rounds), the rounds of M(gpufabric.rdma.fabric_tests), from C(read). Stops where an HCA is in use and nobody
        allowed load on it.
      - V(pod_rounds), the rounds between test pods, from C(read), C(pods), C(ran) and O(port).
      - V(nccl_job), the nccl-tests job of O(job), from the facts of O(hosts). Evidence level E5, real hardware; no test
        of this project has run it.
    type: str
    required: true
    choices: [fabric, networks, pods, rounds, pod_rounds, nccl_job]
  hosts:
    description: Hosts to plan for. A host that lacks a variable fails the task.
    type: list
    elements: str
    required: true
  variables:
    description:
      - Names of variables. Of each host C(read), what M(gpufabric.rdma.node_facts) returned, or for rounds
        M(gpufabric.rdma.fabric_tests), beside what the role discovery has registered; and C(cni), what
        M(gpufabric.rdma.cni_lint) returned.
      - Of the host that runs the task C(offered), what M(gpufabric.rdma.cluster_info) returned, C(pods), what this
        module did, and C(ran), what M(gpufabric.rdma.test_pods) did.
    type: dict
    default: {}
  bandwidth:
    description: For V(pods), keep only those for bandwidth tests, and report for each host why it has none.
    type: bool
    default: false
  port: {description: 'For V(pod_rounds), the first TCP port.', type: int}
  job:
    description: For V(nccl_job), what the job is made of.
    type: dict
    suboptions:
      form: {description: C(job) or C(mpijob)., type: str}
      image: {description: The image with its digest., type: str}
      namespace: {description: Namespace of the job., type: str}
      networks: {description: Network attachments of its pods., type: list, elements: str}
      gpus_per_node: {description: Null takes what each node has., type: int}
      address_range: {description: Null is worked out from the rails., type: str}
      resources: {description: As C(device_plugin_resources)., type: raw}
      script: {description: What C(job) runs., type: str}
  file: {description: 'For V(nccl_job), the file to write the job to. If not set, it is printed.', type: path}
"""

EXAMPLES = r"""
- name: Plan the pairs of nodes
  gpufabric.rdma.plan_tests:
    kind: fabric
    hosts: "{{ ansible_play_hosts }}"
    variables: {read: node}
  register: planned
  run_once: true

- name: Print the nccl-tests job
  gpufabric.rdma.plan_tests:
    kind: nccl_job
    hosts: "{{ ansible_play_hosts }}"
    job: {image: "example.test/nccl-tests@sha256:...", namespace: default, form: job, resources: rails}
  run_once: true
"""

RETURN = r"""
plan:
  description: >-
    For V(fabric) C(tests), what has no peer (C(unpaired)) and why, and C(clashes) of addresses. For V(pods)
    C(namespace), C(objects), C(pods), and the hosts C(left_out) with the reason. For rounds C(rounds) (names of
    tests), C(tests), what has no peer (C(alone)) and why, and C(clashes).
  returned: O(kind=fabric), O(kind=pods), O(kind=rounds) or O(kind=pod_rounds)
  type: dict
hosts: {description: For each host the tests to C(serve) and to C(connect)., returned: O(kind=fabric), type: dict}
networks:
  description: For each host its networks, each with C(name) and C(config).
  returned: O(kind=networks)
  type: dict
parts: {description: 'What each host runs, round by round.', returned: O(kind=rounds), type: dict}
grace_seconds:
  description: How long the first node waits for the last one to start.
  returned: O(kind=rounds)
  type: int
wait_seconds: {description: After how long every node has ended its rounds., returned: O(kind=rounds), type: int}
objects:
  description: The namespace and the job.
  returned: O(kind=nccl_job) without O(file)
  type: list
  elements: dict
"""
