"""Container images without a registry: small root file systems out of the node image, as docker-archives.

`k3s ctr images import`, `podman load` and k3s' agent/images take them. The same files give the same bytes.
"""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

from . import programs
from .image import BUSYBOX, Image
from .settings import LabError, say

CACHE = programs.CACHE / "images"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
IPTABLES = ("usr/sbin/xtables-nft-multi", "usr/sbin/xtables-legacy-multi")
PAUSE = '#!/busybox sh\ntrap "exit 0" TERM INT\nwhile :; do /busybox sleep 2147483647 & wait $!; done\n'


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One image. node: files of the node image, with the libraries they name; added: (path, part, program)."""

    reference: str
    node: tuple[str, ...] = ()
    added: tuple[tuple[str, str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # folders of plugins that the files load by name


def recipes() -> dict[str, Recipe]:
    """The images of the test bed, under the names and with the paths of the released ones and their true versions."""
    flannel, multus = programs.PARTS["flannel"].version, programs.PARTS["multus"].version
    coredns = programs.PARTS["coredns"].version.removeprefix("v")
    binaries = "usr/src/multus-cni/bin"
    return {
        "pause": Recipe("docker.io/rancher/mirrored-pause:3.6", entrypoint=("/pause",)),
        "flannel": Recipe(
            f"ghcr.io/flannel-io/flannel:{flannel}",
            node=IPTABLES,
            needs=("xtables",),
            added=(("opt/bin/flanneld", "flannel", "flanneld"),),
            entrypoint=("/opt/bin/flanneld",),
        ),
        "flannel-cni-plugin": Recipe(
            f"ghcr.io/flannel-io/flannel-cni-plugin:{flannel}-double", added=(("flannel", "flannel", "flannel"),)
        ),
        "coredns": Recipe(
            f"docker.io/rancher/mirrored-coredns-coredns:{coredns}",
            added=(("coredns", "coredns", "coredns"),),
            entrypoint=("/coredns",),
        ),
        "multus": Recipe(
            f"ghcr.io/k8snetworkplumbingwg/multus-cni:{multus}-thick",
            added=tuple(
                (f"{binaries}/{name}", "multus", name) for name in ("install_multus", "multus-daemon", "multus-shim")
            ),
            entrypoint=(f"/{binaries}/multus-daemon",),
        ),
    }


def ensure(image: Image, names: list[str], built: dict[str, pathlib.Path]) -> dict[str, pathlib.Path]:
    """A docker-archive for each recipe. image: the node image. built: folders of the programs that the recipes add."""
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = {name: recipe for name, recipe in recipes().items() if name in names}
    targets = {name: CACHE / f"{name}-{digest(recipe, image, built)}.tar" for name, recipe in wanted.items()}
    missing = [name for name in names if not targets[name].exists()]
    if not missing:
        return targets
    say(f"container images: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="building-", dir=CACHE) as folder:
        node = pathlib.Path(folder, "node")
        if any(wanted[name].node for name in missing):
            unpack(image, node)
        for name in missing:
            root = pathlib.Path(folder, name)
            if name == "pause":
                fill_pause(root)
            else:
                fill(root, wanted[name], node, built)
            unfinished = pathlib.Path(folder, f"{name}.tar")
            archive(unfinished, wanted[name].reference, wanted[name].entrypoint, layer(root))
            for old in CACHE.glob(f"{name}-{'[0-9a-f]' * 16}.tar"):
                old.unlink()
            unfinished.rename(targets[name])
    return targets


def digest(recipe: Recipe, image: Image, built: dict[str, pathlib.Path]) -> str:
    sources = [f"{part}/{built[part].name}" for _path, part, _program in recipe.added]
    node = image.name if recipe.node else ""
    own = hashlib.sha256(pathlib.Path(__file__).read_bytes() + BUSYBOX.read_bytes()).hexdigest()
    return hashlib.sha256(json.dumps([recipe.reference, sources, node, own]).encode()).hexdigest()[:16]


def unpack(image: Image, out: pathlib.Path) -> None:
    """What images can need of the node's Debian, read out of the disk without mounting it."""
    out.mkdir()
    for folder in ("usr/bin", "usr/sbin", "usr/lib64", LIBRARIES):
        target = out / folder
        target.parent.mkdir(parents=True, exist_ok=True)
        command = ["debugfs", "-R", f"rdump /{folder} {target.parent}", str(image.disk)]
        subprocess.run(command, capture_output=True, check=False)
        if not target.is_dir():
            raise LabError(
                "container images", f"/{folder} of the node image", "debugfs did not give it", str(image.disk)
            )
    for link in ("bin", "sbin", "lib64"):
        (out / link).symlink_to(f"usr/{link}")
    (out / "lib").symlink_to("usr/lib")


