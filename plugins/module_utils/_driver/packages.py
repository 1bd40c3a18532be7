"""apt and dnf for a driver stack: files, package names and their origins, versions, command lines.

Only `origins_of` runs a command. The apt path runs in the lab; the dnf path is only rendered and compared, because no
RPM system runs there.
"""

from __future__ import annotations

import re
from typing import Callable, Optional

from .._core.files import HEADER
from ..hca import node as hca_node
from ..hca import paths

APT, DNF = "apt", "dnf"
KEYS = {APT: "/etc/apt/keyrings/gpufabric-rdma-driver.asc", DNF: "/etc/pki/rpm-gpg/RPM-GPG-KEY-gpufabric-rdma-driver"}
REPOSITORIES = {
    APT: "/etc/apt/sources.list.d/gpufabric-rdma-driver.sources",
    DNF: "/etc/yum.repos.d/gpufabric-rdma-driver.repo",
}
PINS = "/etc/apt/preferences.d/gpufabric-rdma-driver"
SERVICE = "/etc/systemd/system/openibd.service.d/20-gpufabric-rdma-driver.conf"

# Packages of the vendor's stacks by full name. The pattern `doca-*` would also match packages of users.
_STACK = re.compile(
    r"^("
    r"doca-(ofed(-[a-z0-9.-]+)?|all|networking|host|extra|kernel|kernel-[0-9][\w.+-]*|repo)"
    r"|(kmod-)?mlnx-[\w.+-]+|ofed-scripts|linux-(main-)?modules-doca-ofed-[\w.+-]+"
    r"|(kmod-)?(iser|isert|srp|kernel-mft|kernel-mft-mlnx|knem|xpmem|fwctl)(-dkms|-modules)?"
    r")$"
)
# Names of rdma-core and its companions in Debian, Ubuntu and RHEL.
_USER_SPACE = re.compile(
    r"^(rdma-core(-dev|-devel)?|lib(ibverbs|rdmacm|ibumad|ibmad|ibnetdisc|osm|opensm|osmcomp|osmvendor)[0-9a-z-]*"
    r"|ibverbs-(providers|utils)|rdmacm-utils|infiniband-diags|ibacm|iwpmd|srptools|srp_daemon|perftest|opensm[a-z-]*"
    r"|python3-pyverbs|mstflint)$"
)
# Kernel packages to hold: those of one release and the metapackages that pull in the next one.
_KERNEL_META = re.compile(
    r"^linux-(image-|headers-|modules-extra-)?"
    r"(amd64|arm64|cloud-\w+|rt-\w+|(generic|virtual|nvidia|aws|azure|gcp|oracle|lowlatency)[\w.-]*)$"
)
# The next step for a node of the RHEL family without dkms.
EPEL = (
    "enable EPEL (dnf install epel-release; on RHEL its release package, and the CodeReady Builder repository), or a "
    "mirror of it, or install dkms 3.2 or newer yourself"
)
_INSTALL = ["--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold"]
# dnf waits ten times 30 seconds for a repository that does not answer; 0 retries would be endless.
_DNF_BOUNDS = ["--setopt=timeout=10", "--setopt=retries=2"]
_DNF_INSTALL = ["--assumeyes", *_DNF_BOUNDS, "--setopt=install_weak_deps=False"]


def manager(node: dict) -> Optional[str]:
    """apt or dnf, by distribution family; None for others."""
    return {"debian": APT, "rhel": DNF}.get(hca_node.family(node["os"]))


def distribution(node: dict) -> str:
    """The key of the node's distribution in the lock."""
    return hca_node.distribution(node["os"])


def architecture(node: dict) -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(node["architecture"], node["architecture"])


def stack_packages(packages: dict[str, str]) -> dict[str, str]:
    """The installed packages that belong to a vendor's stack."""
    return {name: version for name, version in packages.items() if _STACK.match(name)}


def replaced_packages(packages: dict[str, str], origins: dict[str, dict]) -> tuple[dict[str, str], list[str]]:
    """({name: version} of the stack's builds that the distribution also has, names that it does not have).

    origins: as origins_of returns it. A version proves nothing: DOCA's rdma-core has version 2510.0.11-1. A version
    that no repository of the node offers counts if it is RDMA user space, as after the stack's repository is gone.
    """
    replaced, foreign = {}, []
    for name, version in sorted(packages.items()):
        origin = origins.get(name)
        if _STACK.match(name) or not origin:
            continue
        if not origin["vendor"] and (origin["offered"] or not _USER_SPACE.match(name)):
            continue
        if origin["elsewhere"]:
            replaced[name] = version
        elif origin["vendor"]:
            foreign.append(name)
    return replaced, foreign


