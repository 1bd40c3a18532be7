# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Find all problems in a host's variables and facts before anything changes
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call.
  - Checks the host's variables against the argument specs of all roles of this collection, finds unknown and mistyped
    ones, compares them with the facts, and computes what a run would change.
  - Given O(results) it reports on the whole play instead, and fails once with all problems of all hosts.
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
  facts:
    description: RV(gpufabric.rdma.hca_facts#module:ansible_facts.rdma) of the host. Without it only the variables are
      checked.
    type: dict
  failure:
    description: Why the host's facts could not be read.
    type: str
  unreachable:
    description: Why the host could not be reached.
    type: str
  results:
    description: What this module returned for each host of the play. Reports on all of them.
    type: list
    elements: dict
  further:
    description: Problems found elsewhere, each with C(host), C(object), C(wanted), C(seen) and C(next_step).
      They are reported in the same list, each once.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Validate variables against the node
  gpufabric.rdma.preflight:
    facts: "{{ ansible_facts['rdma'] }}"
  register: examined

- name: Stop with all problems of all hosts, or print the plan
  gpufabric.rdma.preflight:
    results: "{{ ansible_play_hosts_all | map('extract', hostvars, 'examined') }}"
  run_once: true
"""

RETURN = r"""
host:
  description: The inventory name of the host.
  returned: without O(results)
  type: str
variables:
  description: The effective value of each public variable of the collection, secrets left out.
  returned: without O(results)
  type: dict
findings:
  description: What must be fixed first.
  returned: without O(results)
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
      description: What to do.
      type: str
    id:
      description: Id of a known finding, else empty.
      type: str
plan:
  description: What a run would change, each with C(object), C(action), C(before), C(after) and C(why). With O(results),
    the printed text.
  returned: success
  type: list
  elements: raw
settled:
  description: Whether no role of the host layer would do more on the node than repeat the notes of this plan.
  returned: without O(results)
  type: bool
reboot_reasons:
  description: Why the node would have to be rebooted.
  returned: without O(results)
  type: list
  elements: str
notes:
  description: What is worth knowing but stops nothing.
  returned: without O(results)
  type: list
  elements: str
"""
