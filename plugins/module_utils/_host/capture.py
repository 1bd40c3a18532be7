"""Capture of a node: the files, links and answers that its facts come from, as one scrubbed fixture.

The facts are gathered once with a recording tree. Everything it read is read again, reduced to what facts need (the
package database to RDMA packages, a module file to its .modinfo fields), then scrubbed.
"""

from __future__ import annotations

import base64
import errno
import os
import re
from collections import Counter
from functools import partial

from ..hca import Tree, management, pcie, routes
from ..hca.elf import parse
from ..hca.facts import gather
from ..hca.paths import HEADER
from ..hca.seams import Seams
from . import kept_words
from .scrub import Scrubber

ZERO_GID = ":".join(["0000"] * 8)
_LINKS_MAX = 40  # the kernel's own limit (ELOOP)
_MODULE_FILE = re.compile(r"\.ko(\.(xz|zst|gz))?$")
_MODULE_FIELDS = ("version", "srcversion", "build_id", "license", "depends", "vermagic", "intree")
# The parts of a package database and of depmod's files that facts read; the rest stays private.
_PACKAGES = re.compile(
    r"doca|mlnx|mellanox|ofed|ofa_kernel|rdma|verbs|perftest|infiniband|nvidia|^efa$|psm2", re.IGNORECASE
)
# Links that depend on the reading process: kept as the folders that they appear to be.
_OF_THE_READER = ("/proc/self", "/proc/net")


def recording_seams(seams):
    """(seams that answer like the given ones, dictionary that records the answers)."""
    names = ("addresses", "machine", "rpm", "routes", "rules", "sessions")
    answers = {"modinfo": {}, "qos": {}, **dict.fromkeys(names)}

    def note(name, *key):
        answer = getattr(seams, name)(*key)
        if key:
            answers[name][key[0]] = answer
        else:
            answers[name] = answer
        return answer

    def sessions(tree):
        answers["sessions"] = seams.sessions(Tree(tree.root))
        return answers["sessions"]

    asked = ("modinfo", "qos", "rpm", "addresses", "machine", "routes", "rules")
    return Seams(**{name: partial(note, name) for name in asked}, sessions=sessions), answers


def capture(root, name, about=None):
    """(fixture as written to its file, unscrubbed facts, the scrubber to apply to them)."""
    asked = {}
    tree = Tree(root)
    seams, answers = recording_seams(Seams.of(tree))
    facts = gather(
        Tree(root, record=lambda how, path: asked.setdefault(how, set()).add(path)), seams, software_hcas=True
    )
    whole = _Material(tree, asked, answers).fixture()
    scrubber = Scrubber(whole, tree.read("/proc/sys/kernel/hostname"))
    fixture = {
        "name": name,
        "about": about or describe(facts),
        "provenance": {"kind": "captured", "from": ["playbooks/capture.yml of the collection gpufabric.rdma"]},
        **scrubber.apply(whole),
    }
    return encoded(fixture), facts, scrubber


def describe(facts):
    """One line about a node: its system, kernel, GPUs and HCAs."""
    models = [gpu["model"] for gpu in facts["gpus"]]
    models += [hca["pci"]["model"] if hca["pci"] else "software HCA" for hca in facts["hcas"]]
    devices = ", ".join(f"{count} x {model}" for model, count in Counter(models).items()) or "no HCA"
    return f"{facts['node']['os']['pretty_name']}, kernel {facts['node']['kernel']}: {devices}"


