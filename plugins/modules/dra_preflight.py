# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: dra_preflight
short_description: Refuse a node that cannot serve over DRA
version_added: 0.1.0
description:
  - Judges what M(gpufabric.rdma.dra_info) and M(gpufabric.rdma.runtime_info) have read, and names everything that is
    wrong.
  - Runs on the controller, makes no remote call and changes nothing.
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
  name:
    description: The node's name in the cluster.
    type: str
    required: true
  runtime:
    description: What M(gpufabric.rdma.runtime_info) returned for the node.
    type: dict
    required: true
  cluster:
    description:
      - RV(gpufabric.rdma.dra_info#module:dra). Without it the API server does not respond yet, and is not judged.
    type: dict
  extended_resources:
    description: Whether classes are to carry the names of extended resources.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Refuse a node that cannot serve over DRA
  gpufabric.rdma.dra_preflight:
    name: node1
    runtime: "{{ runtime }}"
    cluster: "{{ offered['dra'] }}"
"""

RETURN = r"""
findings:
  description: The problems, with C(host), C(id), C(object), C(wanted), C(seen) and C(next_step).
  returned: always
  type: list
  elements: dict
notes:
  description: What the API server's feature gates mean for this cluster.
  returned: success
  type: list
  elements: str
"""
