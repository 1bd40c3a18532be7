# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpudirect_doctor
short_description: Say why nvidia_peermem does not load, or need not
version_added: 0.1.0
description:
  - Tells apart what C(modprobe nvidia_peermem) answers with the same two words, V(Invalid argument). It reads the
    module files, the symbols they want and offer and the CRCs of those, and gives one verdict with one action.
  - Reads only. No module is loaded, and no GPU or HCA is spoken to, so V(ready) and V(not-needed) say that a way is
    open, not that it carries data.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
options:
  policy:
    description:
      - V(auto) accepts dma-buf where the node offers it.
      - V(peermem) asks for C(nvidia_peermem) even there.
    type: str
    choices: [auto, peermem]
    default: auto
seealso:
  - module: gpufabric.rdma.kernel_modules
  - module: gpufabric.rdma.hca_facts
"""

EXAMPLES = r"""
- name: See what stands between the GPUs and the HCAs
  gpufabric.rdma.gpudirect_doctor:
  register: gpudirect

- name: Show it
  ansible.builtin.debug:
    msg: "{{ gpudirect.sentence }} {{ gpudirect.action or '' }}"
"""

RETURN = r"""
verdict:
  description:
    - What was found. V(stub), V(crc-mismatch), V(missing-symbol) and V(wrong-tree) are the ways in which a module that
      is there cannot load; V(stale-memory) fits on disk and waits for a reload of the RDMA driver or a reboot.
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
mode:
  description: The way that is open.
  returned: success
  type: str
  choices: [peermem, dmabuf, none]
sentence:
  description: The verdict for a person.
  returned: success
  type: str
action:
  description: The one thing to do, null when there is nothing.
  returned: success
  type: str
evidence:
  description: What the verdict rests on.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import Runner, diagnose, examine
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Seams, Tree, gather

SUBSET = ["gpus", "driver", "modules"]


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "policy": {"type": "str", "choices": ["auto", "peermem"], "default": "auto"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    tree = Tree(module.params["root"])
    seams = Seams.of(tree)
    facts = gather(tree, seams, SUBSET)
    evidence = examine(tree, facts, seams, Runner(module) if tree.live else None)
    module.exit_json(changed=False, **diagnose(evidence, module.params["policy"])._asdict())


if __name__ == "__main__":
    main()
