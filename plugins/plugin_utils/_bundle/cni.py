"""The CNI plugins of a bundle folder: found by name and architecture, checked, extracted from their archives."""

import hashlib
import io
import json
import os
import tarfile

from ...module_utils._cni.plugins import ARCHIVE, FLANNEL, REFERENCE
from ...module_utils._core.change import Finding, Refused
from ...module_utils.hca import elf
from . import folder as bundle_folder

# One architecture as `uname -m` and as release assets call it.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_REFILL = "fill the bundle folder again (playbooks/bundle.yml) and run again"


def choose(bundle, directory: str, plugins: list, machine: str) -> tuple[dict[str, bytes], list[Finding]]:
    """({plugin: program}, problems). bundle: content of bundle.yml; machine: the node's `uname -m`."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        known = " or ".join(sorted(ARCHITECTURES))
        return {}, [Finding("architecture", known, machine, "remove the node from the group")]
    findings = bundle_folder.findings(bundle, directory)
    if findings:
        return {}, findings
    found: dict[str, bytes] = {}
    reference = [name for name in plugins if name != "flannel"]
    for name, wanted in ((REFERENCE, reference), (FLANNEL, ["flannel"] if "flannel" in plugins else [])):
        if not wanted:
            continue
        data, refused = _file(bundle, directory, name, architecture)
        findings += refused
        programs = {} if refused else _programs(data)
        for plugin in [] if refused else wanted:
            content = programs.get(plugin) or (_only(programs) if name == FLANNEL else None)
            wrong = _unfit(name, plugin, content, machine, programs)
            if wrong:
                findings.append(wrong)
            else:
                found[plugin] = content
    return found, findings


def _file(bundle: dict, directory: str, name: str, architecture: str) -> tuple[bytes, list[Finding]]:
    row = row_of(bundle, name, architecture)
    if row is None:
        return b"", [bundle_folder.missing_file(bundle, name, architecture, directory)]
    wrong = bundle_folder.damaged(directory, [row])
    if wrong:
        return b"", wrong
    path = os.path.join(directory, row["path"])
    if "reference" in row:
        return _from_image(path, row["reference"])
    with open(path, "rb") as stream:
        return stream.read(), []


def row_of(bundle: dict, name: str, architecture: str) -> dict | None:
    """The row of bundle.yml that has plugins of this name: a file, or an image with one program in its root, the main
    form of Flannel's releases.
    """
    file = bundle_folder.file_for(bundle, name, architecture)
    if file:
        return file
    for row in bundle.get("images") or []:
        called = row["reference"].rpartition("/")[2].partition("@")[0].partition(":")[0]
        if called == name and row.get("architecture", "any") in (architecture, "any"):
            return row
    return None


def _from_image(path: str, reference: str) -> tuple[bytes, list[Finding]]:
    """The file /flannel of an image archive, as skopeo and docker save write it."""
    try:
        with tarfile.open(path) as archive:
            images = json.load(archive.extractfile("manifest.json"))
            named = [image for image in images if reference in (image.get("RepoTags") or ())]
            for layer in reversed((named or images)[0]["Layers"]):
                with tarfile.open(fileobj=archive.extractfile(layer)) as files:
                    for member in files:
                        if member.isfile() and os.path.normpath(member.name).lstrip("/") == "flannel":
                            return files.extractfile(member).read(), []
        seen = "no file /flannel in it"
    except (tarfile.TarError, OSError, EOFError, KeyError, ValueError, TypeError) as error:
        seen = f"it cannot be unpacked: {error}"
    return b"", [Finding(path, "an image with Flannel's CNI plugin", seen, _REFILL)]


def _programs(data: bytes) -> dict[str, bytes]:
    """{base name: content} of the regular files in a tar archive; a bare program has an empty name."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return {
                os.path.basename(member.name): archive.extractfile(member).read()
                for member in archive
                if member.isfile()
            }
    except (tarfile.TarError, OSError, EOFError):
        return {"": data}


def _only(programs: dict[str, bytes]):
    """Flannel's plugin comes as one program, named after its architecture."""
    named = [content for name, content in programs.items() if not name or name.startswith("flannel")]
    return named[0] if len(named) == 1 else None


def _unfit(archive: str, plugin: str, content, machine: str, programs: dict):
    if content is None:
        seen = ", ".join(sorted(name for name in programs if name)) or "no archive"
        step = "correct the name in cni_plugins_names, or add a bundle that has it"
        return Finding(f"plugin {plugin}", f"a program in {archive}", seen, step)
    facts = elf.program(content[:4096])
    if facts is None:
        return Finding(f"plugin {plugin}", "a 64-bit ELF program", "something else", _REFILL)
    if facts["machine"] != machine:
        step = "put the archive of the node's architecture into the bundle and run again"
        return Finding(f"plugin {plugin}", f"a program for {machine}", f"one for {facts['machine']}", step)
    if len(content) < facts["size"]:
        return Finding(f"plugin {plugin}", f"{facts['size']} bytes or more", f"{len(content)}: truncated", _REFILL)
    return None


def supply(given: dict) -> bundle_folder.Supply:
    """What the module cni_plugins gets. given: its options. Refused if the bundle lacks a plugin."""
    bundle = bundle_folder.described(given["bundle"])
    programs, findings = choose(bundle, given["bundle"], given["names"], given["machine"])
    if findings:
        raise Refused(findings)
    return bundle_folder.Supply({"binaries": wanted(programs)}, programs, lambda some: {ARCHIVE: packed(some)})


def packed(programs: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
        for name in sorted(programs):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(programs[name]), 0o755
            archive.addfile(member, io.BytesIO(programs[name]))
    return target.getvalue()


def wanted(programs: dict[str, bytes]) -> list[dict]:
    return [{"name": name, "sha256": hashlib.sha256(content).hexdigest()} for name, content in sorted(programs.items())]
