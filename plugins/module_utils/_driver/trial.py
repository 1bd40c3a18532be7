"""Trial of a driver installation before it touches the node.

In a separate folder, with the node's sources plus the new one: apt-get --simulate or dnf --assumeno report what would
be installed and removed, the signature is checked, and the real dkms builds the base module. So a wrong key, a missing
version or a failing build does not cost the node its driver.
"""

from __future__ import annotations

import glob
import os
import pathlib
import re
import shutil
import tempfile
from typing import Any, Callable, Optional

from .._core.change import Refused
from .._core.files import write
from . import dkms, keys, packages
from .plan import BASE_DKMS

Run = Callable[..., tuple[int, str, str]]
_KEY_TROUBLE = re.compile(
    r"NO_PUBKEY|BADSIG|EXPKEYSIG|REVKEYSIG|not signed|no longer signed|signatures? (couldn't|were)"
)
_HASH_TROUBLE = re.compile(r"Hash Sum mismatch|unexpected size|Hashes of expected file")
_MISSING = re.compile(
    r"Unable to locate package (\S+)|Package '?(\S+?)'? has no installation candidate|No match for argument: (\S+)"
)
_LINES = 12


class Trial:
    """A folder in which a change is tried; a context manager.

    resolve(wanted, names, tools, downgrade): ({name: exact version}, archives whose DKMS sources can be built). Nothing
    on the node changes.
    """

    kind = ""

    def __init__(self, run: Run):
        self._run = run
        self.directory = ""

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="gpufabric-driver-", dir="/var/tmp")
        return self

    def __exit__(self, *_exception: Any) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def build(self, archives: list[str], kernels: list[str], architecture: str) -> None:
        """The base module builds for every kernel, with the real dkms in a separate tree."""
        root, sources = self._path("root"), self._path("root/usr/src")
        for archive in archives:
            os.makedirs(root, exist_ok=True)
            code, _out, error = self._run(packages.unpack_command(archive, root))
            if code:
                raise Refused.because(
                    archive, "a package that can be unpacked", last(error), "resync the mirror and run again"
                )
        for conf in sorted(glob.glob(f"{sources}/*/dkms.conf")):
            self.build_source(_identity(conf), sources, kernels, architecture)

    def build_source(self, identity: tuple[str, str], sources: str, kernels: list[str], architecture: str) -> None:
        """One module, by name and version."""
        module, version = identity
        tree = self._path("dkms")
        os.makedirs(tree, exist_ok=True)
        where = ["--sourcetree", sources, "--dkmstree", tree, "-m", module, "-v", version]
        code, out, error = self._run(["dkms", "add", *where])
        if code:
            raise Refused.because(f"DKMS module {module}", "known to dkms", last(error + out), "report it")
        for kernel in kernels:
            code, out, error = self._run(["dkms", "build", *where, "-k", kernel])
            if code:
                raise build_failed(module, version, kernel, architecture, out + error, tree, "trial build")

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _source(self, folder: str, repository: dict, wanted: dict) -> None:
        write(self._path("key.asc"), repository.get("key") or "")
        text = packages.repository_file(self.kind, repository, f"{wanted['flavor']} {wanted['version']}")
        path = self._path(os.path.join(folder, os.path.basename(packages.REPOSITORIES[self.kind])))
        write(path, text.replace(packages.KEYS[self.kind], self._path("key.asc")))


