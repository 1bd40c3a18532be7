# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_backup_store
short_description: Give a fetched backup its name once all of it is there
version_added: 0.1.0
description:
  - Runs on the controller and makes no remote call. Compares each file with the sum that the server gave it, writes
    C(backup.json) and C(SHA256SUMS) beside them, all with mode 0600, and renames the folder.

extends_documentation_fragment:
  - gpufabric.rdma.changing
author:
  - The gpufabric founders (@gpufabric)
attributes:
  action:
    description: Indicates this has a corresponding action plugin so some parts of the options can be executed on
      the controller.
    support: full
options:
  partial:
    description: Folder that the files were fetched to.
    type: path
    required: true
  place:
    description: Folder of the backup.
    type: path
    required: true
  backup:
    description: What the backup holds, as M(gpufabric.rdma.k3s_backup) returned it.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Store the backup
  gpufabric.rdma.k3s_backup_store:
    partial: /srv/backups/.20261124T220000Z.partial
    place: /srv/backups/20261124T220000Z
    backup: "{{ saved['backup'] }}"
"""

RETURN = r"""
changes:
  description: The folder that was stored.
  returned: success
  type: list
  elements: dict
findings:
  description: Files that are not what the server saved.
  returned: always
  type: list
  elements: dict
"""
