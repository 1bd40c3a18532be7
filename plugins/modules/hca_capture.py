# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: hca_capture
short_description: Capture the files that a node's RDMA facts come from, scrubbed
version_added: 0.1.0
description:
  - Gathers the facts of M(gpufabric.rdma.hca_facts) and returns every file, link and answer they came from as one
    fixture that reproduces the same facts.
  - GUIDs, MACs, GIDs, IP addresses, UUIDs (boot id, disks, GPUs, pods), container ids and the machine's name are
    replaced. The same original gives the same replacement, so that a MAC and its EUI-64 GID, or an address and its
    subnet, still belong together.
  - Commands and variables of systemd units, other packages and other kernel modules are left out.
  - Review the result before you share it; names of interfaces, files and units are kept.
extends_documentation_fragment:
  - gpufabric.rdma.reading
author:
  - The gpufabric founders (@gpufabric)
options:
  name:
    description:
      - Name of the fixture. It is not scrubbed, so choose one that may be public.
    type: str
    required: true
  about: {description: 'One line about the node. The default names its system, kernel, GPUs and HCAs.', type: str}
  root: {description: Root directory of the node; V(/) is the machine itself., type: path, default: /}
seealso:
  - module: gpufabric.rdma.hca_facts
"""

EXAMPLES = r"""
- name: Capture this node
  gpufabric.rdma.hca_capture:
    name: h100-rack-7
  register: captured

- name: Write the capture beside the playbook
  gpufabric.rdma.report:
    kind: capture
    fixture: "{{ captured.fixture }}"
    file: "{{ playbook_dir }}/h100-rack-7.yml"
"""

RETURN = r"""
fixture:
  description:
    - The node as one dictionary with the keys name, about, provenance, seams, links, files, binary, errors, modes,
      mtimes, directories and repeat; keys without content are left out.
  returned: success
  type: dict
  sample:
    name: h100-rack-7
    files:
      /sys/devices/pci0000:15/0000:15:01.0:
        vendor: "0x8086"
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.capture import capture


def main():
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "about": {"type": "str"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    if not os.path.isdir(root):
        module.fail_json(f"root {root}: wanted the root directory of a node, seen none; use / for this machine")
    with reported(module):
        fixture, _facts, _scrubber = capture(root, module.params["name"], module.params["about"])
        module.exit_json(changed=False, fixture=fixture)


if __name__ == "__main__":
    main()