class AptTrial(Trial):
    kind = packages.APT

    def resolve(self, wanted, names, tools, downgrade):
        repository = wanted["repository"] if (wanted["repository"] or {}).get("url") else None
        exact, sums = {}, wanted["sha256"]
        self._prepare(repository, wanted)
        if repository:
            self._update(repository)
            exact = {name: self._candidate(name, wanted["version"], sums.get(name)) for name in names}
        chosen = [packages.pinned(self.kind, name, exact.get(name)) for name in names]
        coming = self._simulate([*tools, *chosen], packages.downgrade_pins(repository["label"]) if downgrade else None)
        base = f"{BASE_DKMS[self.kind]}-dkms"
        if base not in coming:
            return exact, []
        if repository and base in sums:
            self._candidate(base, None, sums[base])
        return exact, self._fetch(base, coming[base])

    def _prepare(self, repository: Optional[dict], wanted: dict) -> None:
        """apt's folders with copies of the node's; the repository is added to the node's own sources."""
        for name in ("lists/partial", "sources.list.d", "preferences.d", "archives/partial"):
            os.makedirs(self._path(name))
        for name in ("sources.list.d", "preferences.d"):
            for path in filter(os.path.isfile, glob.glob(f"/etc/apt/{name}/*")):
                shutil.copy(path, self._path(name))
        for path in glob.glob("/var/lib/apt/lists/*"):
            if os.path.isfile(path) and not path.endswith("/lock"):
                _share(path, self._path(f"lists/{os.path.basename(path)}"))
        if repository:
            self._source("sources.list.d", repository, wanted)
            pins = f"preferences.d/{os.path.basename(packages.PINS)}"
            write(self._path(pins), packages.pins_file(repository["label"]))
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
        write(self._path("apt.conf"), "".join(f'{key} "{value}";\n' for key, value in settings.items()))

    def _update(self, repository: dict) -> None:
        """The repository answers, and its index is signed by the accepted key."""
        code, out, error = self._apt(*packages.update_command(self._path(self._file())))
        text = error + out
        if not repository.get("trusted") and _KEY_TROUBLE.search(text):
            signer = next(iter(re.findall(r"NO_PUBKEY ([0-9A-F]{16,40})", text)), None)
            meant = f"\n{signer}: {keys.meaning(signer, repository)}" if signer else ""
            raise _unsigned(f"repository {repository['url']}", repository, _line(text, _KEY_TROUBLE) + meant)
        if code:
            raise _altered(f"index of {repository['url']}", text) or Refused.because(
                f"repository {repository['url']}",
                "reachable from this node",
                last(text),
                "check name resolution, proxy and firewall, or set driver_repository_url to a mirror",
            )

    def _candidate(self, name: str, version: Optional[str], sha256: Optional[str]) -> str:
        """The exact version in the new repository that matches the wanted one."""
        only = [f"Dir::Etc::SourceList={self._path(self._file())}", "Dir::Etc::SourceParts=/dev/null"]
        options = [word for option in [*only, "Dir::State::status=/dev/null"] for word in ("-o", option)]
        _code, out, _error = self._apt("apt-cache", "show", name, *options)
        stanzas = [dict(re.findall(r"^(\w+): (.*)", stanza, re.MULTILINE)) for stanza in out.split("\n\n")]
        offered = {row["Version"]: row.get("SHA256", "none") for row in stanzas if row.get("Package") == name}
        fitting = [other for other in offered if not version or packages.satisfies(other, version)]
        if not fitting:
            raise Refused.because(
                f"package {name}",
                f"version {version}",
                f"the repository offers {', '.join(sorted(offered)) or 'no such package'}",
                "correct driver_version or driver_repository_url; they must match",
            )
        chosen = max(fitting, key=packages.order)
        if sha256 and offered[chosen] != sha256:
            raise Refused.because(
                f"package {name} {chosen}",
                f"SHA-256 {sha256}, as in the lock",
                f"{offered[chosen]} in the repository's signed index",
                "do not install it: compare it with the vendor's release; correct lock/artifacts.yml if that changed",
            )
        return chosen

    def _simulate(self, names: list[str], pins: Optional[str]) -> dict[str, str]:
        """{name: version} of what would be installed. pins: allow a downgrade."""
        flags = []
        if pins:
            write(self._path("preferences"), pins)
            flags = ["--allow-downgrades", *packages.with_preferences(self._path("preferences"))]
        code, out, error = self._apt("apt-get", "install", "--simulate", "--no-install-recommends", *flags, *names)
        if code:
            raise _impossible(names, error + out)
        refuse_removal(self.kind, f"packages {' '.join(names)}", "installed", out)
        return dict(re.findall(r"^Inst (\S+) (?:\[[^]]*\] )?\((\S+)", out, re.MULTILINE))

    def _fetch(self, name: str, version: str) -> list[str]:
        """Download a package; apt checks it against the signed index. Without the version apt would pick the newest."""
        code, out, error = self._apt(
            "apt-get", "download", packages.pinned(self.kind, name, version), cwd=self.directory
        )
        if code:
            raise _altered(f"package {name}", error + out) or Refused.because(
                f"package {name}",
                "downloaded",
                last(error + out),
                "check the repository's web server, or set driver_repository_url to a mirror",
            )
        return glob.glob(self._path("*.deb"))

    def _apt(self, *argv: str, cwd: Optional[str] = None) -> tuple[int, str, str]:
        return self._run(list(argv), environment={"APT_CONFIG": self._path("apt.conf")}, cwd=cwd)

    def _file(self) -> str:
        return "sources.list.d/" + os.path.basename(packages.REPOSITORIES[self.kind])


