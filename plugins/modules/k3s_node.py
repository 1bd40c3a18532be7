# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_node
short_description: Configure and run k3s on one node
version_added: 0.1.0
description:
  - Writes configuration, token and unit of k3s, links C(kubectl), C(crictl) and C(ctr), enables and starts the service.
  - Restarts k3s only when something it reads at start has changed since, and reports what. Containers survive a
    restart. If something else started k3s, a file written after that start counts as changed.
  - On a server it returns when the API server is ready; it does not wait for Ready nodes, which need a pod network.
  - The k3s program must already be installed.
extends_documentation_fragment: [gpufabric.rdma.changing, gpufabric.rdma.changing.root]
options:
  role: {description: The node's role in the cluster., type: str, required: true, choices: [server, agent]}
  options:
    description: Options of k3s by file, as M(gpufabric.rdma.plan) decided them. They contain no secrets.
    type: dict
    required: true
  registries:
    description: Content of C(registries.yaml); without it our file is removed. Never shown.
    type: dict
    default: {}
  token:
    description: The token to write, never shown. Without it a missing one is generated, which only the first server
      may do.
    type: str
  token_allowed_to_be_made: {description: Whether a missing token may be generated here., type: bool, default: false}
  takeover_allowed:
    description: Whether files of a k3s that this collection did not set up may be replaced. A copy of each is kept.
    type: bool
  start_timeout_seconds: {description: How long k3s may take to start., type: int, default: 600}
"""

EXAMPLES = r"""
- name: Run a server
  gpufabric.rdma.k3s_node:
    role: server
    options:
      /etc/rancher/k3s/config.yaml:
        node-ip: 192.0.2.10
        token-file: /etc/rancher/k3s/token
    token_allowed_to_be_made: true
"""

RETURN = r"""
seconds:
  description: How long the start or restart took until k3s was ready; 0 when it was not started.
  returned: success
  type: float
"""

import secrets
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import units
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, converge
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import apply_file, under, write
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import plan as planner
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import state
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Kubectl
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree, paths

_ANSWER_SECONDS = 30
_POLL_SECONDS = 2
# After this many restarts by systemd, k3s will not come up on its own.
_GIVE_UP_AFTER = 5


class Node:
    """A node to change: files below a root; systemd and k3s only on the live node."""

    def __init__(self, root, wanted, token, run, limit, kubectl=None, clock=time):
        self.seconds = 0.0
        self._root, self._wanted, self._given, self._run = root, wanted, token, run
        self._service, self._limit, self._clock = k3s.SERVICES[wanted["role"]], limit, clock
        self._kubectl = kubectl or Kubectl([k3s.BINARY, "kubectl"], limit=_ANSWER_SECONDS)

    def read(self) -> dict:
        return state.converging(self._root, self._run, self._given, self._wanted.get("first"))

    def apply(self, changes):
        """Files first, then systemd: after an interrupted run it is still known what k3s was started with."""
        acts = [change for change in changes if change.object.startswith("service ")]
        files = [change for change in changes if change not in acts]
        yield from units.apply_units(self._root, files, self._run, self._apply_file, starting=bool(acts))
        for change in acts:
            if change.action == "enable":
                units.systemctl(self._run, f"service {self._service}", "enable", self._service)
            else:
                self._start(change.action)
            yield change

    def _apply_file(self, change) -> None:
        path = under(self._root, change.object)
        if change.action not in ("write", "generate"):
            apply_file(self._root, change)
        elif change.object == k3s.TOKEN:
            # The token of an existing cluster: a new one would lock its nodes out.
            known = (Tree(self._root).read_bytes(f"{k3s.DATA}/server/token") or b"").strip()
            given = (self._given or "").encode() or known or secrets.token_hex(32).encode()
            write(path, given.strip() + b"\n", 0o600)
        else:
            text, mode = planner.texts(self._wanted)[change.object]
            self._keep_foreign(path)
            write(path, text, int(mode, 8))

    @staticmethod
    def _keep_foreign(path: str) -> None:
        try:
            with open(path, "rb") as stream:
                content = stream.read()
        except FileNotFoundError:
            return
        if not content.startswith(paths.HEADER.encode()):
            write(f"{path}.before-gpufabric-rdma", content, 0o600)  # it may hold a token

    def _start(self, action: str) -> None:
        """Start or restart the service, and wait for it."""
        began, restarts, obj = self._clock.monotonic(), None, f"service {self._service}"
        # --no-block: an agent without its server would block systemctl forever.
        units.systemctl(self._run, obj, action, "--no-block", self._service)
        while True:
            shown, *_others = [*units.shown(self._run, ("ActiveState", "NRestarts"), self._service), {}]
            active, tried = shown.get("ActiveState", "unknown"), int(shown.get("NRestarts") or 0)
            restarts = tried if restarts is None else restarts
            passed = self._clock.monotonic() - began
            if active == "active" and self._answers():
                break
            if active == "failed" or tried - restarts >= _GIVE_UP_AFTER or passed > self._limit:
                raise Refused.because(
                    obj,
                    f"ready within {self._limit} s of its {action}",
                    f"{active}; its journal ends with: {self._journal()}",
                    f"see journalctl -u {self._service} on the node, fix what it reports and run again",
                )
            self._clock.sleep(_POLL_SECONDS)
        self.seconds = round(passed, 1)
        state.remember(self._root, self._run)

    def _journal(self) -> str:
        _code, out, _error = self._run(["journalctl", "-u", self._service, "-n", "4", "-o", "cat", "--no-pager"])
        return " | ".join(line.strip()[:300] for line in out.splitlines() if line.strip()) or "nothing"

    def _answers(self) -> bool:
        """A server is up when its API server is ready. Nodes become Ready with the pod network."""
        return self._wanted["role"] == "agent" or self._kubectl.run("get", "--raw=/readyz")[0] == 0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "choices": ["server", "agent"], "required": True},
            "options": {"type": "dict", "required": True},
            "registries": {"type": "dict", "default": {}, "no_log": True},
            "token": {"type": "str", "no_log": True},
            "token_allowed_to_be_made": {"type": "bool", "default": False, "no_log": False},
            "takeover_allowed": {"type": "bool"},
            "start_timeout_seconds": {"type": "int", "default": 600},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = planner.wanted_of(given)
    live = not given["root"].rstrip("/")
    node = Node(given["root"], wanted, given["token"], module.run_command, given["start_timeout_seconds"])

    def plan(seen):
        if live and not module.check_mode:
            _refuse_what_is_missing(seen, given)
        return planner.plan(seen, wanted, given["root"])

    converge(module, node.read, plan, node.apply, more=lambda _decided, _changes: {"seconds": node.seconds})


def _refuse_what_is_missing(seen: dict, given: dict) -> None:
    if seen["binary"] is None:
        raise Refused.because(
            k3s.BINARY, "the program", "nothing", "run the role k3s, which installs it from the bundle"
        )
    if not (seen["token"]["present"] or given["token"] or given["token_allowed_to_be_made"]):
        raise Refused.because(
            k3s.TOKEN,
            "the cluster's token",
            "no token was given, and only the first server may generate one",
            "check that the first server runs, and run again without --limit",
        )


if __name__ == "__main__":
    main()
