"""The keys that may sign a driver repository, and what another key would mean.

A repository has `fingerprints` (accepted), `known_keys` (every key in the lock for the stack: id, fingerprint
or None, release, stated_by), `key`, the armored file, and `key_sha256`. checked() has gpg read the file; a node
trusts gpg's export, because programs read key files differently.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from typing import Callable, Optional

from .._core.files import write

_ACCEPT = "driver_repository_fingerprint"
_ARMOUR = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
_BLOCKS = re.compile(r"^-----BEGIN PGP .*?-----", re.MULTILINE)
_OBJECT = "key of the driver repository"


def accepted(repository: dict) -> list[str]:
    """Fingerprints without spaces, upper case."""
    return [text.replace(" ", "").upper() for text in repository.get("fingerprints") or []]


def checked(repository: dict, run: Callable[..., tuple[int, str, str]], gpg: Optional[str]) -> dict:
    """The repository with `primary`, the fingerprints in the key file, and with the key as gpg exports it.

    Without gpg, primary is None and the file stays unchanged: only its SHA-256 can be compared.
    """
    text = repository.get("key") or ""
    read = {**repository, "file_sha256": hashlib.sha256(text.encode()).hexdigest(), "primary": None}
    if repository.get("trusted") or not gpg:
        return read
    with tempfile.TemporaryDirectory(prefix="gpufabric-keyring-") as home:
        path = os.path.join(home, "key.asc")
        write(path, text)
        here = [gpg, "--homedir", home, "--batch", "--quiet", "--no-options", "--no-autostart"]
        code, _out, error = run([*here, "--import", path])
        _code, listed, _error = run([*here, "--with-colons", "--list-keys"])
        _code, exported, _error = run([*here, "--armor", "--export"])
    read["primary"] = re.findall(r"^pub:.*\n(?:(?!fpr:).*\n)*fpr:{9}([0-9A-F]+):", listed, re.MULTILINE)
    if code:
        read["unread"] = error.strip().splitlines()[-1] if error.strip() else f"gpg exits with {code}"
    elif _BLOCKS.findall(text) != [_ARMOUR]:
        read["unread"] = f"blocks of the file: {', '.join(_BLOCKS.findall(text)) or 'none'}"
    else:
        read["key"] = exported
    return read


def problem(repository: dict) -> tuple[str, str, str, str] | None:
    """(object, wanted, seen, next step) if the key file, as read by checked(), is not to be trusted; else None.

    A repository from a package with a pinned SHA-256 (trusted) needs no key.
    """
    if repository.get("trusted"):
        return None
    fingerprints, wanted = repository["primary"], accepted(repository)
    if fingerprints is None:
        return _without_gpg(repository)
    unread = [f"gpg cannot use the file: {repository['unread']}"] if repository.get("unread") else []
    meanings = [f"{fingerprint} ({meaning(fingerprint, repository)})" for fingerprint in fingerprints]
    seen = "; ".join(meanings + unread) or "no key"
    if len(fingerprints) == 1 and fingerprints[0] in wanted and not unread:
        return None
    others = [fingerprint for fingerprint in fingerprints if fingerprint not in wanted]
    if fingerprints and not wanted and not unread:
        return (
            _ACCEPT,
            "a fingerprint that two public sources state for this release and platform",
            f"the lock has none (not verified); in the key file: {seen}",
            "compare it with the vendor's, from a source other than the repository, and set "
            f"{_ACCEPT}{f': {fingerprints[0]}' if len(fingerprints) == 1 else ''} to accept it",
        )
    step = "use the key file of this release (driver_repository_key)"
    if others and len(fingerprints) == 1:
        step += (
            f"; to accept the key nevertheless, once the vendor or the owner of your mirror has confirmed it, set "
            f"{_ACCEPT}: {others[0]}"
        )
    return (
        _OBJECT,
        f"one armored public key, {' or '.join(wanted) or 'an accepted fingerprint'}, and nothing else",
        seen,
        step,
    )


def _without_gpg(repository: dict) -> tuple[str, str, str, str] | None:
    """If no program can list the keys in a file, its bytes decide."""
    wanted, seen = (repository.get("key_sha256") or "").lower(), repository["file_sha256"]
    if wanted == seen:
        return None
    return (
        _OBJECT,
        f"SHA-256 {wanted}" if wanted else "gpg on the node, or the SHA-256 of the key file",
        f"no gpg; the file has {seen}",
        "install gpg on the node, or compare the file with the vendor's and set driver_repository_key_sha256",
    )


def meaning(name: str, repository: dict) -> str:
    """What this key's signature says about a repository. name: a fingerprint, or its last 16 digits."""
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
        return f"public sources list a key with this id for {releases}, see {sources}"
    return "in no source of the lock: a new key of the vendor, the key of a mirror that signs itself, or someone else's"
