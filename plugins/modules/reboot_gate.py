# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reboot_gate
short_description: Read whether a node would come back from a reboot, and who would miss it meanwhile
version_added: 0.1.0
description:
  - Finds the kernel that boots next, in what GRUB reads, and looks for its file, its initramfs images and its modules.
    Of a node without GRUB the newest kernel of C(/boot) is looked at.
  - Tells what the node is in a cluster, by the files that are on it.
  - Changes nothing, and does not fail for what it finds.
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
seealso:
  - module: gpufabric.rdma.cluster_node
"""

EXAMPLES = r"""
- name: Read whether the node would come back
  gpufabric.rdma.reboot_gate:
  register: gate

- name: Fail if it would not
  gpufabric.rdma.report:
    kind: findings
    findings: "{{ gate.findings }}"
"""

RETURN = r"""
findings:
  description:
    - What the kernel that boots next lacks, each with C(object), C(wanted), C(seen), C(next_step) and C(id).
  returned: success
  type: list
  elements: dict
not_verified:
  description: What could not be looked at, with the reason.
  returned: success
  type: list
  elements: str
cluster:
  description: What the node is in a cluster.
  returned: success
  type: dict
  contains:
    member: {description: Whether a kubelet of a cluster is set up on it., type: bool}
    server: {description: Whether it is a server of k3s., type: bool}
    others: {description: Other Kubernetes distributions with files on the node., type: list}
hostname:
  description: The name of the host, which a node of k3s has unless it was given another.
  returned: success
  type: str
left:
  description:
    - What the role reboot recorded before a reboot that no run has ended yet, or null. C(left_boot) is the boot of the
      node then, C(ready) whether it was Ready.
  returned: success
  type: dict
boot_id: {description: 'The present boot, as the kernel names it.', returned: success, type: str}
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import as_dict, reported, warn
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.boot import judge
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s.state import membership
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.paths import RECORDS

RECORD = RECORDS["reboot"]


def _record(tree: Tree) -> dict | None:
    """What was written before a reboot; of a file that was cut short it is known only that there was one."""
    text = tree.read(RECORD)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    found = found if isinstance(found, dict) else {}
    return {"left_boot": str(found.get("left_boot") or ""), "ready": found.get("ready") is True}


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    with reported(module):
        tree = Tree(module.params["root"])
        findings, unknown = judge(tree)
        warn(module, unknown)
        module.exit_json(
            changed=False,
            findings=[as_dict(finding) for finding in findings],
            not_verified=unknown,
            cluster=membership(tree),
            hostname=(tree.read("/proc/sys/kernel/hostname") or "").lower(),
            left=_record(tree),
            boot_id=tree.read("/proc/sys/kernel/random/boot_id") or "",
        )


if __name__ == "__main__":
    main()
