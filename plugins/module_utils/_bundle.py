# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The bundle: one folder on the controller that holds all software a cluster needs, described by its bundle.yml.

PRIVATE to the collection. Runs on the controller. bundle.yml is {schema: 1, origin: release|testbed,
files: [{name, version, architecture, path, sha256}], images: [{reference, path, sha256, architecture?}]};
paths are relative to the folder. `problems` and the choosers are pure, `damaged` reads the files.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable

from ._change import Problem

DESCRIPTION = "bundle.yml"
SCHEMA = 1
ORIGINS = ("release", "testbed")
ARCHITECTURES = ("amd64", "arm64", "any")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILL = "fill the folder with playbooks/bundle.yml on a connected machine and copy it here whole"


def problems(bundle: dict, where: str = "bundle") -> list[Problem]:
    """What is wrong with the description itself, whatever a node needs of it."""
    found = []
    if not isinstance(bundle, dict) or bundle.get("schema") != SCHEMA:
        seen = bundle.get("schema") if isinstance(bundle, dict) else type(bundle).__name__
        return [Problem(f"{where}/{DESCRIPTION}", f"schema {SCHEMA}", f"{seen}", _FILL)]
    if bundle.get("origin") not in ORIGINS:
        found.append(
            Problem(f"{where}/{DESCRIPTION}", f"origin {' or '.join(ORIGINS)}", f"{bundle.get('origin')}", _FILL)
        )
    rows = [("file", row, ("name", "version", "architecture", "path")) for row in bundle.get("files") or []]
    rows += [("image archive", row, ("reference", "path")) for row in bundle.get("images") or []]
    for kind, row, needed in rows:
        name = f"{kind} {row.get('name') or row.get('reference') or row.get('path') or '?'}"
        lacking = [field for field in needed if not row.get(field)]
        if lacking:
            found.append(
                Problem(name, f"{', '.join(needed)} in {where}/{DESCRIPTION}", f"no {', no '.join(lacking)}", _FILL)
            )
            continue
        if not _SHA256.fullmatch(str(row.get("sha256") or "")):
            seen = f"'{row['sha256']}'" if row.get("sha256") else "no sha256 (not verified)"
            found.append(Problem(name, f"a sha256 in {where}/{DESCRIPTION}", seen, _FILL))
        if row.get("architecture", "any") not in ARCHITECTURES:
            found.append(Problem(name, f"architecture {', '.join(ARCHITECTURES)}", str(row["architecture"]), _FILL))
        if os.path.isabs(row["path"]) or ".." in row["path"].split("/"):
            found.append(Problem(name, f"a path inside {where}", row["path"], _FILL))
    return found


def file_for(bundle: dict, name: str, architecture: str, distribution: str | None = None) -> dict | None:
    """The row of a file for a node's processor; one for any processor serves as well."""
    rows = [
        row
        for row in bundle.get("files") or []
        if row["name"] == name
        and row["architecture"] in (architecture, "any")
        and row.get("distribution") in (None, distribution)
    ]
    return min(rows, key=lambda row: row["architecture"] == "any", default=None)


def missing_file(bundle: dict, name: str, architecture: str, where: str) -> Problem:
    """Why `file_for` found nothing: no such file, or none for this processor."""
    others = sorted({row["architecture"] for row in bundle.get("files") or [] if row["name"] == name})
    return Problem(
        f"bundle {where}",
        f"{name} for {architecture}",
        f"{name} for {', '.join(others)}" if others else f"no {name}",
        _FILL,
    )


def archives_for(bundle: dict, architecture: str) -> list[dict]:
    """One row for each image archive of a node's processor; an archive that holds several images is named once."""
    rows: dict[str, dict] = {}
    for row in bundle.get("images") or []:
        if row.get("architecture", "any") in (architecture, "any"):
            rows.setdefault(row["path"], {"path": row["path"], "sha256": row["sha256"]})
    return list(rows.values())


def references(bundle: dict, architecture: str) -> set[str]:
    return {
        row["reference"]
        for row in bundle.get("images") or []
        if row.get("architecture", "any") in (architecture, "any")
    }


