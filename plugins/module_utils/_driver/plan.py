"""What to install, remove, pin and build so that a node has the wanted driver on disk.

Pure: state and options in, Plan out, in execution order. Loading the driver is the gate's job.
"""

from __future__ import annotations

import re

from .._core.change import Plan, kernel_out_of_reach
from ..hca.driver import DOCA, INBOX, MLNX_OFED, UBUNTU_ARCHIVE
from . import dkms, keys, packages
from .packages import order, satisfies

_FROM_REPOSITORY = (DOCA, MLNX_OFED)
BASE_DKMS = {packages.APT: "mlnx-ofed-kernel", packages.DNF: "mlnx-ofa_kernel"}
DKMS_MODULES = ("mlnx-ofed-kernel", "mlnx-ofa_kernel", "iser", "isert", "srp", "mlnx-nvme", "mlnx-nfsrdma")
# Names of the GPU driver in DKMS in NVIDIA's, Debian's and Ubuntu's packages, without nvidia-fs and the like.
_NVIDIA = re.compile(r"^nvidia(-(current|legacy|tesla|srv)[\w.-]*|-\d[\w.-]*)?$")
# Repositories of RHEL and its rebuilds, none of which has dkms.
_DISTRIBUTIONS = re.compile(
    r"^(gpufabric-rdma-driver|rhel-|ubi-|baseos|appstream|crb|codeready|extras|plus|devel|highavailability|"
    r"resilientstorage|nfv|rt|saphana|sap|media|rocky|almalinux)",
    re.IGNORECASE,
)
_CHANGES_MODULES = ("install", "upgrade", "downgrade", "build", "finish", "take out")
_ANCHORS = {DOCA: ["doca-ofed"], MLNX_OFED: ["mlnx-ofed-kernel-only"]}


def plan(state: dict, wanted: dict, root: str = "/") -> Plan:
    """wanted: flavor, version, repository (as keys.checked returns it), packages, hold_kernel,
    remove_allowed, downgrade_allowed, nvidia_rebuild_allowed.
    """
    made = Plan()
    node, flavor = state["facts"]["node"], wanted["flavor"]
    kind = state["manager"]
    foreign = unsupported(node)
    if foreign:
        made.finding(*foreign)
    if kind is None:
        return made
    _refuse_what_cannot_work(made, state, wanted)
    if made.findings:
        return made
    offline = kernel_out_of_reach(state["facts"], root)
    if offline:
        made.not_verified.append(f"the driver is left as it is: {offline}")
        return made
    for name, seen in sorted(state["unfinished"].items()):
        made.change(f"package {name}", "finish", seen, "installed")
    _remove_stack(made, state, wanted)
    if flavor == INBOX:
        _restore_inbox(made, state)
    else:
        _need_tools(made, state, wanted)
        _add_repository(made, state, wanted)
        _add_packages(made, state, wanted)
        _write(made, state, packages.SERVICE, packages.service_file())
        _build(made, state)
        _rebuild_nvidia(made, state, wanted)
    if wanted.get("hold_kernel") is not None:
        _hold(made, state, wanted["hold_kernel"])
    return made


def unsupported(node: dict) -> tuple[str, str, str, str] | None:
    """(object, wanted, seen, next step) on a distribution whose driver cannot be changed here; else None."""
    kind = packages.manager(node)
    if kind is None:
        return (
            "distribution",
            "Debian, Ubuntu or the RHEL family",
            node["os"].get("pretty_name") or "an unknown one",
            "install the driver with the distribution's tools and set driver_flavor: verify",
        )
    if kind == packages.DNF and packages.distribution(node) == "rhel8":
        return (
            "distribution",
            "RHEL 9 or 10, or a rebuild of one",
            node["os"].get("pretty_name") or "RHEL 8",
            "upgrade the node (the system Python of RHEL 8 no longer has a dnf module that Ansible can use), or set "
            "driver_flavor: verify",
        )
    return None


def anchors(flavor: str, kernel: str, named: list[str] | None = None) -> list[str]:
    """The top-level packages of a flavor; Ubuntu has one for each kernel flavour."""
    if named:
        return list(named)
    if flavor == UBUNTU_ARCHIVE:
        return [f"doca-ofed-{re.sub(r'^[0-9.]+-[0-9]+-', '', kernel)}"]
    return _ANCHORS.get(flavor, [])


def sentence(made: Plan, wanted: dict) -> str | None:
    """What the plan would do to the modules on disk, as a sentence for the gate; None if it leaves them alone."""
    if not any(change.action in _CHANGES_MODULES for change in made.changes):
        return None
    if wanted["flavor"] == INBOX:
        return "the driver stack is removed and the inbox driver used again"
    return f"{wanted['flavor']} {wanted.get('version') or ''}".strip() + " is installed"


