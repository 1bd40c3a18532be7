"""Files over HTTPS and programs from a registry's images, each compared with the lock before it gets its name."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode

from ansible.module_utils.urls import open_url

from .._core.change import Refused
from .._core.files import replacing, write

SECONDS = 60
_BROKEN = (URLError, OSError, HTTPException)
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)


def mirrored(address: str, mirrors: dict) -> str:
    for begin, instead in sorted(mirrors.items(), key=lambda pair: -len(pair[0])):
        if address.startswith(begin):
            return instead + address[len(begin) :]
    return address


def fetch(folder: str, row: dict, mirrors: dict, opener=open_url) -> None:
    """Download to a temporary file; rename it only when its SHA-256 matches the lock."""
    place, address = os.path.join(folder, row["path"]), mirrored(row["url"], mirrors)
    digest = hashlib.sha256()
    with replacing(place) as stream:
        try:
            response = opener(address, timeout=SECONDS, http_agent="gpufabric.rdma")
            for block in iter(lambda: response.read(1 << 20), b""):
                digest.update(block)
                stream.write(block)
        except _BROKEN as error:
            raise Refused.because(
                row["path"],
                f"the file at {address}",
                str(error),
                "let the machine reach the address, or set a mirror in bundle_mirrors",
            ) from error
        if digest.hexdigest() != row["sha256"]:
            raise Refused.because(
                row["path"],
                f"sha256 {row['sha256']}",
                f"sha256 {digest.hexdigest()} from {address}",
                "do not use it; check whether the mirror or the network alters it, then whether the lock is right",
            )


def extract(folder: str, row: dict, mirrors: dict, opener=open_url) -> None:
    """Put one program of an image into the folder. Every answer of the registry is checked by its digest."""
    scheme, _separator, address = mirrored(row["reference"].rpartition(":")[0], mirrors).rpartition("://")
    host, _slash, repository = address.partition("/")
    base, headers = f"{scheme or 'https'}://{host}/v2/{repository}", {"Accept": MANIFESTS}
    try:
        manifest = json.loads(_answer(f"{base}/manifests", row["digest"], headers, opener))
        if "manifests" in manifest:
            platform = {"os": "linux", "architecture": row["architecture"]}
            rows = [one for one in manifest["manifests"] if platform.items() <= (one.get("platform") or {}).items()]
            manifest = json.loads(_answer(f"{base}/manifests", rows[0]["digest"], headers, opener))
        for layer in reversed(manifest["layers"]):
            content = _answer(f"{base}/blobs", layer["digest"], headers, opener)
            with tarfile.open(fileobj=io.BytesIO(content)) as files:
                for member in files:
                    if member.isfile() and os.path.normpath(member.name).lstrip("/") == row["program"]:
                        write(os.path.join(folder, row["path"]), files.extractfile(member).read())
                        return
        seen = f"no file {row['program']} in it"
    except (*_BROKEN, ValueError, LookupError, TypeError, AttributeError, tarfile.TarError) as error:
        seen = f"{base}: {type(error).__name__}: {error}"
    wanted = f"image {row['reference']} with digest {row['digest']} for {row['architecture']}"
    step = "let the machine reach the registry, or set a mirror in bundle_mirrors"
    raise Refused.because(row["path"], wanted, seen, step)


def _answer(base: str, digest: str, headers: dict, opener) -> bytes:
    """What a registry has under a digest. It may require an anonymous token, which redirects do not see."""
    address = f"{base}/{digest}"
    more = {"timeout": SECONDS, "http_agent": "gpufabric.rdma"}
    try:
        response = opener(address, headers=headers, unredirected_headers=["Authorization"], **more)
    except HTTPError as error:
        challenge = dict(re.findall(r'(\w+)="([^"]*)"', error.headers.get("WWW-Authenticate") or ""))
        if error.code != 401 or "Authorization" in headers or "realm" not in challenge:
            raise
        scope = urlencode({key: challenge[key] for key in ("service", "scope") if key in challenge})
        given = json.load(opener(f"{challenge['realm']}?{scope}", **more))
        headers["Authorization"] = f"Bearer {given.get('token') or given['access_token']}"
        response = opener(address, headers=headers, unredirected_headers=["Authorization"], **more)
    content = response.read()
    seen = f"sha256:{hashlib.sha256(content).hexdigest()}"
    if seen != digest:
        raise ValueError(f"{seen} instead of {digest}; do not use it, something alters it in transit")
    return content
