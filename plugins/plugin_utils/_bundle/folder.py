"""The bundle: one folder on the controller that holds all software a cluster needs, described by its bundle.yml.

bundle.yml is {schema: 1, origin: release|own|testbed, files: [{name, version, architecture, path, sha256}], images:
[{reference, path, sha256, architecture?}]}; paths are relative to the folder. `findings` and the choosers are pure;
`described` reads the description, `damaged` reads the files.
"""

import functools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

import yaml
from ansible.module_utils.common.yaml import yaml_load

from ...module_utils._bundle import lock as bundle_lock
from ...module_utils._bundle.download import mirrored
from ...module_utils._bundle.lock import DESCRIPTION, ORIGINS, SCHEMA
from ...module_utils._core.change import Finding, Refused
from ...module_utils._core.files import sha256_of

LOCK = pathlib.Path(__file__).resolve().parents[3] / "lock/artifacts.yml"
ARCHITECTURES = ("amd64", "arm64", "any")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONTAINERS = ("initContainers", "containers")
# What a node with Internet access cannot pull itself, so the controller's cache provides it; and the images of which it
# needs only one program.
CACHED = ("k3s", "k3s-selinux", "cni-plugins", "flannel-cni-plugin")
PROGRAMS = {"flannel-cni-plugin": "flannel"}
# No lock has the sums of the programs in these: the controller reads them, even if nodes fetch their software.
READ = ("cni-plugins", "flannel-cni-plugin")
_FILL = "fill the folder with playbooks/bundle.yml on a connected machine and copy all of it here"


@functools.cache
def lock() -> dict:
    """The collection's lock. Do not modify it."""
    return yaml_load(LOCK.read_text(encoding="utf-8"))


def cache() -> str:
    """The folder on the controller that replaces a bundle if none is given."""
    return os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gpufabric.rdma")


def rows_of(content: dict, names: Iterable[str], platforms: tuple, digests: dict) -> list[dict]:
    """Rows of what nodes cannot pull. content: of a lock. platforms: (architectures, distributions). digests: given by
    the user, by reference.
    """
    rows = bundle_lock.programs(bundle_lock.wanted(content, names, *platforms, digests), PROGRAMS)
    return [*rows["files"], *rows["programs"]]


def downloads(content: dict, platforms: tuple, digests: dict, mirrors: dict) -> list[dict]:
    """Rows that nodes fetch themselves, each with its address. Refused if the lock has no checksum for one."""
    if unpinned := bundle_lock.unpinned(content, CACHED, digests):
        raise Refused(unpinned)
    rows = rows_of(content, CACHED, platforms, digests)
    return [row | {key: mirrored(row[key], mirrors) for key in ("url", "reference") if key in row} for row in rows]


def with_downloads(bundle: dict | None, rows: list[dict]) -> dict | None:
    """bundle.yml as if the folder held what nodes fetch themselves."""
    if bundle is None or not rows:
        return bundle
    paths = {row["path"] for row in rows}
    return {**bundle, "files": [*rows, *(row for row in bundle["files"] if row["path"] not in paths)]}


def cached(folder: str, origin: str, rows: list[dict]) -> tuple[dict, list[str]]:
    """bundle.yml of the cache filled with these rows, and the paths that are missing or differ."""
    expected = bundle_lock.describe(origin, rows, [])
    held = {row["path"]: row for row in (described(folder) or {}).get("files") or []}
    lacking = [
        row["path"]
        for row in expected["files"]
        if not row.items() <= held.get(row["path"], {}).items() or damaged(folder, [held[row["path"]]])
    ]
    return expected, lacking


