# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: matrix_info
short_description: Check whether a node can take part in the bandwidth matrix
version_added: 0.1.0
description:
  - Looks for C(ib_write_bw), for processes that use an HCA, and for the CPU frequency governors.
extends_documentation_fragment:
  - gpufabric.rdma.reading
author:
  - The gpufabric founders (@gpufabric)
options:
  root:
    description: Root directory of the node. With anything but V(/) it must contain usr/bin/ib_write_bw.
    type: path
    default: /
  hcas:
    description: The HCAs of the node's facts.
    type: list
    elements: dict
    default: []
  cuda:
    description: Whether to check that C(ib_write_bw) was built with CUDA.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: See whether the node can take part
  gpufabric.rdma.matrix_info:
    hcas: "{{ ansible_facts['rdma']['hcas'] }}"
  register: read
"""

RETURN = r"""
tools:
  description: V(ib_write_bw) if installed, else empty.
  returned: success
  type: list
  elements: str
in_use:
  description: Processes that have the verbs device of an HCA open, by HCA.
  returned: success
  type: dict
governors:
  description: How many CPUs run under each frequency governor.
  returned: success
  type: dict
cuda:
  description: Whether C(ib_write_bw) sends from GPU memory, C(send), and can register it by dma-buf, C(dmabuf). Null if
    O(cuda=false).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import risk
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import rounds
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, counters


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "hcas": {"type": "list", "elements": "dict", "default": []},
            "cuda": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    tree, tool = Tree(params["root"]), rounds.tool(params["root"])
    try:
        processes, _sockets = risk.processes(tree)
        found = {
            "tools": [rounds.TOOL] if tool else [],
            "in_use": rounds.users(processes, params["hcas"]),
            "governors": counters.governors(tree),
            "cuda": rounds.cuda(tool) if params["cuda"] and tool else None,
        }
    except (OSError, ValueError) as error:
        module.fail_json(
            msg=f"root {params['root']}: wanted a node whose processes and CPUs can be read, seen {error}. "
            "Next step: fix what it reports and run again"
        )
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
