"""The test bed's programs: built from released Go modules, kept under a hash of everything that determines them."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator

from .settings import CHECKOUT, LabError, say

SOURCES = CHECKOUT / "lab" / "testbed"
CACHE = CHECKOUT / ".cache" / "testbed"
OLDEST_GO = (1, 25)
# No cgo: the programs run on any node and in images without a C library.
ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
CONTAINERD = "github.com/containerd/containerd/v2"
MULTUS = "gopkg.in/k8snetworkplumbingwg/multus-cni.v4"
CNI = "github.com/containernetworking/plugins"


@dataclasses.dataclass(frozen=True)
class Part:
    """One Go module of lab/testbed and its programs.

    module: its version in go.mod is the part's version. stamps: variables set to that version at link time.
    """

    folder: str
    module: str
    packages: tuple[str, ...] = ("tool",)
    stamps: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    inside: str | None = None  # a part whose programs are packed into this one's
    minutes: int = 1  # the first build on two processors, with the modules it downloads

    @property
    def source(self) -> pathlib.Path:
        return SOURCES / self.folder

    @property
    def variant(self) -> str:
        """For the k3s double, the Kubernetes of LAB_K3S if it is not that of go.mod."""
        wanted = os.environ.get("LAB_K3S", "") if self.folder == "k3s-double" else ""
        known = [path.name.partition("-")[0] for path in self.source.glob("*-go.mod")]
        if not wanted or wanted in known:
            return wanted
        own = self._version_in("go.mod").removeprefix("v").rpartition(".")[0]
        if wanted != own:
            words = " or ".join(sorted([own, *known]))
            raise LabError("environment variable LAB_K3S", words, wanted, "unset LAB_K3S or correct it")
        return ""

    @property
    def requirements(self) -> str:
        """Its go.mod. That of a variant has the direct requirements only; Go adds the others in a copy."""
        return f"{self.variant}-go.mod" if self.variant else "go.mod"

    def _version_in(self, requirements: str) -> str:
        found = rf"^(?:require)?\s*{re.escape(self.module)} (v\S+)"
        return re.search(found, (self.source / requirements).read_text(), re.MULTILINE).group(1)

    @property
    def version(self) -> str:
        return self._version_in(self.requirements)

    def command(self, go: str, out: pathlib.Path) -> list[str]:
        flags = ["-s", "-w"]
        for stamp in self.stamps:
            flags += ["-X", f"{stamp}={self.version}"]
        if self.folder == "k3s-double":
            minor = self.version.split(".")[1]
            flags += ["-X", "k8s.io/component-base/version.gitMajor=1"]
            flags += ["-X", f"k8s.io/component-base/version.gitMinor={minor}"]
        words = [go, "build", "-trimpath", "-ldflags", " ".join(flags), *self.arguments, "-o", f"{out}/"]
        if self.variant:
            words += ["-mod=mod", f"-modfile={out}/copy.mod"]
        return [*words, *self.packages]


PARTS = {
    "containerd": Part(
        "containerd",
        CONTAINERD,
        stamps=(f"{CONTAINERD}/version.Version",),
        arguments=("-tags", "no_btrfs,no_zfs,no_aufs"),
        minutes=2,
    ),
    "k3s": Part(
        "k3s-double",
        "k8s.io/kubernetes",
        packages=(".",),
        stamps=("k8s.io/component-base/version.gitVersion",),
        inside="containerd",
        minutes=5,
    ),
    "cni-plugins": Part("cni-plugins", CNI, stamps=(f"{CNI}/pkg/utils/buildversion.BuildVersion",)),
    "flannel": Part("flannel", "github.com/flannel-io/flannel", packages=("./flanneld", "./flannel")),
    "multus": Part("multus", MULTUS),
    "coredns": Part("coredns", "github.com/coredns/coredns", packages=(".",)),
    "mirror": Part("mirror", "github.com/distribution/distribution/v3", packages=(".",)),
    "peer-plugin": Part("peer-plugin", "github.com/Mellanox/k8s-rdma-shared-dev-plugin"),
    "dra": Part("dra", "k8s.io/kubernetes", packages=("./gpu-dra",)),
}


def find_go() -> tuple[str, str]:
    """The Go tool chain and its version."""
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    wanted = f"Go {'.'.join(map(str, OLDEST_GO))} or newer on PATH"
    next_step = "install Go, or choose LAB_CLUSTER=release or none"
    if not go:
        raise LabError("the test bed's programs", wanted, "no program named go", next_step)
    version = subprocess.run(
        [go, "env", "GOVERSION"], capture_output=True, text=True, check=True, env={**os.environ, **ENVIRONMENT}
    ).stdout.strip()
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_GO:
        raise LabError("the test bed's programs", wanted, f"{go} is {version}", next_step)
    return go, version


def digest(part: Part, go_version: str) -> str:
    """The inputs of the part's programs; go.sum has the checksums of every module."""
    recipe = {
        "files": {
            str(path.relative_to(part.source)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(part.source.rglob("*"))
            if path.is_file()
        },
        "command": part.command("go", pathlib.PurePath("out")),
        "go": go_version,
        "environment": ENVIRONMENT,
        "inside": digest(PARTS[part.inside], go_version) if part.inside else None,
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:16]


def ensure(names: tuple[str, ...] | list[str] = tuple(PARTS)) -> dict[str, pathlib.Path]:
    """Folder of each part's programs; earlier builds from the same files are reused."""
    go, version = find_go()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return {name: ensure_one(name, go, version) for name in names}


@contextlib.contextmanager
def built_meanwhile(names: list[str]) -> Iterator[None]:
    """Lets labctl build the parts, at low priority during the block. A block that fails ends the build."""
    if not names:
        yield
        return
    words = ["nice", "-n", "19", str(CHECKOUT / "lab" / "labctl"), "programs", *names]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True) as building:
        try:
            yield
        except BaseException:
            os.killpg(building.pid, signal.SIGTERM)
            raise
        with contextlib.suppress(OSError):  # it has ended, or this user may not raise a priority
            os.setpriority(os.PRIO_PGRP, building.pid, 0)
    if building.returncode:
        raise LabError("the test bed's programs", "all built", "the build failed, see above", "run the command again")


