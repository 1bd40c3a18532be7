"""The machine around the HCAs: kernel, distribution, container or not."""

from __future__ import annotations

from typing import Any, Optional

from .seams import Seams
from .text import unknown
from .tree import Tree


def node(tree: Tree, seams: Optional[Seams] = None) -> dict[str, Any]:
    """{kernel, architecture, os: {id, version_id, like, pretty_name}, container, product (DMI), boot_id,
    cmdline}.
    """
    release = os_release(tree)
    return {
        "kernel": kernel(tree) or unknown("/proc/sys/kernel/osrelease is not readable"),
        # The sysctl exists since Linux 6.1.
        "architecture": tree.read("/proc/sys/kernel/arch")
        or (seams.machine() if seams else None)
        or unknown("/proc/sys/kernel/arch is not readable (a kernel before 6.1)"),
        "os": system(release),
        "container": container(tree),
        "product": tree.read("/sys/class/dmi/id/product_name") or None,
        "boot_id": tree.read("/proc/sys/kernel/random/boot_id"),
        "cmdline": tree.read("/proc/cmdline"),
    }


def kernel(tree: Tree) -> Optional[str]:
    """Release of the running kernel as `uname -r` prints it."""
    return tree.read("/proc/sys/kernel/osrelease") or None


def system(release: dict[str, str]) -> dict[str, Any]:
    return {
        "id": release.get("ID"),
        "version_id": release.get("VERSION_ID"),
        "like": release.get("ID_LIKE", "").split(),
        "pretty_name": release.get("PRETTY_NAME"),
    }


def family(system: dict[str, Any]) -> Optional[str]:
    """debian or rhel, if the system (`os` of node) is or resembles it; None for others."""
    names = {system.get("id"), *(system.get("like") or [])}
    if names & {"debian", "ubuntu"}:
        return "debian"
    return "rhel" if names & {"rhel", "fedora", "centos"} else None


def distribution(system: dict[str, Any]) -> str:
    """The key of a distribution in the lock: ubuntu24.04, debian12, rhel9. Rebuilds of RHEL count as RHEL."""
    name, version = system.get("id") or "", system.get("version_id") or ""
    return f"rhel{version.partition('.')[0]}" if family(system) == "rhel" else f"{name}{version}"


def os_release(tree: Tree) -> dict[str, str]:
    found = {}
    for line in (tree.read("/etc/os-release") or tree.read("/usr/lib/os-release") or "").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[key.strip()] = value.strip().strip("\"'")
    return found


def container(tree: Tree) -> Optional[str]:
    """Name of the container manager around this system; None on a machine or a VM.

    https://systemd.io/CONTAINER_INTERFACE: a manager sets $container for PID 1, and systemd keeps it in /run.
    """
    named = tree.read("/run/systemd/container") or tree.read("/run/host/container-manager")
    if named:
        return named
    if tree.exists("/.dockerenv"):
        return "docker"
    if tree.exists("/run/.containerenv"):
        return "podman"
    for entry in (tree.read_bytes("/proc/1/environ") or b"").split(b"\0"):
        if entry.startswith(b"container="):
            return entry[len(b"container=") :].decode("utf-8", "replace") or None
    return None
