# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trial run of a driver installation before it touches the node (dnf).

PRIVATE to the collection. dnf downloads the transaction with the node's repositories plus the new one and installs
nothing; rpmkeys checks each package of the stack against the pinned key in a database of its own; the base DKMS module
is built by the real dkms in a separate tree. What was downloaded stays in dnf's cache for the installation.
"""

from __future__ import annotations

import glob
import os
import re
import shutil

from .._core.change import Refused
from . import keys, packages
from .proof import Run, Trial, base_package, build_sources, last, refuse_removal

_SECTION = "gpufabric-rdma-driver"


class RpmProof(Trial):
    """dnf, rpmkeys and dkms try the change."""

    def __init__(self, run: Run, etc: str = "/etc/yum.repos.d", cache: str = "/var/cache/dnf"):
        super().__init__(run)
        self._etc = etc
        self._cache = cache

    def prepare(self, repository: dict, title: str) -> None:
        """The node's repository files beside the new one, whose key is read from here."""
        os.makedirs(self._path("repos"))
        own = os.path.basename(packages.REPOSITORIES[packages.DNF])
        for path in glob.glob(f"{self._etc}/*.repo"):
            if os.path.basename(path) != own:
                shutil.copy(path, self._path("repos"))
        self._write("key.asc", repository.get("key") or "")
        text = packages.repository_file(packages.DNF, repository, title)
        self._write(f"repos/{own}", text.replace(packages.KEYS[packages.DNF], self._path("key.asc")))

    def tools(self, names: list[str]) -> None:
        """Headers and dkms are available."""
        for name in names:
            code, out, error = self._dnf("repoquery", "--available", name)
            if not code and out.strip():
                continue
            if code:
                raise Refused.because(
                    f"package {name}", "repositories that answer", last(error), "correct the node's dnf repositories"
                )
            if name.startswith("kernel-"):
                step = "enable the repository that has it (archives drop old kernels), or boot another kernel"
                raise Refused.because(
                    f"package {name}", "the headers of this kernel, for DKMS", "no such package", step
                )
            raise Refused.because(f"package {name}", "to be had", "no repository of this node has it", packages.EPEL)

    def fetch(self, names: list[str], downgrade: bool = False) -> list[str]:
        """Download the transaction; the paths of the stack's packages. A removal beyond the stack is refused."""
        command = packages.install_command(packages.DNF, names, downgrade)[1:]
        code, out, error = self._dnf(*command, "--downloadonly")
        if code:
            raise Refused.because(
                f"packages {' '.join(names)}",
                "in the repository, and installable beside the node's packages",
                last(error or out),
                "correct driver_version or driver_repository_url, or resolve the conflict that dnf names",
            )
        listed = re.search(r"^Removing[^\n]*:\n((?: .+\n)+)", out, re.MULTILINE)
        removed = {line.split()[0] for line in listed.group(1).splitlines()} if listed else set()
        refuse_removal("dnf", names, removed)
        return sorted(glob.glob(f"{self._cache}/{_SECTION}-*/packages/*.rpm"))

    def signatures(self, archives: list[str], repository: dict) -> None:
        """Each package is signed by the pinned key: rpmkeys accepts an unsigned one, so its words are read too."""
        if repository.get("trusted"):
            return
        database = self._path("rpmdb")
        code, _out, error = self._run(["rpmkeys", "--dbpath", database, "--import", self._path("key.asc")])
        if code:
            raise Refused.because(
                "key of the driver repository", "an OpenPGP key for rpm", last(error), "correct the key"
            )
        for archive in archives:
            code, out, error = self._run(["rpmkeys", "--dbpath", database, "--checksig", archive])
            if code or not re.search(r":.*\bsignatures OK$", out.strip()):
                raise Refused.because(
                    os.path.basename(archive),
                    f"signed by the key {' or '.join(keys.accepted(repository))}",
                    last(out + error),
                    "do not install it: NVIDIA signed RPMs again with a new key in January 2026; find out which key "
                    "signed this one (rpmkeys --checksig --verbose), and correct driver_repository_key and "
                    "driver_repository_fingerprint once the vendor has confirmed it",
                )

    def build(self, archives: list[str], kernels: list[str], architecture: str) -> None:
        """The base module builds for every kernel."""
        for archive in archives:
            if not os.path.basename(archive).startswith(f"{base_package(packages.DNF)}-"):
                continue
            os.makedirs(self._path("root"), exist_ok=True)
            code, _out, error = self._run(packages.unpack_command(archive, self._path("root")))
            if code:
                raise Refused.because(archive, "an RPM", last(error), "resync the mirror and run again")
            build_sources(self._run, self._path("root/usr/src"), self._path("dkms"), kernels, architecture)

    def _dnf(self, *argv: str) -> tuple[int, str, str]:
        return self._run(["dnf", f"--setopt=reposdir={self._path('repos')}", *argv])
