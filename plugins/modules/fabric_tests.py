# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_tests
short_description: Run a node's ends of the tests between nodes
version_added: 0.1.0
description:
  - Runs C(rping) and C(ib_write_bw) as M(gpufabric.rdma.plan_tests) assigned them to this node.
  - Makes no permanent change. A server exits once all clients had their time, or with O(state=absent).
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode no server is started or stopped, and no client is run.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  state:
    description:
      - V(started) stops what an earlier call left and starts a server for each of O(tests).
      - V(finished) runs the client of each of O(tests), one after the other, against the servers of the other nodes.
      - V(absent) stops the servers, removes their files and returns their output.
    type: str
    required: true
    choices: [started, finished, absent]
  tests:
    description: The tests that this node serves, or is the client of.
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
  gpufabric.rdma.fabric_tests:
    state: started
    tests: "{{ planned['hosts'][inventory_hostname]['serve'] }}"

- name: Run the clients
  gpufabric.rdma.fabric_tests:
    state: finished
    tests: "{{ planned['hosts'][inventory_hostname]['connect'] }}"

- name: Stop the servers
  gpufabric.rdma.fabric_tests:
    state: absent
"""

RETURN = r"""
servers:
  description: Why the server of a test did not start, or null, by test.
  returned: O(state=started)
  type: dict
results:
  description: For each test C(id), C(ok), C(error), C(seconds), C(mb_per_s), C(gbps), C(command) and C(output).
  returned: O(state=finished)
  type: list
  elements: dict
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
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.probe import rdma_modules
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import fabric


def run(state: str, tests: list[dict], seconds: int, limit: int, check_mode: bool) -> dict:
    if state == "started":
        # A server must outlive all clients that run before its own, one after the other.
        return {"servers": {} if check_mode else fabric.serve(tests, seconds, limit * (len(tests) + 1))}
    if state == "finished":
        return {"results": [] if check_mode else fabric.connect(tests, seconds, limit)}
    return {"said": {} if check_mode else fabric.stop()}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["started", "finished", "absent"]},
            "tests": {"type": "list", "elements": "dict", "default": []},
            "seconds": {"type": "int", "default": 2},
            "limit": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    with reported(module):
        before, result = rdma_modules(), {}
        try:
            result = run(**module.params, check_mode=module.check_mode)
        except (OSError, ValueError) as error:
            module.fail_json(
                msg=f"fabric tests: wanted {module.params['state']}, seen {error}. "
                f"Next step: fix that, remove {fabric.STATE} and run again"
            )
        module.exit_json(changed=False, loaded=sorted(rdma_modules() - before), **result)


if __name__ == "__main__":
    main()
