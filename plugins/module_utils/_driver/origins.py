"""Where installed packages came from, as apt and dnf know it.

`read` asks the package manager, which lists for each package the repositories that offer the installed version and
others; the parsers are pure.
"""

from __future__ import annotations

import re
from typing import Callable

from . import packages

# Repositories of the vendor, by address (apt) or id (dnf).
VENDOR = re.compile(
    r"(linux|www|content|network)\.(mellanox|nvidia)\.com|/doca-host-|/usr/share/(doca-host|mlnx-ofed)|MLNX_OFED"
)
_VENDOR_ID = re.compile(r"^@?(gpufabric-rdma-driver|doca|mlnx|mellanox)", re.IGNORECASE)
_STATUS = "/var/lib/dpkg/status"
_OURS = "gpufabric-rdma-driver"


def read(kind: str | None, names: list[str], own: str, run: Callable) -> dict[str, dict]:
    """{name: {vendor, offered, elsewhere}} of installed packages. own: text of our repository file.

    vendor: the stack's repository brought it, or offers this version. offered: some repository has this version.
    elsewhere: another repository has another version. A package that the manager does not know is left out.
    """
    if not names or kind is None:
        return {}
    if kind == packages.APT:
        code, out, _error = run(["apt-cache", "policy", *names])
        return {} if code else parse_policy(out, re.findall(r"^URIs: (\S+)", own, re.MULTILINE))
    query = ["dnf", "--quiet", "repoquery"]
    code, out, _error = run([*query, "--installed", "--queryformat", "%{name} %{from_repo}\n"])
    if code:
        return {}
    offered = ["--available", f"--disablerepo={_OURS}", "--queryformat", "%{name} %{version}-%{release} %{repoid}\n"]
    _code, available, _error = run([*query, *offered, *names])
    return parse_repoquery(out, available)


def parse_policy(text: str, own: list[str]) -> dict[str, dict]:
    """The version tables of `apt-cache policy`. own: addresses of our repository."""
    ours = [re.sub(r"^(file|copy):/*", r"\1:/", address).rstrip("/") for address in own]
    packages: dict[str, dict] = {}
    current: dict = {}
    installed = False
    for line in text.splitlines():
        if line and not line[0].isspace() and line.endswith(":"):
            current = packages.setdefault(line[:-1], {"vendor": False, "offered": False, "elsewhere": False})
            continue
        version = re.match(r"^ (\*\*\*|   ) \S+ -?\d+( \(phased .*\))?$", line)
        if version:
            installed = version.group(1) == "***"
            continue
        source = re.match(r"^ +-?\d+ (\S+)", line)
        if not source or source.group(1) == _STATUS or not current:
            continue
        address = source.group(1).rstrip("/")
        vendors = bool(VENDOR.search(address)) or address in ours
        if installed:
            current["offered"] = True
            current["vendor"] = current["vendor"] or vendors
        elif not vendors:
            current["elsewhere"] = True
    return packages


def parse_repoquery(installed: str, available: str) -> dict[str, dict]:
    """Of `dnf repoquery`: `name from_repo` of what is installed, `name version repoid` of what is to be had."""
    offers: dict[str, list[str]] = {}
    for line in available.splitlines():
        name, _version, repository = [*line.split(), "", "", ""][:3]
        if name:
            offers.setdefault(name, []).append(repository)
    packages = {}
    for line in installed.splitlines():
        name, origin = [*line.split(), "", ""][:2]
        if name:
            # dnf remembers the repository of each package, also after it is gone; @commandline is a file.
            packages[name] = {
                "vendor": bool(_VENDOR_ID.match(origin)),
                "offered": bool(origin) and not origin.lstrip("@").startswith(("commandline", "System", "<unknown>")),
                "elsewhere": any(not _VENDOR_ID.match(repository_id) for repository_id in offers.get(name, [])),
            }
    return packages