class DnfTrial(Trial):
    """The download stays in dnf's cache for the installation."""

    kind = packages.DNF

    def __init__(self, run: Run, etc: str = "/etc/yum.repos.d", cache: str = "/var/cache/dnf"):
        super().__init__(run)
        self._etc = etc
        self._cache = cache

    def resolve(self, wanted, names, tools, downgrade):
        repository = wanted["repository"]
        os.makedirs(self._path("repos"))
        for path in filter(os.path.isfile, glob.glob(f"{self._etc}/*.repo")):
            shutil.copy(path, self._path("repos"))
        self._source("repos", repository, wanted)
        exact = dict.fromkeys(names, f"{wanted['version']}*")
        chosen = [packages.pinned(self.kind, name, exact[name]) for name in names]
        # A downgrade only takes installed packages, so build dependencies are resolved separately.
        for some, back in ((tools, False), (chosen, downgrade)):
            if some:
                command = packages.install_command(self.kind, some, back)
                code, out, error = self._dnf(*packages.only_shown(command)[1:])
                if code and "aborted" not in out + error:
                    raise _impossible(some, error + out)
                refuse_removal(self.kind, f"packages {' '.join(some)}", "installed", out)
        code, out, error = self._dnf(*packages.install_command(self.kind, chosen, downgrade)[1:], "--downloadonly")
        if code:
            raise _impossible(chosen, error + out)
        archives = sorted(glob.glob(f"{self._cache}/gpufabric-rdma-driver-*/packages/*.rpm"))
        if not repository.get("trusted"):
            self._signatures(archives, repository)
        base = f"{BASE_DKMS[self.kind]}-dkms-"
        return exact, [archive for archive in archives if os.path.basename(archive).startswith(base)]

    def _signatures(self, archives: list[str], repository: dict) -> None:
        """Each package is signed by the accepted key: rpmkeys accepts an unsigned one, so its output is read too."""
        database = ["rpmkeys", "--dbpath", self._path("rpmdb")]
        code, _out, error = self._run([*database, "--import", self._path("key.asc")])
        if code:
            raise Refused.because(
                "key of the driver repository", "an OpenPGP key for rpm", last(error), "correct the key"
            )
        for archive in archives:
            code, out, error = self._run([*database, "--checksig", archive])
            if code or not re.search(r":.*\bsignatures OK$", out.strip()):
                raise _unsigned(os.path.basename(archive), repository, last(out + error))

    def _dnf(self, *argv: str) -> tuple[int, str, str]:
        return self._run(["dnf", f"--setopt=reposdir={self._path('repos')}", *argv])


OF = {packages.APT: AptTrial, packages.DNF: DnfTrial}


