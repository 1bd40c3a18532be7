"""Runs a node's root file system as a node: systemd-nspawn, or podman if only that is installed.

Both run in the foreground of the node's own process, inside its cgroup and its mount namespace: that process lives as
long as the node, and killing the cgroup leaves neither processes nor mounts. So only the start differs.
"""

import dataclasses
import os
import shutil
from pathlib import Path

from lab.settings import LabError, run

from .network import Bridge

VARIABLE = "RAILS_BACKEND"
# The capabilities that systemd-nspawn gives a container, each at its number in capability.h (- is dropped); podman's
# own set is too small for a systemd.
CAPABILITIES = """
    CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE NET_BIND_SERVICE
    NET_BROADCAST NET_ADMIN NET_RAW - IPC_OWNER - - SYS_CHROOT SYS_PTRACE - SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE -
    SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP
"""
# Podman accepts no runroot longer than 50 characters and no colon in a path: it sees the layer here, only in the node's
# own mount namespace. Its state, its settings and the network namespace's handle all go with that.
HERE = Path("/mnt")
CONFIGURATION = HERE / "containers.conf"
NETWORK = HERE / "network"


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a node starts: its layer has its root and everything else that goes with its mount namespace."""

    name: str
    machine: str
    layer: Path
    init: str
    cgroup: str | None  # None: a unit of this machine's systemd is the cgroup

    @property
    def root(self) -> Path:
        return self.layer / "root"


class Nspawn:
    program = "systemd-nspawn"
    cgroup_below = ""

    def prepare(self, place: Place, bridge: Bridge) -> None:
        """Nothing: systemd-nspawn creates the network itself."""

    def command(self, place: Place, bridge: Bridge) -> list[str]:
        return [
            "systemd-nspawn",
            "--quiet",
            "--keep-unit",
            "--register=no",
            f"--directory={place.root}",
            f"--machine={place.machine}",
            f"--hostname={place.name}",
            f"--network-bridge={bridge.name}",
            "--console=pipe",
            "--resolv-conf=off",
            "--timezone=off",
            "--link-journal=no",
            "/usr/bin/python3",
            place.init,
        ]


class Podman:
    """Podman without its own images, registries, networks or state on this machine: everything is in the layer."""

    program = "podman"
    # In cgroup version 2 a group with subgroups has no processes: podman itself must not be in the node's.
    cgroup_below = "/podman"

    def prepare(self, place: Place, bridge: Bridge) -> None:
        run(["mount", "--rbind", str(place.layer), str(HERE)], f"layer of node {place.name}", f"see that {HERE} exists")
        CONFIGURATION.write_text(self.configuration())
        NETWORK.touch()
        run(["unshare", f"--net={NETWORK}", "true"], f"network namespace of node {place.name}", "run it as root")
        bridge.plug(f"vb-{place.machine}", NETWORK)

    def configuration(self) -> str:
        # Podman's defaults need more than an outer container may allow: raised limits, locks in shared memory.
        # Debian's crun refuses hybrid cgroups; runc accepts all three layouts.
        runtime = 'runtime = "runc"\n' if shutil.which("runc") else ""
        return (
            "[containers]\ndefault_ulimits = []\npids_limit = 0\n"
            f'[engine]\n{runtime}cgroup_manager = "cgroupfs"\nevents_logger = "none"\nlock_type = "file"\n'
        )

    def command(self, place: Place, bridge: Bridge) -> list[str]:
        return [
            "env",
            f"CONTAINERS_CONF={CONFIGURATION}",
            "podman",
            *(f"--{option}={HERE}/podman/{option}" for option in ("root", "runroot", "tmpdir")),
            "--storage-driver=vfs",
            "run",
            f"--name={place.machine}",
            f"--hostname={place.name}",
            "--systemd=always",
            "--env=container=podman",  # tells systemd where it runs; podman itself sets it only for images
            f"--network=ns:{NETWORK}",
            "--no-hosts",
            "--dns=none",
            "--log-driver=none",
            f"--cgroup-parent=/{place.cgroup}" if place.cgroup else "--cgroups=split",
            "--cap-drop=ALL",
            f"--cap-add={','.join(capabilities(Path('/proc/self/status').read_text()))}",
            *(f"--security-opt={option}" for option in ("seccomp=unconfined", "apparmor=unconfined", "label=disable")),
            "--rootfs",
            f"{HERE}/root",
            "/usr/bin/python3",
            place.init,
        ]


BACKENDS = {"nspawn": Nspawn(), "podman": Podman()}


def capabilities(status: str) -> list[str]:
    """The CAPABILITIES that this process may pass on: a runtime refuses to start with a missing one."""
    bounding = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapBnd:"))
    return [name for number, name in enumerate(CAPABILITIES.split()) if name != "-" and bounding >> number & 1]


def choose() -> str:
    """The name of the backend for new nodes: the requested one, else the first installed one."""
    asked = os.environ.get(VARIABLE) or ""
    installed = [name for name, backend in BACKENDS.items() if shutil.which(backend.program)]
    programs = [backend.program for name, backend in BACKENDS.items() if asked in ("", name)]
    if not programs:
        raise LabError(
            f"environment variable {VARIABLE}", " or ".join(BACKENDS), asked, f"unset {VARIABLE} or correct it"
        )
    if asked in installed or (installed and not asked):
        return asked or installed[0]
    raise LabError(
        f"what runs the fast nodes ({VARIABLE}={asked or 'not set'})",
        f"the program {' or '.join(programs)}",
        "not on PATH" + (f"; installed: {', '.join(installed)}" if installed else ""),
        f"unset {VARIABLE}" if installed else "install systemd-nspawn: lab/packages lab",
    )
