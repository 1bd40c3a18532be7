# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sriov_vfs
short_description: Create virtual functions of RDMA NICs, now and at boot
version_added: 0.1.0
description:
  - Creates virtual functions (VFs) on physical functions named by PCI address, now through sysfs and at boot by a
    oneshot unit that runs before k3s.
  - Refuses what firmware or kernel would reject, what would end RoCE LAG, and to remove VFs that a virtual machine or
    management has; removes no other VFs without consent.
  - On InfiniBand, gives VFs without a GUID one and lets them follow their port's link; until then they have no link.
  - An empty list removes unit and script and leaves the VFs unchanged.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  settings:
    description: The physical functions.
    type: list
    elements: dict
    default: []
    suboptions:
      pci: {description: 'PCI address, with or without domain.', type: str, required: true}
      vfs: {description: How many VFs., type: int, required: true}
      guids:
        description:
          - Whether VFs of an InfiniBand port that have no GUID get one, derived from the port's GUID and their number.
        type: bool
        default: true
  recreate_allowed:
    description:
      - What to do if the number of existing VFs differs. The kernel needs all of them removed first.
      - If not set, the module fails; V(true) removes them; V(false) leaves them until the next boot.
    type: bool
"""

EXAMPLES = r"""
- name: Eight VFs on one port
  gpufabric.rdma.sriov_vfs:
    settings:
      - pci: "0000:3b:00.0"
        vfs: 8
"""

RETURN = r""" # """

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import set_attribute
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units, enabled
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.sriov import SCRIPT, UNIT, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, pci
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather

PCI = "sys/bus/pci/devices"


def read(root: str) -> dict:
    tree = Tree(root)
    facts = gather(tree, subset=["hcas", "owned_files", "!gids"])
    owners: dict = {}
    for hca in facts["hcas"] + facts["cards_without_rdma"]:
        for address in [(hca.get("pci") or hca).get("address"), *hca.get("bonded_functions", ())]:
            owners.setdefault(address, hca)
    devices = {address: device(tree, address, hca, owners) for address, hca in owners.items() if address}
    return {
        "node": facts["node"],
        "devices": devices,
        "owned_files": facts["owned_files"],
        "enabled": [UNIT] if tree.readlink(enabled(UNIT)[0]) == enabled(UNIT)[1] else [],
    }


def device(tree: Tree, address: str, hca: dict, owners: dict) -> dict:
    """A function of the HCA or card. owners: {address: HCA or card}."""
    function = pci.function(tree, address)
    virtual = function["virtfns"]
    guids = {one: owners[one].get("node_guid") for one in virtual if one in owners}
    netdevs = [netdev for one in virtual for netdev in owners.get(one, {}).get("netdevs", ())]
    given = (one for one in virtual if pci.passes_on(pci.driver(tree, one)))
    members = hca["netdevs"] if hca.get("bonded_functions") else ()
    bond = next((netdev["master"] for netdev in members if netdev["master"]), None)
    return {
        **function["sriov"],
        "virtual": bool(function["physfn"]),
        "infiniband": any(port.get("link_layer") == "InfiniBand" for port in hca.get("ports") or ()),
        "node_guid": hca.get("node_guid"),
        "vf_guids": [valid(guids[one]) if one in guids else "" for one in virtual],
        "lag": bond and f"{hca['name']} of {bond}",
        "held": [
            *(f"{one} is passed to a virtual machine or a user-space driver" for one in given),
            *(f"{netdev['name']} carries {netdev['management']}" for netdev in netdevs if netdev["management"]),
        ],
    }


def valid(guid):
    """The GUID, or None if firmware has set none."""
    return None if not guid or set(guid) <= set("0:") or set(guid.lower()) <= set("f:") else guid


def set_vfs(change, root: str) -> None:
    """`PCI ADDRESS sriov_numvfs`: to 0 first if there are any, as the kernel requires."""
    path = os.path.join(root, PCI, change.object.split()[1], "sriov_numvfs")
    for value in ["0", change.after] if change.before != "0" else [change.after]:
        set_attribute(path, value)


def apply(changes, root: str, run):
    running = [change for change in changes if change.action in ("set", "run")]
    yield from apply_units(root, [change for change in changes if change not in running], run)
    for change in running:
        if change.action == "set":
            set_vfs(change, root)
        else:
            code, _out, error = run(["/bin/sh", SCRIPT])
            if code:
                step = "see the unit gpufabric-rdma-vfs.service; networks_sriov with guids: false leaves them to you"
                raise Refused.because(change.object, change.after, error.strip() or f"exit code {code}", step)
        yield change


def main():
    module = AnsibleModule(
        argument_spec={
            "settings": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "pci": {"type": "str", "required": True},
                    "vfs": {"type": "int", "required": True},
                    "guids": {"type": "bool", "default": True},
                },
            },
            "recreate_allowed": {"type": "bool"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    converge(
        module,
        read=lambda: read(root),
        plan=lambda facts: plan(facts, module.params["settings"], module.params["recreate_allowed"], root),
        apply=lambda changes: apply(changes, root, module.run_command),
        quiet=True,
    )


if __name__ == "__main__":
    main()
