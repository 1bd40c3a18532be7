# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_test
short_description: The node side of verification
version_added: 0.1.0
description:
  - Reads the node afresh and tries what a container would do (O(stage=host)), and runs the two ends of the fabric tests
    that M(gpufabric.rdma.verify_checks) planned.
  - Changes nothing on the node. Servers are bounded processes; O(stage=stop) ends them and removes their files.
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode no server and no client is started.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  stage:
    description:
      - V(host) reads facts, character devices and tools, and locks memory as O(user) under the limit of each service.
      - V(serve) starts one server for each of O(tests).
      - V(connect) runs the client of each of O(tests), one after the other.
      - V(stop) ends the servers and returns what they said.
    type: str
    required: true
    choices: [host, serve, connect, stop]
  root:
    description: Folder that holds the node's tree. Only facts can be read from one that is not V(/).
    type: path
    default: /
  software_hcas:
    description: Whether soft-RoCE and siw devices count as HCAs.
    type: bool
    default: false
  rails:
    description: As for M(gpufabric.rdma.hca_facts).
    type: list
    elements: dict
    default: []
    suboptions:
      hca:
        description: Name of the HCA.
        type: str
      pci:
        description: PCI address.
        type: str
      netdev:
        description: Name of its network device.
        type: str
      mac:
        description: MAC address of its network device.
        type: str
      port:
        description: Number of the port, where the HCA has several.
        type: int
  services:
    description: Services under whose limit to lock memory.
    type: list
    elements: str
    default: []
  user:
    description: User that locks memory.
    type: str
    default: nobody
  tests:
    description: The tests this node takes part in.
    type: list
    elements: dict
    default: []
  seconds:
    description: How long a bandwidth test sends.
    type: int
    default: 2
  limit:
    description: Seconds after which one test is given up.
    type: int
    default: 30
"""

EXAMPLES = r"""
- name: Read the node and try what a container would do
  gpufabric.rdma.fabric_test:
    stage: host
    services: [k3s]
"""

RETURN = r"""
ansible_facts:
  description: With O(stage=host), the facts as M(gpufabric.rdma.hca_facts) returns them.
  returned: O(stage=host)
  type: dict
probe:
  description: C(char_devices) and C(memlock) (null where a tree of files is read), and C(tools).
  returned: O(stage=host)
  type: dict
servers:
  description: Why the server of a test did not start, or null, by test.
  returned: O(stage=serve)
  type: dict
results:
  description: For each test C(id), C(ok), C(error), C(seconds), C(mb_per_s), C(gbps), C(command) and
    C(output).
  returned: O(stage=connect)
  type: list
  elements: dict
said:
  description: What each server printed, by test.
  returned: O(stage=stop)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import fabric
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Seams, Tree, gather

TOOLS = ("rping", "ib_write_bw")


def host(params):
    tree = Tree(params["root"])
    rails = [{key: value for key, value in rail.items() if value is not None} for rail in params["rails"]]
    facts = gather(tree, Seams.of(tree), software_hcas=params["software_hcas"], rails=rails)
    if params["root"].rstrip("/"):
        probe = {"char_devices": None, "memlock": {}, "tools": []}
    else:
        probe = {
            "char_devices": fabric.char_devices(),
            "memlock": memlock(facts["limits"]["services"], params["services"], params["user"]),
            "tools": fabric.tools(TOOLS),
        }
    return {"ansible_facts": {"rdma": facts}, "probe": probe}


def memlock(states, services, user):
    """Try once for each distinct limit; services share the answer."""
    answers = {}
    found = {}
    for service in services:
        state = states.get(service) or {}
        limit = state.get("memlock")
        if not state.get("exists") or limit is None:
            continue
        if str(limit).startswith("unknown"):
            found[service] = {"locked": 0, "error": None, "reason": limit}
            continue
        if limit not in answers:
            answers[limit] = fabric.lock_memory(limit, user)
        found[service] = answers[limit]
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "stage": {"type": "str", "required": True, "choices": ["host", "serve", "connect", "stop"]},
            "root": {"type": "path", "default": "/"},
            "software_hcas": {"type": "bool", "default": False},
            "rails": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "hca": {"type": "str"},
                    "pci": {"type": "str"},
                    "netdev": {"type": "str"},
                    "mac": {"type": "str"},
                    "port": {"type": "int"},
                },
            },
            "services": {"type": "list", "elements": "str", "default": []},
            "user": {"type": "str", "default": "nobody"},
            "tests": {"type": "list", "elements": "dict", "default": []},
            "seconds": {"type": "int", "default": 2},
            "limit": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    params = module.params
    tests, seconds, limit = params["tests"], params["seconds"], params["limit"]
    stage = params["stage"]
    try:
        if stage == "host":
            result = host(params)
        elif stage == "serve":
            # A server outlives all clients before its own, which run one after the other.
            result = {"servers": {} if module.check_mode else fabric.serve(tests, seconds, limit * (len(tests) + 1))}
        elif stage == "connect":
            result = {"results": [] if module.check_mode else fabric.connect(tests, seconds, limit)}
        else:
            result = {"said": {} if module.check_mode else fabric.stop()}
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"stage {stage} of the verification did not run through: {error}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
