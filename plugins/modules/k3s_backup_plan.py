# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_backup_plan
short_description: Choose the server whose datastore is backed up, and where the backup goes
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call. Fails when no server runs k3s, or the folder cannot be written to.

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
  nodes:
    description: For each server C(host), C(failure) and C(state), which is what M(gpufabric.rdma.k3s_info) returned.
    type: list
    elements: dict
    required: true
  folder:
    description: Folder of the controller that holds the backups.
    type: path
  name:
    description: Name of the backup.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Choose server and folder
  gpufabric.rdma.k3s_backup_plan:
    nodes: "{{ ansible_play_hosts_all | map('extract', hostvars, '__k3s_saved_node') }}"
    folder: /srv/backups
    name: 20261124T220000Z
  run_once: true
"""

RETURN = r"""
server:
  description: The first server that runs k3s.
  returned: success
  type: str
place:
  description: Folder of the backup.
  returned: success
  type: str
partial:
  description: Folder that is renamed to it when the backup is whole.
  returned: success
  type: str
findings:
  description: The problems, each with C(host), C(object), C(wanted), C(seen) and C(next_step).
  returned: failure
  type: list
  elements: dict
"""
