# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backups of the datastore of k3s, and the way back to one.

PRIVATE to the collection. Reads through a root prefix; the planners are pure. A restore touches every node: it stops
all servers, gives the first the backup's datastore, and has the others rejoin. Each node records how far it is, so that
the next run picks up where one was cut off.
"""

from __future__ import annotations

import hashlib
import json

from .._core.change import Plan
from ..hca import Tree
from . import config as k3s

SCHEMA = 1
SERVER = f"{k3s.DATA}/server"
DATABASE = f"{SERVER}/db"
ETCD = f"{DATABASE}/etcd"
SQLITE = f"{DATABASE}/state.db"
# k3s leaves it after a reset and removes it at its next start; while it is there it refuses another reset.
RESET_FLAG = f"{DATABASE}/reset-flag"
SERVER_TOKEN = f"{SERVER}/token"
# A node proves with it that it is the one that registered under its name.
PASSWORD = "/etc/rancher/node/password"
# Certificates and the keys of encrypted secrets: with etcd they are in the snapshot, encrypted by the token.
IDENTITY = (f"{SERVER}/tls", f"{SERVER}/cred")
AUTHORITIES = (f"{SERVER}/tls/server-ca.crt", f"{k3s.DATA}/agent/server-ca.crt")
# Where k3s can be told of a datastore that is not its own.
ENVIRONMENTS = ("/etc/default/k3s", "/etc/sysconfig/k3s", "/etc/systemd/system/k3s.service.env")
EXTERNAL, OWN_ETCD, OWN_SQLITE = "external", "etcd", "sqlite"

STAGED = "/var/lib/gpufabric-rdma/k3s-backup"
RECORD = "/var/lib/gpufabric-rdma/k3s-restore.json"
LOCK = "/run/gpufabric-rdma-k3s-restore.lock"
MANIFEST = "backup.json"
SNAPSHOT, TOKEN, NODE_PASSWORD, ARCHIVE = "snapshot.db", "token", "node-password", "server.tar"
# How far a restore is on a node.
STOPPED, RESTORED, DONE = "stopped", "restored", "done"


def datastore(tree: Tree) -> str:
    """etcd, sqlite, external, or nothing where the node holds none."""
    if any("K3S_DATASTORE_ENDPOINT=" in (tree.read(path) or "") for path in ENVIRONMENTS):
        return EXTERNAL
    if tree.isdir(f"{ETCD}/member"):
        return OWN_ETCD
    return OWN_SQLITE if tree.exists(SQLITE) else ""


def authority(tree: Tree) -> str:
    """SHA-256 of the certificate of the cluster's CA, which tells clusters apart; nothing on a bare node."""
    for path in AUTHORITIES:
        text = (tree.read(path) or "").strip()
        if text:
            return hashlib.sha256(text.encode()).hexdigest()
    return ""


def record(tree: Tree) -> dict:
    """{backup, stamp, step} of the last restore on this node, or {}."""
    try:
        found = json.loads(tree.read(RECORD) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def facts(tree: Tree) -> dict:
    """What the preflight of a backup or a restore needs of a node; no secret."""
    return {"datastore": datastore(tree), "authority": authority(tree), "restore": record(tree)}


def aside(stamp: str) -> str:
    """Where a node's datastore is kept when another takes its place."""
    return f"{DATABASE}.before-restore-{stamp}"


def plan_save(state: dict, name: str) -> Plan:
    """state: datastore, saved (name of the backup that is staged whole, or nothing)."""
    made = Plan()
    if state["datastore"] not in (OWN_ETCD, OWN_SQLITE):
        external = state["datastore"] == EXTERNAL
        made.finding(
            "datastore of k3s",
            "etcd or SQLite of k3s itself",
            "an external one (K3S_DATASTORE_ENDPOINT)" if external else "none on this node",
            "back it up with the tools of that database" if external else "name a server of the cluster",
        )
    elif state["saved"] != name:
        made.change(STAGED, "save", "", f"{state['datastore']} as backup {name}")
    return made


def plan_step(state: dict, part: str, role: str, backup: str, stamp: str) -> Plan:
    """One part of a restore on one node: stop, restore, rejoin (servers), reconnect (agents).

    state: record (see `record`), database (whether DATABASE is there), kept (whether aside(stamp) is), services.
    backup: its name. stamp: of this restore, the same on all nodes and in the runs that go on with it.
    """
    made = Plan()
    service = k3s.SERVICES[role]
    seen = state["services"][service]
    known = state["record"].get("backup") == backup and state["record"].get("stamp") == stamp
    step = state["record"].get("step") if known else None
    if part == "stop":
        if step is None:
            made.change(RECORD, "begin", "", f"restore of {backup}, {stamp}")
        if step in (None, STOPPED) and (seen["active"] or seen["starting"]):
            made.change(f"service {service}", "stop", "running", "stopped")
    elif step == DONE:
        if not seen["active"]:
            made.change(f"service {service}", "start", "stopped", "running")
    elif step is None and part != "reconnect":
        made.finding(RECORD, f"a restore of {backup} that has begun", "none", "run playbooks/restore.yml again")
    else:
        if part == "restore" and step == STOPPED:
            made.change(DATABASE, "restore", "as it is now", f"backup {backup}")
        if part == "rejoin" and state["database"] and not state["kept"]:
            made.change(DATABASE, "set aside", "in use", aside(stamp))
        running = seen["active"] or seen["starting"]
        made.change(f"service {service}", "restart" if running else "start", "before the restore", "after it")
        made.change(RECORD, "end", step or "", DONE)
    return made
