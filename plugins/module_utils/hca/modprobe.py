"""The settings of modprobe.d, modules-load.d and the kernel command line, in the order of kmod and systemd.

kmod (libkmod-config.c): the files of all directories are sorted by name; of files with the same name the first
directory counts; the kernel command line is parsed after the files; of a repeated option the kernel keeps the last.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import paths
from .tree import Tree

CMDLINE = "/proc/cmdline"
CALLS_ITSELF = re.compile(r"\s(-[a-z]*i|--ignore-install)(?!\S)")  # modprobe's option in an install command


class Line(NamedTuple):
    """One statement: its location and its words. The kernel command line has only line 1."""

    path: str
    line: int
    text: str
    words: tuple[str, ...]

    def as_fact(self) -> dict[str, Any]:
        return {"path": self.path, "line": self.line, "text": self.text}


def said(fact: dict[str, Any]) -> str:
    """What a statement says and where, for a message. fact: see Line.as_fact()."""
    return f"{fact['path']}:{fact['line']} says '{fact['text']}'"


def canonical(name: str) -> str:
    """Module names are compared with underscores; the file of nvidia_peermem is nvidia-peermem.ko."""
    return name.replace("-", "_")


def effective_files(tree: Tree, folder: str) -> list[str]:
    """The *.conf files that apply of a folder such as modprobe.d, sorted by file name.

    On merged-/usr systems the last two directories are one.
    """
    chosen: dict[str, str] = {}
    for directory in paths.CONFIGURATION:
        for name in tree.listdir(f"{directory}/{folder}"):
            if name.endswith(".conf") and not name.startswith("."):
                chosen.setdefault(name, f"{directory}/{folder}/{name}")
    return [chosen[name] for name in sorted(chosen)]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) with backslash continuations joined."""
    start, parts = 0, []
    for number, line in enumerate(text.splitlines(), 1):
        start = start if parts else number
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield start, "".join([*parts, line]).strip()
        parts = []
    if parts:
        yield start, "".join(parts).strip()


def statements(tree: Tree) -> list[Line]:
    """Every statement of modprobe.d in order of precedence, weakest first, the kernel command line last.

    `module.option=value` of the command line becomes `options module option=value`, `modprobe.blacklist=a,b`
    and `module_blacklist=a,b` as `blacklist a` and `blacklist b`, so that callers handle one form only.
    """
    found = []
    for path in effective_files(tree, "modprobe.d"):
        # Not `read`: it strips, and leading empty lines would shift the line numbers.
        content = (tree.read_bytes(path) or b"").decode("utf-8", "replace")
        for number, text in _logical_lines(content):
            words = text.split()
            if words and not words[0].startswith("#"):
                found.append(Line(path, number, text, tuple(words)))
    for word in tree.once(command_line):
        key, equals, value = word.partition("=")
        module, dot, option = key.partition(".")
        if key in ("modprobe.blacklist", "module_blacklist"):  # the second is the kernel's own and blocks all loading
            found += [Line(CMDLINE, 1, word, ("blacklist", name)) for name in value.split(",") if name]
        elif dot and option and re.fullmatch(r"[\w-]+", module):
            found.append(Line(CMDLINE, 1, word, ("options", module, option + equals + value)))
    return found


def command_line(tree: Tree) -> list[str]:
    return boot_words(tree.read(CMDLINE) or "")


def boot_words(text: str) -> list[str]:
    """Words of /proc/cmdline, without those after `--`, which are for init."""
    try:
        words = shlex.split(text, posix=True) if '"' in text or "'" in text or "\\" in text else text.split()
    except ValueError:  # an odd number of quotes
        words = text.split()
    return words[: words.index("--")] if "--" in words else words


def options(lines: list[Line], module: str, option: str) -> list[tuple[Line, str]]:
    """[(statement, value)] of one module option, weakest first. An option without a value counts as `1`."""
    wanted, name = canonical(module), canonical(option)
    found = []
    for line in lines:
        if line.words[0] != "options" or len(line.words) < 3 or canonical(line.words[1]) != wanted:
            continue
        for word in line.words[2:]:
            key, equals, value = word.partition("=")
            if canonical(key) == name:
                found.append((line, value.strip("\"'") if equals else "1"))
    return found


def blocks(lines: list[Line], module: str) -> list[Line]:
    """Statements that keep a module from loading or run a command instead.

    `blacklist` blocks loading by hardware id and modules-load.d, `install` all loading; an install command that calls
    modprobe for the module itself is not a block.
    """
    about = [line for line in lines if len(line.words) > 1 and canonical(line.words[1]) == canonical(module)]
    return [
        line
        for line in about
        if line.words[0] == "blacklist" or (line.words[0] == "install" and not CALLS_ITSELF.search(line.text))
    ]


def loaded_at_boot(tree: Tree) -> list[tuple[str, str]]:
    """[(path, module)] of all files that load a module by name at boot.

    modules-load.d, /etc/modules, rdma-core's /etc/rdma/modules (which its udev rules load once hardware of the kind
    in the file's name appears), and modules-load= on the kernel command line.
    """
    found: dict[tuple[str, str], None] = {}
    files = effective_files(tree, "modules-load.d")
    directory = "/etc/rdma/modules"
    files += ["/etc/modules", *(f"{directory}/{name}" for name in tree.listdir(directory) if name.endswith(".conf"))]
    for path in files:
        # Debian links modules-load.d/modules.conf to /etc/modules: one file, shown under its own name.
        shown = tree.realpath(path) if tree.readlink(path) else path
        for line in (tree.read(path) or "").splitlines():
            words = line.split()
            if words and words[0][0] not in "#;":
                found[(shown, canonical(words[0]))] = None
    for word in tree.once(command_line):
        key, _equals, value = word.partition("=")
        if key in ("modules-load", "modules_load"):
            found.update({(CMDLINE, canonical(name)): None for name in value.split(",") if name})
    return list(found)
