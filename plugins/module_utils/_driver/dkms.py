"""DKMS builds by kernel, the end of a failed build's log, and whether the kernel accepts DKMS's signatures."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Optional

from ..hca import pcie
from ..hca.text import natural
from ..hca.tree import Tree

_EFI = "/sys/firmware/efi"
_SECURE_BOOT = f"{_EFI}/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_MOK_LISTS = (f"{_EFI}/mok-variables/MokListRT", f"{_EFI}/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23")
# Ubuntu signs with shim's key, all others with DKMS's own.
_DKMS_KEYS = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")
_FRAMEWORK = "/etc/dkms/framework.conf"
_CERTIFICATE = re.compile(r"""^\s*mok_certificate=["']?([^"'\s#]+)""", re.MULTILINE)

# dkms 2.x: "name, version, kernel, arch: state"; 3.x: "name/version, kernel, arch: state"; not built: no kernel.
_LINE = re.compile(
    r"^([^/,\s]+)(?:/|, )([^,:\s]+)"
    r"(?:, ([^,\s]+), [^:\s]+)?: ([a-z-]+)(.*)$"
)
# A module's states and remarks in order: built for this kernel or, by weak-modules, for one with the same interface;
# the kernel's own copy is kept aside.
_INSTALLED = ("installed", "installed-weak")
_HEALTHY = re.compile(r"(original[ _]modules? exists?|from \S+)$", re.IGNORECASE)
_TAIL = 30


class Build(NamedTuple):
    """One line of dkms status; kernel is None for sources that are added but not built for any kernel."""

    module: str
    version: str
    kernel: Optional[str]
    state: str
    remark: str


def parse(text: str) -> list[Build]:
    """Lines that report a module; warnings about removed kernels and the like are skipped."""
    builds = []
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match:
            module, version, kernel, state, remark = match.groups()
            builds.append(Build(module, version, kernel, state, remark.strip(" ()")))
    return builds


def not_installed(builds: list[Build], modules: list[str], kernels: list[str]) -> list[tuple[str, str, str, str]]:
    """(module, version, kernel, state) of each module that is not installed for a kernel.

    Of several known versions of a module the newest counts; a module unknown to DKMS is left out, since its package is
    missing anyway. Any remark except about kept originals means that the kernel loads a file other than the built one.
    """
    missing = []
    for module in modules:
        mine = [build for build in builds if build.module == module]
        if not mine:
            continue
        whole = [build for build in mine if build.state != "broken"]  # what is left of removed sources
        version = max((build.version for build in whole or mine), key=natural)
        for kernel in kernels:
            build = next((b for b in mine if b.version == version and b.kernel == kernel), None)
            state = build.state if build else "added"
            odd = [remark for remark in re.split(r"[()]+", build.remark) if remark.strip()] if build else []
            odd = [remark for remark in odd if not _HEALTHY.match(remark.strip())]
            if state not in _INSTALLED or odd:
                reason = "another copy is installed" if state in _INSTALLED else state
                missing.append((module, version, kernel, reason))
    return missing


def log_path(module: str, version: str, kernel: str, architecture: str, tree: str = "/var/lib/dkms") -> list[str]:
    """Possible paths of a build's log: next to the failed build, or in its kernel's folder."""
    return [
        f"{tree}/{module}/{version}/build/make.log",
        f"{tree}/{module}/{version}/{kernel}/{architecture}/log/make.log",
    ]


def tail(log: str, lines: int = _TAIL) -> str:
    """The end of a log, starting at the first error if that is close."""
    text = [line.rstrip() for line in log.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(text) if re.search(r"\b(error|Error)\b[: ]", line)]
    start = max(len(text) - lines, 0)
    if errors and errors[0] < start:
        start = max(errors[0] - 2, 0)
    return "\n".join(text[start : start + lines])


def secure_boot(tree: Tree) -> dict[str, Any]:
    """{enabled: bool|"unknown: …", lockdown, signatures_required, dkms_key: path|None, dkms_key_enrolled: bool}.

    Sources: the EFI variable SecureBoot (four bytes of attributes, then 0 or 1), the lockdown file of securityfs, the
    kernel's own sig_enforce, and shim's list of machine owner keys, which contains the raw certificates.
    """
    enabled: Any = False
    if tree.isdir(_EFI):
        data = tree.read_bytes(_SECURE_BOOT)
        enabled = "unknown: the EFI variable SecureBoot is not readable" if data is None else data[4:5] == b"\x01"
    chosen = pcie.lockdown(tree)
    enforced = tree.read("/sys/module/module/parameters/sig_enforce") == "Y"
    files = [_FRAMEWORK, *(f"{_FRAMEWORK}.d/{name}" for name in tree.listdir(f"{_FRAMEWORK}.d"))]
    own = [path for file in files for path in _CERTIFICATE.findall(tree.read(file) or "")]
    key = next((path for path in [*own[-1:], *_DKMS_KEYS] if tree.exists(path)), None)
    certificate = tree.read_bytes(key) if key else None
    enrolled = any(certificate in (tree.read_bytes(path) or b"") for path in _MOK_LISTS) if certificate else False
    return {
        "enabled": enabled,
        "lockdown": chosen or "none",
        # A distribution kernel locks itself down under Secure Boot, unless shim's validation is off (mokutil
        # --disable-validation); without securityfs only the variable shows it.
        "signatures_required": (enabled is True and not chosen) or chosen not in (None, "none") or enforced,
        "dkms_key": key,
        "dkms_key_enrolled": enrolled,
    }
