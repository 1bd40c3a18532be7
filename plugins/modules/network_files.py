# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: network_files
short_description: Manage network configurations of one node, read by Multus
version_added: 0.1.0
description:
  - A NetworkAttachmentDefinition with an empty spec takes its configuration from a file on each node. This gives nodes
    different address blocks or masters under one name.
  - The module owns files whose name begins with C(gpufabric-rdma-); it removes unwanted ones and leaves all other
    files alone.
extends_documentation_fragment:
  - gpufabric.rdma.changing
  - gpufabric.rdma.changing.root
author:
  - The gpufabric founders (@gpufabric)
options:
  configs:
    description: The configurations as text, by the name of their network.
    type: dict
    required: true
  directory:
    description: Where Multus looks for them (its C(confDir)).
    type: path
    default: /etc/cni/multus/net.d
"""

EXAMPLES = r"""
- name: Give this node its block of the rail
  gpufabric.rdma.network_files:
    configs:
      rail0: '{"cniVersion": "0.3.1", "name": "rail0", "type": "macvlan", "master": "eth2"}'
"""

RETURN = r"""
changes:
  description: What was changed, or would be in check mode.
  returned: always
  type: list
  elements: dict
findings:
  description: Why the node did not reach the wanted state, with C(object), C(wanted), C(seen) and C(next_step).
  returned: always
  type: list
  elements: dict
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni.network_files import PREFIX, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import apply_file
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree


def read(root: str, directory: str) -> dict:
    tree = Tree(root)
    facts: dict = {"owned_files": {}, "others": {}}
    for name in tree.listdir(directory):
        path = f"{directory}/{name}"
        if name.startswith(PREFIX):
            mode = os.stat(os.path.join(root, path.lstrip("/"))).st_mode & 0o7777
            facts["owned_files"][path] = {"content": tree.read(path) or "", "mode": f"{mode:04o}"}
        elif name.endswith((".conf", ".conflist", ".json")):
            facts["others"][path] = tree.read(path) or ""
    return facts


def apply(changes, root: str):
    for change in changes:
        apply_file(root, change)
        yield change


def main():
    module = AnsibleModule(
        argument_spec={
            "configs": {"type": "dict", "required": True},
            "directory": {"type": "path", "default": "/etc/cni/multus/net.d"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root, directory = module.params["root"], module.params["directory"].rstrip("/")
    converge(
        module,
        read=lambda: read(root, directory),
        plan=lambda facts: plan(facts, module.params["configs"], directory),
        apply=lambda changes: apply(changes, root),
    )


if __name__ == "__main__":
    main()