def damaged(folder: str, rows: Iterable[dict]) -> list[Problem]:
    """Files of the folder that are not there or are not what the description says."""
    found = []
    for row in {row["path"]: row for row in rows}.values():
        path = os.path.join(folder, row["path"])
        try:
            seen = sha256_of(path)
        except OSError as error:
            found.append(Problem(path, f"sha256 {row['sha256']}", error.strerror or str(error), _FILL))
            continue
        if seen != row["sha256"]:
            found.append(Problem(path, f"sha256 {row['sha256']}", f"sha256 {seen}", f"do not use it; {_FILL}"))
    return found


def sha256_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


# --- filling one from the lock ----------------------------------------------------------------------------------------


def unpinned(lock: dict, names: Iterable[str] | None, digests: dict | None = None) -> list[Problem]:
    """Rows of the lock that nobody can check, so that nothing is fetched by them. names: None means all."""
    chosen = None if names is None else set(names)
    found = []
    for artifact in lock.get("artifacts") or []:
        if chosen is not None and artifact["name"] not in chosen:
            continue
        for row in artifact["files"]:
            if not row["sha256"]:
                found.append(_unpinned(f"{artifact['name']} {artifact['version']} ({row['architecture']})", "sha256"))
    for image in lock.get("images") or []:
        if chosen is not None and image["name"] not in chosen:
            continue
        if not any([*image["digests"].values(), (digests or {}).get(image["reference"])]):
            found.append(_unpinned(f"image {image['reference']}", "digest"))
    return found


def _unpinned(obj: str, what: str) -> Problem:
    return Problem(
        obj,
        f"a {what} to check it with",
        "null in lock/artifacts.yml (not verified when the lock was written)",
        f"take the {what} from the vendor's own release page and give it in bundle_image_digests or the lock",
    )


def wanted(
    lock: dict,
    names: Iterable[str],
    architectures: Iterable[str],
    distributions: Iterable[str] = (),
    digests: dict | None = None,
) -> dict:
    """What to fetch: {files: [rows of bundle.yml with url], images: [{reference, digest, architecture, path}]}.

    digests: {reference: digest} that a user gives, before those of the lock.
    """
    names, architectures, distributions = set(names), list(architectures), set(distributions)
    files, images = [], []
    for artifact in lock.get("artifacts") or []:
        for row in artifact["files"] if artifact["name"] in names else ():
            if row["architecture"] not in (*architectures, "any"):
                continue
            if row.get("distribution") and row["distribution"] not in distributions:
                continue
            entry = {
                "name": artifact["name"],
                "version": artifact["version"],
                "kind": artifact["kind"],
                "architecture": row["architecture"],
                "path": f"files/{row['architecture']}/{_basename(row['url'])}",
                "sha256": row["sha256"],
                "url": row["url"],
            }
            if row.get("distribution"):
                entry["distribution"] = row["distribution"]
            files.append(entry)
    for image in lock.get("images") or []:
        for architecture in architectures if image["name"] in names else ():
            images.append(
                {
                    "reference": image["reference"],
                    "digest": (digests or {}).get(image["reference"])
                    or image["digests"].get(architecture)
                    or image["digests"].get("index"),
                    "architecture": architecture,
                    "path": f"images/{architecture}/{image['name']}-{image['version']}.tar",
                }
            )
    return {"files": files, "images": images}


def _basename(url: str) -> str:
    return url.rpartition("/")[2].replace("%2B", "+")


def describe(origin: str, files: Iterable[dict], images: Iterable[dict]) -> dict:
    """bundle.yml from rows that were fetched and checked; image archives that came as files are images as well."""
    keep = ("name", "version", "architecture", "distribution", "path", "sha256")
    rows, archives = [], []
    for row in files:
        if row.get("kind") == "image_archive":
            archives.append(
                {
                    "reference": f"{row['name']}:{row['version']}",
                    "architecture": row["architecture"],
                    "path": row["path"],
                    "sha256": row["sha256"],
                }
            )
        else:
            rows.append({name: row[name] for name in keep if name in row})
    archives += [{name: row[name] for name in ("reference", "architecture", "path", "sha256")} for row in images]
    return {"schema": SCHEMA, "origin": origin, "files": rows, "images": archives}