def resolve(node: pathlib.Path, path: str) -> pathlib.Path:
    """The file that a path resolves to on the node, following the node's own links."""
    found = node / path
    for _ in range(8):
        if not found.is_symlink():
            return found
        link = pathlib.PurePath(os.readlink(found))
        found = (
            node / str(link).lstrip("/") if link.is_absolute() else pathlib.Path(os.path.normpath(found.parent / link))
        )
    raise LabError("container images", f"a file at {path}", "a chain of links", "lab/labctl down, then up")


def libraries(node: pathlib.Path, file: pathlib.Path) -> list[str]:
    """Paths of the shared libraries that a program needs, named by the node's own loader."""
    loader = resolve(node, "usr/lib64/ld-linux-x86-64.so.2")
    places = f"{node / LIBRARIES}"
    done = subprocess.run(
        [str(loader), "--library-path", places, "--list", str(file)], capture_output=True, text=True, check=False
    )
    return [str(pathlib.Path(path).relative_to(node)) for path in re.findall(rf"{re.escape(places)}/\S+", done.stdout)]


def fill_pause(root: pathlib.Path) -> None:
    """As bare as the released one, which has one program and neither a shell in the usual place nor any folder."""
    root.mkdir()
    shutil.copy2(BUSYBOX, root / "busybox")
    (root / "pause").write_text(PAUSE)
    (root / "pause").chmod(0o755)


def fill(root: pathlib.Path, recipe: Recipe, node: pathlib.Path, built: dict[str, pathlib.Path]) -> None:
    for folder in ("usr/bin", "usr/sbin", "usr/lib64", LIBRARIES, "etc", "tmp", "var", "opt", "proc", "sys", "dev"):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "tmp").chmod(0o1777)
    (root / "var/run").symlink_to("/run")  # Multus gets namespaces as paths below /var/run/netns
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    files = list(recipe.node)
    for folder in recipe.needs:
        files += [str(path.relative_to(node)) for path in sorted((node / LIBRARIES / folder).glob("*.so"))]
    for file in files:
        take(root, node, file)
        for library in libraries(node, resolve(node, file)):
            take(root, node, library)
    if files:
        take(root, node, "usr/lib64/ld-linux-x86-64.so.2")
        take(root, node, f"{LIBRARIES}/libgcc_s.so.1")  # pthread_exit loads it by name
    for name in ("iptables", "ip6tables", "iptables-save", "iptables-restore", "ip6tables-save", "ip6tables-restore"):
        if "xtables" in recipe.needs:
            (root / "usr/sbin" / name).symlink_to("xtables-nft-multi")
    shutil.copy2(BUSYBOX, root / "usr/bin/busybox")
    applets = subprocess.run([str(BUSYBOX), "--list"], capture_output=True, text=True, check=True).stdout.split()
    for applet in applets:
        if not any(
            (root / folder / applet).is_symlink() or (root / folder / applet).exists()
            for folder in ("usr/bin", "usr/sbin")
        ):
            (root / "usr/bin" / applet).symlink_to("busybox")
    for path, part, program in recipe.added:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(built[part] / program, target)


def take(root: pathlib.Path, node: pathlib.Path, path: str) -> None:
    target = root / path
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(resolve(node, path), target)


def layer(root: pathlib.Path) -> bytes:
    """The files as a tar archive that depends on them alone."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for path in sorted(root.rglob("*")):
            entry = archive.gettarinfo(path, str(path.relative_to(root)))
            if entry.islnk():  # two names of one file on the host
                entry.type, entry.size = tarfile.REGTYPE, path.stat().st_size
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            if entry.isreg():
                with path.open("rb") as stream:
                    archive.addfile(entry, stream)
            else:
                archive.addfile(entry)
    return held.getvalue()


def member(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def archive(out: pathlib.Path, reference: str, entrypoint: tuple[str, ...], data: bytes) -> None:
    """Writes a docker-archive of one image with one layer; data: the layer, a tar archive."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": list(entrypoint) or None,
            "Cmd": None if entrypoint else ["/bin/sh"],
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}"]},
        "history": [{"created": "2026-01-01T00:00:00Z", "created_by": "lab/lab/containers.py"}],
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    with tarfile.open(out, "w") as tar:
        member(tar, "layer.tar", data)
        member(tar, name, text)
        manifest = [{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
        member(tar, "manifest.json", json.dumps(manifest).encode())
