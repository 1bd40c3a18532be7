# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: port_probe
short_description: Ask whether ports of other nodes can be reached
version_added: 0.1.0
description:
  - Listens in the background at ports that nothing uses, asks other nodes at theirs, and ends a listener.
  - What lies between the nodes is in the answer, a switch or a cloud's security group as well as a firewall.
  - Leaves nothing on the node; a listener that is not ended ends by itself. Runs in check mode.
extends_documentation_fragment:
  - gpufabric.rdma.reading
author:
  - The gpufabric founders (@gpufabric)
options:
  listen:
    description: Where to answer, each with C(protocol) (V(tcp) or V(udp)), C(address) and C(port).
    type: list
    elements: dict
    default: []
  seconds: {description: How long a listener answers at most., type: int, default: 300}
  ask:
    description:
      - What to ask, each with C(protocol) (V(tcp), V(udp) or V(ping)), C(address) and C(port). All further keys are
        returned as they are.
    type: list
    elements: dict
    default: []
  patience: {description: Seconds to wait for answers. All questions are asked at the same time., type: int, default: 4}
  stop: {description: A C(listener) to end., type: dict}
"""

EXAMPLES = r"""
- name: Answer at the port of the kubelet
  gpufabric.rdma.port_probe:
    listen:
      - {protocol: tcp, address: 192.0.2.1, port: 10250}
  register: listening
"""

RETURN = r"""
listener: {description: 'The process that listens, for O(stop); null if there is none.', returned: success, type: dict}
deaf:
  description: Why nothing can listen, by port and protocol. A port that is in use is none of them.
  returned: success
  type: dict
answers:
  description: O(ask), each with C(state) (V(answered), V(refused) or V(silent)) and C(why).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import reach


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "listen": {"type": "list", "elements": "dict", "default": []},
            "seconds": {"type": "int", "default": 300},
            "ask": {"type": "list", "elements": "dict", "default": []},
            "patience": {"type": "int", "default": 4},
            "stop": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    params = module.params
    with reported(module):
        if params["stop"]:
            reach.stop(params["stop"])
        listening = reach.listen(params["listen"], params["seconds"])
        module.exit_json(changed=False, answers=reach.ask(params["ask"], params["patience"]), **listening)


if __name__ == "__main__":
    main()