def headers_package(kind: str, kernel: str) -> str:
    """The package with the headers of a kernel; EL's 64k kernels append their page size after a plus."""
    if kind == APT:
        return f"linux-headers-{kernel}"
    release, _plus, flavour = kernel.partition("+")
    flavour = flavour or ("uek" if "uek." in release else "")  # Oracle Linux
    return f"kernel-{flavour}-devel-{release}" if flavour else f"kernel-devel-{kernel}"


def tools(kind: str) -> list[str]:
    return ["dkms"] if kind == APT else ["dkms", "gcc", "make", "elfutils-libelf-devel"]


def kernel_packages(packages: dict[str, str], kernel: str) -> list[str]:
    return sorted(
        name
        for name in packages
        if (name.startswith("linux-") and name.endswith(f"-{kernel}")) or _KERNEL_META.match(name)
    )


def repository_file(kind: str, repository: dict, title: str) -> str:
    """The repository file for apt or dnf, tied to its key. One from a verified package (trusted) needs no key."""
    if kind == APT:
        trust = "Trusted: yes" if repository.get("trusted") else f"Signed-By: {KEYS[APT]}"
        return f"{HEADER}Types: deb\nURIs: {repository['url']}\nSuites: ./\n{trust}\n"
    trust = "gpgcheck=0\n" if repository.get("trusted") else f"gpgcheck=1\ngpgkey=file://{KEYS[DNF]}\n"
    # A priority keeps the distribution's newer rdma-core from replacing the stack's (as with EL 9.8) without an
    # exclusion in foreign files; the stack's own dkms is excluded, like with the pin for apt.
    return (
        f"{HEADER}[gpufabric-rdma-driver]\nname=HCA driver {title}\nbaseurl={repository['url']}\nenabled=1\n"
        f"{trust}priority=10\nexcludepkgs=dkms\n"
    )


def pins_file(label: str) -> str:
    return (
        f"{HEADER}Explanation: the driver repository ships its own dkms, which would replace the distribution's\n"
        f"Package: dkms\nPin: release l={label}\nPin-Priority: -1\n"
    )


def service_file() -> str:
    """Drop-in for what openibd, the service of an OFED stack, lacks.

    It races udev at boot, when the auxiliary drivers of mlx5 are reloaded, and a restart unloads nvidia_peermem for
    good. The role kernel_modules decided whether that module is loaded again.
    """
    decided = f"grep -qxs nvidia_peermem {paths.OWN_MODULES_LOAD}"
    return (
        f"{HEADER}[Unit]\nAfter=systemd-udev-settle.service\nWants=systemd-udev-settle.service\n\n"
        f"[Service]\nRestart=on-failure\nExecStartPost=-/bin/sh -c '{decided} && exec modprobe nvidia_peermem'\n"
    )


def update_command(source: str) -> list[str]:
    """Refresh the lists of one apt source and leave all others alone."""
    only = (f"Dir::Etc::SourceList={source}", "Dir::Etc::SourceParts=/dev/null")
    options = (*only, "APT::Get::List-Cleanup=0", "APT::Update::Error-Mode=any")
    return ["apt-get", "update", *(word for option in options for word in ("-o", option))]


def install_command(kind: str, names: list[str], downgrade: bool = False) -> list[str]:
    """names include a pinned version (`name=version`, or `name-version` for dnf)."""
    if kind == APT:
        return ["apt-get", "install", *_INSTALL, *(["--allow-downgrades"] if downgrade else []), *names]
    return ["dnf", "downgrade" if downgrade else "install", *_DNF_INSTALL, *names]


def apart_command(names: list[str]) -> list[str]:
    """dnf for packages other than the driver: repositories that do not answer are left out."""
    return [*install_command(DNF, names), "--setopt=skip_if_unavailable=True"]


def pinned(kind: str, name: str, version: Optional[str]) -> str:
    if not version:
        return name
    return f"{name}={version}" if kind == APT else f"{name}-{version}"


def remove_command(kind: str, names: list[str]) -> list[str]:
    if kind == APT:
        return ["apt-get", "purge", "--yes", *names]
    # By default dnf would also remove packages that were installed as dependencies, which may be in use by now.
    return ["dnf", "remove", "--assumeyes", "--setopt=clean_requirements_on_remove=False", *names]


def only_shown(command: list[str]) -> list[str]:
    """The command that says what this one would do. apt and dnf remove with a package whatever depends on it."""
    return [{"--yes": "--simulate", "--assumeyes": "--assumeno"}.get(word, word) for word in command]


def restore_command(kind: str, names: list[str]) -> list[str]:
    """Replace the stack's builds by the distribution's; apt also needs restore_pins."""
    if kind == APT:
        return install_command(APT, names, downgrade=True)
    return ["dnf", "distro-sync", "--assumeyes", *_DNF_BOUNDS, *names]


def restore_pins(versions: dict[str, str]) -> str:
    """Hide the stack's builds from apt, including the installed ones; 1001, because the others may be older."""
    return "\n".join(
        f"Package: {name}\nPin: version {version}\nPin-Priority: -1\n\n"
        f"Package: {name}\nPin: release *\nPin-Priority: 1001\n"
        for name, version in versions.items()
    )


