"""The driver as installed, as on disk for this kernel, and as loaded.

Only the third is in use; the other two show what the next load or boot brings. `mlx_compat` marks an OFED stack
(MLNX_OFED or DOCA): its mlx5_core depends on it, the inbox one does not.
"""

from __future__ import annotations

import re
from typing import Any, Optional

from . import elf, paths
from .modules import Catalogue
from .seams import Seams
from .text import unknown
from .tree import Tree

MODULES = ("mlx5_core", "mlx5_ib", "ib_core", "mlx4_core", "mlx4_ib")
INBOX, DOCA, MLNX_OFED, UBUNTU_ARCHIVE, OFED = "inbox", "doca", "mlnx_ofed", "ubuntu_archive", "ofed"
MLNX_EN = "mlnx_en"

DPKG_STATUS = "/var/lib/dpkg/status"
RPM_DATABASES = (
    "/var/lib/rpm/rpmdb.sqlite",
    "/var/lib/rpm/Packages",
    "/var/lib/rpm/Packages.db",
    "/usr/lib/sysimage/rpm/rpmdb.sqlite",
    "/usr/lib/sysimage/rpm/Packages.db",
)
_PACKAGE = (
    r"doca-[a-z0-9.+-]+|(?:kmod-)?mlnx-[a-zA-Z0-9_.+-]+|linux-(?:main-)?modules-doca-[a-z0-9.+-]+|ofed-scripts|rdma-core|"
    r"libibverbs1?|ibverbs-providers|(?:lib)?ibverbs-utils|(?:lib)?rdmacm-utils|perftest|"
    r"infiniband-diags|nvidia-(?:dkms|kernel|driver)[a-z0-9.+-]*"
)
_DPKG = re.compile(rf"\nPackage: ({_PACKAGE})\n".encode())  # begins with plain text: seven times as fast as ^
_RPM = re.compile(rf"^({_PACKAGE}) (\S+)$", re.MULTILINE)
_OFED_INFO = re.compile(r"(MLNX_OFED_LINUX|OFED-internal)-(\d[0-9.-]*\d)")
# Kernel drivers of an OFED stack; its user space without them runs on inbox drivers.
_ARCHIVE = "^linux-(main-)?modules-doca-ofed"
_KERNEL_PACKAGES = re.compile(rf"^(kmod-)?mlnx-(ofed-kernel|ofa_kernel)(?!-(devel|source|utils))|{_ARCHIVE}")
# MLNX_EN, the Ethernet-only stack, has its own packages.
_EN_PACKAGES = re.compile(r"^(kmod-)?mlnx-en(-(dkms|modules|kmod|kmp).*)?$")
_UBUNTU_PACKAGES = re.compile(rf"{_ARCHIVE}|^doca-ofed-(generic|[0-9.]+-dkms|aws|azure|gcp|oracle|nvidia)")


def state(tree: Tree, catalogue: Catalogue, seams: Optional[Seams] = None) -> dict[str, Any]:
    """{installed, on_disk, loaded, agree, explanation}; agree: whether memory and disk hold the same modules."""
    tree = tree.snapshot()
    packages = installed(tree, seams)
    disk = on_disk(tree, catalogue, packages["flavor"], seams)
    memory = loaded(tree, packages["flavor"])
    agree, difference = compare(disk["modules"], memory["modules"])
    explanation = f"Loaded: {stack(memory)}; on disk for this kernel: {stack(disk)}; installed: {stack(packages)}."
    return {
        "installed": packages,
        "on_disk": disk,
        "loaded": memory,
        "agree": agree,
        "explanation": " ".join([explanation, *difference]),
    }


def stack(part: dict[str, Any]) -> str:
    """Flavor and version, for a message."""
    return f"{part['flavor'] or 'nothing'} {part['version'] or ''}".strip()


def installed(tree: Tree, seams: Optional[Seams] = None) -> dict[str, Any]:
    """{flavor, version, packages: {name: version}} from the package database and OFED's own ofed_info.

    flavor is inbox, doca, mlnx_ofed, mlnx_en or ubuntu_archive.
    """
    packages = _dpkg(tree)
    # The tool dpkg on an rpm system has an empty database.
    if not packages and seams is not None and any(tree.exists(path) for path in RPM_DATABASES):
        listing = seams.rpm()
        packages = packages if listing is None else dict(_RPM.findall(listing))
    named = _OFED_INFO.search(tree.read("/usr/bin/ofed_info") or "")
    kernel = sorted(name for name in packages or {} if _KERNEL_PACKAGES.match(name))
    ethernet = sorted(name for name in packages or {} if _EN_PACKAGES.match(name))
    if packages and not kernel:
        named = None  # ofed-scripts is all that is left of the stack
    version = named.group(2) if named else None
    if packages is None and not named:
        flavor: Optional[str] = unknown("there is no readable package database")
    elif any(_UBUNTU_PACKAGES.match(name) for name in packages or {}):
        flavor = UBUNTU_ARCHIVE
    elif named:
        flavor = MLNX_OFED if named.group(1) == "MLNX_OFED_LINUX" else DOCA
    elif kernel:
        flavor = DOCA if any(name.startswith("doca-") for name in packages or {}) else MLNX_OFED
    else:
        flavor = MLNX_EN if ethernet else INBOX
    kernel = kernel or ethernet
    if version is None and packages and kernel:
        # The stack's release says more than the version of its kernel package.
        whole = sorted(name for name in packages if name == "doca-ofed" or _UBUNTU_PACKAGES.match(name))
        version = packages[(whole + kernel)[0]]
    return {"flavor": flavor, "version": version, "packages": dict(sorted((packages or {}).items()))}


