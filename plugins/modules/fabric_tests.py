# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_tests
short_description: Run a node's part of the tests between nodes
version_added: 0.1.0
description:
  - Runs the rounds of M(gpufabric.rdma.plan), C(rping) and C(ib_write_bw), in a process that outlives the call,
    so that all nodes send at the same time.
  - Also asks whether ports of other nodes are reachable. The answer covers everything between the nodes, such as a
    switch, a firewall or a cloud's security group.
  - Makes no permanent change. The process exits on its own; V(finished) or V(absent) removes its files.
author: The gpufabric founders (@gpufabric)
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
      - V(read) checks whether the node can take part. It looks for C(ib_write_bw), for processes that use an HCA, and
        for the CPU frequency governors.
      - V(started) starts O(rounds) and returns at once.
      - V(finished) waits for the end of the rounds and returns their results.
      - V(absent) stops the rounds at once.
      - V(probed), in check mode too, ends O(stop), listens on the free ports of O(listen), in a process that outlives
        the call and exits on its own, and then asks O(ask).
    type: str
    required: true
    choices: [read, started, finished, absent, probed]
  root:
    description: Root directory of the node. With anything but V(/) it must contain usr/bin/ib_write_bw.
    type: path
    default: /
  hcas: {description: "For V(read), the HCAs of the node's facts.", type: list, elements: dict, default: []}
  cuda:
    description: For V(read), whether to check that C(ib_write_bw) was built with CUDA.
    type: bool
    default: false
  networks_directory:
    description: For V(read), where Multus reads network configurations. If set, RV(networks) is returned.
    type: path
  rounds: {description: "For V(started), this node's part of each round.", type: list, elements: dict, default: []}
  listen:
    description: For V(probed), where to answer, each with C(protocol) (V(tcp) or V(udp)), C(address) and C(port).
    type: list
    elements: dict
    default: []
  ask:
    description: For V(probed), what to ask, all at the same time, each with C(protocol) (V(tcp), V(udp) or V(ping)),
      C(address) and C(port). Other keys are returned unchanged.
    type: list
    elements: dict
    default: []
  stop: {description: 'For V(probed), a C(listener) to end.', type: dict}
  seconds:
    description: How long each test sends, or for O(listen) how long ports are answered at most.
    type: int
    default: 5
  round_seconds: {description: Timeout of a round., type: int, default: 30}
  grace_seconds: {description: How much later than this one the last node may start., type: int, default: 30}
  wait_seconds: {description: 'For V(finished), how long to wait.', type: int, default: 600}
"""

EXAMPLES = r"""
- name: Check whether the node can take part
  gpufabric.rdma.fabric_tests:
    state: read
    hcas: "{{ ansible_facts['rdma']['hcas'] }}"

- name: Start the rounds
  gpufabric.rdma.fabric_tests:
    state: started
    rounds: "{{ planned['parts'][inventory_hostname] }}"

- name: Wait for the results
  gpufabric.rdma.fabric_tests:
    state: finished
  register: collected

- name: Answer at the port of the kubelet for five minutes
  gpufabric.rdma.fabric_tests:
    state: probed
    listen:
      - {protocol: tcp, address: 192.0.2.1, port: 10250}
    seconds: 300
  register: listening
"""

RETURN = r"""
tools: {description: 'V(ib_write_bw) if installed, else empty.', returned: O(state=read), type: list, elements: str}
in_use:
  description: Processes that have the verbs device of an HCA open, by HCA.
  returned: O(state=read)
  type: dict
governors: {description: How many CPUs run under each frequency governor., returned: O(state=read), type: dict}
cuda:
  description: Whether C(ib_write_bw) sends from GPU memory, C(send), and can register it by dma-buf, C(dmabuf). Null if
    O(cuda=false).
  returned: O(state=read)
  type: dict
networks:
  description: As M(gpufabric.rdma.node_facts) returns them. Null without O(networks_directory).
  returned: O(state=read)
  type: dict
