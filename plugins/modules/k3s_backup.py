# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_backup
short_description: Save the datastore of k3s on a server, with what a restore needs
version_added: 0.1.0
description:
  - Runs on a server while k3s runs. Takes a snapshot of etcd, or a consistent copy of SQLite, and puts beside it the
    server token and the node's password; with SQLite the certificates and the keys of encrypted secrets too, which a
    snapshot of etcd holds itself.
  - Checks that the snapshot is whole before it counts as saved.
  - C(/var/lib/gpufabric-rdma/k3s-backup) holds it until it has been fetched; O(state=absent) removes that folder.
extends_documentation_fragment:
  - gpufabric.rdma.changing
  - gpufabric.rdma.changing.root
author:
  - The gpufabric founders (@gpufabric)
options:
  name:
    description: Name of the backup. One of this name that is there already is not taken again.
    type: str
    required: true
  state:
    description: Whether the backup is on the node.
    type: str
    choices: [present, absent]
    default: present
  reader:
    description: Number of the user who fetches the folder; nobody else may read it.
    type: int
    default: 0
  timeout_seconds:
    description: How long the snapshot may take.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Save the datastore
  gpufabric.rdma.k3s_backup:
    name: 20261124T220000Z
  register: saved
"""

RETURN = r"""
backup:
  description: What the backup holds, as its C(backup.json) says.
  returned: success
  type: dict
  contains:
    name:
      description: Its name.
      type: str
    datastore:
      description: V(etcd) or V(sqlite).
      type: str
    cluster:
      description: SHA-256 of the certificate of the cluster's CA.
      type: str
    k3s:
      description: Version of k3s that made it.
      type: str
    server:
      description: Host name of the server that it comes from.
      type: str
    files:
      description: SHA-256 and size in bytes of each file, by name.
      type: dict
folder:
  description: Where the files are on the node.
  returned: success
  type: str
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
  description: Why there is no backup.
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
import hashlib
import json
import os
import sqlite3
import tarfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Plan, Refused, failure, finish, settle
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.files import (
    remove_tree,
    rename,
    replacing,
    set_mode,
    sha256_of,
    under,
    write,
)
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import backup, state
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import config as k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

_BEGIN = "gpufabric-rdma"  # of the name that k3s gives the file
_DIGEST = 32  # bytes of SHA-256, which etcd puts behind its snapshot


