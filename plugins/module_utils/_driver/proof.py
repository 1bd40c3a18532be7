# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trial run of a driver installation before it touches the node (apt).

PRIVATE to the collection. apt works in a separate directory, with the node's lists and sources plus the new one, so
that a wrong key, an altered package, a missing version, missing headers or an unwanted removal stops the run while the
node is unchanged. The base DKMS module is then built by the real dkms, in a separate tree.
"""

from __future__ import annotations

import functools
import glob
import os
import re
import shutil
import tempfile
from typing import Any, Callable, Optional

from .._core.change import Change, Refused
from .._core.files import write
from . import dkms, keys, packages
from .plan import BASE_DKMS
from .versions import compare, satisfies

Run = Callable[..., tuple[int, str, str]]
_KEY_TROUBLE = re.compile(
    r"NO_PUBKEY|BADSIG|EXPKEYSIG|REVKEYSIG|not signed|no longer signed|signatures? (couldn't|were)"
)
_HASH_TROUBLE = re.compile(r"Hash Sum mismatch|unexpected size|Hashes of expected file")
_LINES = 12


class Trial:
    """A directory in which a change is tried; a context manager."""

    def __init__(self, run: Run):
        self._run = run
        self.directory = ""

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="gpufabric-driver-", dir="/var/tmp")
        return self

    def __exit__(self, *_exception: Any) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _write(self, name: str, text: str) -> None:
        write(self._path(name), text)


class Proof(Trial):
    """apt and dkms try the change."""

    def __init__(self, run: Run, etc: str = "/etc/apt", lists: str = "/var/lib/apt/lists"):
        super().__init__(run)
        self._etc = etc
        self._lists = lists

    def prepare(self, repository: Optional[dict], title: str) -> None:
        """Create apt's directories; with a repository, its key and source are added to the node's own."""
        for name in ("lists/partial", "sources.list.d", "preferences.d", "archives/partial"):
            os.makedirs(self._path(name))
        for name in ("sources.list.d", "preferences.d"):
            for path in glob.glob(f"{self._etc}/{name}/*"):
                shutil.copy(path, self._path(name))
        for path in glob.glob(f"{self._lists}/*"):
            if os.path.isfile(path) and not path.endswith("/lock"):
                _share(path, self._path(f"lists/{os.path.basename(path)}"))
        if repository:
            self._write("key.asc", repository.get("key") or "")
            source = packages.repository_file(packages.APT, repository, title)
            self._write(self._source(), source.replace(packages.KEYS[packages.APT], self._path("key.asc")))
            self._write("preferences.d/" + os.path.basename(packages.PINS), packages.pins_file(repository["label"]))
        settings = {
            "Dir::State::Lists": self._path("lists"),
            "Dir::Etc::SourceParts": self._path("sources.list.d"),
            "Dir::Etc::PreferencesParts": self._path("preferences.d"),
            "Dir::Cache::archives": self._path("archives"),
            # Separate and existing caches: without them each call would read all lists of the node again.
            "Dir::Cache::pkgcache": self._path("pkgcache.bin"),
            "Dir::Cache::srcpkgcache": self._path("srcpkgcache.bin"),
            "Acquire::GzipIndexes": "false",
            "Acquire::Languages": "none",
            "APT::Sandbox::User": "root",
        }
        self._write("apt.conf", "".join(f'{key} "{value}";\n' for key, value in settings.items()))

    def tools(self, names: list[str]) -> None:
        """Headers and dkms are available."""
        if not names:
            return
        code, _out, error = self._apt("apt-get", "install", "--simulate", "--no-install-recommends", *names)
        if not code:
            return
        missing = re.findall(r"Unable to locate package (\S+)", error) or re.findall(
            r"Package '?(\S+?)'? has no installation candidate", error
        )
        headers = [name for name in missing if name.startswith("linux-headers-")]
        if headers:
            kernel = headers[0][len("linux-headers-") :]
            raise Refused.because(
                f"kernel headers for {kernel}",
                f"the package {headers[0]}, without which DKMS cannot build the driver",
                "no such package in the archives of this node",
                "add the archive that has it (archives drop old kernels), or boot a kernel whose headers are available",
            )
        raise Refused.because(
            f"packages {', '.join(names)}", "installable", last(error), "correct the node's apt sources and run again"
        )

    def update(self, repository: dict) -> None:
        """The repository responds, and its index is signed by the pinned key."""
        code, out, error = self._apt(*packages.update_command(self._path(self._source())))
        text = error + out
        foreign = not repository.get("trusted") and _KEY_TROUBLE.search(text)
        if not code and not foreign:
            return
        if foreign:
            raise _foreign_signature(repository, text)
        if _HASH_TROUBLE.search(text):
            raise _altered(f"index of {repository['url']}", text)
        raise Refused.because(
            f"repository {repository['url']}",
            "reachable from this node",
            last(text),
            "check name resolution, proxy and firewall, or set driver_repository_url to a mirror",
        )

    def candidate(self, name: str, version: Optional[str], sha256: Optional[str]) -> str:
        """The exact version in the new repository that matches the wanted one."""
        offered = self._offered(name)
        fitting = [found for found in offered if not version or satisfies(found, version)]
        if not fitting:
            raise Refused.because(
                f"package {name}",
                f"version {version}",
                f"the repository offers {', '.join(sorted(offered)) or 'no such package'}",
                "correct driver_version or driver_repository_url; they must match",
            )
        chosen = max(fitting, key=functools.cmp_to_key(compare))
        if sha256 and offered[chosen].get("SHA256") != sha256:
            raise Refused.because(
                f"package {name} {chosen}",
                f"SHA-256 {sha256}, as in the lock",
                f"{offered[chosen].get('SHA256', 'none')} in the repository's signed index",
                "do not install it: compare it with the vendor's release; correct lock/artifacts.yml if that changed",
            )
        return chosen

    def simulate(self, names: list[str], downgrade: Optional[str] = None) -> dict[str, str]:
        """{name: version} of what would be installed; a removal beyond the stack is refused.

        downgrade: the pins that allow one.
        """
        flags = []
        if downgrade:
            self._write("preferences", downgrade)
            flags = ["--allow-downgrades", *packages.with_preferences(self._path("preferences"))]
        code, out, error = self._apt("apt-get", "install", "--simulate", "--no-install-recommends", *flags, *names)
        if code:
            raise Refused.because(
                f"packages {' '.join(names)}",
                "installable beside the node's packages",
                last(error + out),
                "resolve the conflict that apt names and run again",
            )
        removed = set(re.findall(r"^Remv (\S+)", out, re.MULTILINE))
        refuse_removal("apt", names, removed)
        return dict(re.findall(r"^Inst (\S+) (?:\[[^]]*\] )?\((\S+)", out, re.MULTILINE))

    def fetch(self, wanted: dict[str, str]) -> list[str]:
        """Download {name: version}; apt checks each against the signed index.

        Without the version apt would pick the newest it knows, which on a downgrade is the one to be replaced.
        """
        names = [packages.pinned(packages.APT, name, version) for name, version in wanted.items()]
        before = set(os.listdir(self.directory))
        code, out, error = self._apt("apt-get", "download", *names, cwd=self.directory)
        if code:
            if _HASH_TROUBLE.search(error + out):
                raise _altered(f"package {', '.join(names)}", error + out)
            raise Refused.because(
                f"package {', '.join(names)}",
                "downloaded",
                last(error + out),
                "check the repository's web server, or set driver_repository_url to a mirror",
            )
        return sorted(self._path(name) for name in set(os.listdir(self.directory)) - before)

    def build(self, archive: str, kernels: list[str], architecture: str) -> None:
        """The base module builds for every kernel, with the real dkms in a separate tree."""
        code, _out, error = self._run(packages.unpack_command(archive, self._path("root")))
        if code:
            raise Refused.because(archive, "a Debian package", last(error), "resync the mirror and run again")
        build_sources(self._run, self._path("root/usr/src"), self._path("dkms"), kernels, architecture)

    def _offered(self, name: str) -> dict[str, dict[str, str]]:
        """{version: stanza} of a package in the new repository alone."""
        _code, out, _error = self._apt(
            "apt-cache",
            "show",
            name,
            "-o",
            f"Dir::Etc::SourceList={self._path(self._source())}",
            "-o",
            "Dir::Etc::SourceParts=/dev/null",
            "-o",
            "Dir::State::status=/dev/null",
        )
        found = {}
        for stanza in out.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
            if fields.get("Package") == name:
                found[fields["Version"]] = fields
        return found

    def _apt(self, *argv: str, cwd: Optional[str] = None) -> tuple[int, str, str]:
        return self._run(list(argv), environment={"APT_CONFIG": self._path("apt.conf")}, cwd=cwd)

    def _source(self) -> str:
        return "sources.list.d/" + os.path.basename(packages.REPOSITORIES[packages.APT])


def base_package(kind: str) -> str:
    """The package built on trial; the others build against what it installs."""
    return f"{BASE_DKMS[kind]}-dkms"


def build_failed(
    module: str,
    version: str,
    kernel: str,
    architecture: str,
    output: str,
    tree: str = "/var/lib/dkms",
    what: str = "build",
) -> Refused:
    """A failed build, with the end of its log."""
    log = ""
    for path in dkms.log_path(module, version, kernel, architecture, tree):
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as stream:
                log = stream.read()
            break
    left = "; the node's driver is unchanged" if what == "trial build" else ""
    return Refused.because(
        f"DKMS module {module} {version}",
        f"built for kernel {kernel}",
        f"the {what} failed{left}. The end of make.log:\n{dkms.tail(log or output)}",
        "choose a driver version that supports this kernel, or boot a kernel that it supports",
    )


def refuse_removal(program: str, names: list[str], removed: set[str]) -> None:
    """Parts of a driver stack may go, nothing else."""
    removed = {name for name in removed if not packages.stack_packages({name: ""})}
    if removed:
        raise Refused.because(
            f"packages {' '.join(names)}",
            "installed without removing anything else",
            f"{program} would remove {', '.join(sorted(removed))}",
            "remove those yourself if nothing needs them, or choose another driver version",
        )


def build_sources(run: Run, sources: str, tree: str, kernels: list[str], architecture: str) -> None:
    """Every DKMS module below sources builds for every kernel, with the real dkms in a separate tree."""
    for conf in sorted(glob.glob(f"{sources}/*/dkms.conf")):
        build_source(run, _identity(conf), sources, tree, kernels, architecture)


def build_source(
    run: Run, identity: tuple[str, str], sources: str, tree: str, kernels: list[str], architecture: str
) -> None:
    """The same for one module. identity: name and version."""
    module, version = identity
    os.makedirs(tree, exist_ok=True)
    where = ["--sourcetree", sources, "--dkmstree", tree, "-m", module, "-v", version]
    code, out, error = run(["dkms", "add", *where])
    if code:
        raise Refused.because(f"DKMS module {module}", "known to dkms", last(error + out), "report it")
    for kernel in kernels:
        code, out, error = run(["dkms", "build", *where, "-k", kernel])
        if code:
            raise build_failed(module, version, kernel, architecture, out + error, tree, "trial build")


def _identity(conf: str) -> tuple[str, str]:
    """Name and version in a dkms.conf, which is a shell script; the directory's name where they are computed."""
    with open(conf, encoding="utf-8", errors="replace") as stream:
        text = stream.read()
    found = dict(re.findall(r"""^PACKAGE_(NAME|VERSION)=["']?([^"'$\s]+)["']?\s*$""", text, re.MULTILINE))
    name, _dash, version = os.path.basename(os.path.dirname(conf)).rpartition("-")
    return found.get("NAME", name), found.get("VERSION", version)


