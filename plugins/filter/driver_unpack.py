# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter of the role driver: the command that unpacks a package."""

from __future__ import annotations

DOCUMENTATION = r"""
name: driver_unpack
short_description: Command that extracts a deb or an rpm
version_added: 0.1.0
description:
  - The arguments of the command that extracts a package into a folder that exists, without installing it.
positional: folder
options:
  _input:
    description:
      - Path of the package on the node.
    type: path
    required: true
  folder:
    description:
      - Folder to extract it into.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Unpack a package
  ansible.builtin.command:
    argv: "{{ '/tmp/doca-host.rpm' | gpufabric.rdma.driver_unpack('/tmp/doca-host') }}"
    creates: /tmp/doca-host/usr
"""

RETURN = r"""
_value:
  description:
    - The command.
  type: list
  elements: str
"""

from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import packages


class FilterModule:
    def filters(self) -> dict:
        return {"driver_unpack": packages.unpack_command}
