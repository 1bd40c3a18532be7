# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_server
short_description: Start and stop the servers of fabric tests on a node
version_added: 0.1.0
description:
  - Runs one server for each test that M(gpufabric.rdma.plan_fabric) assigned to this node.
  - Makes no permanent change. A server exits once all clients had their time, or with O(state=absent).
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode no server is started or stopped.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  state:
    description:
      - V(started) stops what an earlier call left and starts one server for each of O(tests).
      - V(absent) stops the servers, removes their files and returns their output.
    type: str
    default: started
    choices: [started, absent]
  tests:
    description: For V(started), the tests this node serves.
    type: list
    elements: dict
    default: []
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
- name: Start the servers
  gpufabric.rdma.fabric_server:
    tests: "{{ fabric['hosts'][inventory_hostname]['serve'] }}"

- name: Stop the servers
  gpufabric.rdma.fabric_server:
    state: absent
"""

RETURN = r"""
servers:
  description: Why the server of a test did not start, or null, by test.
  returned: O(state=started)
  type: dict
said:
  description: What each server printed, by test.
  returned: O(state=absent)
  type: dict
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
            "state": {"type": "str", "default": "started", "choices": ["started", "absent"]},
            "tests": {"type": "list", "elements": "dict", "default": []},
            "seconds": {"type": "int", "default": 2},
            "limit": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    params, tests = module.params, module.params["tests"]
    before = rdma_modules()
    started = params["state"] == "started"
    result = {}
    try:
        if module.check_mode:
            pass
        elif started:
            # A server must outlive all clients that run before its own, one after the other.
            result = fabric.serve(tests, params["seconds"], params["limit"] * (len(tests) + 1))
        else:
            result = fabric.stop()
    except (OSError, ValueError) as error:
        module.fail_json(
            msg=f"servers of the fabric tests: wanted {params['state']}, seen {error}. "
            f"Next step: fix that, remove {fabric.STATE} and run again"
        )
    loaded = sorted(rdma_modules() - before)
    module.exit_json(changed=False, loaded=loaded, **{"servers" if started else "said": result})


if __name__ == "__main__":
    main()
