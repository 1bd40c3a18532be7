# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a Git folder have to be written or removed so that it holds the rendered cluster objects.

PRIVATE to the collection. Pure: what lies in the folder and what was rendered in, Plan out. A path is relative to the
folder and has at most one directory, the role's name.
"""

from __future__ import annotations

import posixpath
import re

from ...module_utils._core.change import Finding, Plan, Refused

# The first line of each file that was rendered. A file without it is someone else's.
MARK = "# Rendered by Ansible collection gpufabric.rdma (playbooks/render.yml); changes here are overwritten.\n"
LIST = "kustomization.yaml"
# As the API server takes them (RBAC allows colons); a node may have named the object.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
# kustomize reads only one of these in a directory.
_LISTS = (LIST, "kustomization.yml", "Kustomization")


def name_of(item: dict) -> str:
    """The file of an object. Names in a cluster have no underscore, so that no two objects share one."""
    meta = item["metadata"]
    parts = [item["kind"].lower(), *([meta["namespace"]] if meta.get("namespace") else []), meta["name"]]
    return "_".join(parts).replace(":", "_") + ".yaml"


def files(rendered: dict[str, list[dict]], text) -> dict[str, str]:
    """{path: text} of the whole folder. rendered: {role: its objects in order}; `text` turns a dict into YAML.

    Raises Refused with all objects whose names are none.
    """
    odd = [item for items in rendered.values() for item in items if not _is_named(item)]
    if odd:
        raise Refused([_unnamed(item) for item in odd])
    made = {LIST: MARK + text(_kustomization(list(rendered)))}
    for role, items in rendered.items():
        names = [name_of(item) for item in items]
        made[f"{role}/{LIST}"] = MARK + text(_kustomization(names))
        made.update((f"{role}/{name}", MARK + text(item)) for name, item in zip(names, items))
    return made


def _is_named(item: dict) -> bool:
    meta = item["metadata"]
    return all(_NAME.fullmatch(str(name)) for name in (item["kind"], meta["name"], meta.get("namespace") or "default"))


def _unnamed(item: dict) -> Finding:
    meta = item["metadata"]
    return Finding(
        f"{item['kind']} {meta['name']}",
        "a name that Kubernetes takes",
        f"name {meta['name']!r}, namespace {meta.get('namespace')!r}",
        "correct the host name of the node that it was made for, or set k3s_node_name; nothing was written",
        "gitops:name",
    )


def _kustomization(resources: list[str]) -> dict:
    return {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": resources}


def plan(found: dict[str, str | None], wanted: dict[str, str]) -> Plan:
    """found: {path: text, or None for what is not a regular file of UTF-8 text}."""
    made = Plan()
    ours = {path for path, text in found.items() if text is not None and text.startswith(MARK)}
    directories = {posixpath.dirname(path) for path in (*wanted, *ours)}
    for path, text in wanted.items():
        if path in found and path not in ours:
            _in_the_way(made, path, "a file that this playbook wrote, or none", "one without its first line")
        elif path not in found or found[path] != text:
            made.change(path, "write", found.get(path) or "", text)
    for path in sorted(ours - set(wanted)):
        made.change(path, "remove", found[path] or "", "")
    for path in sorted(set(found) - ours - set(wanted)):
        directory, name = posixpath.split(path)
        if path in directories:
            _in_the_way(made, path, "a directory or nothing", "a file or a link")
        elif name in _LISTS and directory in directories:
            _in_the_way(made, path, f"one list of resources, {LIST}", "a second one, which kustomize refuses")
        elif directory in directories:
            made.notes.append(f"{path} is not from this playbook: it is kept, and {LIST} does not list it")
    return made


def _in_the_way(made: Plan, path: str, wanted: str, seen: str) -> None:
    made.finding(
        path,
        wanted,
        seen,
        "move it away, or set cluster_objects_folder to a folder of its own (an overlay beside it may hold changes of "
        "yours)",
    )
