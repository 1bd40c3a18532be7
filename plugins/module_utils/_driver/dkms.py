"""What DKMS has built for which kernel, from `dkms status`, and the end of a failed build's log.

PRIVATE to the collection.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

# dkms 2.x: "name, version, kernel, arch: state"; 3.x: "name/version, kernel, arch: state"; not built: no kernel.
_LINE = re.compile(
    r"^(?P<module>[^/,\s]+)(?:/|, )(?P<version>[^,:\s]+)"
    r"(?:, (?P<kernel>[^,\s]+), (?P<architecture>[^:\s]+))?: (?P<state>added|built|installed)(?P<remark>.*)$"
)
# The only remark that goes with a module in order: the kernel's own copy is kept aside.
_HEALTHY = re.compile(r"original[ _]modules? exists?$", re.IGNORECASE)
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
            fields = match.groupdict()
            builds.append(
                Build(
                    fields["module"],
                    fields["version"],
                    fields["kernel"],
                    fields["state"],
                    fields["remark"].strip(" ()"),
                )
            )
    return builds


def not_installed(builds: list[Build], modules: list[str], kernels: list[str]) -> list[tuple[str, str, str, str]]:
    """(module, version, kernel, state) of each module that is not installed for a kernel.

    Of several known versions of a module the newest counts; a module unknown to DKMS is left out, since its package is
    missing anyway. Any remark but that originals are kept means that the kernel loads another file than was built.
    """
    missing = []
    for module in modules:
        mine = [build for build in builds if build.module == module]
        if not mine:
            continue
        version = max((build.version for build in mine), key=_natural)
        for kernel in kernels:
            build = next((b for b in mine if b.version == version and b.kernel == kernel), None)
            state = build.state if build else "added"
            odd = [remark for remark in re.split(r"[()]+", build.remark) if remark.strip()] if build else []
            odd = [remark for remark in odd if not _HEALTHY.match(remark.strip())]
            if state != "installed" or odd:
                reason = state if state != "installed" else "another copy is installed"
                missing.append((module, version, kernel, reason))
    return missing


def log_path(module: str, version: str, kernel: str, architecture: str, tree: str = "/var/lib/dkms") -> list[str]:
    """Where the log of a build may be: beside the failed build, or in its kernel's folder."""
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


def _natural(version: str) -> list:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", version) if part]
