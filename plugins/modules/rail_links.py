# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rail_links
short_description: Set MTU, link state and routes by source of RDMA NICs, now and at boot
version_added: 0.1.0
description:
  - Manages MTU and link state of NICs that nothing else configures. PCI address or MAC is the key, because names change
    with drivers.
  - At boot a oneshot unit with a small script sets them. It never writes a C(.link) file, which would override the
    naming policy and rename the NIC.
  - Refuses a NIC that management uses (a default route, an SSH session, the address of k3s), even below a bond or a
    bridge.
  - An empty list removes the unit and the script and leaves the running values unchanged.
  - With several rails in one subnet, Linux sends through one and answers ARP on any. With O(source_routes), each gets
    a table, a rule for its addresses, C(arp_ignore=1) and C(arp_announce=2). Otherwise our rules and tables go.
extends_documentation_fragment: [gpufabric.rdma.reading.rails, gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  settings:
    description: The NICs and their settings.
    type: list
    elements: dict
    default: []
    suboptions:
      pci: {description: 'PCI address of the NIC, with or without domain.', type: str}
      mac: {description: MAC address of the NIC., type: str}
      mtu: {description: The MTU; left alone if not set., type: int}
      up: {description: Set the link administratively up. It is never set down., type: bool, default: false}
  source_routes:
    description: Whether each rail of a shared subnet sends through its own NIC.
    type: bool
    default: false
  software_hcas:
    description: Whether software HCAs (C(rdma_rxe), C(siw)) may be automatic rails.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Jumbo frames on one rail
  gpufabric.rdma.rail_links:
    settings:
      - pci: "0000:3b:00.0"
        mtu: 9000
        up: true

- name: Rails of one subnet, each through its own NIC
  gpufabric.rdma.rail_links:
    source_routes: true
"""

RETURN = r""" # """

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Change, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import set_attribute, under
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units, enabled, running, systemctl
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gathering import RAILS
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.rail_links import UNITS, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather

SUBSET = ["hcas", "rails", "owned_files", "!gids"]
IFF_UP = 0x1
_NO_ROUTES = (enabled(paths.OWN_ROUTES_UNIT)[0], "unlink")


def read(params: dict) -> dict:
    tree = Tree(params["root"])
    facts = gather(tree, None, SUBSET, params["software_hcas"], params["rails"])
    facts["enabled"] = [unit for unit in UNITS if tree.readlink(enabled(unit)[0]) == enabled(unit)[1]]
    return facts


def set_running(change: Change, root: str) -> None:
    """`NIC eth2 MTU` and `NIC eth2 link`, through sysfs: no iproute2 needed, and the kernel's refusal is an errno."""
    _nic, name, what = change.object.split()
    directory = under(root, f"{paths.NET}/{name}")
    if what == "MTU":
        set_attribute(os.path.join(directory, "mtu"), change.after)
        return
    with open(os.path.join(directory, "flags"), encoding="ascii") as stream:
        flags = int(stream.read(), 16)
    set_attribute(os.path.join(directory, "flags"), hex(flags | IFF_UP))


def apply(changes, root: str, run):
    live = [change for change in changes if change.object.startswith("NIC ")]
    routes = os.path.basename(paths.OWN_ROUTES_UNIT)
    ends = any((change.object, change.action) == _NO_ROUTES for change in changes)
    # Only the script that has set a table knows it.
    stale = any(change.object == paths.OWN_LINKS_SCRIPT for change in changes)
    stale = stale and os.path.lexists(under(root, paths.OWN_ROUTES_UNIT))
    if running(root) and (ends or stale):
        systemctl(run, routes, "stop", routes)
    by_source = [change for change in live if change.object.endswith(" source route")]
    again = bool(by_source) or (stale and not ends and running(root))
    yield from apply_units(root, [change for change in changes if change not in live], run, starting=again)
    for change in live:
        if change not in by_source:
            set_running(change, root)
            yield change
    if again:
        systemctl(run, routes, "restart", routes)
        yield from by_source


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "settings": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "pci": {"type": "str"},
                    "mac": {"type": "str"},
                    "mtu": {"type": "int"},
                    "up": {"type": "bool", "default": False},
                },
                "mutually_exclusive": [("pci", "mac")],
                "required_one_of": [("pci", "mac")],
            },
            "source_routes": {"type": "bool", "default": False},
            "rails": RAILS,
            "software_hcas": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    converge(
        module,
        read=lambda: read(module.params),
        plan=lambda facts: plan(facts, module.params, root),
        apply=lambda changes: apply(changes, root, module.run_command),
    )


if __name__ == "__main__":
    main()