def _refuse_what_cannot_work(made: Plan, state: dict, wanted: dict) -> None:
    node, flavor, kind = state["facts"]["node"], wanted["flavor"], state["manager"]
    where = packages.distribution(node)
    if flavor == UBUNTU_ARCHIVE:
        _refuse_archive(made, state, where)
    if flavor in _FROM_REPOSITORY:
        _refuse_repository(made, state, wanted, where)
        _refuse_without_dkms(made, state, where)
    if wanted.get("hold_kernel") and kind == packages.DNF:
        made.finding(
            "driver_hold_kernel",
            "a node with apt",
            where,
            "hold kernels with dnf versionlock yourself, and set driver_hold_kernel: null",
        )


def _refuse_archive(made: Plan, state: dict, where: str) -> None:
    match = re.fullmatch(r"ubuntu(\d+)\.(\d+)", where)
    if not match or (int(match.group(1)), int(match.group(2))) < (26, 4):
        made.finding(
            "driver_flavor ubuntu_archive",
            "Ubuntu 26.04 or newer, whose archive has DOCA-OFED with signed modules",
            where,
            "set driver_flavor: doca, or upgrade the node",
        )
    _refuse_foreign(made, state, "no NVIDIA repository besides Ubuntu's packages of the same stack")


def _refuse_repository(made: Plan, state: dict, wanted: dict, where: str) -> None:
    repository = wanted["repository"]
    if not wanted["version"]:
        made.finding(
            "driver_version",
            f"a release of {wanted['flavor']}",
            "null, and lock/artifacts.yml has none for any node",
            "set it, in quotes, to the release in driver_repository_url",
        )
        return
    if not repository.get("url"):
        made.finding(
            f"{wanted['flavor']} {wanted['version']} for {where} {packages.architecture(state['facts']['node'])}",
            "a repository in lock/artifacts.yml, or driver_repository_url",
            repository.get("known") or "none",
            "choose a version that the lock lists for this distribution, or set driver_repository_url to your mirror",
        )
        return
    key = keys.problem(repository)
    if key:
        made.finding(*key)
    _refuse_foreign(made, state, f"one repository of the stack: {repository['url']}")


def _refuse_foreign(made: Plan, state: dict, wanted: str) -> None:
    for path in state["foreign_repositories"]:
        step = f"remove it from {path}, or switch it off there, and run again"
        made.finding(path, wanted, "it points to another NVIDIA repository", step)


def _refuse_without_dkms(made: Plan, state: dict, where: str) -> None:
    """On RHEL dkms comes from EPEL. A repository with another name may be a mirror of it; the trial checks that."""
    if state["manager"] != packages.DNF or "dkms" in state["packages"]:
        return
    enabled = state["enabled_repositories"]
    if any(not _DISTRIBUTIONS.match(name) or "epel" in f"{name}{text}".lower() for name, text in enabled):
        return
    made.finding(
        "package dkms",
        f"a repository that has it: on {where} it comes from EPEL",
        f"enabled: {', '.join(sorted(name for name, _text in enabled)) or 'no repository'}",
        packages.EPEL,
    )


def _remove_stack(made: Plan, state: dict, wanted: dict) -> None:
    """Remove another stack before the new one is installed: with two in a kernel tree, depmod picks either."""
    installed = state["facts"]["driver"]["installed"]
    stack = packages.stack_packages(state["packages"])
    # Leftovers without a kernel driver count as inbox: they block no other stack but are removed for inbox.
    if not stack or (wanted["flavor"] != INBOX and installed["flavor"] in (wanted["flavor"], INBOX)):
        return
    if wanted.get("remove_allowed") is not True:
        denied = wanted.get("remove_allowed") is False
        made.finding(
            f"driver stack {installed['flavor']} {installed['version'] or ''}".strip(),
            f"none besides {wanted['flavor']}",
            f"{len(stack)} packages: {', '.join(sorted(stack)[:4])}{' …' if len(stack) > 4 else ''}",
            "remove them yourself, or choose the flavor that is installed"
            if denied
            else "set driver_remove_allowed: true to have them removed, or choose the flavor that is installed",
        )
        return
    before = "".join(f"{name} {version}\n" for name, version in sorted(stack.items()))
    made.change("driver stack", "take out", before, "")


def _restore_inbox(made: Plan, state: dict) -> None:
    kind = state["manager"]
    for path in (packages.REPOSITORIES[kind], packages.PINS, packages.KEYS[kind], packages.SERVICE):
        if state["files"].get(path) is not None:
            made.change(path, "remove", state["files"][path], "")
    if state["origins"] is None:
        made.not_verified.append("packages of the stack's repository stay: the node's repositories do not answer")
    replaced, foreign = packages.replaced_packages(state["packages"], state["origins"] or {})
    if foreign:
        made.notes.append(
            f"packages of the stack's repository that the distribution does not have stay: {', '.join(foreign)}"
        )
    if replaced:
        before = "".join(f"{name} {version}\n" for name, version in replaced.items())
        after = "".join(f"{name} (the distribution's)\n" for name in replaced)
        made.change("user space of the stack", "return", before, after)


