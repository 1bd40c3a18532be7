"""A folder for Git that holds the rendered cluster objects: one directory per role, one file per object.

`files` and `plan` are pure. A path is relative to the folder and has at most one directory, the role's name.
"""

import json
import os
import pathlib
import posixpath
import re

import yaml

from ...module_utils._core import files as core_files
from ...module_utils._core.change import Finding, Plan, Refused, settle

# The first line of each file that was rendered. A file without it is someone else's.
MARK = "# Rendered by Ansible collection gpufabric.rdma (playbooks/render.yml); changes here are overwritten.\n"
LIST = "kustomization.yaml"
# As the API server accepts them (RBAC allows colons); the name may come from a node.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
# What every version of YAML reads as the same string; everything else is quoted, such as 1e3, y or 0x1.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9./_-]*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
# kustomize reads only one of these in a directory.
_LISTS = (LIST, "kustomization.yml", "Kustomization")


def name_of(item: dict) -> str:
    """The file of an object. Names in a cluster have no underscore, so no two objects share a file."""
    meta = item["metadata"]
    parts = [item["kind"].lower(), *([meta["namespace"]] if meta.get("namespace") else []), meta["name"]]
    return "_".join(parts).replace(":", "_") + ".yaml"


def files(rendered: dict[str, list[dict]]) -> dict[str, str]:
    """{path: text} of the whole folder. rendered: {role: its objects in order}.

    Raises Refused with all objects that have invalid names.
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
    obj, seen = f"{item['kind']} {meta['name']}", f"name {meta['name']!r}, namespace {meta.get('namespace')!r}"
    step = "correct the host name of the node that it belongs to, or set k3s_node_name; nothing was written"
    return Finding(obj, "a name that Kubernetes accepts", seen, step, "gitops:name")


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
    step = "move it away, or set cluster_objects_folder to another folder (an overlay next to it may hold your changes)"
    made.finding(path, wanted, seen, step)


def converge(folder: pathlib.Path, rendered: dict[str, list[dict]], check_mode: bool) -> tuple[Plan, list]:
    """(plan, changes, made or in check mode planned). Raises Refused, also for a folder that cannot be read."""
    try:
        wanted = files(rendered)
        return settle(
            read=lambda: read(folder, wanted),
            plan=lambda found: plan(found, wanted),
            apply=lambda decided: apply(folder, decided),
            check_mode=check_mode,
        )
    except OSError as error:
        raise Refused.because(
            error.filename or str(folder),
            "a folder that can be read and written",
            error.strerror or str(error),
            "correct its permissions, or set cluster_objects_folder to another folder, and run again",
        ) from error


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _data):
        return True

    def scalar(self, value):
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=_style(value))


_Dumper.add_representer(str, _Dumper.scalar)


def _style(value: str) -> str | None:
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return None
    lines = value.split("\n")
    block = len(lines) > 1 and value[0] not in " \n" and value.isascii()
    return "|" if block and all(line == line.rstrip() and line.isprintable() for line in lines) else '"'


def text(item: dict) -> str:
    """An object as YAML, keys in alphabetical order as kubectl prints them. The same object gives the same bytes."""
    # The controller tags the values it templates; YAML needs plain ones.
    plain = json.loads(json.dumps(item))
    return yaml.dump(plain, Dumper=_Dumper, width=float("inf"), allow_unicode=True)


def read(folder: pathlib.Path, wanted: dict) -> dict[str, str | None]:
    """{path: text} of the entries in the folder and in our directories in it; hidden ones are left out."""
    found: dict = {}
    ours = {path.partition("/")[0] for path in wanted if "/" in path}
    for entry in _entries(folder):
        if entry.is_symlink() or not entry.is_dir():
            found[entry.name] = _text(entry)
            continue
        inner = {f"{entry.name}/{child.name}": _text(child) for child in _entries(entry)}
        if entry.name in ours or any(content and content.startswith(MARK) for content in inner.values()):
            found.update(inner)
    return found


def _entries(directory: pathlib.Path) -> list[pathlib.Path]:
    if not directory.exists():
        return []
    return sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))


def _text(path: pathlib.Path) -> str | None:
    if path.is_symlink() or not path.is_file():
        return None
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return None


def apply(folder: pathlib.Path, changes: list):
    for change in changes:
        path = folder / change.object
        if change.action == "remove":
            core_files.remove(os.fspath(path))
            if path.parent != folder and not any(path.parent.iterdir()):
                path.parent.rmdir()
        else:
            core_files.write(os.fspath(path), change.after)
        yield change