def downgrade_pins(label: str) -> str:
    """Let apt downgrade dependencies too, from the driver repository only."""
    return f"Package: *\nPin: release l={label}\nPin-Priority: 1001\n"


def with_preferences(path: str) -> list[str]:
    """apt's option for a file of pins that applies to one command."""
    return ["-o", f"Dir::Etc::Preferences={path}"]


def unpack_command(archive: str, folder: str) -> list[str]:
    """Extract a deb or an rpm; the folder must exist."""
    if archive.endswith(".rpm"):
        script = 'set -e; cd "$2"; rpm2cpio "$1" >.cpio; cpio --extract --make-directories --quiet <.cpio; rm .cpio'
        return ["sh", "-c", script, "sh", archive, folder]
    return ["dpkg-deb", "--extract", archive, folder]


def rebuild_commands(module: str, version: str, kernel: str) -> list[list[str]]:
    """Build a DKMS module again although DKMS has a build of it, which `dkms build --force` refuses."""
    where = ["-m", module, "-v", version, "-k", kernel]
    return [["dkms", "remove", *where], ["dkms", "install", *where, "--force"]]


# --- where installed packages came from ------------------------------------------------------------------------------


# Repositories of the vendor, by address (apt) or id (dnf).
VENDOR = re.compile(
    r"(linux|www|content|network)\.(mellanox|nvidia)\.com|/doca-host-|/usr/share/(doca-host|mlnx-ofed)|MLNX_OFED"
)
_VENDOR_ID = re.compile(r"^@?(gpufabric-rdma-driver|doca|mlnx|mellanox)", re.IGNORECASE)
_STATUS = "/var/lib/dpkg/status"
_OURS = "gpufabric-rdma-driver"


def origins_of(kind: str | None, names: list[str], own: str, run: Callable) -> dict[str, dict] | None:
    """{name: {vendor, offered, elsewhere}} of installed packages. own: text of our repository file.

    vendor: it is from the stack's repository, or that offers this version. offered: some repository has this version.
    elsewhere: another repository has another version. A package unknown to the manager is left out. None if the manager
    does not answer, as while a repository cannot be reached.
    """
    if not names or kind is None:
        return {}
    if kind == APT:
        code, out, _error = run(["apt-cache", "policy", *names])
        return None if code else parse_policy(out, re.findall(r"^URIs: (\S+)", own, re.MULTILINE))
    query = ["dnf", "--quiet", *_DNF_BOUNDS, "repoquery"]
    code, out, _error = run([*query, "--installed", "--queryformat", "%{name} %{from_repo}\n"])
    offered = ["--available", f"--disablerepo={_OURS}", "--queryformat", "%{name} %{version}-%{release} %{repoid}\n"]
    failed, available, _error = run([*query, *offered, *names])
    return None if code or failed else parse_repoquery(out, available)


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
    """From `dnf repoquery`: `name from_repo` of installed packages, `name version repoid` of available ones."""
    offers = [[*line.split(), "", "", ""][:3] for line in available.splitlines()]
    elsewhere = {name for name, _version, repository in offers if not _VENDOR_ID.match(repository)}
    packages = {}
    for line in installed.splitlines():
        name, origin = [*line.split(), "", ""][:2]
        if name:
            # dnf remembers the repository of each package, even after it is gone; @commandline is a file.
            packages[name] = {
                "vendor": bool(_VENDOR_ID.match(origin)),
                "offered": bool(origin) and not origin.lstrip("@").startswith(("commandline", "System", "<unknown>")),
                "elsewhere": name in elsewhere,
            }
    return packages


# --- versions, as dpkg compares them (deb-version(7)); those of RPM without `^` compare the same ----------------------


def order(version: str) -> tuple[list[tuple[list[int], int]], ...]:
    """Sort key: epoch, upstream version and revision, each as alternating runs of other characters and digits."""
    epoch, colon, rest = version.partition(":")
    epoch, rest = (epoch, rest) if colon else ("", version)
    upstream, dash, revision = rest.rpartition("-")
    parts = (epoch, upstream, revision) if dash else (epoch, rest, "")
    return tuple(
        [([*map(_weight, text), 0], int(number or 0)) for text, number in re.findall(r"([^0-9]*)([0-9]*)", part or "0")]
        for part in parts
    )


def satisfies(version: str, wanted: str) -> bool:
    """Whether a package version is the wanted release: equal, or the wanted one with a suffix (3.2.1-044000)."""
    bare = version.partition(":")[2] or version
    return bare == wanted or version == wanted or re.match(rf"{re.escape(wanted)}(?![0-9])[-.+~]?", bare) is not None


def _weight(char: str) -> int:
    """`~` sorts before the end, letters before everything else."""
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256
