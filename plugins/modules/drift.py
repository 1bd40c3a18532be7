# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: drift
short_description: Mark the beginning and the end of a comparison for the drift recorder
version_added: 0.1.0
description:
  - Part of the playbook C(gpufabric.rdma.drift). Runs on the controller only and makes no connection.
  - The callback plugin P(gpufabric.rdma.drift#callback) reads the marks; V(begin) fails if it is not loaded
    or the run is not in check mode.
author:
  - The gpufabric founders (@gpufabric)
attributes:
  action:
    support: full
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
  check_mode:
    support: full
    description: Requires it. V(begin) removes the files of an earlier run from the controller.
  diff_mode:
    support: none
    description: There is no change to show.
options:
  mark:
    description:
      - V(begin) names the hosts and the files, and removes those of an earlier run.
      - V(note) adds a remark to the reasons of a host.
      - V(end) closes the comparison on the hosts it names.
    type: str
    required: true
    choices: [begin, note, end]
  hosts:
    description: For V(begin), every host that needs a verdict; for V(end), those whose record is closed.
    type: list
    elements: str
    default: []
  text:
    description: For V(note), the remark.
    type: str
    default: ""
  run:
    description: For V(begin), the name of this run, which the verdict file repeats.
    type: str
    default: ""
  directory:
    description: For V(begin), the folder of the files below. A relative path starts at Ansible's working directory.
    type: str
    default: drift
  json_file:
    description: Where the drift document goes; empty writes none.
    type: str
    default: ""
  junit_file:
    description: Where the JUnit XML goes; empty writes none.
    type: str
    default: ""
  verdict_file:
    description: Where the verdict goes; empty writes none.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Begin
  gpufabric.rdma.drift:
    mark: begin
    hosts: "{{ ansible_play_hosts_all }}"
    json_file: drift.json
    verdict_file: verdict.json
  run_once: true

- name: Close the node's drift record
  gpufabric.rdma.drift:
    mark: end
"""

RETURN = r"""
drift_mark:
  description: The O(mark), by which the recorder identifies the result.
  returned: always
  type: str
settings:
  description: For V(begin), the files with full paths, and O(run).
  returned: success
  type: dict
"""