def refuse_removal(kind: str, what: str, wanted: str, out: str) -> None:
    """Only parts of a driver stack may be removed. out: what the package manager says it would do."""
    lines = re.findall(r"^(?:Remv|Purg)( \S+)", out, re.MULTILINE)
    lines += re.findall(r"^Removing[^\n]*:\n((?: .+\n)+)", out, re.MULTILINE)
    removed = re.findall(r"^ (\S+)", "\n".join(lines), re.MULTILINE)
    removed = sorted({name for name in removed if not packages.stack_packages({name: ""})})
    if removed:
        raise Refused.because(
            what,
            f"{wanted} without removing anything else",
            f"{kind} would remove {', '.join(removed)}",
            "remove those yourself if nothing needs them, or choose another driver version",
        )


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
    logs = [path for path in dkms.log_path(module, version, kernel, architecture, tree) if os.path.exists(path)]
    log = _read(logs[0]) if logs else ""
    left = "; the node's driver is unchanged" if what == "trial build" else ""
    return Refused.because(
        f"DKMS module {module} {version}",
        f"built for kernel {kernel}",
        f"the {what} failed{left}. The end of make.log:\n{dkms.tail(log or output)}",
        "choose a driver version that supports this kernel, or boot a kernel that it supports",
    )


def _identity(conf: str) -> tuple[str, str]:
    """Name and version in a dkms.conf, which is a shell script; the directory's name if they are computed."""
    named = dict(re.findall(r"""^PACKAGE_(NAME|VERSION)=["']?([^"'$\s]+)["']?\s*$""", _read(conf), re.MULTILINE))
    name, _dash, version = os.path.basename(os.path.dirname(conf)).rpartition("-")
    return named.get("NAME", name), named.get("VERSION", version)


def _impossible(names: list[str], text: str) -> Refused:
    """Why packages cannot be installed: one is missing everywhere, or the package manager's message."""
    missing = [next(filter(None, groups)) for groups in _MISSING.findall(text)]
    for name in missing:
        headers = re.match(r"(?:linux-headers|kernel(?:-\w+)?-devel)-(.*)", name)
        if headers:
            return Refused.because(
                f"kernel headers for {headers.group(1)}",
                f"the package {name}, without which DKMS cannot build the driver",
                "no such package in the archives of this node",
                "add the archive that has it (archives drop old kernels), or boot a kernel whose headers are available",
            )
    step = "correct driver_version or driver_repository_url, or resolve the reported conflict"
    if "dkms" in missing:
        step = packages.EPEL
    return Refused.because(f"packages {' '.join(names)}", "installable with the node's packages", last(text), step)


def _unsigned(what: str, repository: dict, seen: str) -> Refused:
    return Refused.because(
        what,
        f"signed by the key {' or '.join(keys.accepted(repository))}",
        seen,
        "do not install from it: find out who signed it, and correct the URL or the key. If the vendor or the owner of "
        "your mirror confirms that key, set driver_repository_key to its file and driver_repository_fingerprint to its "
        "fingerprint",
    )


def _altered(what: str, text: str) -> Optional[Refused]:
    """None unless a checksum is wrong."""
    if not _HASH_TROUBLE.search(text):
        return None
    return Refused.because(
        what,
        "the bytes that the repository's signed index promises",
        _line(text, _HASH_TROUBLE),
        "do not install it: resync the mirror (a stale proxy cache also causes this) and run again",
    )


def _read(path: str) -> str:
    return pathlib.Path(path).read_text(encoding="utf-8", errors="replace")


def _share(path: str, target: str) -> None:
    try:
        os.link(path, target)
    except OSError:
        shutil.copy2(path, target)


def _line(text: str, pattern: re.Pattern) -> str:
    return next(line.strip() for line in text.splitlines() if pattern.search(line))


def last(text: str) -> str:
    return "\n".join([line for line in text.strip().splitlines() if line.strip()][-_LINES:])