def ensure_one(name: str, go: str, version: str) -> pathlib.Path:
    part = PARTS[name]
    inner = ensure_one(part.inside, go, version) if part.inside else None
    target = CACHE / (f"{name}-{part.variant}" if part.variant else name) / digest(part, version)
    if target.is_dir():
        return target
    say(f"{name} {part.version}: building from Go modules (once; about {part.minutes} min on two processors)")
    target.parent.mkdir(exist_ok=True)
    for leftover in CACHE.glob("building-*"):  # of a killed build: the lock allows only one at a time
        shutil.rmtree(leftover)
    work = pathlib.Path(tempfile.mkdtemp(prefix="building-", dir=CACHE))
    try:
        build(part, go, work)
        if inner:
            append(work / name, inner)
        work.chmod(0o755)
        for old in target.parent.iterdir():
            shutil.rmtree(old)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    say(f"{name} {part.version}: built")
    return target


def build(part: Part, go: str, out: pathlib.Path) -> None:
    copies = [out / "copy.mod", out / "copy.sum"] if part.variant else []
    for copy in copies:
        shutil.copyfile((part.source / part.requirements).with_suffix(copy.suffix), copy)
    done = subprocess.run(
        part.command(go, out),
        cwd=part.source,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    for copy in copies:
        copy.unlink()
    if done.returncode:
        tail = "\n          ".join(done.stderr.splitlines()[-15:])
        raise LabError(
            f"test bed: {part.folder}",
            "`go build` ends with 0",
            f"exit code {done.returncode}:\n          {tail}",
            f"try it in {part.source}; Go needs its module proxy, or a filled module cache",
        )


def append(program: pathlib.Path, inner: pathlib.Path) -> None:
    """Appends programs to another one as a zip archive, which that one unpacks when it starts."""
    with zipfile.ZipFile(program, "a", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(inner.iterdir()):
            entry = zipfile.ZipInfo(path.name)
            entry.external_attr = 0o755 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())
