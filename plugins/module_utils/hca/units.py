"""systemd unit files and their drop-ins, merged in the order of systemd.unit(5)."""

from __future__ import annotations

from typing import Optional

from . import paths
from .tree import Tree


def template(unit: str) -> Optional[str]:
    """`e2scrub@.service` of `e2scrub@root.service`; None for a unit that is not an instance."""
    stem, _dot, kind = unit.rpartition(".")
    name, at, instance = stem.partition("@")
    return f"{name}@.{kind}" if at and instance else None


def _index(tree: Tree) -> dict[str, list[str]]:
    """{name: directories that have it, the most important one first}."""
    found: dict[str, list[str]] = {}
    for directory in paths.UNIT_DIRECTORIES:
        for name in tree.listdir(directory):
            found.setdefault(name, []).append(directory)
    return found


def fragment(tree: Tree, unit: str) -> Optional[str]:
    """Path of the unit file that applies; None if there is none or the unit is masked."""
    index = tree.once(_index)
    for name in (unit, template(unit)):
        for directory in index.get(name, ()):
            path = f"{directory}/{name}"
            return None if tree.readlink(path) == "/dev/null" else path
    return None


def drop_ins(tree: Tree, unit: str) -> list[str]:
    """Drop-in files in the order in which they apply.

    All directories together are sorted by file name; of the same name the more important directory counts. Besides
    <unit>.d there are <template>.d, the dashed prefixes (k3s-.service.d of k3s-agent.service) and <type>.d.
    """
    stem, _dot, kind = unit.rpartition(".")
    dashed = stem.split("-")
    prefixes = ["-".join(dashed[:count]) + f"-.{kind}" for count in range(len(dashed) - 1, 0, -1)]
    chosen: dict[str, str] = {}
    index = tree.once(_index)
    for name in [unit, template(unit), *prefixes, kind]:
        for directory in index.get(f"{name}.d", ()):
            for file in tree.listdir(f"{directory}/{name}.d"):
                if file.endswith(".conf"):
                    chosen.setdefault(file, f"{directory}/{name}.d/{file}")
    return [chosen[file] for file in sorted(chosen)]


def settings(tree: Tree, unit: str, section: str) -> dict[str, list[str]]:
    """{key: [values in order]} of one section over the unit file and its drop-ins; the last value counts.

    An empty assignment is kept as "" (it resets a list, or a value to its default).
    """
    path = fragment(tree, unit)
    found: dict[str, list[str]] = {}
    for file in ([path] if path else []) + drop_ins(tree, unit):
        for key, value in assignments(tree.read(file) or "", section):
            found.setdefault(key, []).append(value)
    return found


def assignments(text: str, section: str) -> list[tuple[str, str]]:
    """[(key, value)] of one section of a unit file, continuation lines joined."""
    found, inside, pending = [], False, ""
    for raw in [*text.splitlines(), ""]:  # k3s' installer ends ExecStart= with a continuation
        line = raw.strip()
        if line[:1] in ("#", ";"):
            continue  # systemd.syntax(7): comments inside a continuation are skipped too
        line = pending + line
        if line.endswith("\\"):
            pending = line[:-1] + " "
            continue
        pending = ""
        if line.startswith("[") and line.endswith("]"):
            inside = line[1:-1] == section
        elif inside and "=" in line:
            key, _equals, value = line.partition("=")
            found.append((key.strip(), value.strip()))
    return found
