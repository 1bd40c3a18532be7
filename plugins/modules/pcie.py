# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pcie
short_description: Set ACS between GPUs and HCAs for the next boot, and MaxReadReq of the HCAs
version_added: 0.1.0
description:
  - Corrects bridges whose ACS redirects send GPUDirect traffic through the root complex. What a bridge needs depends on
    the topology; C(pcie.paths) of M(gpufabric.rdma.hca_facts) has it, with the reason.
  - On Debian and Ubuntu it writes a drop-in for GRUB and runs C(update-grub); on EL it calls C(grubby) and keeps a
    record of the parameter. It takes effect at a reboot, which the module only reports.
  - Functions that are passed on to virtual machines keep their isolation. The C(grubby) path is not tested on EL.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root, gpufabric.rdma.reading.rails]
options:
  acs:
    description: V(topology) sets the parameter that the node's topology needs and its kernel supports. V(report) sets
      none, and removes what V(topology) has set.
    type: str
    choices: [report, topology]
    default: report
  read_request:
    description: MaxReadReq in bytes of the functions through which the rails reach their GPUs, set now and by a udev
      rule whenever a driver is bound, with C(setpci) of the package pciutils. A reset of the function undoes it;
      without the option the rule is removed and the running values stay.
    type: int
    choices: [4096]
"""

EXAMPLES = r"""
- name: ACS as the topology needs it, from the next boot on
  gpufabric.rdma.pcie:
    acs: topology
"""

RETURN = r""" # """

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import apply_file
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.programs import found
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import must
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import pcie
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gathering import RAILS
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths, pcie_path
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather

SUBSET = ["gpudirect", "owned_files", "!gids"]
_MENUS = ("/boot/grub/grub.cfg", "/boot/grub2/grub.cfg")
_ENTRIES = "/boot/loader/entries"


class Reader:
    """Reads the node before and after the changes; the parameter of before tells whether a reboot is due.

    loader: what sets a boot parameter here, known once the node was read.
    """

    def __init__(self, root: str, rails: list[dict]):
        self.root, self.rails, self.before, self.loader = root, rails, {}, None

    def __call__(self) -> dict:
        tree = Tree(self.root)
        facts = gather(tree, subset=SUBSET, rails=self.rails)
        self.loader = facts["pcie"]["loader"]
        parameter = pcie_path.persisted(facts["owned_files"])
        facts["acs_before"] = self.before.setdefault("parameter", parameter)
        if parameter:
            entries = [f"{_ENTRIES}/{name}" for name in tree.listdir(_ENTRIES) if name.endswith(".conf")]
            places = _MENUS if paths.OWN_ACS_GRUB in facts["owned_files"] else entries
            texts = [text for text in map(tree.read, places) if text]
            facts["acs_in_menu"] = not texts or any(parameter in text for text in texts)
        return facts


def apply(changes, loader: str, root: str, run):
    for change in changes:
        if change.object == pcie.MENU:
            for argv in pcie.commands(loader, change.before, change.after):
                must(run, pcie.MENU, argv)
        elif change.object.startswith("MaxReadReq of "):
            must(run, change.object, pcie.setpci(change.object.split()[-1], int(change.after)))
        else:
            apply_file(root, change)
        yield change


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "acs": {"type": "str", "choices": [pcie.REPORT, pcie.TOPOLOGY], "default": pcie.REPORT},
            "read_request": {"type": "int", "choices": [pcie.READ_REQUEST]},
            "rails": RAILS,
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    params = module.params
    read = Reader(params["root"], params["rails"])

    def run(argv):
        program = found(argv[0])
        return module.run_command([program, *argv[1:]]) if program else (1, "", f"{argv[0]} is not installed")

    def act(changes):
        return apply(changes, read.loader or pcie.GRUB, params["root"], run)

    converge(module, read, lambda facts: pcie.plan(facts, params, params["root"]), act)


if __name__ == "__main__":
    main()