class _Material:
    """Everything that a recording read, sorted into the sections of a fixture, with every link on the way."""

    def __init__(self, tree, asked, answers):
        self.tree = tree
        self.asked = asked
        self.answers = answers
        self.prefix = "" if tree.live else tree.root
        self.links, self.files, self.errors, self.directories = {}, {}, {}, set()
        self.modes, self.mtimes, self.repeat = {}, {}, []

    def fixture(self):
        for how, take in (("read", self._content), ("slots", self._table), ("list", self._listing)):
            for path in sorted(self.asked.get(how, ())):
                take(path)
        for path in sorted(self.asked.get("link", set()) | self.asked.get("stat", set())):
            self._presence(path)
        self._forget_plain_processes()
        files = {path: trimmed(path, content) for path, content in self.files.items()}
        self.answers["modinfo"] = {path: fields for path, fields in self.answers["modinfo"].items() if fields}
        if self.answers["rpm"] is not None:
            lines = self.answers["rpm"].splitlines()
            self.answers["rpm"] = "".join(f"{line}\n" for line in lines if _PACKAGES.search(line.split(" ")[0]))
        return {
            "seams": self.answers,
            "links": self.links,
            "files": files,
            "binary": {},
            "errors": self.errors,
            "modes": self.modes,
            "mtimes": self.mtimes,
            "directories": sorted(self.directories - set(_folders((*files, *self.links, *self.errors)))),
            "repeat": self.repeat,
        }

    def _place(self, path, follow=True):
        """The path with links resolved, each link recorded; None if it is absent. follow: the last component too."""
        parts, real, budget = path.strip("/").split("/"), "", _LINKS_MAX
        while parts:
            part = parts.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                real = real.rpartition("/")[0]
                continue
            here = f"{real}/{part}"
            try:
                goal = None if here in _OF_THE_READER else os.readlink(self.prefix + here)
            except OSError:
                goal = None
            if goal is None:
                if not os.path.lexists(self.prefix + here):
                    return None
                real = here
                continue
            self.links[here] = goal
            budget -= 1
            if (not parts and not follow) or budget < 0:
                return here
            # A namespace link (net:[4026531840]) has no target path.
            if re.match(r"^\w+:\[\d+\]$", goal):
                return None
            real = "" if goal.startswith("/") else real
            parts = goal.split("/") + parts
        return real

    def _content(self, path):
        real = self._place(path)
        if real is None:
            return
        data = self.tree.read_bytes(path)
        if data is None:
            code = self._refusal(real)
            if code == "EISDIR":
                self.directories.add(real)
            elif code:
                self.errors[real] = code
        elif _MODULE_FILE.search(path):
            fields = parse(data, path) or self.answers["modinfo"].get(path) or {}
            self.answers["modinfo"][path] = {key: fields[key] for key in _MODULE_FIELDS if key in fields}
        else:
            self.files[real] = data

    def _refusal(self, real):
        """Name of the error that reading a file raises; None if it is readable by now."""
        try:
            descriptor = os.open(self.prefix + real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.read(descriptor, 1)
            finally:
                os.close(descriptor)
        except OSError as error:
            return errno.errorcode.get(error.errno, "EIO")
        return None

    def _table(self, directory):
        real = self._place(directory)
        if real is None:
            return
        self.directories.add(real)
        numbers = [int(name) for name in self.tree.listdir(real) if name.isdigit()]
        used = dict(self.tree.slots(real, ZERO_GID.encode()))
        for number, text in used.items():
            self.files[f"{real}/{number}"] = text.encode() + b"\n"
        for start, end in holes(used, max(numbers, default=-1) + 1):
            self.repeat.append({"path": f"{real}/{{n}}", "from": start, "to": end, "content": ZERO_GID})

    def _listing(self, path):
        """The entries of listings that were not read by name: links of sysfs, which represent devices."""
        real = self._place(path)
        if real is None or not os.path.isdir(self.prefix + real):
            return
        self.directories.add(real)
        if real.startswith("/sys/"):
            for name in self.tree.listdir(real):
                child = f"{real}/{name}"
                if os.path.islink(self.prefix + child):
                    self.links[child] = os.readlink(self.prefix + child)

    def _presence(self, path):
        """A path that was checked but not read: it exists, is a link, has a mode or an age."""
        self._place(path, follow=False)
        real = self._place(path)
        if real is None:
            return
        if os.path.isdir(self.prefix + real):
            self.directories.add(real)
            return
        if real not in self.files and real not in self.errors and not _MODULE_FILE.search(real):
            self.files[real] = b""
        if not real.startswith(("/sys/", "/proc/")):
            status = os.stat(self.prefix + real)
            if status.st_mode & 0o7777 != 0o644:
                self.modes[real] = f"{status.st_mode & 0o7777:04o}"
            if real.startswith("/boot/"):
                self.mtimes[real] = int(status.st_mtime)

    def _forget_plain_processes(self):
        """Leave out every process of which only the network namespace, that of init, is known."""
        # Without permission to read init's namespace we use our own, as the facts do.
        own = self.links.get("/proc/1/ns/net") or self.links.get("/proc/self/ns/net")
        known = {path.split("/")[2] for path in self.files if path.startswith("/proc/")} | {"1"}
        for path in [path for path in self.links if re.match(r"^/proc/\d+/ns/net$", path)]:
            if self.links[path] == own and path.split("/")[2] not in known:
                del self.links[path]


def _folders(paths):
    for path in paths:
        while path:
            path = path.rpartition("/")[0]
            yield path


def holes(used, count):
    """Runs of numbers below `count` that are not in use, as (first, last)."""
    start = None
    for number in range(count + 1):
        free = number < count and number not in used
        if free and start is None:
            start = number
        elif not free and start is not None:
            yield start, number - 1
            start = None


# Files of this collection are kept verbatim; in others these rules keep what facts read.
_RULES = (
    (re.compile(r"^/proc/cmdline$"), kept_words.command_line),
    (re.compile(r"/modprobe\.d/[^/]+$"), kept_words.modprobe),
    (re.compile(r"/modules-load\.d/[^/]+$|^/etc/modules$|^/etc/rdma/modules/"), kept_words.modules),
    (re.compile(r"/systemd/.*\.(service|socket|timer|scope|slice|conf)$"), kept_words.unit),
    (re.compile(r"/os-release$"), kept_words.os_release),
    (re.compile(r"^/(etc|usr|run)/.*\.conf$"), kept_words.settings),
)


def trimmed(path, data):
    """A file's content without the parts that no fact needs: other packages, modules, settings that may be secrets."""
    if path == "/var/lib/dpkg/status":
        stanzas = [stanza for stanza in data.decode("utf-8", "replace").split("\n\n") if stanza]
        kept = [stanza for stanza in stanzas if _PACKAGES.search(stanza.partition("\n")[0][len("Package: ") :])]
        kept = [_only(stanza, ("Package", "Status", "Architecture", "Version")) for stanza in kept]
        return "\n\n".join(kept).encode() + b"\n"
    if path.endswith(("/modules.dep", "/modules.builtin")):
        lines = data.decode("utf-8", "replace").splitlines()
        return "".join(f"{line}\n" for line in lines if kept_words.MODULE.search(_stem(line))).encode()
    if path.endswith("/mountinfo"):
        # Only mounts of namespaces; the others reveal disks and file servers.
        return b"".join(line + b"\n" for line in data.splitlines() if b" net:[" in line)
    if path == routes.IPV6:
        # Default routes, with a made-up gateway.
        rows = [line.split() for line in data.decode("ascii", "replace").splitlines()]
        kept = [[*words[:4], f"fe80{'0' * 27}1", *words[5:]] for words in rows if len(words) > 9 and words[1] == "00"]
        return "".join(" ".join(words) + "\n" for words in kept if not words[0].strip("0")).encode()
    if path.endswith("/config") and path.startswith("/sys/devices/pci"):
        return pcie.reduced(data)
    if path.startswith("/boot/config-"):
        on = pcie.options(data.decode("utf-8", "replace"))
        return "".join(f"CONFIG_{name}={value}\n" for name, value in on.items()).encode()
    if path == "/proc/1/environ":
        return b"".join(entry + b"\0" for entry in data.split(b"\0") if entry.startswith(b"container="))
    if path.endswith("/ofed_info"):
        found = re.search(rb"(MLNX_OFED_LINUX|OFED-internal)-\d[0-9.-]*\d", data)
        return found.group(0) + b"\n" if found else b"\n"
    if re.match(r"^/proc/\d+/cmdline$", path):
        return data.split(b"\0")[0] + b"\0"
    if path.startswith(management.K3S):
        return "".join(
            found[0].strip() + "\n" for found in management.K3S_LINE.finditer(data.decode("utf-8", "replace"))
        ).encode()
    rule = next((rule for pattern, rule in _RULES if pattern.search(path)), None)
    if rule and not data.startswith(HEADER.encode()):
        return rule(data.decode("utf-8", "replace")).encode()
    return data


def _only(stanza, keys):
    return "\n".join(line for line in stanza.splitlines() if line.partition(":")[0] in keys)


def _stem(line):
    return line.partition(":")[0].rpartition("/")[2].partition(".ko")[0]


def encoded(fixture):
    """The fixture as written to its file: texts without their last newline, other bytes in base64, folders folded."""
    texts, binary = {}, {}
    for path, data in fixture["files"].items():
        text = _text(path, data)
        if text is None:
            binary[path] = base64.b64encode(data).decode()
        else:
            texts[path] = text
    folded = {"files": fold(texts), "links": fold(fixture["links"]), "errors": fold(fixture["errors"])}
    body = {**fixture, **folded, "binary": binary}
    return {key: value for key, value in body.items() if value or key in ("seams", "links", "files")}


def _text(path, data):
    """Content as text, if writing it again with one newline at the end gives the same bytes; else None."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text and path.endswith("/config"):
        return None
    if path.startswith("/sys/"):
        return text.rstrip("\n")  # every reader of an attribute strips it
    if not text or (text.endswith("\n") and len(text) > 1 and text[-2] != "\n"):
        return text[:-1] if text else text
    return None


def fold(section):
    """{path: value} with the paths of a folder grouped below it, which keeps a fixture short and readable."""
    folders = {}
    for path, value in section.items():
        folder, name = os.path.split(path)
        folders.setdefault(folder, {})[name] = value
    folded = {}
    for folder, entries in sorted(folders.items()):
        if len(entries) == 1:
            ((name, value),) = entries.items()
            folded[os.path.join(folder, name)] = value
        else:
            folded[folder] = dict(sorted(entries.items()))
    return folded