def _dpkg(tree: Tree) -> Optional[dict[str, str]]:
    """The relevant installed packages; None without a dpkg database. Searches the file instead of parsing it."""
    data = tree.read_bytes(DPKG_STATUS)
    if data is None:
        return None
    found, data = {}, b"\n" + data
    for match in _DPKG.finditer(data):
        end = data.find(b"\n\n", match.end())
        stanza = data[match.end() : end if end >= 0 else len(data)].decode("utf-8", "replace")
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" ok installed"):
            found[match.group(1).decode()] = fields.get("Version", "")
    return found


def on_disk(
    tree: Tree, catalogue: Catalogue, installed_flavor: Optional[str] = None, seams: Optional[Seams] = None
) -> dict[str, Any]:
    """{flavor, version, srcversion, modules: {name: {path, version, srcversion, build_id}}} of modules to be loaded."""
    found: dict[str, dict[str, Any]] = {}
    compat = False
    for name in MODULES:
        path = catalogue.path(name)
        # The mlx4 modules matter only if they are in use: unpacking a module takes time.
        if path is None or (name.startswith("mlx4") and not tree.isdir(f"{paths.MODULE}/{name}")):
            continue
        fields = elf.modinfo(tree, path, seams) or {}
        compat |= "mlx_compat" in fields.get("depends", "").split(",")
        compat |= name.startswith("mlx") and not is_inbox(path)
        found[name] = {"path": path, **{key: fields.get(key) for key in ("version", "srcversion", "build_id")}}
    if not found:
        why = "has none of the modules" if catalogue.paths is not None else "is not readable"
        flavor: Optional[str] = unknown(f"{catalogue.directory or '/lib/modules'}/modules.dep {why}")
    else:
        flavor = _ofed(installed_flavor) if compat else INBOX
    return {"flavor": flavor, **_versions(found), "modules": found}


def is_inbox(path: str) -> bool:
    """Whether a module's file is the kernel's own; Ubuntu's archive has DOCA's in kernel/doca-ofed-26.01."""
    return "/kernel/" in path and "/kernel/doca-ofed" not in path


def loaded(tree: Tree, installed_flavor: Optional[str] = None) -> dict[str, Any]:
    """{flavor, version, srcversion, modules: {name: {version, srcversion, build_id}}}; flavor None if none."""
    found = {}
    for name in MODULES:
        base = f"{paths.MODULE}/{name}"
        if tree.isdir(base):
            found[name] = {
                "version": tree.read(f"{base}/version"),
                "srcversion": tree.read(f"{base}/srcversion"),
                "build_id": elf.build_id(tree.read_bytes(f"{base}/notes/.note.gnu.build-id")),
            }
    compat = tree.isdir(f"{paths.MODULE}/mlx_compat")
    flavor = _ofed(installed_flavor) if compat else INBOX if found else None
    return {"flavor": flavor, **_versions(found), "modules": found}


def _ofed(installed_flavor: Optional[str]) -> str:
    """Modules do not distinguish MLNX_OFED from DOCA; the packages do."""
    return installed_flavor if installed_flavor in (DOCA, MLNX_OFED, MLNX_EN, UBUNTU_ARCHIVE) else OFED


def _versions(modules: dict[str, dict[str, Any]]) -> dict[str, Optional[str]]:
    """Version and srcversion of the stack: those of its first module (mlx5_core if present)."""
    first: dict[str, Any] = next(iter(modules.values()), {})
    return {"version": first.get("version"), "srcversion": first.get("srcversion")}


def compare(disk: dict[str, dict[str, Any]], memory: dict[str, dict[str, Any]]) -> tuple[Any, list[str]]:
    """(agree, [sentence about each module that differs]); agree is `unknown: …` if nothing can be compared.

    By srcversion, which only changes with the source. Debian builds its modules without it; there, by build id.
    """
    if not memory:
        return unknown("no RDMA driver module is loaded"), []
    compared, different = 0, []
    for name in memory:
        old, new = memory[name], disk.get(name, {})
        key = next((key for key in ("srcversion", "build_id") if old.get(key) and new.get(key)), None)
        compared += key is not None
        if key and old[key] != new[key]:
            different.append(f"{name} in memory is {_build(old, key)}, {new['path']} is {_build(new, key)}.")
    if not compared:
        return unknown("no loaded module has a srcversion or build id both in memory and on disk"), []
    return not different, different


def _build(module: dict[str, Any], key: str) -> str:
    """`24.10-1.1.4 (srcversion 3B2D…)`; modules of the kernel itself have no version."""
    mark = f"{key.replace('_', ' ')} {module[key]}"
    return f"{module['version']} ({mark})" if module["version"] else mark