def findings(bundle: dict, where: str = "bundle") -> list[Finding]:
    """Problems of the description itself, regardless of a node's needs."""
    found = []
    if not isinstance(bundle, dict) or bundle.get("schema") != SCHEMA:
        seen = bundle.get("schema") if isinstance(bundle, dict) else "none that is readable"
        return [Finding(f"{where}/{DESCRIPTION}", f"schema {SCHEMA}", f"{seen}", _FILL)]
    if bundle.get("origin") not in ORIGINS:
        found.append(
            Finding(f"{where}/{DESCRIPTION}", f"origin {' or '.join(ORIGINS)}", f"{bundle.get('origin')}", _FILL)
        )
    rows = [("file", row, ("name", "version", "architecture", "path")) for row in bundle.get("files") or []]
    rows += [("image archive", row, ("reference", "path")) for row in bundle.get("images") or []]
    for kind, row, needed in rows:
        name = f"{kind} {row.get('name') or row.get('reference') or row.get('path') or '?'}"
        lacking = [field for field in needed if not row.get(field)]
        if lacking:
            found.append(
                Finding(name, f"{', '.join(needed)} in {where}/{DESCRIPTION}", f"no {', no '.join(lacking)}", _FILL)
            )
            continue
        if not _SHA256.fullmatch(str(row.get("sha256") or "")):
            seen = f"'{row['sha256']}'" if row.get("sha256") else "no sha256 (not verified)"
            found.append(Finding(name, f"a sha256 in {where}/{DESCRIPTION}", seen, _FILL))
        if row.get("architecture", "any") not in ARCHITECTURES:
            found.append(Finding(name, f"architecture {', '.join(ARCHITECTURES)}", str(row["architecture"]), _FILL))
        if os.path.isabs(row["path"]) or ".." in row["path"].split("/"):
            found.append(Finding(name, f"a path inside {where}", row["path"], _FILL))
    return found


class Supply(NamedTuple):
    """What a module gets from the controller: options, and the files that it may request by name.

    packed: the requested files as {name: bytes or path}.
    """

    options: dict
    files: dict[str, bytes | pathlib.Path]
    packed: Callable[[dict], dict]


def described(folder: str | None) -> dict | None:
    """bundle.yml of a folder; None without a folder or if it cannot be read. The caller reports why it is missing."""
    document = read(folder)[0] if folder else None
    return document if isinstance(document, dict) else None


def read(folder: str) -> tuple:
    """(what bundle.yml of a folder holds, why it cannot be read)"""
    document, unread = _loaded(os.path.join(folder, DESCRIPTION))
    if unread:
        return None, unread
    parts = [document.get(kind) or [] for kind in ("files", "images")] if isinstance(document, dict) else []
    rows = [row for part in parts for row in (part if isinstance(part, list) else [None])]
    if not all(isinstance(row, dict) and isinstance(row.get("path", ""), str) for row in rows):
        return None, "files and images that are not lists of mappings"
    return document, ""


def _loaded(path: str) -> tuple:
    try:
        with open(path, encoding="utf-8") as stream:
            return yaml_load(stream), ""
    except (OSError, ValueError, yaml.YAMLError) as error:
        return None, getattr(error, "strerror", None) or " ".join(str(error).split())


def own_lock(path: str) -> dict:
    """The user's lock, from bundle_lock. Refused if it is none."""
    content, unread = _loaded(path)
    if not isinstance(content, dict):
        seen = unread or f"a {type(content).__name__}"
        raise Refused.because(f"bundle_lock {path}", "a lock", seen, "correct the path or the file and run again")
    if malformed := bundle_lock.malformed(content):
        raise Refused(malformed)
    return {**content, **{kind: content.get(kind) or [] for kind in ("artifacts", "images")}}


def file_for(bundle: dict, name: str, architecture: str, distribution: str | None = None) -> dict | None:
    """The row of a file for a node's architecture; one for any architecture matches too."""
    rows = [
        row
        for row in bundle.get("files") or []
        if row["name"] == name
        and row["architecture"] in (architecture, "any")
        and row.get("distribution") in (None, distribution)
    ]
    return min(rows, key=lambda row: row["architecture"] == "any", default=None)


