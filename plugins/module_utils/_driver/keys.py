# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which key may sign a driver repository, and what another one would mean.

PRIVATE to the collection. Pure. A repository has `fingerprints` (accepted), `known_keys` (every key that the lock names
for the stack: id, fingerprint or None, release, stated_by) and `key`, the armored file.
"""

from __future__ import annotations

from .openpgp import fingerprints

_ACCEPT = "driver_repository_fingerprint"


def accepted(repository: dict) -> list[str]:
    """Fingerprints without spaces, upper case."""
    return [text.replace(" ", "").upper() for text in repository.get("fingerprints") or []]


def problem(repository: dict) -> tuple[str, str, str, str] | None:
    """(object, wanted, seen, next step) if the key file is not one to trust; None if each of its keys is accepted.

    A repository that came out of a package of a pinned SHA-256 (trusted) needs no key.
    """
    if repository.get("trusted"):
        return None
    found, wanted = fingerprints(repository.get("key") or ""), accepted(repository)
    seen = "; ".join(f"{one} ({meaning(one, repository)})" for one in found) or "no OpenPGP key in the file"
    others = [one for one in found if one not in wanted]
    if found and not others:
        return None
    if not wanted:
        return (
            _ACCEPT,
            "a fingerprint that two public sources state for this release and platform",
            f"the lock has none (not verified); in the key file: {seen}",
            "compare it with the vendor's, on a way that does not lead over the repository, and set "
            f"{_ACCEPT}{f': {found[0]}' if len(found) == 1 else ''} to accept it",
        )
    return (
        "key of the driver repository",
        f"only {' or '.join(wanted)}, since a program trusts each key of a file",
        seen,
        "take the key file of this release (driver_repository_key)"
        + (
            f"; to accept the key nevertheless, once the vendor or the owner of your mirror has confirmed it, set "
            f"{_ACCEPT}: {', '.join(others)}"
            if others
            else ""
        ),
    )


def meaning(name: str, repository: dict) -> str:
    """What it says about a repository to be signed by this key. name: a fingerprint, or its last 16 digits."""
    if name in accepted(repository):
        return "accepted"
    known = [
        key
        for key in repository.get("known_keys") or []
        if (key["fingerprint"] or "").endswith(name) or (key["id"] and name.endswith(key["id"]))
    ]
    if known:
        sources = ", ".join(sorted({source for key in known for source in key["stated_by"]}))
        releases = "; ".join(key["release"] for key in known)
        return f"public sources name a key with this id for {releases}, see {sources}"
    return (
        "in no source that the lock names: a new key of the vendor, the key of a mirror that signs itself, or someone "
        "else's"
    )
