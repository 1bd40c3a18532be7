# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_address
short_description: Have a server share one address of the Kubernetes API with the other servers
version_added: 0.1.0
description:
  - Runs keepalived, of the node's distribution, as a service of its own with a configuration of its own. The address is
    on one server whose API server is ready, and moves to another within seconds when that server or its API server
    fails.
  - Advertisements (VRRP, IP protocol 112) go to the other servers by unicast.
  - Without O(address) the service and its files are removed; the package stays.
extends_documentation_fragment:
  - gpufabric.rdma.changing
  - gpufabric.rdma.changing.root
author:
  - The gpufabric founders (@gpufabric)
options:
  address:
    description: The address, of IPv4. Without it the node shares none.
    type: str
  interface:
    description: The interface that has the node's own address.
    type: str
  node_ip:
    description: The node's own address.
    type: str
  peers:
    description: The own addresses of the other servers.
    type: list
    elements: str
    default: []
  name:
    description: Name of the node, for the log.
    type: str
    default: ""
  wait_seconds:
    description: How long to wait until something answers at the address and port 6443. 0 does not wait.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Share the address of the API
  gpufabric.rdma.k3s_address:
    address: 192.0.2.5
    interface: eno1
    node_ip: 192.0.2.10
    peers: [192.0.2.11, 192.0.2.12]
    name: server1
"""

RETURN = r"""
held:
  description: Whether this node has the address now.
  returned: success
  type: bool
changes:
  description: What was changed, or would be in check mode.
  returned: always
  type: list
  elements: dict
  contains:
    object:
      description: The object, a path.
      type: str
    action:
      description: What was done.
      type: str
    before:
      description: Value before.
      type: str
    after:
      description: Value after.
      type: str
findings:
  description: Why the node does not serve the address.
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
  description: Always empty; every changing module of the collection returns it.
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

import contextlib
import re
import socket
import sys
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, failure, finish, settle
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import apply_file, under, write
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.units import apply_units, started_at, systemctl
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import address
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

_SHOWN = "ActiveState,UnitFileState,ExecMainStartTimestampMonotonic"


class Node:
    """A server with its share of the address."""

    def __init__(self, root, run, wanted, python=sys.executable):
        self._root, self._run, self._wanted, self._python = root, run, wanted, python

    def read(self) -> dict:
        tree = Tree(self._root)
        files = {}
        for path in address.FILES:
            content = tree.read(path)
            if content is not None:
                files[path] = {"content": content, "mode": f"{tree.mode(path) or 0:04o}"}
        said: dict[str, str] = {}
        if tree.live:
            out = self._run(["systemctl", "show", f"--property={_SHOWN}", address.SERVICE])[1]
            said = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        active = said.get("ActiveState") == "active"
        return {
            "program": tree.exists(address.PROGRAM),
            "files": files,
            "enabled": said.get("UnitFileState") == "enabled",
            "active": active,
            "stale": active and any((tree.mtime(path) or 0) > started_at(said) for path in files),
        }

    def plan(self, state):
        return address.plan(state, self._wanted, self._python, self._root)

    def apply(self, changes):
        """The service stops before its files go, and starts once they are there."""
        stops = [change for change in changes if change.action == "disable"]
        acts = [change for change in changes if change.object.startswith("service ") and change not in stops]
        for change in stops:
            systemctl(self._run, change.object, "disable", "--now", address.SERVICE)
            yield change
        files = [change for change in changes if change.object.startswith("/")]
        yield from apply_units(self._root, files, self._run, self._apply_file, starting=bool(acts))
        for change in acts:
            systemctl(self._run, change.object, change.action, address.SERVICE)
            yield change

    def _apply_file(self, change) -> None:
        if change.action == "write":
            text, mode = address.texts(self._wanted, self._python)[change.object]
            write(under(self._root, change.object), text, int(mode, 8))
        else:
            apply_file(self._root, change)

    def held(self) -> bool:
        if not self._wanted or self._root.rstrip("/"):
            return False
        out = self._run(["ip", "-oneline", "-4", "address", "show", "dev", self._wanted["interface"]])[1]
        return bool(re.search(rf" inet {re.escape(self._wanted['address'])}/", out))


def await_answer(wanted: dict, seconds: int, clock=time.monotonic, sleep=time.sleep) -> None:
    deadline = clock() + seconds
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((wanted["address"], address.PORT), timeout=5).close()
            return
        if clock() >= deadline:
            raise Refused.because(
                f"{wanted['address']}:{address.PORT}",
                f"an API server that answers there within {seconds} s",
                "no answer",
                f"see journalctl -u {address.SERVICE} on the servers, whether IP protocol 112 (VRRP) may pass between "
                f"them, and whether {address.CHECK} ends with 0 on one of them; then run again",
            )
        sleep(1)


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "address": {"type": "str"},
            "interface": {"type": "str"},
            "node_ip": {"type": "str"},
            "peers": {"type": "list", "elements": "str", "default": []},
            "name": {"type": "str", "default": ""},
            "wait_seconds": {"type": "int", "default": 0},
            "root": {"type": "path", "default": "/"},
        },
        required_by={"address": ["interface", "node_ip"]},
        supports_check_mode=True,
    )
    given = module.params
    names = ("address", "interface", "node_ip", "peers", "name")
    wanted = {name: given[name] for name in names} if given["address"] else None
    live = not given["root"].rstrip("/")
    node = Node(given["root"], module.run_command, wanted)
    changes = []
    try:
        made, changes = settle(read=node.read, plan=node.plan, apply=node.apply, check_mode=module.check_mode)
        if wanted and live and given["wait_seconds"] and not module.check_mode:
            await_answer(wanted, given["wait_seconds"])
    except Refused as refused:
        module.fail_json(**failure(Refused(refused.findings, refused.done or changes)))
    finish(module, made, changes, held=node.held())


if __name__ == "__main__":
    main()
