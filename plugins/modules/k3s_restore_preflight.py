# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_restore_preflight
short_description: Find everything that keeps a backup from being restored, before anything changes
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call. Fails once with all problems of all hosts.
  - Refuses a backup that is damaged, or was made by another cluster or another version of k3s, nodes that do not
    answer, servers that the run leaves out, and a token that was changed after the backup.
  - Asks for consent with what it would do. Knows a restore that was cut off, and one that is done.
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
    description: For each host C(host), C(servers), C(failure), C(state), which is what M(gpufabric.rdma.k3s_info)
      returned, and C(decision), which is what M(gpufabric.rdma.k3s_preflight) returned.
    type: list
    elements: dict
    required: true
  folder:
    description: Folder of the controller with the backup.
    type: path
  now:
    description: Time that names a restore which begins now.
    type: str
    required: true
  allowed:
    description: Whether the backup may be restored. Without it the module fails and says what would be done.
    type: bool
  again:
    description: Whether a backup that has been restored is restored once more.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Fail with all problems of all hosts
  gpufabric.rdma.k3s_restore_preflight:
    nodes: "{{ ansible_play_hosts_all | map('extract', hostvars, '__k3s_restored_node') }}"
    folder: /srv/backups/20261124T220000Z
    now: 20261125T060000Z
    allowed: true
  run_once: true
"""

RETURN = r"""
backup:
  description: The C(backup.json) of the backup.
  returned: success
  type: dict
stamp:
  description: What names this restore.
  returned: success
  type: str
hosts:
  description: Hosts that are not restored yet, and may be.
  returned: success
  type: list
  elements: str
findings:
  description: The problems, each with C(host), C(object), C(wanted), C(seen) and C(next_step).
  returned: failure
  type: list
  elements: dict
"""
