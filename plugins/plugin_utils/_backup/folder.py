# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A backup of k3s' datastore in a folder of the controller: whether it is whole, and whether it fits a cluster.

PRIVATE to the collection. Nodes come as {host, servers (names of all servers), state (what k3s_info read, or None),
failure}; for a restore also with the decision of _preflight.k3s. Only `read` and `damaged` touch files.
"""

from __future__ import annotations

import json
import os
import re

from ...module_utils._core.change import Finding, at
from ...module_utils._core.files import sha256_of
from ...module_utils._k3s import backup, config

SUMS = "SHA256SUMS"
_NAME = re.compile(r"[0-9A-Za-z._-]+")
_ANOTHER = "name another folder in k3s_backup, one that playbooks/backup.yml has made"
_NO_ANSWER = "fix the cause, or take a node that is gone out of the inventory"


def server_to_save(nodes: list[dict]) -> tuple[str | None, list[dict]]:
    """The first server that runs k3s, and why there is none."""
    for node in nodes:
        if node["state"] and node["state"]["services"][config.SERVICES["server"]]["active"]:
            return node["host"], []
    found = []
    for node in nodes:
        seen = node["failure"] or "k3s does not run on it"
        finding = Finding("server of the cluster", "k3s running on at least one", seen, "start k3s there and run again")
        found += at(node["host"], [finding])
    return None, found


def read(folder: str) -> tuple[dict | None, list[Finding]]:
    """The backup.json of a folder, or why it is none."""
    path = os.path.join(folder, backup.MANIFEST)
    try:
        with open(path, encoding="utf-8") as stream:
            manifest = json.load(stream)
    except (OSError, ValueError) as error:
        seen = getattr(error, "strerror", None) or f"not JSON: {error}"
        return None, [Finding(path, "the description of a backup", seen, _ANOTHER)]
    wrong = _wrong(manifest)
    return (None, [Finding(path, "the description of a backup", wrong, _ANOTHER)]) if wrong else (manifest, [])


def _wrong(manifest: object) -> str:
    if not isinstance(manifest, dict) or manifest.get("schema") != backup.SCHEMA:
        return f"not schema {backup.SCHEMA}"
    texts = ("name", "datastore", "cluster", "k3s")
    lacking = [key for key in texts if not isinstance(manifest.get(key), str) or not manifest[key]]
    if lacking:
        return f"no {', no '.join(lacking)}"
    files = manifest.get("files")
    if not isinstance(files, dict) or not all(_NAME.fullmatch(name) and "sha256" in row for name, row in files.items()):
        return "no list of its files"
    if not any(name.startswith("snapshot.") for name in files) or backup.TOKEN not in files:
        return "no snapshot, or no token, among its files"
    return ""


def damaged(folder: str, manifest: dict) -> list[Finding]:
    """Files that are missing or are not what was saved."""
    found = []
    for name, row in sorted(manifest["files"].items()):
        path = os.path.join(folder, name)
        try:
            seen = f"sha256 {sha256_of(path)}"
        except OSError as error:
            seen = error.strerror or str(error)
        if seen != f"sha256 {row['sha256']}":
            found.append(Finding(path, f"sha256 {row['sha256']}", seen, f"do not restore it; {_ANOTHER}"))
    return found


def sums(manifest: dict) -> str:
    """What `sha256sum --check` reads."""
    return "".join(f"{row['sha256']}  {name}\n" for name, row in sorted(manifest["files"].items()))


def against(nodes: list[dict], manifest: dict) -> list[dict]:
    """What keeps this backup from being restored on these nodes, in the form of _core.change.at."""
    found = []
    here = {node["host"] for node in nodes}
    for host in [name for name in nodes[0]["servers"] if name not in here]:
        step = "run without --limit, or take a server that is gone out of k3s_servers"
        seen = "not in this run: its etcd would go on with the datastore of today"
        found += at(host, [Finding("server", "every server of the cluster in this run", seen, step)])
    for node in nodes:
        if node["state"]:
            found += at(node["host"], _node(node, node["decision"], manifest))
        else:
            seen = node["failure"] or "no answer"
            found += at(node["host"], [Finding("node", "a node that can be read", seen, _NO_ANSWER)])
    return found


def _node(node: dict, decided: dict, manifest: dict) -> list[Finding]:
    state, found = node["state"], []
    name = f"backup {manifest['name']}"
    if state["authority"] and state["authority"] != manifest["cluster"]:
        wanted = f"a node of the cluster with CA {manifest['cluster'][:16]}, or a bare one"
        step = f"{_ANOTHER}; to replace this cluster by that one, run playbooks/reset.yml on its nodes first"
        found.append(Finding(name, wanted, f"a node of the cluster with CA {state['authority'][:16]}", step))
    if state["token"]["differs"]:
        step = (
            f"the token was changed after the backup: put the one from its folder into {config.TOKEN} on every node "
            "(mode 0600) and run again, or take a newer backup"
        )
        found.append(Finding(config.TOKEN, f"the token of {name}, which encrypts part of it", "another one", step))
    if decided["role"] == "agent":
        return found
    kind = state["datastore"]
    if kind == backup.EXTERNAL:
        step = "restore that database with its own tools"
        found.append(Finding("datastore of k3s", manifest["datastore"], "an external one", step))
    if decided["first"] and kind in (backup.OWN_ETCD, backup.OWN_SQLITE) and kind != manifest["datastore"]:
        found.append(Finding(name, f"a backup of {kind}, which this server runs", manifest["datastore"], _ANOTHER))
    if manifest["datastore"] == backup.OWN_SQLITE and decided["servers"] > 1:
        seen = f"{decided['servers']} servers, which share etcd"
        found.append(Finding(name, "one server, for a backup of SQLite", seen, "leave one host in k3s_servers"))
    will_be = state["version"] or decided.get("bundle_version")
    if (decided["first"] or state["version"]) and (will_be is None or not _same(will_be, manifest["k3s"])):
        step = (
            f"a backup is restored by the version that made it: use one made by {will_be}; or run "
            f"playbooks/reset.yml on all nodes and then this again with a bundle that holds {manifest['k3s']}"
        )
        found.append(Finding("k3s", f"{manifest['k3s']}, which made {name}", f"{will_be or 'none'}", step))
    return found


def _same(one: str, other: str) -> bool:
    """A program may add a build to what the bundle calls it."""
    return one == other or other.startswith(f"{one}+") or one.startswith(f"{other}+")


def stamp(nodes: list[dict], manifest: dict, again: bool, now: str) -> str:
    """What names this restore: that of the one which goes on, or of a new one."""
    for node in nodes:
        known = (node["state"] or {}).get("restore") or {}
        if node["decision"]["first"] and known.get("backup") == manifest["name"]:
            return now if again and known.get("step") == backup.DONE else known["stamp"]
    return now


def left(nodes: list[dict], manifest: dict, named: str) -> list[str]:
    """Hosts that this restore has not finished yet."""
    found = []
    for node in nodes:
        told = {"backup": manifest["name"], "stamp": named, "step": backup.DONE}
        if takes_part(node) and (node["state"]["restore"] or {}) != told:
            found.append(node["host"])
    return found


def takes_part(node: dict) -> bool:
    """The first server does, bare or not; another bare node joins afterwards, by site.yml."""
    service = config.SERVICES[node["decision"]["role"]]
    return node["decision"]["first"] or bool(
        node["state"]["authority"] and node["state"]["services"][service]["exists"]
    )


def consent(nodes: list[dict], manifest: dict, hosts: list[str]) -> Finding:
    """What a person has to say before it begins."""
    others = [
        node["host"]
        for node in nodes
        if node["decision"]["role"] == "server" and not node["decision"]["first"] and node["host"] in hosts
    ]
    agents = [node["host"] for node in nodes if node["decision"]["role"] == "agent" and node["host"] in hosts]
    first = next(node["host"] for node in nodes if node["decision"]["first"])
    seen = f"that k3s_restore_allowed is not set. What the cluster has written since {manifest['name']} is lost: "
    seen += "objects made since are gone, deleted ones are back. The API server is away meanwhile, containers go on. "
    seen += f"{first} restores it"
    seen += f"; {', '.join(others)} set their datastore aside and rejoin, one at a time" if others else ""
    seen += f"; k3s-agent restarts on {', '.join(agents)}" if agents else ""
    step = "look at it with --check, then run again with -e k3s_restore_allowed=true"
    return Finding("datastore of the cluster", f"backup {manifest['name']} in its place", seen, step)
