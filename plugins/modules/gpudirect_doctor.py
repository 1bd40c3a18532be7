# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpudirect_doctor
short_description: Explain why nvidia_peermem does not load, or is not needed
version_added: 0.1.0
description:
  - Tells apart the causes for which C(modprobe nvidia_peermem) only reports V(Invalid argument). It reads the module
    files and the CRCs of the symbols they import and export, and returns one verdict with one action.
  - Reads only. No module is loaded and no GPU or HCA is accessed, so V(ready) and V(not-needed) mean that a path is
    open, not that data flows.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
options:
  policy:
    description:
      - V(auto) accepts dma-buf where the node supports it.
      - V(peermem) requires C(nvidia_peermem) even then.
    type: str
    choices: [auto, peermem]
    default: auto
seealso:
  - module: gpufabric.rdma.kernel_modules
  - module: gpufabric.rdma.hca_facts
"""

EXAMPLES = r"""
- name: Check GPUDirect RDMA
  gpufabric.rdma.gpudirect_doctor:
  register: gpudirect

- name: Show it
  ansible.builtin.debug:
    msg: "{{ gpudirect.sentence }} {{ gpudirect.action or '' }}"
"""

RETURN = r"""
verdict:
  description:
    - The verdict. V(stub), V(crc-mismatch), V(missing-symbol) and V(wrong-tree) mean that an existing module cannot
      load; V(stale-memory) matches on disk and needs a reload of the RDMA driver or a reboot.
  returned: success
  type: str
  choices:
    - no-gpu
    - no-driver
    - legacy
    - loaded
    - not-needed
    - missing-module
    - wrong-kernel
    - version-mismatch
    - stub
    - wrong-tree
    - missing-symbol
    - crc-mismatch
    - stale-memory
    - blocked
    - ready
    - unknown
mode: {description: The usable path., returned: success, type: str, choices: [peermem, dmabuf, none]}
sentence: {description: The verdict as a sentence., returned: success, type: str}
action: {description: 'The next step, null if there is none.', returned: success, type: str}
evidence: {description: The evidence for the verdict., returned: success, type: list, elements: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import Runner, diagnose, examine
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

SUBSET = ["gpus", "driver", "modules"]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "policy": {"type": "str", "choices": ["auto", "peermem"], "default": "auto"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    with reported(module):
        tree = Tree(module.params["root"])
        seams = Seams.of(tree)
        facts = gather(tree, seams, SUBSET)
        evidence = examine(tree, facts, seams, Runner(module) if tree.live else None)
        module.exit_json(changed=False, **diagnose(evidence, module.params["policy"])._asdict())


if __name__ == "__main__":
    main()
