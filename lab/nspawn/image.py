"""The root file system that all nodes share: built once by mmdebstrap, from the same mirrors as the lab's VM image.

The unit of caching is the tar file (CI keeps it by name); the unpacked folder is the nodes' lower layer.
"""

import hashlib
import os
import platform
import shutil
import time
from pathlib import Path

from lab.settings import run, say

from lab.image import RELEASE, apt_options, apt_sources

PACKAGES = ("systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "iproute2", "kmod", "procps")
# Nodes have their addresses before systemd starts and live for minutes: units that wait, time or call home stay off.
MASKED = (
    "apt-daily.timer apt-daily-upgrade.timer console-getty.service dpkg-db-backup.timer e2scrub_all.timer "
    "e2scrub_reap.service fstrim.timer ssh.socket systemd-logind.service systemd-networkd.service "
    "systemd-networkd.socket systemd-timesyncd.service"
)
SETUP = f"""
set -eu
rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/machine-id "$1"/var/lib/dbus/machine-id
rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin
for unit in {MASKED}; do ln -sfn /dev/null "$1"/etc/systemd/system/"$unit"; done
ln -sfn /lib/systemd/system/multi-user.target "$1"/etc/systemd/system/default.target
cat > "$1"/etc/ssh/sshd_config.d/nodes.conf <<END
HostKey /etc/ssh/ssh_host_ed25519_key
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
MaxStartups 64
END
"""


class Image:
    def __init__(self, cache: Path) -> None:
        self._sources = apt_sources()
        recipe = [platform.machine(), RELEASE, *PACKAGES, SETUP, *self._sources]
        key = hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:16]
        self.tar = cache / f"{key}.tar"
        self.root = cache / key

    def ensure(self) -> Path:
        """The unpacked root file system, built or unpacked now if need be."""
        if self.root.is_dir():
            return self.root
        self.tar.parent.mkdir(parents=True, exist_ok=True)
        if not self.tar.exists():
            self._build()
        partial = self.root.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        # The container has its own /dev; device nodes in the archive would only need more privilege.
        run(
            ["tar", "-xf", str(self.tar), "-C", str(partial), "--numeric-owner", "--xattrs", "--exclude=./dev/*"],
            f"root file system {self.root}",
            f"remove {self.tar} and run the command again",
        )
        partial.rename(self.root)
        return self.root

    def _build(self) -> None:
        say(f"root file system {self.root.name}: building from {', '.join(PACKAGES)} ({RELEASE}; once, under a minute)")
        started = time.monotonic()
        partial = self.tar.with_suffix(".partial.tar")
        run(
            [
                "mmdebstrap",
                "--quiet",
                "--mode=root",
                "--format=tar",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                *(f"--dpkgopt=path-exclude=/usr/share/{unread}/*" for unread in ("doc", "man", "locale")),
                f"--customize-hook={SETUP}",
                *apt_options(),
                RELEASE,
                str(partial),
                *self._sources,
            ],
            "root file system of the fast nodes",
            "check that `apt-get update` works on this machine, then run the command again",
        )
        os.replace(partial, self.tar)
        size = self.tar.stat().st_size >> 20
        say(f"root file system {self.root.name}: built in {time.monotonic() - started:.0f} s, {size} MiB")
