"""Driver stacks on a node's disk: packages, our repository files, headers, DKMS builds.

Reads files below a root; the only command is `dkms status`, where it exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Callable

from ..hca import boot
from ..hca.driver import DPKG_STATUS
from ..hca.seams import Seams
from ..hca.tree import Tree
from . import dkms, packages

_SOURCES = {
    packages.APT: ("/etc/apt/sources.list.d", (".list", ".sources")),
    packages.DNF: ("/etc/yum.repos.d", (".repo",)),
}
_MAIN = "/etc/apt/sources.list"
_OFF = re.compile(r"^enabled\s*[=:]\s*(0|false|no)$", re.IGNORECASE | re.MULTILINE)


def read(
    tree: Tree, facts: dict, seams: Seams, run: Callable[[list[str]], tuple[int, str, str]], ask_origins: bool = False
) -> dict[str, Any]:
    """ask_origins: also read the origins of packages, which takes the package manager a second."""
    tree = tree.snapshot()
    kind = packages.manager(facts["node"])
    installed, held, unfinished = _packages(tree, kind, seams)
    following, _source = boot.following(tree)
    kernels = [*dict.fromkeys(filter(None, (facts["node"]["kernel"], following and following.release)))]
    own = [table[kind] for table in (packages.KEYS, packages.REPOSITORIES) if kind]
    # Unstripped, unlike those of Tree.read: they are compared with the text to write.
    data = {path: tree.read_bytes(path) for path in [*own, packages.PINS, packages.SERVICE]}
    files = {path: None if text is None else text.decode("utf-8", "replace") for path, text in data.items()}
    asked = sorted(installed) if ask_origins and tree.live else []
    return {
        "facts": facts,
        "manager": kind,
        "packages": installed,
        "held": held,
        "unfinished": {name: seen for name, seen in unfinished.items() if packages.stack_packages({name: ""})},
        "files": files,
        "foreign_repositories": _foreign(tree, kind),
        "enabled_repositories": _enabled(tree) if kind == packages.DNF else [],
        "origins": packages.origins_of(kind, asked, files[own[-1]] or "" if own else "", run),
        "kernels": kernels,
        "headers": {kernel: tree.exists(f"/lib/modules/{kernel}/build/Makefile") for kernel in kernels},
        "builds": _builds(tree, run),
    }


def _packages(tree: Tree, kind: str | None, seams: Seams) -> tuple[dict[str, str], set[str], dict[str, str]]:
    """({installed: version}, names on hold, {name: state} of half-installed packages)."""
    if kind == packages.DNF:
        listing = seams.rpm() or ""
        return dict(line.split(" ", 1) for line in listing.splitlines() if " " in line), set(), {}
    installed, held, unfinished = {}, set(), {}
    for stanza in (tree.read(DPKG_STATUS) or "").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        want, _ok, state = [*fields.get("Status", "").split(), "", "", ""][:3]
        if state == "installed":
            installed[fields["Package"]] = fields.get("Version", "")
        elif state in ("unpacked", "half-configured", "half-installed", "triggers-awaited", "triggers-pending"):
            unfinished[fields["Package"]] = state
        if want == "hold":
            held.add(fields["Package"])
    return installed, held, unfinished


def _sources(tree: Tree, kind: str | None) -> Iterator[tuple[str, str]]:
    """(path, text) of each part of the sources of apt or dnf that is not switched off."""
    directory, endings = _SOURCES.get(kind or "", ("", ()))
    files = [f"{directory}/{name}" for name in tree.listdir(directory) if name.endswith(endings)]
    for path in [*files, *([_MAIN] if kind == packages.APT else [])]:
        lines = (line.split("#", 1)[0].rstrip() for line in (tree.read(path) or "").splitlines())
        for text in re.split(r"(?m)^\[" if kind == packages.DNF else r"\n\n", "\n".join(lines)):
            if not _OFF.search(text):
                yield path, text


def _foreign(tree: Tree, kind: str | None) -> list[str]:
    found = dict.fromkeys(path for path, text in _sources(tree, kind) if packages.VENDOR.search(text))
    return [path for path in found if path != packages.REPOSITORIES[kind or ""]]


def _enabled(tree: Tree) -> list[tuple[str, str]]:
    """(id, text) of each section of dnf's repository files that is enabled."""
    parts = [text.partition("]") for _path, text in _sources(tree, packages.DNF)]
    return [(identity, text) for identity, bracket, text in parts if bracket]


def _builds(tree: Tree, run: Callable[[list[str]], tuple[int, str, str]]) -> list[dkms.Build]:
    if not tree.live or not tree.listdir("/var/lib/dkms"):
        return []
    code, out, _error = run(["dkms", "status"])
    return [] if code else dkms.parse(out)