def _foreign_signature(repository: dict, text: str) -> Refused:
    signer = next(iter(re.findall(r"NO_PUBKEY ([0-9A-F]{16,40})", text)), None)
    meant = f"\n{signer}: {keys.meaning(signer, repository)}" if signer else ""
    return Refused.because(
        f"repository {repository['url']}",
        f"signed by the key {' or '.join(keys.accepted(repository))}",
        _chosen(text, _KEY_TROUBLE) + meant,
        "do not install from it: find out who signed it, and correct the URL or the key. If the vendor or the owner of "
        "your mirror confirms that key, set driver_repository_key to its file and driver_repository_fingerprint to its "
        "fingerprint",
    )


def _share(path: str, target: str) -> None:
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)


def _altered(what: str, text: str) -> Refused:
    return Refused.because(
        what,
        "the bytes that the repository's signed index promises",
        _chosen(text, _HASH_TROUBLE),
        "do not install it: resync the mirror (a stale proxy cache also causes this) and run again",
    )


def _chosen(text: str, pattern: re.Pattern) -> str:
    return next(line.strip() for line in text.splitlines() if pattern.search(line))


def last(text: str) -> str:
    return "\n".join([line for line in text.strip().splitlines() if line.strip()][-_LINES:])


def needed(changes: list[Change]) -> list[str]:
    """Missing packages that builds need."""
    return [change.object.split()[1] for change in changes if change.action == "need"]
