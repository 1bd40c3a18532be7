# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: plan
short_description: Plan a run for all nodes, and find all problems before anything changes
version_added: 0.1.0
description:
  - The steps of the role P(gpufabric.rdma.discovery#role). With O(step=read) it types the host's variables by the
    argument specs of all roles and gathers the node's facts in one call. With O(step=plan) it plans for all hosts that
    were read. With O(step=print) it prints all problems, or else what the run will do. With O(step=refuse) it fails if
    the host has problems. With O(step=compare) it asks the node, in one call, whether a role of the cluster layer has
    anything to do on it, with the options that the roles' own tasks would have. With O(step=tests) it pairs
    nodes for tests; rails of the same index and network are peers.
  - Changes nothing. A host that cannot be read or has a wrong variable does not fail the task. The result says so.
extends_documentation_fragment: [gpufabric.rdma.reading.deciding]
options:
  step: {description: What to do., type: str, required: true, choices: [read, plan, print, refuse, compare, tests]}
  roles:
    description: Roles to plan for. V(discovery) stands for the host layer, with the variables of all roles.
    type: list
    elements: str
    default: []
  hosts:
    description: Hosts to plan for, in their order. With O(step=tests) one that lacks a variable fails the task.
    type: list
    elements: str
    default: []
  server:
    description: A server that is not in this run, for O(step=read) delegated to it. Its variables and facts are read.
    type: str
  answered:
    description: Whether the role node_firewall has probed the ports since the last plan. Its other findings still hold.
    type: bool
    default: false
  offered: {description: 'What the cluster can do with DRA, if it was asked.', type: dict}
  read_since:
    description: Name of the variable in which a later task has registered a newer reading of the nodes.
    type: str
  page: {description: Whether the run ends with the page of the role report., type: bool, default: false}
  partial:
    description: Leave out hosts that could not be read or whose variables are invalid, and plan for the others.
    type: bool
    default: false
  upgrade: {description: Whether the run changes the version of k3s., type: bool, default: false}
  tests:
    description:
      - For O(step=tests), V(fabric), pairs of neighbouring nodes for M(gpufabric.rdma.fabric_tests), from C(read).
      - V(networks), the networks that pods on each node get, from C(read) and C(offered).
      - V(pods), the pods for M(gpufabric.rdma.test_pods), from C(read), C(offered) and, if it ran, C(cni).
      - V(rounds), the rounds of M(gpufabric.rdma.fabric_tests), from C(read). Fails if an HCA is in use and load on it
        is not allowed, except in check mode.
      - V(pod_rounds), the rounds between test pods, from C(read), C(pods), C(ran) and O(port).
    type: str
    choices: [fabric, networks, pods, rounds, pod_rounds]
  variables:
    description:
      - For O(step=tests), names of variables. Of each host C(read), what M(gpufabric.rdma.node_facts) returned, or for
        rounds M(gpufabric.rdma.fabric_tests), and C(cni), what M(gpufabric.rdma.cni_lint) returned.
      - Of the host that runs the task C(offered), what M(gpufabric.rdma.cluster_info) returned, C(pods), what
        O(tests=pods) did, and C(ran), what M(gpufabric.rdma.test_pods) did.
    type: dict
    default: {}
  bandwidth:
    description: For O(tests=pods), keep only those for bandwidth tests, and report for each host why it has none.
    type: bool
    default: false
  port: {description: 'For O(tests=pod_rounds), the first TCP port.', type: int}
"""

EXAMPLES = r"""
- name: Find all problems of the nodes without changing any
  ansible.builtin.include_role:
    name: gpufabric.rdma.discovery

- name: Show what the run would change on this node
  ansible.builtin.debug:
    msg: "{{ __discovery_planned['hosts'][inventory_hostname]['plan'] }}"

- name: Plan the pairs of nodes
  gpufabric.rdma.plan:
    step: tests
    tests: fabric
    hosts: "{{ ansible_play_hosts }}"
    variables: {read: node}
  register: planned
  run_once: true
"""

RETURN = r"""
problems:
  description: What is wrong with the host's variables.
  returned: with O(step=read)
  type: list
  elements: dict
variables:
  description: The effective value of each public variable of the collection, secrets left out.
  returned: with O(step=read)
  type: dict
lost: {description: Why the node could not be reached., returned: 'with O(step=read), if it could not', type: str}
failure: {description: Why the node could not be read., returned: 'with O(step=read), if it could not', type: str}
findings:
  description: Everything that is wrong, each with C(host), C(role), C(object), C(wanted), C(seen), C(next_step), C(id).
  returned: with O(step=plan)
  type: list
  elements: dict
hosts:
  description: For each host its C(findings), its C(name) in the cluster, and by role what to do on it.
  returned: with O(step=plan)
  type: dict
settled:
  description: Whether roles of the host layer have nothing to do on any host, or of the cluster layer on this one.
  returned: with O(step=plan), for the host layer, and with O(step=compare)
  type: bool
reasons: {description: 'What is not as wanted, by role.', returned: with O(step=compare), type: dict}
networks:
  description: Objects of the role networks, or null while nodes have no rails yet; with O(tests=networks) for each host
    its networks, each with C(name) and C(config).
  returned: with O(step=plan), for that role, and with O(tests=networks)
  type: dict
plan:
  description: For V(fabric) C(tests), what has no peer (C(unpaired)) and why, and C(clashes) of addresses. For V(pods)
    C(namespace), C(objects), C(pods), and the hosts C(left_out) with the reason. For rounds C(rounds) (names of tests),
    C(tests), what has no peer (C(alone)) and why, and C(clashes).
  returned: with O(step=tests), but not for V(networks)
  type: dict
parts: {description: 'What each host runs, round by round.', returned: for V(fabric) and V(rounds), type: dict}
grace_seconds:
  description: How long the first node waits for the last one to start.
  returned: for V(fabric) and V(rounds)
  type: int
wait_seconds:
  description: How long until every node has ended its rounds.
  returned: for V(fabric) and V(rounds)
  type: int
"""
