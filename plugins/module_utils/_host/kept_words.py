"""The words of hand-written files that a capture keeps: only those that facts need.

Pure. An allowlist, not a denylist: a site may put a password, a host name or an address anywhere. Each function is
idempotent.
"""

from __future__ import annotations

import re

from ..hca.modprobe import CALLS_ITSELF, boot_words, canonical

REDACTED = "removed by capture"
# Modules that facts may read.
MODULE = re.compile(r"mlx|^ib_|^iw_|rdma|rxe|^siw|nvidia|nv_peer|nv-p2p|hfi1|irdma|^efa|^bnxt_re|^erdma|^mana|^ionic")
# Module options that facts read.
_OPTIONS = {("ib_core", "netns_mode"), ("nvidia", "NVreg_EnableStreamMemOPs"), ("nvidia", "NVreg_RegistryDwords")}
_BLACKLISTS = ("modprobe.blacklist", "module_blacklist")
_LOADS = ("modules-load", "modules_load")
_ASSIGNMENTS = ("LimitMEMLOCK", "DefaultLimitMEMLOCK", "PrivateNetwork", "Type", "PIDFile", "Slice", "ExecStart")
_RELEASE = ("ID", "ID_LIKE", "VERSION_ID", "PRETTY_NAME")
_QUOTES = "\"'"
_LOGICAL_LINE = re.compile(r"(?:.*\\\n)*.+")  # a backslash continues it
# Programs in an `install` line that keep a module out.
_NOTHING = ("/bin/true", "/bin/false", "/usr/bin/true", "/usr/bin/false")


def command_line(text: str) -> str:
    """The words of /proc/cmdline about modules and ACS: no root, address, console or anything else of the site."""
    return " ".join(kept for kept in map(_boot_word, boot_words(text)) if kept)


def _boot_word(word: str) -> str:
    key, _equals, value = word.partition("=")
    if key in (*_BLACKLISTS, *_LOADS):
        names = [name for name in value.split(",") if MODULE.search(name)]
        return f"{key}={','.join(names)}" if names else ""
    if key == "pcie_acs_override" or (key == "pci" and value.startswith(("config_acs=", "disable_acs_redir="))):
        return word
    module, dot, option = key.partition(".")
    return _cut(word) if dot and _is_read(module, option) else ""


def modprobe(text: str) -> str:
    """A modprobe.d file with the statements that facts read on their original lines; other lines are empty."""
    return _LOGICAL_LINE.sub(_kept, text)


def _kept(line: re.Match) -> str:
    """One logical line over as many lines as it had."""
    return statement(line[0].replace("\\\n", "").removesuffix("\\")) + "\n" * line[0].count("\n")


def statement(text: str) -> str:
    """One statement of modprobe.d, reduced to what facts read; possibly empty."""
    words = text.split()
    if len(words) < 2 or not MODULE.search(words[1]):
        return ""
    if words[0] == "blacklist":
        return f"blacklist {words[1]}"
    if words[0] == "options":
        read = [_cut(word) for word in words[2:] if _is_read(words[1], word.partition("=")[0])]
        return " ".join(["options", words[1], *read]) if read else ""
    if words[0] == "install":
        if CALLS_ITSELF.search(text):
            return f"install {words[1]} --ignore-install"
        return f"install {words[1]} {words[2] if words[2:3] and words[2] in _NOTHING else REDACTED}"
    return ""


def modules(text: str) -> str:
    """A list of modules to load, with those that facts read on their original lines."""
    lines = (line.split() for line in text.split("\n"))
    return "\n".join(words[0] if words and MODULE.search(words[0]) else "" for words in lines)


def unit(text: str) -> str:
    """A unit file or a manager's settings: sections, and the assignments that facts read."""
    kept = []
    for line in text.replace("\\\n", " ").split("\n"):
        key, equals, value = line.strip().partition("=")
        words = value.split()
        if re.fullmatch(r"\[\w+\]", line.strip()):
            kept.append(line.strip())
        elif equals and key.strip() in _ASSIGNMENTS:
            # The first word is the program; the rest may contain a token.
            kept.append(f"{key.strip()}={' '.join([*words[:1], *([REDACTED] if words[1:] else [])])}")
    return "\n".join([*kept, ""])


def os_release(text: str) -> str:
    """The kind of system, without site additions."""
    return "".join(f"{line}\n" for line in text.splitlines() if line.partition("=")[0] in _RELEASE)


def settings(text: str) -> str:
    """A file of KEY=value lines with those whose value is a plain word; the other lines are empty."""
    lines = (line.strip() for line in text.split("\n"))
    return "\n".join(line if re.fullmatch(r"\w+=\w{0,8}", line) else "" for line in lines)


def _is_read(module: str, option: str) -> bool:
    return (canonical(module), canonical(option)) in _OPTIONS


def _cut(word: str) -> str:
    """option=value with at most enough of the value to tell yes from no."""
    option, equals, value = word.partition("=")
    if option.endswith("RegistryDwords"):
        return f"{option}={''.join(re.findall('PeerMappingOverride=[0-9]+;?', value))}"
    return f"{option}{equals}{value.strip(_QUOTES)[:2]}"
