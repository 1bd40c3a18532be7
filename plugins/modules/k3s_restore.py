# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_restore
short_description: Take one node through one part of a restore of k3s' datastore
version_added: 0.1.0
description:
  - A restore has four parts, each for some of the nodes. All servers stop k3s (V(stop)), the first restores the backup
    and starts (V(restore)), the other servers set their datastore aside and rejoin (V(rejoin)), agents restart k3s,
    whose containers go on running (V(reconnect)).
  - Records on the node how far it is. A part that is done changes nothing; one that was cut off goes on.
  - Deletes no datastore. etcd of the first server is kept by k3s as C(etcd-old-TIME) beside the new one; every other
    datastore is renamed to C(db.before-restore-STAMP).
extends_documentation_fragment:
  - gpufabric.rdma.changing
  - gpufabric.rdma.changing.root
author:
  - The gpufabric founders (@gpufabric)
options:
  part:
    description: The part of the restore.
    type: str
    choices: [stop, restore, rejoin, reconnect]
    required: true
  role:
    description: The node's role in the cluster.
    type: str
    choices: [server, agent]
    required: true
  backup:
    description: The C(backup.json) of the backup.
    type: dict
    required: true
  stamp:
    description: What names this restore, the same on all nodes and in every run that goes on with it.
    type: str
    required: true
  source:
    description: Folder on the node with the files of the backup, for V(restore).
    type: path
  start_timeout_seconds:
    description: How long the restore, and then the start, may take.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Stop k3s on all servers
  gpufabric.rdma.k3s_restore:
    part: stop
    role: server
    backup: "{{ lookup('ansible.builtin.file', '/srv/backups/20261124T220000Z/backup.json') | from_json }}"
    stamp: 20261125T060000Z
"""

RETURN = r"""
seconds:
  description: How long the start took until k3s was ready; 0 when it was not started.
  returned: success
  type: float
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
  description: Why the node is not through this part.
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
import fcntl
import json
import os
import tarfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused, failure, finish, settle
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import remove, rename, under, write
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import backup, state
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s.service import Service
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Kubectl
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

_ANSWER_SECONDS = 30


