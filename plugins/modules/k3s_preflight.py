# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_preflight
short_description: Find everything that keeps k3s from working on any host, before anything changes
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call. Fails once with all problems of all hosts.
  - Refuses overlapping networks, unknown options, agents without a server, an even number of servers, conflicting
    values on servers, node addresses that are missing on the node or shared, ports in use, a bundle with missing or
    altered files or without files for an architecture, unsupported version steps, and clusters that are not ours.
  - Decides each node's role and which files of the bundle it lacks.
requirements:
  - netaddr (the Python library, on the controller)
author:
  - The gpufabric founders (@gpufabric)
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
    support: full
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  hosts:
    description: All hosts of the cluster that take part.
    type: list
    elements: str
    required: true
  variable:
    description:
      - Name of the variable that holds what is known of a host, that is C(host), C(servers), C(variables) by their full
        names, C(facts), C(failure) and C(state), which is what M(gpufabric.rdma.k3s_info) returned.
      - A host that lacks it fails the task.
    type: str
    required: true
  bundle_dir:
    description: Folder on the controller that holds a bundle.
    type: path
  collect:
    description: Return problems in RV(findings) instead of failing, for a list that covers several roles.
    type: bool
    default: false
  upgrade:
    description: Whether a version other than the installed one is allowed, and checked as an upgrade.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Fail with all problems of all hosts, or plan each node
  gpufabric.rdma.k3s_preflight:
    hosts: "{{ ansible_play_hosts_all }}"
    variable: __k3s_node
    bundle_dir: /srv/bundle
  run_once: true
"""

RETURN = r"""
nodes:
  description: For each host C(role), C(options) by file, C(files) of the bundle that it lacks, C(labels), C(node_ip).
  returned: success
  type: dict
findings:
  description: The problems, each with C(host), C(object), C(wanted), C(seen) and C(next_step).
  returned: failure
  type: list
  elements: dict
notes:
  description: What is worth knowing but stops nothing.
  returned: success
  type: list
  elements: str
"""
