# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: matrix_test
short_description: The node side of the bandwidth matrix
version_added: 0.1.0
description:
  - Says whether the node can take part (O(stage=read)), goes through the rounds of M(gpufabric.rdma.matrix) in
    a process of its own (O(stage=start)) and returns what they showed (O(stage=collect)).
  - Changes nothing on the node. The process ends by itself; O(stage=stop) ends it and removes its files.
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
  stage:
    description:
      - V(read) looks for C(ib_write_bw), for processes that use an HCA, and for the CPU frequency governors.
      - V(start) begins with O(rounds) and returns at once.
      - V(collect) waits for their end.
      - V(stop) ends them.
    type: str
    required: true
    choices: [read, start, collect, stop]
  root:
    description: Folder of the node's tree. Another one than V(/) takes part only if it holds usr/bin/ib_write_bw.
    type: path
    default: /
  hcas:
    description: For V(read), the HCAs of the node's facts.
    type: list
    elements: dict
    default: []
  cuda:
    description: For V(read), whether to ask C(ib_write_bw) if it was built with CUDA.
    type: bool
    default: false
  rounds:
    description: For V(start), this node's part of each round.
    type: list
    elements: dict
    default: []
  seconds:
    description: How long each test sends.
    type: int
    default: 5
  round_seconds:
    description: After how long a round is given up.
    type: int
    default: 30
  grace_seconds:
    description: How much later than this one the last node may start.
    type: int
    default: 30
  wait_seconds:
    description: For V(collect), how long to wait.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: See whether the node can take part
  gpufabric.rdma.matrix_test:
    stage: read
    hcas: "{{ ansible_facts['rdma']['hcas'] }}"
"""

RETURN = r"""
tools:
  description: V(ib_write_bw) where it is there, else empty.
  returned: O(stage=read)
  type: list
  elements: str
in_use:
  description: Processes that have the verbs device of an HCA open, by HCA.
  returned: O(stage=read)
  type: dict
governors:
  description: How many CPUs run under each frequency governor.
  returned: O(stage=read)
  type: dict
cuda:
  description: Whether C(ib_write_bw) sends from GPU memory; null if O(cuda=false).
  returned: O(stage=read)
  type: bool
results:
  description: For each end that this node had C(id), C(role), C(ok), C(error), C(counters) (by how much each rose);
    for clients C(gbps) too.
  returned: O(stage=collect)
  type: list
  elements: dict
error:
  description: Why the process gave no results, or null.
  returned: O(stage=collect)
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import risk
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import rounds
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, counters


def read(params):
    tree = Tree(params["root"])
    tool = rounds.tool(params["root"])
    processes, _sockets = risk.processes(tree)
    return {
        "tools": [rounds.TOOL] if tool else [],
        "in_use": rounds.users(processes, params["hcas"]),
        "governors": counters.governors(tree),
        "cuda": rounds.has_cuda(tool) if params["cuda"] and tool else None,
    }


def run(params):
    root = params["root"]
    if params["stage"] == "start":
        options = {name: params[name] for name in ("seconds", "round_seconds", "grace_seconds")}
        options["tool"] = rounds.tool(root) or rounds.TOOL
        rounds.start(params["rounds"], options, root)
        return {}
    if params["stage"] == "collect":
        return rounds.collect(params["wait_seconds"], root)
    rounds.stop(root)
    return {}


def main():
    module = AnsibleModule(
        argument_spec={
            "stage": {"type": "str", "required": True, "choices": ["read", "start", "collect", "stop"]},
            "root": {"type": "path", "default": "/"},
            "hcas": {"type": "list", "elements": "dict", "default": []},
            "cuda": {"type": "bool", "default": False},
            "rounds": {"type": "list", "elements": "dict", "default": []},
            "seconds": {"type": "int", "default": 5},
            "round_seconds": {"type": "int", "default": 30},
            "grace_seconds": {"type": "int", "default": 30},
            "wait_seconds": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    params = module.params
    result = {}
    try:
        if params["stage"] == "read":
            result = read(params)
        elif not module.check_mode:
            result = run(params)
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"stage {params['stage']} of the bandwidth matrix did not run through: {error}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
