# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_client
short_description: Run the clients of fabric tests on a node
version_added: 0.1.0
description:
  - Runs the client of each of O(tests), one after the other, against the servers that
    M(gpufabric.rdma.fabric_server) started.
  - Changes nothing on the node.
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode no client is started.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  tests:
    description: The tests this node is the client of.
    type: list
    elements: dict
    required: true
  seconds:
    description: How long a bandwidth test runs.
    type: int
    default: 2
  limit:
    description: Seconds after which a test is aborted.
    type: int
    default: 30
"""

EXAMPLES = r"""
- name: Run the clients
  gpufabric.rdma.fabric_client:
    tests: "{{ fabric['hosts'][inventory_hostname]['connect'] }}"
"""

RETURN = r"""
results:
  description: For each test C(id), C(ok), C(error), C(seconds), C(mb_per_s), C(gbps), C(command) and
    C(output).
  returned: success
  type: list
  elements: dict
loaded:
  description: RDMA modules that were loaded meanwhile, because the tools open devices.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.probe import rdma_modules
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import fabric


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "tests": {"type": "list", "elements": "dict", "required": True},
            "seconds": {"type": "int", "default": 2},
            "limit": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    params = module.params
    before = rdma_modules()
    results = [] if module.check_mode else fabric.connect(params["tests"], params["seconds"], params["limit"])
    module.exit_json(changed=False, results=results, loaded=sorted(rdma_modules() - before))


if __name__ == "__main__":
    main()