def _need_tools(made: Plan, state: dict, wanted: dict) -> None:
    if wanted["flavor"] == UBUNTU_ARCHIVE:
        return  # the archive ships built and signed modules
    kind = state["manager"]
    for kernel in state["kernels"]:
        if not state["headers"][kernel]:
            made.change(f"package {packages.headers_package(kind, kernel)}", "need", "absent", "installed")
    for name in packages.tools(kind):
        if name not in state["packages"]:
            made.change(f"package {name}", "need", "absent", "installed")


def _add_repository(made: Plan, state: dict, wanted: dict) -> None:
    if wanted["flavor"] not in _FROM_REPOSITORY:
        return
    kind, repository = state["manager"], wanted["repository"]
    title = f"{wanted['flavor']} {wanted['version']}"
    texts = {} if repository.get("trusted") else {packages.KEYS[kind]: repository["key"].strip() + "\n"}
    if kind == packages.APT:
        texts[packages.PINS] = packages.pins_file(repository["label"])
    texts[packages.REPOSITORIES[kind]] = packages.repository_file(kind, repository, title)
    for path, text in texts.items():
        _write(made, state, path, text)


def _write(made: Plan, state: dict, path: str, text: str) -> None:
    if state["files"].get(path) != text:
        made.change(path, "write", state["files"].get(path) or "", text)


def _add_packages(made: Plan, state: dict, wanted: dict) -> None:
    version = wanted.get("version") if wanted["flavor"] in _FROM_REPOSITORY else None
    for name in anchors(wanted["flavor"], state["facts"]["node"]["kernel"], wanted.get("packages")):
        there = state["packages"].get(name)
        if there and (not version or satisfies(there, version)):
            continue
        if not there:
            made.change(f"package {name}", "install", "absent", version or "newest")
        elif order(there) < order(version):
            made.change(f"package {name}", "upgrade", there, version)
        elif wanted.get("downgrade_allowed") is True:
            made.change(f"package {name}", "downgrade", there, version)
        else:
            denied = wanted.get("downgrade_allowed") is False
            made.finding(
                f"package {name}",
                version,
                f"{there}, which is newer",
                "set driver_version to the installed one" + ("" if denied else ", or driver_downgrade_allowed: true"),
            )


def _build(made: Plan, state: dict) -> None:
    """Sources that DKMS knows but has not installed for a kernel: a silent failure of a kernel upgrade."""
    if any(change.action in _CHANGES_MODULES for change in made.changes):
        return  # the packages build themselves; the next plan shows failed builds
    known = [name for name in DKMS_MODULES if any(build.module == name for build in state["builds"])]
    for module, version, kernel, seen in dkms.not_installed(state["builds"], known, state["kernels"]):
        made.change(f"DKMS module {module} {version} for {kernel}", "build", seen, "installed")


def _rebuild_nvidia(made: Plan, state: dict, wanted: dict) -> None:
    """A closed NVIDIA driver has nvidia_peermem built against the RDMA stack of that time."""
    nvidia = state.get("nvidia") or {}
    changing = any(change.action in _CHANGES_MODULES for change in made.changes)
    if not nvidia.get("closed") or not (changing or nvidia.get("stale")):
        return
    builds = [build for build in state["builds"] if _NVIDIA.match(build.module) and build.kernel in state["kernels"]]
    why = nvidia.get("stale") or "nvidia_peermem is built against the RDMA stack that this run replaces"
    if not builds:
        made.notes.append(f"{why}; DKMS has no NVIDIA driver here: install it again after this run, as before")
        return
    names = sorted({f"{build.module} {build.version}" for build in builds})
    commands = [
        " ".join(command)
        for build in builds
        for command in packages.rebuild_commands(build.module, build.version, build.kernel)
    ]
    if wanted.get("nvidia_rebuild_allowed") is True:
        for build in builds:
            obj = f"DKMS module {build.module} {build.version} for {build.kernel}"
            made.change(obj, "rebuild", "built against another RDMA stack", "built against the installed one")
    elif wanted.get("nvidia_rebuild_allowed") is False:
        made.notes.append(f"{why}; rebuild the NVIDIA driver after this run: {' && '.join(commands)}")
    else:
        made.finding(
            f"NVIDIA driver {', '.join(names)}",
            "rebuilt by DKMS against the RDMA stack, so that nvidia_peermem loads",
            f"the closed driver: {why}",
            "set driver_nvidia_rebuild_allowed: true to have it rebuilt in the same run (the loaded one stays), or "
            f"false to leave it; then run {' && '.join(commands)} yourself",
        )


def _hold(made: Plan, state: dict, hold: bool) -> None:
    for name in packages.kernel_packages(state["packages"], state["facts"]["node"]["kernel"]):
        if (name in state["held"]) != hold:
            made.change(f"package {name}", "hold" if hold else "unhold", *(("", "held") if hold else ("held", "")))
