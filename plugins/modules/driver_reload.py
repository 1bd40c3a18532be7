# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_reload
short_description: Replace the loaded HCA driver with the one on disk, or report what that takes
version_added: 0.1.0
description:
  - A reload unloads the modules of the stack, loads those on disk, and restores MTU, state, addresses and routes of
    interfaces and the virtual functions that were lost. It does nothing while memory and disk agree.
  - A stack with C(openibd) is restarted through it. That path is not verified, since no HCA runs in the lab.
extends_documentation_fragment: [gpufabric.rdma.changing]
options:
  state:
    description:
      - V(planned) changes nothing. It checks what depends on the driver (management access, mounted storage, processes,
        other kernel modules, virtual functions, interface names, Secure Boot, pods and cluster operators) and returns a
        verdict with its reasons.
      - V(reloaded) reloads the driver. Run V(planned) first, since it does not check what depends on the driver.
      - V(restored) restores what an earlier reload has lost and not restored.
    type: str
    default: planned
    choices: [planned, reloaded, restored]
  change:
    description: For V(planned), what will be installed or removed, as a clause such as V(doca 3.2.1 is installed).
      Without it only the difference between memory and disk counts.
    type: str
  activation:
    description: For V(planned). V(auto) prefers a reload and reboots if a reload is ruled out.
    type: str
    choices: [auto, reload, reboot]
    default: auto
  signed: {description: Whether the new modules have a signature that Secure Boot accepts., type: bool}
  reload_allowed:
    description:
      - Whether the driver may be reloaded.
      - For V(restored), whether to restore what a reload of this boot has lost. Without a value it fails if there is
        anything, except in check mode. Records from before the last boot are removed.
    type: bool
  drain_allowed: {description: Whether pods may be drained from the node., type: bool}
  rename_allowed:
    description: Whether the driver may change although an interface that carries management is configured by name.
    type: bool
  software_hcas:
    description: Count interfaces of rxe and siw devices as interfaces of HCAs.
    type: bool
    default: false
  restore:
    description: For V(reloaded), RV(restore) of the plan.
    type: dict
    suboptions:
      netdevs: {description: Interfaces of HCAs with their settings., type: list, elements: dict, required: true}
      virtual_functions:
        description: Physical functions with their virtual functions.
        type: list
        elements: dict
        required: true
  timeout: {description: Seconds to wait for the interfaces to come back., type: int, default: 90}
  root: {description: 'For V(planned), root directory of the node.', type: path, default: /}
"""

EXAMPLES = r"""
- name: See what a driver installation would require and disturb
  gpufabric.rdma.driver_reload:
    state: planned
    change: doca 3.2.1 is installed
    reload_allowed: true
  register: gate

- name: Reload the driver
  gpufabric.rdma.driver_reload:
    state: reloaded
    restore: "{{ gate.restore }}"
  when: gate.verdict == 'reload'
"""

RETURN = r"""
verdict:
  description:
    - The verdict. V(nothing) means that memory already holds what is, or will be, on disk, or holds no driver at all.
  returned: O(state=planned)
  type: str
  choices: [nothing, reload, reboot, refuse]
summary: {description: The verdict in a sentence., returned: O(state=planned), type: str}
steps: {description: 'The steps of the change, in order.', returned: O(state=planned), type: list, elements: str}
consents:
  description: Unset variables that the change needs consent from.
  returned: O(state=planned)
  type: list
  elements: str
notes:
  description: What is worth knowing, and what could not be verified.
  returned: O(state=planned)
  type: list
  elements: str
restore: {description: What a reload would lose., returned: O(state=planned), type: dict}
findings:
  description: Why a reload, a reboot or the change itself is ruled out, including reasons that were not decisive.
  returned: O(state=planned)
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge, reported
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import remove, under
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver import risk
from ansible_collections.gpufabric.rdma.plugins.module_utils._driver.gate import decide
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

SUBSET = ["hcas", "driver", "modules", "!gids"]
ANSWERS = ("change", "activation", "signed", "reload_allowed", "drain_allowed", "rename_allowed")


def planned(module: AnsibleModule) -> dict:
    options, tree = module.params, Tree(module.params["root"])
    facts = gather(tree, subset=SUBSET)

    def run(argv):
        program = module.get_bin_path(argv[0])
        return module.run_command([program, *argv[1:]]) if program else (1, "", "")

    told, routed = (risk.devlink(run, tree, facts), risk.routes_lost(run)) if tree.live else (None, None)
    seen = risk.read(tree, facts, options["software_hcas"], told, routed)
    decision = decide(facts, seen, {name: options[name] for name in ANSWERS})
    return {"restore": {name: seen[name] for name in ("netdevs", "virtual_functions")}, **decision.as_dict()}


def apply(changes, given: dict | None, timeout: int, run, root: str = "/"):
    tree = Tree(root)
    for change in changes:
        if change.action == "remove":
            remove(under(root, change.object))
        else:
            stopped = []
            kept = save(tree, root, given) if change.action == "reload" else saved(tree)
            try:
                if change.action == "reload":
                    reload(tree, run)
            except Refused as refused:
                stopped = refused.findings
            restore(tree, root, kept, timeout, run, stopped)
        yield change


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "default": "planned", "choices": ["planned", "reloaded", "restored"]},
            "change": {"type": "str"},
            "activation": {"type": "str", "choices": ["auto", "reload", "reboot"], "default": "auto"},
            "signed": {"type": "bool"},
            "reload_allowed": {"type": "bool"},
            "drain_allowed": {"type": "bool"},
            "rename_allowed": {"type": "bool"},
            "software_hcas": {"type": "bool", "default": False},
            "restore": {
                "type": "dict",
                "options": {
                    "netdevs": {"type": "list", "elements": "dict", "required": True},
                    "virtual_functions": {"type": "list", "elements": "dict", "required": True},
                },
            },
            "timeout": {"type": "int", "default": 90},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("state", "reloaded", ["restore"])],
        supports_check_mode=True,
    )
    state, given, allowed = (module.params[name] for name in ("state", "restore", "reload_allowed"))
    if state == "planned":
        with reported(module):
            module.exit_json(changed=False, **planned(module))
    # Check mode shows what a consent would do.
    allowed = True if module.check_mode and allowed is None else allowed

    def run(argv):
        return module.run_command([module.get_bin_path(argv[0], required=True), *argv[1:]])

    converge(
        module,
        read=lambda: gather(Tree("/"), subset=["driver"]),
        plan=lambda facts: plan(facts, state == "reloaded", outlived(Tree("/")), allowed),
        apply=lambda changes: apply(changes, given, module.params["timeout"], run),
    )


if __name__ == "__main__":
    main()
