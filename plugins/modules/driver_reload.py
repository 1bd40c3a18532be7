# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_reload
short_description: Replace the loaded HCA driver with the one on disk
version_added: 0.1.0
description:
  - Unloads the modules of the stack, loads those on disk, and restores MTU, state and addresses of interfaces and the
    virtual functions that were lost. It does nothing while memory and disk agree.
  - Run M(gpufabric.rdma.driver_gate) first. This module does not check what depends on the driver.
  - A stack with C(openibd) is restarted through it. That path is not verified, since no HCA runs in the lab.
extends_documentation_fragment:
  - gpufabric.rdma.changing
author:
  - The gpufabric founders (@gpufabric)
options:
  restore:
    description:
      - What RV(gpufabric.rdma.driver_gate#module:restore) returned.
      - Without it nothing is reloaded, and what an earlier reload has not restored is restored.
    type: dict
    suboptions:
      netdevs:
        description:
          - Interfaces of HCAs with their settings.
        type: list
        elements: dict
        required: true
      virtual_functions:
        description:
          - Physical functions with their virtual functions.
        type: list
        elements: dict
        required: true
  allowed:
    description:
      - Whether what an earlier reload of this boot has not restored is restored. Without a value it fails where there
        is anything, check mode aside. What was recorded before the last boot is removed.
    type: bool
  timeout:
    description:
      - Seconds to wait for the interfaces to come back.
    type: int
    default: 90
"""

EXAMPLES = r"""
- name: Check what a reload would disturb
  gpufabric.rdma.driver_gate:
    reload_allowed: true
  register: gate

- name: Reload the driver
  gpufabric.rdma.driver_reload:
    restore: "{{ gate.restore }}"
  when: gate.verdict == 'reload'
"""

RETURN = r"""
changes:
  description: What was changed, or would be in check mode, each with C(object), C(action), C(before) and C(after).
  returned: always
  type: list
  elements: dict
findings:
  description:
    - Why the node did not reach the wanted state, each with C(object), C(wanted), C(seen), C(next_step) and C(id).
  returned: always
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import remove, under
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.reload import (
    outlived,
    plan,
    reload,
    restore,
    save,
    saved,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams


def apply(changes, given: dict | None, timeout: int, run, root: str = "/"):
    tree = Tree(root)
    for change in changes:
        if change.action == "reload":
            kept = save(tree, root, given)
            reload(tree, run)
        elif change.action == "remove":
            remove(under(root, change.object))
            yield change
            continue
        else:
            kept = saved(tree)
        restore(tree, root, kept, timeout, run)
        yield change


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "restore": {
                "type": "dict",
                "options": {
                    "netdevs": {"type": "list", "elements": "dict", "required": True},
                    "virtual_functions": {"type": "list", "elements": "dict", "required": True},
                },
            },
            "allowed": {"type": "bool"},
            "timeout": {"type": "int", "default": 90},
        },
        supports_check_mode=True,
    )

    # Check mode shows what a consent would do.
    allowed = True if module.check_mode and module.params["allowed"] is None else module.params["allowed"]

    def run(argv):
        return module.run_command([module.get_bin_path(argv[0], required=True), *argv[1:]])

    def read() -> dict:
        tree = Tree("/")
        return gather(tree, Seams.of(tree), ["driver"])

    converge(
        module,
        read=read,
        plan=lambda facts: plan(facts, module.params["restore"] is not None, outlived(Tree("/")), allowed),
        apply=lambda changes: apply(changes, module.params["restore"], module.params["timeout"], run),
    )


if __name__ == "__main__":
    main()
