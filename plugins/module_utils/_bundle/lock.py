"""The content of a bundle folder, from lock/artifacts.yml.

Pure. The module `bundle` fetches what `wanted` lists and writes what `describe` returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .._core.change import Finding, Refused

DESCRIPTION = "bundle.yml"
SCHEMA = 1
DRIVER = "doca-host"
# Kinds of folder content: the releases of the lock, a user's own builds (bundle_lock), the lab's doubles.
ORIGINS = ("release", "own", "testbed")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ROWS = {
    "artifacts": ("name", "version", "kind", "used_by", "files"),
    "images": ("name", "version", "used_by", "reference", "digests"),
}


def malformed(lock: dict) -> list[Finding]:
    """What makes a lock unusable, mainly a user's own lock; a null checksum is no fault here, see `unpinned`."""
    found = []

    def report(row: str, wanted: str, seen) -> None:
        found.append(Finding(f"lock: {row}", wanted, f"{seen}", "correct the file in bundle_lock"))

    if lock.get("origin", "release") not in ORIGINS:
        report("origin", " or ".join(ORIGINS), lock["origin"])
    for section, fields in _ROWS.items():
        rows = lock.get(section) or []
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            report(section, "a list of rows", type(rows).__name__)
            continue
        for number, row in enumerate(rows, 1):
            name = f"{section}, {row.get('name') or f'row {number}'}"
            if lacking := [field for field in fields if not row.get(field)]:
                report(name, ", ".join(fields), f"no {', no '.join(lacking)}")
            elif odd := [field for field in fields[:2] if not isinstance(row[field], str)]:
                report(name, f"text in {', '.join(odd)}", [row[field] for field in odd])
            elif section == "images":
                _digests(name, row["digests"], report)
            else:
                _files(name, row["files"], report)
    return found


def _digests(name: str, digests, report) -> None:
    for which, digest in digests.items() if isinstance(digests, dict) else [("digests", digests)]:
        if which not in ("index", "amd64", "arm64") or not (digest is None or _DIGEST.fullmatch(str(digest))):
            report(name, "index, amd64 or arm64: sha256:… with 64 digits, or null", f"{which}: {digest}")


def _files(name: str, files, report) -> None:
    for row in files if isinstance(files, list) else [files]:
        if (
            not isinstance(row, dict)
            or not {"architecture", "sha256"} <= set(row)
            or not isinstance(row.get("url"), str)
        ):
            report(name, "files, each with architecture, url and sha256", row)
        elif not (row["sha256"] is None or _SHA256.fullmatch(str(row["sha256"]))):
            report(name, "sha256 of 64 digits, or null", row["sha256"])


def unpinned(lock: dict, names: Iterable[str] | None, digests: dict | None = None) -> list[Finding]:
    """Rows of the lock without a checksum, so nothing is fetched from them. names: None means all."""
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


def _unpinned(obj: str, what: str) -> Finding:
    return Finding(
        obj,
        f"a {what} to check it against",
        "null in lock/artifacts.yml (not verified when the lock was written)",
        f"take the {what} from the vendor's release page and set it in bundle_image_digests or the lock",
    )


def undrivable(
    lock: dict, version: str, architectures: Iterable[str], distributions: Iterable[str], sums: dict | None = None
) -> list[Finding]:
    """Why the driver of these platforms cannot be fetched. sums: {file: SHA-256}, set by the user."""
    if not version:
        return []
    rows = {
        (row["distribution"], row["architecture"]): row
        for artifact in lock.get("artifacts") or []
        if (artifact["name"], artifact["version"]) == (DRIVER, version)
        for row in artifact["files"]
    }
    known = ", ".join(f"{distribution} {architecture}" for distribution, architecture in sorted(rows))
    if not distributions:
        step = "write them as in the lock, such as ubuntu24.04 or rhel9"
        return [
            Finding("bundle_distributions", f"the distributions of the nodes, for {DRIVER} {version}", "none", step)
        ]
    found = []
    for distribution in distributions:
        for architecture in architectures:
            row = rows.get((distribution, architecture))
            obj = f"{DRIVER} {version} for {distribution} {architecture}"
            if row is None:
                step = "choose another bundle_driver_version, or give its file to the role (driver_host_package)"
                found.append(Finding(obj, "a row in lock/artifacts.yml", known or "no row of this release", step))
            elif not _sum(row, sums):
                stated = row.get("stated")
                told = f"; one public source states {stated['sha256']}: {stated['by']}" if stated else ""
                name = _basename(row["url"])
                example = stated["sha256"] if stated else "SHA256"
                found.append(
                    Finding(
                        obj,
                        "a SHA-256 that two public sources state",
                        f"null in lock/artifacts.yml (not verified){told}",
                        f"compare it with the vendor's download page and accept it: bundle_sums: {{{name}: {example}}}",
                    )
                )
    return found


