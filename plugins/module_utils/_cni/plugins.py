"""The plan of CNI plugins to install."""

from __future__ import annotations

import hashlib

from .._core.change import Plan
from .._core.files import BESIDE, recorded
from ..hca import Tree

MODE = "0755"
# The name of what the controller sends.
ARCHIVE = "cni-plugins.tar.gz"
# The rows of a bundle or of the lock with plugins.
REFERENCE, FLANNEL = "cni-plugins", "flannel-cni-plugin"
# Options of the module cni_plugins.
ARGUMENTS = {
    "bundle": {"type": "path", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
    "machine": {"type": "str", "required": True},
    "directory": {"type": "path", "default": "/opt/cni/bin"},
    "binaries": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "sha256": {"type": "str", "required": True},
        },
    },
    "sources": {"type": "list", "elements": "dict", "default": []},
    "staged": {"type": "path"},
    "root": {"type": "path", "default": "/"},
}
RECORD = "/var/lib/gpufabric-rdma/cni-plugins.json"


def read(root: str, binaries: list[dict], directory: str) -> dict:
    tree, names = Tree(root), [item["name"] for item in binaries]
    record, there = recorded(tree, RECORD), tree.listdir(directory)
    return {
        "record": record,
        "files": {name: _file(tree, f"{directory}/{name}") for name in {*names, *record} if name in there},
        "leftovers": [name for name in there if name.startswith(BESIDE)],
    }


def _file(tree: Tree, path: str) -> dict:
    data = tree.read_bytes(path)
    return {
        "sha256": "unreadable" if data is None else hashlib.sha256(data).hexdigest(),
        "mode": f"{tree.mode(path) or 0:04o}",
        "link": tree.readlink(path) is not None,
    }


def plan(state: dict, binaries: list[dict], directory: str) -> Plan:
    """binaries: [{name, sha256}]. Plugins that are neither listed nor placed by us are left alone."""
    made = Plan()
    listed = {item["name"]: item["sha256"] for item in binaries}
    for name, sha256 in sorted(listed.items()):
        _place(made, f"{directory}/{name}", name, sha256, state)
    for name, sha256 in sorted(state["record"].items()):
        found = state["files"].get(name)
        if name not in listed and found and found["sha256"] == sha256:
            made.change(f"{directory}/{name}", "remove", f"sha256 {sha256}", "")
    for name in state["leftovers"]:
        made.change(f"{directory}/{name}", "remove", "left by an interrupted run", "")
    if state["record"] != listed:
        made.change(RECORD, "record", text(state["record"]), text(listed))
    return made


def _place(made: Plan, path: str, name: str, sha256: str, state: dict) -> None:
    found = state["files"].get(name)
    if found is None:
        made.change(path, "place", "", f"sha256 {sha256}")
    elif found["sha256"] != sha256 or found["link"]:
        made.change(path, "place", f"sha256 {found['sha256']}", f"sha256 {sha256}")
        if name not in state["record"]:
            made.notes.append(f"{path} existed before this collection installed one; it is replaced")
    elif found["mode"] != MODE:
        made.change(path, "mode", found["mode"], MODE)


def text(record: dict) -> str:
    return "".join(f"{name} {sha256}\n" for name, sha256 in sorted(record.items()))


def placed(changes: list) -> list[str]:
    return [change.object.rpartition("/")[2] for change in changes if change.action == "place"]


def holding(names: list[str], sources: list[dict]) -> list[dict]:
    kinds = {FLANNEL if name == "flannel" else REFERENCE for name in names}
    return [row for row in sources if row["name"] in kinds]