class Node:
    """A server to save: files below a root, and k3s on it."""

    def __init__(self, root, run, name, reader=0, limit=600):
        self.root, self._run, self._name, self._reader, self._limit = root, run, name, reader, limit
        self._folder = under(root, backup.STAGED)

    def read(self) -> dict:
        tree = Tree(self.root)
        found = self.manifest()
        return {
            "datastore": backup.datastore(tree),
            "staged": os.path.isdir(self._folder),
            "saved": found["name"] if found and self._whole(found) else "",
        }

    def manifest(self) -> dict:
        try:
            with open(os.path.join(self._folder, backup.MANIFEST), encoding="utf-8") as stream:
                return json.load(stream)
        except (OSError, ValueError):
            return {}

    def _whole(self, manifest: dict) -> bool:
        places = {name: os.path.join(self._folder, name) for name in manifest["files"]}
        return all(
            os.path.isfile(place) and sha256_of(place) == manifest["files"][name]["sha256"]
            for name, place in places.items()
        )

    def apply(self, changes):
        for change in changes:
            if os.path.isdir(self._folder):
                remove_tree(self.root, backup.STAGED)
            if change.action == "save":
                self._save(change)
            yield change

    def _save(self, change) -> None:
        tree = Tree(self.root)
        os.makedirs(self._folder, mode=0o700)
        kind = backup.datastore(tree)
        if kind == backup.OWN_ETCD:
            self._save_etcd()
        else:
            save_sqlite(under(self.root, backup.SQLITE), os.path.join(self._folder, backup.SNAPSHOT))
            self._save_identity()
        for path, name in ((backup.SERVER_TOKEN, backup.TOKEN), (backup.PASSWORD, backup.NODE_PASSWORD)):
            content = tree.read_bytes(path)
            if content is not None:
                write(os.path.join(self._folder, name), content, 0o600)
        if not tree.read_bytes(backup.SERVER_TOKEN):
            raise Refused.because(
                backup.SERVER_TOKEN,
                "the server token, without which a snapshot is of no use",
                "no such file, or nothing in it",
                "run the backup on a server of the cluster",
            )
        files = {}
        for name in sorted(os.listdir(self._folder)):
            place = os.path.join(self._folder, name)
            set_mode(place, 0o600)
            files[name] = {"sha256": sha256_of(place), "bytes": os.path.getsize(place)}
        manifest = {
            "schema": backup.SCHEMA,
            "name": self._name,
            "datastore": kind,
            "cluster": backup.authority(tree),
            "k3s": state.version(tree, self._run),
            "server": state.hostname(tree),
            "files": files,
        }
        write(os.path.join(self._folder, backup.MANIFEST), json.dumps(manifest, indent=2) + "\n", 0o600)
        for name in ("", *os.listdir(self._folder)):
            os.chown(os.path.join(self._folder, name), self._reader, -1)

    def _save_etcd(self) -> None:
        argv = ["timeout", "--kill-after=10", str(self._limit), k3s.BINARY, "etcd-snapshot", "save"]
        argv += ["--name", _BEGIN, "--etcd-snapshot-dir", backup.STAGED]
        code, out, error = self._run(argv)
        made = [name for name in os.listdir(self._folder) if name.startswith(_BEGIN)]
        if code or len(made) != 1:
            seen = f"exit status {code}, {len(made)} files: {' '.join((error or out).split())[-400:]}"
            raise Refused.because(
                "etcd of k3s",
                "a snapshot by k3s etcd-snapshot save",
                seen,
                "see journalctl -u k3s on the server, fix what it reports and run again",
            )
        # k3s restores a packed snapshot by the end of its name.
        ending = ".zip" if made[0].endswith(".zip") else ".db"
        place = os.path.join(self._folder, backup.SNAPSHOT.replace(".db", ending))
        rename(os.path.join(self._folder, made[0]), place)
        if ending == ".db" and not whole_etcd(place):
            raise Refused.because(
                f"{backup.STAGED}/{backup.SNAPSHOT}",
                "a snapshot whose own sum matches",
                "another sum: it is cut off or damaged",
                "check the disk of the server (dmesg, df) and run again",
            )

    def _save_identity(self) -> None:
        place = os.path.join(self._folder, backup.ARCHIVE)
        with replacing(place, 0o600) as stream, tarfile.TarFile(fileobj=stream, mode="w") as archive:
            for path in backup.IDENTITY:
                if os.path.isdir(under(self.root, path)):
                    archive.add(under(self.root, path), arcname=path.lstrip("/"))


def whole_etcd(path: str) -> bool:
    """Whether the SHA-256 that etcd puts behind a snapshot is that of the snapshot."""
    digest, left = hashlib.sha256(), os.path.getsize(path) - _DIGEST
    if left <= 0:
        return False
    with open(path, "rb") as stream:
        while left:
            block = stream.read(min(left, 1 << 20))
            digest.update(block)
            left -= len(block)
        return stream.read() == digest.digest()


def save_sqlite(source: str, target: str) -> None:
    """A consistent copy while k3s writes: SQLite's own backup, which starts over when pages change under it."""
    # Opened by its address, not to be created, and not to be written.
    with contextlib.ExitStack() as opened:
        held = sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)
        opened.callback(held.close)
        copy = sqlite3.connect(target)
        opened.callback(copy.close)
        held.backup(copy)
        (said,) = copy.execute("PRAGMA integrity_check").fetchone()
        # One file, without a log beside it.
        copy.execute("PRAGMA journal_mode=DELETE")
    if said != "ok":
        raise Refused.because(
            source, "a database that SQLite finds whole", said, "check the disk of the server (dmesg, df) and run again"
        )


@guarded
def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "reader": {"type": "int", "default": 0},
            "timeout_seconds": {"type": "int", "default": 600},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    node = Node(given["root"], module.run_command, given["name"], given["reader"], given["timeout_seconds"])

    def plan(seen):
        if given["state"] == "present":
            return backup.plan_save(seen, given["name"])
        made = Plan()
        if seen["staged"]:
            made.change(backup.STAGED, "remove", "there", "")
        return made

    try:
        made, changes = settle(read=node.read, plan=plan, apply=node.apply, check_mode=module.check_mode)
    except sqlite3.Error as error:
        step = "see whether k3s runs and its disk has room, and run again"
        refused = Refused.because(backup.SQLITE, "a copy of the database", str(error), step)
        module.fail_json(**failure(refused))
    except Refused as refused:
        module.fail_json(**failure(refused))
    finish(module, made, changes, backup=node.manifest(), folder=backup.STAGED)


if __name__ == "__main__":
    main()
