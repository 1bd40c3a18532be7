# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_info
short_description: Read the k3s state of a node for the preflight
version_added: 0.1.0
description:
  - Reads program, image archives, services, addresses, routes, SELinux and other Kubernetes distributions of a node.
  - No content of a configuration file and no secret leaves the node.
  - Changes nothing.
author:
  - The gpufabric founders (@gpufabric)
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
options:
  tests_namespace:
    description: Name of the namespace that test pods will use. On a server it is looked at, if it exists.
    type: str
  shared_address:
    description: Address that servers are to share. The result says whether a machine answers at it, and whether
      keepalived is installed or can be.
    type: str
  kubectl:
    description: The kubectl command, word by word.
    type: list
    elements: str
    default: [k3s, kubectl]
"""

EXAMPLES = r"""
- name: Gather k3s facts
  gpufabric.rdma.k3s_info:
  register: read
"""

RETURN = r"""
k3s:
  description: The state, as M(gpufabric.rdma.k3s_preflight) expects it.
  returned: success
  type: dict
  contains:
    architecture:
      description: Architecture, V(amd64) or V(arm64).
      type: str
    python:
      description: Version of Python that modules run with, such as V(3.11).
      type: str
    clock:
      description: Seconds since the epoch by the node's clock, as it was read.
      type: float
    version:
      description: Version of the installed program, such as C(v1.35.8+k3s1).
      type: str
    sums:
      description: SHA-256 of the program and of each image archive, by path.
      type: dict
    addresses:
      description: IPv4 addresses, each with C(netdev) and C(address).
      type: list
    services:
      description: For C(k3s) and C(k3s-agent) whether the service exists, is active and enabled.
      type: dict
    foreign_files:
      description: Files of a k3s that this collection did not set up.
      type: list
    shared_address:
      description: The address that this node shares with other servers by its configuration, or nothing.
      type: str
    address_files:
      description: Files by which this node shares an address with other servers, of now or of an earlier run.
      type: list
    shared:
      description: Of O(shared_address), C(answers), C(installed) and C(offered).
      type: dict
    namespaces:
      description: Findings about O(tests_namespace), where it exists and is not ours.
      type: list
    others:
      description: Other Kubernetes distributions with files on the node.
      type: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import unreadable
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import k3s


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "tests_namespace": {"type": "str"},
            "shared_address": {"type": "str"},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        found = k3s.state(module.run_command, **module.params)
    except OSError as error:
        module.fail_json(msg=unreadable(error))
    module.exit_json(changed=False, k3s=found)


if __name__ == "__main__":
    main()
