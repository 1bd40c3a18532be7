"""docs/doca.md: DOCA's releases, platforms, keys and packages as lock/artifacts.yml has them, with their sources."""

from __future__ import annotations

import pathlib
from urllib.parse import urlsplit

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = ROOT / "docs/doca.md"
HEAD = """# DOCA releases, platforms and keys

Generated from `lock/artifacts.yml` by `tests/tools/render_docs.py`. What the role does with it: [driver.md](driver.md).

## Repositories

A key is trusted where two public projects state it for the release and platform. What fewer state is *not verified*:
the role takes it only if `driver_repository_fingerprint` accepts it. Of a key without a fingerprint, the id is what the
source shows. For 3.2.3 one source states the key, another takes the key of this release from its `doca_keyring.gpg`,
and a third says which key that file holds.
"""
PACKAGES = """
## doca-host packages

Each holds a whole repository, for a network without the vendor's server. None of their sums is stated by two public
sources: `bundle_sums` or `driver_host_package_sha256` accepts one.
"""


def _source(address: str) -> str:
    parts = urlsplit(address).path.strip("/").split("/")
    name = "/".join(parts[:2]) + (f"#{parts[3]}" if len(parts) > 3 and parts[2] == "pull" else "")
    return f"[{name}]({address})"


def _places(places: list[dict]) -> str:
    by: dict[str, list[str]] = {}
    for place in places:
        by.setdefault(place["distribution"], []).append(place["architecture"])
    return ", ".join(f"{name} ({', '.join(sorted(values))})" for name, values in sorted(by.items()))


def render() -> str:
    lock = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())
    lines = [HEAD, "| release | platform | key | | stated by |", "|---|---|---|---|---|"]
    for row in lock["repositories"]:
        for key in row["keys"]:
            shown = f"`{key['fingerprint']}`" if key["fingerprint"] else f"`…{key['id']}`" if key["id"] else "not named"
            verdict = "two sources or more" if key["fingerprint"] else "**not verified**"
            sources = ", ".join(map(_source, key["stated_by"]))
            release = f"{row['name']} {row['version']}, {row['kind']}"
            lines.append(f"| {release} | {_places(row['places'])} | {shown} | {verdict} | {sources} |")
    lines += [PACKAGES, "| release | platform | file | SHA-256 | stated by |", "|---|---|---|---|---|"]
    for artifact in lock["artifacts"]:
        for row in artifact["files"] if artifact["name"] == "doca-host" else ():
            stated = row.get("stated") or {}
            value = row["sha256"] or (f"`{stated['sha256']}`, one source" if stated else "none")
            by = _source(stated["by"]) if stated else "-"
            place = f"{row['distribution']} {row['architecture']}"
            name = row["url"].rpartition("/")[2]
            lines.append(f"| {artifact['version']} | {place} | [{name}]({row['url']}) | {value} | {by} |")
    return "\n".join(lines) + "\n"
