# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_gate
short_description: Decide whether a driver change needs a reload, a reboot, or must not happen
version_added: 0.1.0
description:
  - Checks what depends on the HCA driver of a node (management access, mounted storage, processes, other kernel
    modules, virtual functions, interface names, Secure Boot, pods and cluster operators) and returns a verdict with its
    reasons.
  - Reads files only and changes nothing. Policy routing, and the next name of an interface without udev data, cannot
    be read from files; the latter is listed in RV(notes).
extends_documentation_fragment:
  - gpufabric.rdma.reading
  - gpufabric.rdma.reading.root
author:
  - The gpufabric founders (@gpufabric)
options:
  change:
    description:
      - What will be installed or removed, as a clause such as V(doca 3.2.1 is installed). Without it only the
        difference between memory and disk counts.
    type: str
  activation:
    description:
      - V(auto) prefers a reload and reboots where a reload is ruled out.
    type: str
    choices: [auto, reload, reboot]
    default: auto
  signed: {description: Whether the new modules have a signature that Secure Boot accepts., type: bool}
  reload_allowed: {description: Whether the driver may be reloaded., type: bool}
  drain_allowed: {description: Whether pods may be drained from the node., type: bool}
  rename_allowed:
    description:
      - Whether the driver may change although an interface that carries management is configured by name.
    type: bool
  software_hcas:
    description:
      - Count interfaces of rxe and siw devices as interfaces of HCAs.
    type: bool
    default: false
seealso:
  - module: gpufabric.rdma.driver
  - module: gpufabric.rdma.hca_facts
"""

EXAMPLES = r"""
- name: See what a driver installation would require
  gpufabric.rdma.driver_gate:
    change: doca 3.2.1 is installed
  register: gate

- name: Fail if it must not happen
  ansible.builtin.assert:
    that: gate.verdict != 'refuse'
    fail_msg: "{{ gate.summary }}"
"""

RETURN = r"""
verdict:
  description:
    - The verdict. V(nothing) means that memory already holds what is, or will be, on disk, or holds no driver at all.
  returned: success
  type: str
  choices: [nothing, reload, reboot, refuse]
summary: {description: The verdict in a sentence., returned: success, type: str}
findings:
  description:
    - Why a reload, a reboot or the change itself is ruled out, including reasons that did not decide, each with
      C(object), C(wanted), C(seen), C(next_step) and C(id), the name of the reason, such as C(secure-boot).
  returned: success
  type: list
  elements: dict
steps: {description: 'The steps of the change, in order.', returned: success, type: list, elements: str}
consents:
  description: Unset variables that the change needs consent from.
  returned: success
  type: list
  elements: str
notes:
  description: What is worth knowing, and what could not be verified.
  returned: success
  type: list
  elements: str
restore:
  description: What a reload would lose, as input for M(gpufabric.rdma.driver_reload) to restore.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.gate import decide
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.risk import devlink, read
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

SUBSET = ["hcas", "driver", "modules", "!gids"]
ANSWERS = ("change", "activation", "signed", "reload_allowed", "drain_allowed", "rename_allowed")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "change": {"type": "str"},
            "activation": {"type": "str", "choices": ["auto", "reload", "reboot"], "default": "auto"},
            "signed": {"type": "bool"},
            "reload_allowed": {"type": "bool"},
            "drain_allowed": {"type": "bool"},
            "rename_allowed": {"type": "bool"},
            "software_hcas": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    options = module.params
    with reported(module):
        tree = Tree(options["root"])
        facts = gather(tree, Seams.of(tree), SUBSET)
        found = module.get_bin_path("devlink") if tree.live else None
        told = devlink(lambda argv: module.run_command([found, *argv[1:]]), tree, facts) if found else None
        risk = read(tree, facts, options["software_hcas"], told)
        decision = decide(facts, risk, {name: options[name] for name in ANSWERS})
        restore = {"netdevs": risk["netdevs"], "virtual_functions": risk["virtual_functions"]}
        module.exit_json(changed=False, restore=restore, **decision.as_dict())


if __name__ == "__main__":
    main()
