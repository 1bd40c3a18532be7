# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter of the role driver: bundle folder and facts in, the package of this node out."""

from __future__ import annotations

DOCUMENTATION = r"""
name: driver_package
short_description: The doca-host package that a bundle folder has for a node
version_added: 0.1.0
description:
  - Finds the driver package of a version for the distribution and architecture of a node in a folder that
    playbooks/bundle.yml has filled.
positional: facts, version
options:
  _input:
    description:
      - The bundle folder. Empty for none.
    type: path
    required: true
  facts:
    description:
      - C(ansible_facts.rdma) of the node, or its part RV(gpufabric.rdma.hca_facts#module:ansible_facts) C(node).
    type: dict
    required: true
  version:
    description:
      - Version of the driver, such as V(3.2.3).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the driver package of a node
  ansible.builtin.debug:
    msg: "{{ '/srv/bundle' | gpufabric.rdma.driver_package(ansible_facts['rdma'], '3.2.3') }}"
"""

RETURN = r"""
_value:
  description:
    - C(path) and C(sha256) of the package; empty if the folder has none.
  type: dict
"""

import os

from ansible.module_utils.common.validation import check_type_path
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import driver, folder


def driver_package(directory: str | None, facts: dict, version: str) -> dict:
    directory = check_type_path(directory or "")
    rows = driver.packages(folder.described(directory) or {}, facts.get("node", facts), version)
    return {"path": os.path.join(directory, rows[0]["path"]), "sha256": rows[0]["sha256"]} if rows else {}


class FilterModule:
    def filters(self) -> dict:
        return {"driver_package": driver_package}
