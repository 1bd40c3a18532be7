"""The device plugin as an image: a base image with Python, and one layer with the plugin and its locked wheels on top.

Nothing is run, so images for other processors can be built too. The same base, wheels and sources give the same bytes:
the layer is sorted, without dates and owners. Base and result are docker-archives, as skopeo and `docker save` write
them and `k3s ctr images import` reads them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import re
import tarfile
import zipfile

from .._core.change import Finding, Refused
from .._core.files import replacing

# Increase it when the same inputs give another image, so that folders are filled again.
_LAYOUT = 1
PROGRAM = "k8s-rdma-shared-dp"
HOME = "opt/rdma-device-plugin"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_LOADERS = {"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}
_PYTHONS = ("usr/local/bin/python3", "usr/bin/python3")
_NAME = re.compile(r"python(3\.\d+)")
_LINKS = 8
_STEP = "set a base with python3 and glibc, such as python:3.12-slim or a Debian with python3, in bundle_plugin_base"
_SCRIPT = """\
#!/{python} -I
import sys

sys.path.insert(0, "/{home}/lib")

from rdma_device_plugin.__main__ import main

sys.exit(main())
"""
_CODE = {
    "rdma_device_plugin": "device_plugin/rdma_device_plugin",
    "rdma_device_plugin/hca": "plugins/module_utils/hca",
}


def code(collection: str) -> dict[str, bytes]:
    """{path: content} of the plugin's package, with the discovery library in it, from the collection's folder."""
    found = {}
    for package, folder in _CODE.items():
        top = os.path.join(collection, folder)
        before = len(found)
        for place, _folders, names in sorted(os.walk(top)):
            for name in names:
                if name.endswith((".py", ".json")):
                    path = os.path.join(place, name)
                    with open(path, "rb") as stream:
                        found[posixpath.join(package, os.path.relpath(path, top))] = stream.read()
        if len(found) == before:
            step = "install the collection again; it is incomplete"
            raise Refused.because(top, "the device plugin's source", "no Python files", step)
    return found


def made_of(members: dict[str, bytes], wheels: list[dict]) -> str:
    """A digest of the layer on top of the base. wheels: rows of the lock."""
    sums = {path: hashlib.sha256(content).hexdigest() for path, content in members.items()}
    made = [_LAYOUT, _SCRIPT, sums, wheels]
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


class Base:
    """The base image in a docker-archive. Refused without Python, glibc or libstdc++, and with a damaged layer."""

    def __init__(self, archive: tarfile.TarFile, name: str, architecture: str) -> None:
        self.archive, self.name, self.architecture = archive, name, architecture
        (self.image,) = json.load(archive.extractfile("manifest.json"))
        self.config = json.load(archive.extractfile(self.image["Config"]))
        self._files: dict[str, str | None] = {}  # path: target of a link, None for anything else
        seen = f"{self.config.get('os')}/{self.config.get('architecture')}"
        if seen != f"linux/{architecture}":
            raise self._refused(f"an image for linux/{architecture}", seen)
        for layer, wanted in zip(self.image["Layers"], self.config["rootfs"]["diff_ids"], strict=False):
            self._read(layer, wanted)
        self.python, self.version = self._find_python()
        for library in (_LOADERS[architecture], "libstdc++.so.6"):
            if not any(posixpath.basename(path) == library for path in self._files):
                raise self._refused(f"{library}, which the wheels are linked against", "no such file in it")

    def _read(self, layer: str, wanted: str) -> None:
        digest = hashlib.sha256()
        stream = self.archive.extractfile(layer)
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
        if wanted != f"sha256:{digest.hexdigest()}":
            raise self._refused(f"layer {wanted}", f"sha256:{digest.hexdigest()}")
        with tarfile.open(fileobj=self.archive.extractfile(layer)) as files:
            for member in files:
                path = posixpath.normpath(member.name).lstrip("/")
                self._files[path] = member.linkname if member.issym() else None

    def _find_python(self) -> tuple[str, str]:
        for program in _PYTHONS:
            named = _NAME.fullmatch(posixpath.basename(self.resolved(program) or ""))
            if named:
                return program, named[1]
        raise self._refused("python3 in /usr/local/bin or /usr/bin", "none, or one without a version in its name")

    def resolved(self, path: str) -> str | None:
        """The path of the file that a path leads to, or None. Links of its folders are not followed."""
        for _link in range(_LINKS):
            if path not in self._files:
                return None
            link = self._files[path]
            if link is None:
                return path
            path = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), link)).lstrip("/")
        return None

    @property
    def programs(self) -> str:
        """The place of /bin/PROGRAM: a file below a link to a folder would replace the link."""
        return posixpath.normpath(self._files.get("bin") or "bin").lstrip("/")

    def _refused(self, wanted: str, seen: str) -> Refused:
        return Refused([Finding(f"base image {self.name}", wanted, seen, _STEP)])


def build(base: str, out: str, name: str, reference: str, architecture: str, parts: dict) -> None:
    """Write the image to `out`. base: path of its docker-archive. name: of the base, for messages.

    parts: code (from `code`), wheel_dir, and fitting: (python, machine) -> {file: {sha256, …}}. Refused if the
    base does not fit, or a wheel is missing or is not the locked one.
    """
    with tarfile.open(base) as archive:
        made = Base(archive, name, architecture)
        members = {f"{HOME}/lib/{path}": content for path, content in parts["code"].items()}
        wheels = parts["fitting"](made.version, MACHINES[architecture])
        members.update(_unpacked(parts["wheel_dir"], wheels, made))
        script = _SCRIPT.format(python=made.python, home=HOME).encode()
        layer = _layer(members, {f"{made.programs}/{PROGRAM}": script})
        diff = hashlib.sha256(layer).hexdigest()
        config = json.loads(json.dumps(made.config))
        config.setdefault("config", {}).update(Entrypoint=[f"/bin/{PROGRAM}"], Cmd=None)
        config["rootfs"]["diff_ids"].append(f"sha256:{diff}")
        config.setdefault("history", []).append({"created_by": "gpufabric.rdma.bundle"})
        text = json.dumps(config, sort_keys=True).encode()
        ids = [one.partition(":")[2] for one in config["rootfs"]["diff_ids"]]
        manifest = {
            "Config": f"{hashlib.sha256(text).hexdigest()}.json",
            "RepoTags": [reference],
            "Layers": [f"{one}.tar" for one in ids],
        }
        with replacing(out) as stream, tarfile.open(fileobj=stream, mode="w") as target:
            written = set()
            for layer_name, one in zip(made.image["Layers"], ids):
                if one not in written:
                    size = archive.getmember(layer_name).size
                    _add(target, f"{one}.tar", archive.extractfile(layer_name), size)
                written.add(one)
            _add(target, f"{diff}.tar", io.BytesIO(layer), len(layer))
            _add(target, manifest["Config"], io.BytesIO(text), len(text))
            listed = json.dumps([manifest]).encode()
            _add(target, "manifest.json", io.BytesIO(listed), len(listed))


def _unpacked(folder: str, wheels: dict[str, dict], base: Base) -> dict[str, bytes]:
    """{path in the image: content} of all wheels except pip, because nothing is installed later."""
    found, wrong = {}, []
    if not any(wheel["name"] == "grpcio" for wheel in wheels.values()):
        raise base._refused("a Python that the lock has wheels for", f"Python {base.version}")
    for file, wheel in sorted(wheels.items()):
        if wheel["name"] == "pip":
            continue
        path = os.path.join(folder, file)
        step = "run bundle.yml without bundle_wheels: false, and with this Python in bundle_pythons"
        try:
            with open(path, "rb") as stream:
                data = stream.read()
        except OSError as error:
            wrong.append(Finding(path, f"a wheel for Python {base.version} of {base.name}", error.strerror, step))
            continue
        seen = hashlib.sha256(data).hexdigest()
        if seen != wheel["sha256"]:
            wrong.append(Finding(path, f"sha256 {wheel['sha256']}", f"sha256 {seen}", f"remove it; {step}"))
            continue
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    found[f"{HOME}/lib/{entry.filename}"] = archive.read(entry)
    if wrong:
        raise Refused(wrong)
    return found


def _layer(files: dict[str, bytes], programs: dict[str, bytes]) -> bytes:
    """A layer's tar archive. Folders below HOME are listed; those of the base stay unchanged."""
    held = io.BytesIO()
    folders = set()
    for path in files:
        while path.startswith(f"{HOME}/"):
            path = posixpath.dirname(path)
            folders.add(path)
    with tarfile.open(fileobj=held, mode="w") as target:
        for path in sorted(folders | set(files) | set(programs)):
            if path in folders:
                entry = tarfile.TarInfo(path)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                target.addfile(entry)
            else:
                content = files.get(path, programs.get(path))
                _add(target, path, io.BytesIO(content), len(content), 0o755 if path in programs else 0o644)
    return held.getvalue()


def _add(target: tarfile.TarFile, name: str, stream, size: int, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, mode
    target.addfile(entry, stream)
