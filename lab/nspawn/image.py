"""The root file system that all nodes share: built once by mmdebstrap from this machine's own apt sources.

The unit of caching is the tar file (CI keeps it by its name); the unpacked directory is what the nodes' overlays stand on.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .errors import fail, run

PACKAGES = ("systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "iproute2", "kmod", "procps")
# Nodes get their addresses before systemd starts and live for minutes: whatever waits, times or calls home stays asleep.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "motd-news.timer",
    "systemd-networkd.service",
    "systemd-networkd.socket",
    "systemd-networkd-wait-online.service",
    "systemd-resolved.service",
    "systemd-timesyncd.service",
    "ssh.socket",
    "console-getty.service",
    "systemd-logind.service",
)
SETUP = f"""
set -eu
rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/machine-id "$1"/var/lib/dbus/machine-id
: > "$1"/etc/machine-id
mkdir -p "$1"/etc/systemd/system/multi-user.target.wants
for unit in {" ".join(MASKED)}; do ln -sfn /dev/null "$1"/etc/systemd/system/"$unit"; done
ln -sfn /lib/systemd/system/ssh.service "$1"/etc/systemd/system/multi-user.target.wants/ssh.service
ln -sfn /lib/systemd/system/multi-user.target "$1"/etc/systemd/system/default.target
printf 'PermitRootLogin prohibit-password\\nPasswordAuthentication no\\nUseDNS no\\nMaxStartups 64\\n' \\
	> "$1"/etc/ssh/sshd_config.d/nodes.conf
"""
KEPT_OPTION = re.compile(r"^(Acquire::(?:https?::|Check-|Retries|Languages)\S*) (\".*\");$", re.MULTILINE)


def os_release(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key: value.strip().strip('"') for key, value in pairs}


def _deb822(text: str) -> Iterator[dict[str, str]]:
    for stanza in re.split(r"\n\s*\n", text):
        entry: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                entry[key] = f"{entry.get(key, '')}\n{line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                entry[key := key.strip().lower()] = value.strip()
        if entry:
            yield entry


def _one_line(text: str) -> Iterator[dict[str, str]]:
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#]+)", line.strip())
        if match:
            options = dict(pair.split("=", 1) for pair in (match[1] or "").split() if "=" in pair)
            yield {"types": "deb", "uris": match[2], "suites": match[3], "components": match[4], **options}


def apt_sources(apt_dir: Path, codename: str) -> list[str]:
    """The distribution's own sources of this machine, one `deb` line each; those of other vendors are left out."""
    entries: list[dict[str, str]] = []
    for path in (apt_dir / "sources.list", *sorted((apt_dir / "sources.list.d").glob("*"))):
        if path.suffix == ".sources":
            entries += _deb822(path.read_text())
        elif path.suffix == ".list" and path.is_file():
            entries += _one_line(path.read_text())
    lines = []
    for entry in entries:
        components = entry.get("components", "").split()
        if "deb" not in entry.get("types", "").split() or "main" not in components or entry.get("enabled") == "no":
            continue
        # A key embedded in the file has no place in a one-line entry; the distribution's keyring package serves it.
        key = entry.get("signed-by", "")
        options = f"[signed-by={key}] " if key.startswith("/") else ""
        lines += [
            f"deb {options}{uri} {suite} {' '.join(components)}"
            for uri in entry.get("uris", "").split()
            for suite in entry.get("suites", "").split()
            if suite.split("/")[0].partition("-")[0] == codename
        ]
    return lines


class Image:
    def __init__(self, cache: Path, say: Callable[[str], None]) -> None:
        self.cache = cache
        self._say = say
        release = os_release(Path("/etc/os-release").read_text())
        self._codename = release.get("VERSION_CODENAME", "")
        self._sources = apt_sources(Path("/etc/apt"), self._codename)
        recipe = [platform.machine(), self._codename, *PACKAGES, SETUP, *self._sources]
        self.key = hashlib.sha256("\n".join(recipe).encode()).hexdigest()[:16]
        self.tar = cache / f"{self.key}.tar"
        self.root = cache / self.key

    def ensure(self) -> Path:
        """The unpacked root file system, built or unpacked now if need be."""
        if self.root.is_dir():
            return self.root
        self.cache.mkdir(parents=True, exist_ok=True)
        if not self.tar.exists():
            self._build()
        partial = self.root.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        run(
            [
                "tar",
                "--extract",
                "--numeric-owner",
                "--xattrs",
                f"--file={self.tar}",
                f"--directory={partial}",
                "--exclude=./dev/*",
            ],
            f"root file system {self.root}",
            f"remove {self.tar} and run the command again",
        )
        partial.rename(self.root)
        return self.root

    def _build(self) -> None:
        if not self._sources:
            fail(
                "root file system of the nodes",
                f"an apt source for {self._codename or 'this distribution'} with component main in /etc/apt",
                "none",
                "run this on Debian 12, Debian 13 or Ubuntu 24.04 with its ordinary apt sources",
            )
        self._say(f"building the node root file system {self.key} ({self._codename}: {', '.join(PACKAGES)}), once")
        started = time.monotonic()
        partial = self.tar.with_suffix(".tar.partial")
        settings = [
            f"--aptopt={name} {value}"
            for name, value in KEPT_OPTION.findall(run(["apt-config", "dump"], "apt", "repair apt"))
        ]
        run(
            [
                "mmdebstrap",
                "--quiet",
                "--mode=root",
                "--format=tar",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                f"--customize-hook={SETUP}",
                '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin',
                *settings,
                self._codename,
                str(partial),
                *self._sources,
            ],
            "root file system of the nodes",
            "check that `apt-get update` works on this machine, then run the command again",
        )
        os.replace(partial, self.tar)
        self._say(f"root file system built in {time.monotonic() - started:.0f} s, {self.tar.stat().st_size >> 20} MiB")
