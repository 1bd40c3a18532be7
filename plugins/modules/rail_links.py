# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rail_links
short_description: Set MTU and link state of single RDMA NICs, now and at boot
version_added: 0.1.0
description:
  - Manages MTU and link state of NICs that nothing else configures, keyed by PCI address or MAC, because names change
    with drivers.
  - At boot a oneshot unit with a small script does it. It never writes a C(.link) file, which would override the
    naming policy and rename the NIC.
  - Refuses a NIC that the default route or the current SSH session uses, even below a bond or a bridge.
  - An empty list removes the unit and the script and leaves the running values unchanged.
extends_documentation_fragment:
  - gpufabric.rdma.changing
  - gpufabric.rdma.changing.root
author:
  - The gpufabric founders (@gpufabric)
options:
  settings:
    description:
      - The NICs and their settings.
    type: list
    elements: dict
    default: []
    suboptions:
      pci:
        description: PCI address of the NIC, with or without domain.
        type: str
      mac:
        description: MAC address of the NIC.
        type: str
      mtu:
        description: The MTU; left alone when not given.
        type: int
      up:
        description: Set the link administratively up. It is never set down.
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
"""

RETURN = r"""
changes:
  description: What was changed, or would be in check mode.
  returned: always
  type: list
  elements: dict
  contains:
    object:
      description: The object, a path or a name such as C(module ib_umad).
      type: str
    action:
      description: What was done.
      type: str
    before:
      description: Value or text before.
      type: str
    after:
      description: Value or text after.
      type: str
findings:
  description: Why the node did not reach the wanted state. Problems found beforehand stop it before any change.
  returned: always
  type: list
  elements: dict
  contains:
    object:
      description: The object.
      type: str
    wanted:
      description: The wanted state.
      type: str
    seen:
      description: What was found.
      type: str
    next_step:
      description: What to do about it.
      type: str
    id:
      description: Id of a known finding, else empty.
      type: str
reboot_reasons:
  description: Why the node needs a reboot to reach the wanted state, one sentence each.
  returned: success
  type: list
  elements: str
not_applied:
  description: What was left alone on purpose, with the reason.
  returned: success
  type: list
  elements: str
not_verified:
  description: What could not be done or checked from here, with the reason.
  returned: success
  type: list
  elements: str
notes:
  description: Worth knowing; needs no action.
  returned: success
  type: list
  elements: str
"""

import ipaddress
import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import (
    Change,
    Refused,
    failure,
    finish,
    settle,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import set_attribute
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units
from ansible_collections.gpufabric.rdma.plugins.module_utils._host.rail_links import ENABLED, LINK_TARGET, plan
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.routes import default_netdevs
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

SUBSET = ["hcas", "owned_files", "!gids"]
NET = "/sys/class/net"
IFF_UP = 0x1


def read(root: str) -> dict:
    tree = Tree(root)
    facts = gather(tree, Seams.of(tree), SUBSET)
    facts["links_enabled"] = tree.readlink(ENABLED) == LINK_TARGET
    return facts


def protected(root: str) -> dict:
    """NICs below the device of the default route or our own SSH session, with the reason."""
    tree = Tree(root)
    seams = Seams.of(tree)
    reasons = {name: f"the default route uses {name}" for name in sorted(default_netdevs(tree))}
    address = session_address(tree) if tree.live else None
    for name, own in (seams.addresses() or {}).items():
        if address and address in {entry.partition("/")[0] for entry in own}:
            reasons[name] = f"the SSH session of this run comes in on {name} ({address})"
    for name in _holders_of_ipv6(tree, address):
        reasons[name] = f"the SSH session of this run comes in on {name} ({address})"
    queue = list(reasons)
    while queue:
        upper = queue.pop()
        for entry in tree.listdir(f"{NET}/{upper}"):
            lower = entry[len("lower_") :] if entry.startswith("lower_") else None
            if lower and lower not in reasons:
                reasons[lower] = reasons[upper]
                queue.append(lower)
    return reasons


def _holders_of_ipv6(tree: Tree, address) -> list[str]:
    try:
        wanted = ipaddress.IPv6Address(address).packed.hex() if address else None
    except ValueError:
        return []
    rows = [line.split() for line in (tree.read("/proc/net/if_inet6") or "").splitlines()]
    return [row[5] for row in rows if len(row) == 6 and row[0] == wanted]


def session_address(tree: Tree):
    """Our end of the SSH session; sudo drops SSH_CONNECTION, so the environment of every parent process is searched."""
    pid = os.getpid()
    while pid > 1:
        environment = (tree.read_bytes(f"/proc/{pid}/environ") or b"").split(b"\0")
        for entry in environment:
            if entry.startswith(b"SSH_CONNECTION="):
                fields = entry.partition(b"=")[2].decode("ascii", "replace").split()
                return fields[2].partition("%")[0].replace("::ffff:", "") if len(fields) == 4 else None
        parent = re.search(r"^PPid:\s+(\d+)", tree.read(f"/proc/{pid}/status") or "", re.MULTILINE)
        pid = int(parent[1]) if parent else 0
    return None


def set_running(change: Change, root: str) -> None:
    """`NIC eth2 MTU` and `NIC eth2 link`, through sysfs: no iproute2 needed, and the kernel's refusal is an errno."""
    _nic, name, what = change.object.split()
    directory = os.path.join(root, NET.lstrip("/"), name)
    if what == "MTU":
        set_attribute(os.path.join(directory, "mtu"), change.after)
        return
    with open(os.path.join(directory, "flags"), encoding="ascii") as stream:
        flags = int(stream.read(), 16)
    set_attribute(os.path.join(directory, "flags"), hex(flags | IFF_UP))


def apply(changes, root: str, run):
    running = [change for change in changes if change.object.startswith("NIC ")]
    yield from apply_units(root, [change for change in changes if change not in running], run)
    for change in running:
        set_running(change, root)
        yield change


@guarded
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
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    root = module.params["root"]
    wanted = {"settings": module.params["settings"]}
    try:
        made, changes = settle(
            read=lambda: read(root),
            plan=lambda facts: plan(facts, wanted, root, protected(root)),
            apply=lambda changes: apply(changes, root, module.run_command),
            check_mode=module.check_mode,
        )
    except Refused as refused:
        module.fail_json(**failure(refused))
    finish(module, made, changes)


if __name__ == "__main__":
    main()
