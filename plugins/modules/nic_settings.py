# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nic_settings
short_description: Set the RoCE settings of NICs to the switch plan, and values in the firmware of HCAs
version_added: 0.1.0
description:
  - On the NIC of each rail over Ethernet, gives DCBX to the host, maps the DSCPs of O(traffic) to their priorities (and
    with it trusts the DSCP), turns PFC on for the lossless priority only, and turns off pause of the whole port.
  - C(dcb) and C(ethtool) do it, from a unit that udev starts for the PCI address, so a driver reload sets it
    again.
  - Refuses a NIC that management uses. A changed PFC mask takes the link down for seconds, so it needs
    O(link_flap_allowed); an equal one is not set.
  - A NIC whose driver has no such settings, such as a virtual function, is left alone and reported.
  - Without O(traffic) the unit is removed, and the running values stay.
  - Values of O(firmware) are read with C(mstconfig) (or C(mlxconfig)) and compared with those of the next boot. A value
    is written once, after the old one was recorded in C(/var/lib/gpufabric-rdma/firmware). If it is not in use
    after a reboot, or the firmware has not kept it, that is a finding, and it is not written again.
extends_documentation_fragment:
  - gpufabric.rdma.reading.rails
  - gpufabric.rdma.changing
  - gpufabric.rdma.changing.root
options:
  traffic:
    description: The traffic class, as in C(fabric_plan).
    type: dict
    suboptions:
      dscp: {description: DSCP of RDMA., type: int, required: true}
      priority: {description: Its priority., type: int, required: true}
      cnp_dscp: {description: DSCP of congestion notifications., type: int, required: true}
      cnp_priority: {description: Their priority., type: int, required: true}
      lossless: {description: Whether PFC keeps the priority lossless., type: bool, required: true}
  link_flap_allowed:
    description: Whether a link may go down for seconds. Without it such a change fails; V(false) leaves PFC unchanged.
    type: bool
  firmware:
    description:
      - Values for keys of the firmware, such as C(ATS_ENABLED), by PCI address, or for V(all) HCAs that management does
        not use. Values of an address are added to those of V(all).
    type: dict
    default: {}
  firmware_allowed:
    description: Whether values of O(firmware) may be written. Without it a difference fails; V(false) leaves it.
    type: bool
  software_hcas:
    description: Whether software HCAs (C(rdma_rxe), C(siw)) may be automatic rails.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: DSCP 26 in the lossless priority 3, and no ATS from the next boot on
  gpufabric.rdma.nic_settings:
    traffic: {dscp: 26, priority: 3, cnp_dscp: 48, cnp_priority: 6, lossless: true}
    link_flap_allowed: true
    firmware: {all: {ATS_ENABLED: false}}
    firmware_allowed: true
  throttle: 1
"""

RETURN = r""" # """

import itertools
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge, kernel_out_of_reach
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import apply_file
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units, systemctl
from ansible_collections.gpufabric.rdma.plugins.module_utils._host import firmware
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gathering import RAILS
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.nic_settings import instance, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather

SUBSET = ["hcas", "rails", "owned_files", "!gids"]
LINK_SECONDS = 60


def read(params: dict, run) -> dict:
    tree = Tree(params["root"])
    facts = gather(tree, None, SUBSET, params["software_hcas"], params["rails"])
    if params["firmware"] and not kernel_out_of_reach(facts, params["root"]):
        facts["firmware"] = firmware.read(tree, run, facts, params["firmware"])
    return facts


def apply(changes, root: str, run):
    later = [change for change in changes if firmware.is_about(change)]
    changes = [change for change in changes if change not in later]
    live = [change for change in changes if change.object.startswith("NIC ")]
    yield from apply_units(root, [change for change in changes if change not in live], run, starting=bool(live))
    for netdev in dict.fromkeys(change.object.split()[1] for change in live):
        folder = os.path.join(root, paths.NET.lstrip("/"), netdev)
        was_up = carrier(folder)
        unit = instance(os.path.realpath(folder))
        systemctl(run, unit, "restart", unit)
        # Rails are read again next, and the next node may lose its link only once this one is back.
        ends = time.monotonic() + LINK_SECONDS
        while was_up and not carrier(folder):
            if time.monotonic() > ends:
                step = f"check the switch port; journalctl -u '{unit}' shows what was set"
                raise Refused.because(f"NIC {netdev}", "its link up again", f"down for {LINK_SECONDS} s", step)
            time.sleep(0.5)
        yield from (change for change in live if change.object.split()[1] == netdev)
    yield from write_firmware(later, root, run)


def write_firmware(changes, root: str, run):
    """Records first; the values of an HCA, which follow its record, in one go."""
    for address, group in itertools.groupby(changes, firmware.of_hca):
        group = list(group)
        if address:
            firmware.write(run, address, group)
        else:
            for change in group:
                apply_file(root, change, firmware.MODE)
        yield from group


def carrier(folder: str) -> bool:
    """Whether the link is up; that of a NIC that is administratively down cannot be read."""
    try:
        with open(os.path.join(folder, "carrier"), encoding="ascii") as stream:
            return stream.read().strip() == "1"
    except OSError:
        return False


def main() -> None:
    number = {"type": "int", "required": True}
    module = AnsibleModule(
        argument_spec={
            "traffic": {
                "type": "dict",
                "options": {
                    **dict.fromkeys(("dscp", "priority", "cnp_dscp", "cnp_priority"), number),
                    "lossless": {"type": "bool", "required": True},
                },
            },
            "link_flap_allowed": {"type": "bool"},
            "firmware": {"type": "dict", "default": {}},
            "firmware_allowed": {"type": "bool"},
            "rails": RAILS,
            "software_hcas": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    converge(
        module,
        read=lambda: read(module.params, module.run_command),
        plan=lambda facts: plan(facts, module.params, root),
        apply=lambda changes: apply(changes, root, module.run_command),
    )


if __name__ == "__main__":
    main()