class Node:
    """A node on its way back to a backup."""

    def __init__(self, root, run, given, service, held=()):
        self.seconds = 0.0
        self._root, self._run, self._given, self._service, self._held = root, run, given, service, held
        self._aside = backup.aside(given["stamp"])

    def read(self) -> dict:
        tree = Tree(self._root)
        return {
            "record": backup.record(tree),
            "database": tree.isdir(backup.DATABASE),
            "kept": tree.isdir(self._aside),
            "services": state.converging(self._root, self._run)["services"],
        }

    def apply(self, changes):
        for change in changes:
            if change.action == "begin":
                self._remember(backup.STOPPED)
            elif change.action == "stop":
                self._service.systemctl("stop", self._service.name)
            elif change.action == "set aside":
                self._set_aside()
            elif change.action == "restore":
                self._restore()
                self._remember(backup.RESTORED)
            elif change.action == "end":
                self._remember(backup.DONE)
            else:
                # k3s reads again what a restore put in its place.
                self.seconds = self._service.start(change.action)
                state.remember(self._root, self._run)
            yield change

    def _remember(self, step: str) -> None:
        told = {"backup": self._given["backup"]["name"], "stamp": self._given["stamp"], "step": step}
        write(under(self._root, backup.RECORD), json.dumps(told) + "\n")

    def _set_aside(self) -> None:
        rename(under(self._root, backup.DATABASE), under(self._root, self._aside))

    def _restore(self) -> None:
        source = os.path.join(self._given["source"], _snapshot(self._given["backup"]))
        if self._given["backup"]["datastore"] == backup.OWN_SQLITE:
            self._restore_sqlite(source)
        else:
            self._restore_etcd(source)
        password = os.path.join(under(self._root, self._given["source"]), backup.NODE_PASSWORD)
        # Without it the cluster takes this machine for another that has its name.
        same = state.hostname(Tree(self._root)) == self._given["backup"].get("server")
        if same and os.path.exists(password) and not os.path.exists(under(self._root, backup.PASSWORD)):
            with open(password, "rb") as stream:
                write(under(self._root, backup.PASSWORD), stream.read(), 0o600)

    def _restore_etcd(self, source: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            remove(under(self._root, backup.RESET_FLAG))
        argv = ["timeout", "--kill-after=30", str(self._given["start_timeout_seconds"]), k3s.BINARY, "server"]
        argv += ["--cluster-reset", f"--cluster-reset-restore-path={source}"]
        if "etcd-s3" in (Tree(self._root).read(k3s.EXTRA) or ""):
            argv.append("--etcd-s3=false")  # else it looks for the snapshot there
        # k3s inherits the lock: while it works on the datastore, no other run begins to.
        code, out, error = self._run(argv, pass_fds=self._held)
        if code:
            seen = f"exit status {code}: {' '.join((error or out).split())[-400:]}"
            raise Refused.because(
                backup.DATABASE,
                "the snapshot restored by k3s server --cluster-reset",
                seen,
                "the datastore as it was is beside it (etcd-old-TIME); fix what it reports and run again",
            )

    def _restore_sqlite(self, source: str) -> None:
        if os.path.isdir(under(self._root, backup.DATABASE)) and not os.path.isdir(under(self._root, self._aside)):
            self._set_aside()
        with open(under(self._root, source), "rb") as stream:
            write(under(self._root, backup.SQLITE), stream.read(), 0o600)
        archive = os.path.join(under(self._root, self._given["source"]), backup.ARCHIVE)
        if not os.path.isdir(under(self._root, backup.IDENTITY[0])):
            with tarfile.open(archive) as opened:
                for member in opened.getmembers():
                    inside = any(f"/{member.name}".startswith(f"{path}/") for path in backup.IDENTITY)
                    if member.isfile() and inside and ".." not in member.name.split("/"):
                        content = opened.extractfile(member).read()
                        write(under(self._root, f"/{member.name}"), content, member.mode & 0o777)


def _snapshot(manifest: dict) -> str:
    return next(name for name in manifest["files"] if name.startswith(backup.SNAPSHOT.rpartition(".")[0] + "."))


@contextlib.contextmanager
def alone(root: str):
    """The lock of a restore on this node, which what it starts inherits; Refused where another run holds it."""
    if not os.path.exists(under(root, backup.LOCK)):
        write(under(root, backup.LOCK), "", 0o600)
    with open(under(root, backup.LOCK), encoding="ascii") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Refused.because(
                backup.LOCK,
                "no other restore under way on this node",
                "another run, or the k3s server --cluster-reset that it left, holds it",
                "wait until it has ended (fuser -v shows it) and run again",
            ) from error
        yield (stream.fileno(),)


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "part": {"type": "str", "choices": ["stop", "restore", "rejoin", "reconnect"], "required": True},
            "role": {"type": "str", "choices": ["server", "agent"], "required": True},
            "backup": {"type": "dict", "required": True},
            "stamp": {"type": "str", "required": True},
            "source": {"type": "path"},
            "start_timeout_seconds": {"type": "int", "default": 600},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("part", "restore", ("source",))],
        supports_check_mode=True,
    )
    given = module.params
    kubectl = Kubectl([k3s.BINARY, "kubectl"], limit=_ANSWER_SECONDS)

    def answers() -> bool:
        return given["role"] == "agent" or kubectl.run("get", "--raw=/readyz")[0] == 0

    service = Service(k3s.SERVICES[given["role"]], module.run_command, given["start_timeout_seconds"], answers)

    def plan(seen):
        return backup.plan_step(seen, given["part"], given["role"], given["backup"]["name"], given["stamp"])

    try:
        with contextlib.nullcontext(()) if module.check_mode else alone(given["root"]) as held:
            node = Node(given["root"], module.run_command, given, service, held)
            made, changes = settle(read=node.read, plan=plan, apply=node.apply, check_mode=module.check_mode)
    except Refused as refused:
        module.fail_json(**failure(refused))
    finish(module, made, changes, seconds=node.seconds)


if __name__ == "__main__":
    main()