def _sum(row: dict, sums: dict | None) -> str | None:
    return (sums or {}).get(_basename(row["url"])) or row["sha256"]


def wanted(
    lock: dict,
    names: Iterable[str],
    architectures: Iterable[str],
    distributions: Iterable[str] = (),
    digests: dict | None = None,
    driver_version: str = "",
    sums: dict | None = None,
) -> dict:
    """What to fetch: {files: [rows of bundle.yml with url], images: [{reference, digest, architecture, path}]}.

    digests: {reference: digest} set by the user; they override the lock. driver_version: of doca-host, empty for none.
    sums: {file name: SHA-256} set by the user.
    """
    names, architectures, distributions = set(names), list(architectures), set(distributions)
    files, images = [], []
    for artifact in lock.get("artifacts") or []:
        driver = (artifact["name"], artifact["version"]) == (DRIVER, driver_version)
        for row in artifact["files"] if driver or artifact["name"] in names else ():
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
                "sha256": _sum(row, sums),
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


def programs(rows: dict, names: dict) -> dict:
    """`wanted`, with the images of these names as rows of files in `programs`. names: {image: its program's path}."""
    files, images = [], []
    for row in rows["images"]:
        name, _colon, version = _basename(row["reference"]).partition(":")
        if name in names:
            path = f"files/{row['architecture']}/{name}-{version}"
            files.append({**row, "name": name, "version": version, "program": names[name], "path": path})
        else:
            images.append(row)
    return {**rows, "images": images, "programs": files}


def plugin_image(locked: dict, base: str | None, architectures: Iterable[str]) -> list[dict]:
    """Rows of `images` for the device plugin's image, with the base it is built on. Refused without a digest for it.

    locked: plugin_image of the lock. base: REFERENCE@DIGEST set by the user, instead of the lock's.
    """
    name, _at, given = (base or "").partition("@")
    step = "set one with its digest in bundle_plugin_base: REGISTRY/NAME:TAG@sha256:…"
    if base and not _DIGEST.fullmatch(given):
        wanted = "REFERENCE@sha256:… with 64 digits"
        raise Refused.because("variable bundle_plugin_base", wanted, base, step)
    rows = []
    for architecture in architectures:
        digest = given or locked["digests"].get(architecture) or locked["digests"].get("index")
        if not digest:
            wanted, seen = "a digest to check it against", "null in lock/artifacts.yml (not verified)"
            raise Refused.because(f"base image {locked['base']}", wanted, seen, step)
        rows.append(
            {
                "reference": locked["reference"],
                "base": name or locked["base"],
                "digest": digest,
                "architecture": architecture,
                "path": f"images/{architecture}/{_basename(locked['reference']).replace(':', '-')}.tar",
            }
        )
    return rows


def _basename(url: str) -> str:
    return url.rpartition("/")[2].replace("%2B", "+")


def describe(origin: str, files: Iterable[dict], images: Iterable[dict]) -> dict:
    """bundle.yml from rows that were fetched and checked; image archives shipped as files are listed as images too."""
    keep = ("name", "version", "architecture", "distribution", "path", "sha256", "digest")
    of_image = ("reference", "architecture", "path", "sha256")
    archives, rows = [], []
    for row in files:
        (archives if row.get("kind") == "image_archive" else rows).append(row)
    archives = [{**row, "reference": f"{row['name']}:{row['version']}"} for row in archives]
    return {
        "schema": SCHEMA,
        "origin": origin,
        "files": [{name: row[name] for name in keep if name in row} for row in rows],
        "images": [{name: row[name] for name in of_image} for row in [*archives, *images]],
    }