results:
  description: For each end that this node had C(id), C(role), C(ok), C(error), C(counters) (by how much each rose);
    C(by_priority), what its NIC counted (bytes, pause frames and drops by priority), null where the driver does not;
    for clients C(seconds), C(command), C(output) and, of C(ib_write_bw), C(gbps) and C(mb_per_s) too; of C(rping)
    C(tos), the class that rdma_cm takes by default, where it is configured.
  returned: O(state=finished)
  type: list
  elements: dict
loaded:
  description: RDMA modules that were loaded meanwhile, because the tools open devices.
  returned: O(state=finished)
  type: list
  elements: str
listener:
  description: The process that listens, for O(stop); null if there is none.
  returned: O(state=probed)
  type: dict
deaf:
  description: Why nothing can listen, by port and protocol, without ports that are in use.
  returned: O(state=probed)
  type: dict
answers:
  description: O(ask), each with C(state) (V(answered), V(refused) or V(silent)) and C(why).
  returned: O(state=probed)
  type: list
  elements: dict
error: {description: 'Why the process gave no results, or null.', returned: O(state=finished), type: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import risk
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import reach
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.networks import network_info
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.probe import rdma_modules
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import rounds
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, counters

STATES = ["read", "started", "finished", "absent", "probed"]
# Seconds to wait for answers from ports.
PATIENCE = 10  # seconds; only a port that stays silent takes them, and a busy node needs some to run the listener


def read(params: dict) -> dict:
    tree, tool, directory = Tree(params["root"]), rounds.tool(params["root"]), params["networks_directory"]
    processes, _sockets = risk.processes(tree)
    return {
        "tools": [rounds.TOOL] if tool else [],
        "in_use": rounds.users(processes, params["hcas"]),
        "governors": counters.governors(tree),
        "cuda": rounds.cuda(tool) if params["cuda"] and tool else None,
        "networks": {"tools": containerd.tools(tree), **network_info(tree, directory)} if directory else None,
    }


def probed(params: dict) -> dict:
    if params["stop"]:
        reach.stop(params["stop"])
    listening = reach.listen(params["listen"], params["seconds"])
    return {**listening, "answers": reach.ask(params["ask"], PATIENCE)}


def run(params: dict) -> dict:
    root = params["root"]
    if params["state"] == "finished":
        done = rounds.collect(params["wait_seconds"], root)
        before = done.pop("modules")
        return {**done, "loaded": [] if before is None else sorted(rdma_modules() - set(before))}
    if params["state"] == "absent":
        rounds.stop(root)
    else:
        options = {name: params[name] for name in ("seconds", "round_seconds", "grace_seconds")}
        rounds.start(params["rounds"], {**options, "tool": rounds.tool(root) or rounds.TOOL}, root, rdma_modules())
    return {}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": STATES},
            "root": {"type": "path", "default": "/"},
            "hcas": {"type": "list", "elements": "dict", "default": []},
            "cuda": {"type": "bool", "default": False},
            "networks_directory": {"type": "path"},
            "rounds": {"type": "list", "elements": "dict", "default": []},
            "listen": {"type": "list", "elements": "dict", "default": []},
            "ask": {"type": "list", "elements": "dict", "default": []},
            "stop": {"type": "dict"},
            "seconds": {"type": "int", "default": 5},
            "round_seconds": {"type": "int", "default": 30},
            "grace_seconds": {"type": "int", "default": 30},
            "wait_seconds": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    with reported(module):
        params, result = module.params, {}
        if params["state"] == "probed":
            module.exit_json(changed=False, **probed(params))
        try:
            if params["state"] == "read":
                result = read(params)
            elif not module.check_mode:
                result = run(params)
        except (OSError, ValueError) as error:
            obj, wanted = "tests between nodes", params["state"]
            step = f"fix that, remove /{rounds.STATE} and run again"
            if params["state"] == "read":
                obj, wanted = f"root {params['root']}", "a node whose processes, CPUs and networks can be read"
                step = "fix what it reports and run again"
            module.fail_json(msg=f"{obj}: wanted {wanted}, seen {error}. Next step: {step}")
        module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