def missing_file(bundle: dict, name: str, architecture: str, where: str, distribution: str | None = None) -> Finding:
    """Why `file_for` found nothing: no such file, or none for this architecture or distribution."""
    rows = [row for row in bundle.get("files") or [] if row["name"] == name]
    others = sorted({" on ".join([row["architecture"], *filter(None, [row.get("distribution")])]) for row in rows})
    return Finding(
        f"bundle {where}",
        f"{name} for {' on '.join([architecture, *([distribution] if distribution else [])])}",
        f"{name} for {', '.join(others)}" if others else f"no {name}",
        fill(bundle, where, architecture, distribution),
    )


def fill(
    bundle: dict,
    where: str,
    architecture: str,
    distribution: str | None = None,
    digest_of: str = "",
    driver_version: str = "",
) -> str:
    """The command that adds to a bundle what it lacks, and keeps what it has."""
    rows = [*(bundle.get("files") or []), *(bundle.get("images") or [])]
    held = {row.get("architecture", "any") for row in rows} - {"any"}
    wanted: dict = {"bundle_architectures": sorted({*held, architecture})}
    distributions = {row["distribution"] for row in rows if row.get("distribution")} | {distribution} - {None}
    if distributions:
        wanted["bundle_distributions"] = sorted(distributions)
    if driver_version:
        wanted["bundle_driver_version"] = driver_version
    if digest_of:
        wanted["bundle_image_digests"] = {digest_of: "sha256:…"}
    more = ", with the digest that the image's publisher states" if digest_of else ""
    return (
        f"on a connected machine run ansible-playbook gpufabric.rdma.bundle -e bundle_dir={where} "
        f"-e '{json.dumps(wanted, ensure_ascii=False)}'{more}, and copy all of the folder here"
    )


def archives_for(bundle: dict, architecture: str) -> list[dict]:
    """One row for each image archive of a node's architecture; an archive with several images is listed once."""
    rows: dict[str, dict] = {}
    for row in bundle.get("images") or []:
        if row.get("architecture", "any") in (architecture, "any"):
            rows.setdefault(row["path"], {"path": row["path"], "sha256": row["sha256"]})
    return list(rows.values())


@functools.lru_cache(maxsize=256)
def _summed(path: str, *_identity: int) -> str:
    """A plan asks several times for the sum of a large file."""
    return sha256_of(path)


def damaged(folder: str, rows: Iterable[dict]) -> list[Finding]:
    """Files of the folder that are missing or do not match the description."""
    found = []
    for row in {row["path"]: row for row in rows}.values():
        path = os.path.join(folder, row["path"])
        try:
            status = os.stat(path)
            seen = _summed(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        except OSError as error:
            found.append(Finding(path, f"sha256 {row['sha256']}", error.strerror or str(error), _FILL))
            continue
        if seen != row["sha256"]:
            found.append(Finding(path, f"sha256 {row['sha256']}", f"sha256 {seen}", f"do not use it; {_FILL}"))
    return found


def by_digest(objects: list[dict], lock: dict, bundle: dict | None) -> list[dict]:
    """The objects with REFERENCE@DIGEST for each locked image that the bundle (bundle.yml, or None) does not contain.

    A bundle's images were fetched by digest and are imported under their tags, the only names that containerd then
    knows; the kubelet pulls everything else, and a tag may move.

    An image stays unchanged if it is not in the lock, has no digest there or already has one. So do all images if the
    bundle holds a user's own builds, whose digests the lock cannot know.
    """
    if (bundle or {}).get("origin", "release") != "release":
        return objects
    brought = {image.get("reference") for image in (bundle or {}).get("images") or ()}
    digests = {
        image["reference"]: image["digests"]["index"]
        for image in lock["images"]
        if image["digests"].get("index") and image["reference"] not in brought
    }
    made = _copied(objects)
    for item in made:
        pod = ((item.get("spec") or {}).get("template") or {}).get("spec") or {}
        for container in [one for kind in _CONTAINERS for one in pod.get(kind) or ()]:
            if container.get("image") in digests:
                container["image"] += f"@{digests[container['image']]}"
    return made


def _copied(value):
    """Like copy.deepcopy, which takes seconds on values that Ansible tags and renders lazily."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value
