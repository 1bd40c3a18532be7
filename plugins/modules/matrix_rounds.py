# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: matrix_rounds
short_description: Run a node's part of the bandwidth matrix in a separate process
version_added: 0.1.0
description:
  - Runs the rounds of M(gpufabric.rdma.plan_matrix) in a process that outlives the call, so that all nodes
    send at the same time.
  - Makes no permanent change. The process exits on its own; V(finished) or V(absent) removes its files.
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode nothing is sent.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  state:
    description:
      - V(started) starts O(rounds) and returns at once.
      - V(finished) waits for the end of the rounds and returns their results.
      - V(absent) stops the rounds at once.
    type: str
    required: true
    choices: [started, finished, absent]
  root:
    description: Root directory of the node.
    type: path
    default: /
  rounds:
    description: For V(started), this node's part of each round.
    type: list
    elements: dict
    default: []
  seconds:
    description: How long each test sends.
    type: int
    default: 5
  round_seconds:
    description: Timeout of a round.
    type: int
    default: 30
  grace_seconds:
    description: How much later than this one the last node may start.
    type: int
    default: 30
  wait_seconds:
    description: For V(finished), how long to wait.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Start the rounds
  gpufabric.rdma.matrix_rounds:
    state: started
    rounds: "{{ planned['parts'][inventory_hostname] }}"

- name: Wait for the results
  gpufabric.rdma.matrix_rounds:
    state: finished
  register: collected
"""

RETURN = r"""
results:
  description: For each end that this node had C(id), C(role), C(ok), C(error), C(counters) (by how much each rose);
    for clients C(gbps) too.
  returned: O(state=finished)
  type: list
  elements: dict
error:
  description: Why the process gave no results, or null.
  returned: O(state=finished)
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import rounds


def run(params: dict) -> dict:
    root = params["root"]
    if params["state"] == "finished":
        return rounds.collect(params["wait_seconds"], root)
    if params["state"] == "absent":
        rounds.stop(root)
    else:
        options = {name: params[name] for name in ("seconds", "round_seconds", "grace_seconds")}
        rounds.start(params["rounds"], {**options, "tool": rounds.tool(root) or rounds.TOOL}, root)
    return {}


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["started", "finished", "absent"]},
            "root": {"type": "path", "default": "/"},
            "rounds": {"type": "list", "elements": "dict", "default": []},
            "seconds": {"type": "int", "default": 5},
            "round_seconds": {"type": "int", "default": 30},
            "grace_seconds": {"type": "int", "default": 30},
            "wait_seconds": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    result = {}
    try:
        if not module.check_mode:
            result = run(module.params)
    except (OSError, ValueError) as error:
        module.fail_json(
            msg=f"rounds of the bandwidth matrix: wanted {module.params['state']}, seen {error}. "
            f"Next step: fix that, remove /{rounds.STATE} and run again"
        )
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
