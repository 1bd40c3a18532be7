"""A mirror on loopback: the test bed under the release's names, and a lock file for such own builds.

Users without access to the release's servers have the same setup: their own site and registry and, for their own
builds, a lock file with checksums (bundle_lock). Nodes reach it at 10.0.2.100 (network.py).
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tarfile
import time
import urllib.parse

from .containers import recipes
from .network import MIRROR
from .settings import LabError

# Rows of the lock, by the recipe of their image. CoreDNS and pause are in k3s' own archive, pause also separately.
IMAGES = {"flannel": "flannel", "flannel-cni-plugin": "flannel-cni-plugin", "multus": "multus-thick", "pause": "pause"}
IN_K3S = ("pause", "coredns")
AIRGAP = "k3s-airgap-images"
ARCHITECTURE = "amd64"
SYSTEM_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"


@dataclasses.dataclass(frozen=True)
class Site:
    """A running mirror. folder: its state. lock: content of lock/artifacts.yml."""

    address: str
    folder: pathlib.Path
    lock: dict

    @property
    def variables(self) -> dict:
        """The options of site.yml and bundle.yml, as a user would give them."""
        hosts = sorted({reference.partition("/")[0] for reference in self.references().values()})
        sites = sorted({urllib.parse.urlsplit(url).netloc for url in self.urls().values()})
        mirrors = {f"https://{host}": f"https://{self.address}/{host}" for host in sites}
        return {
            "bundle_lock": str(self.folder / "lock.yml"),
            "bundle_mirrors": {**mirrors, **dict.fromkeys(hosts, self.address)},
            "k3s_registries": {
                "mirrors": {host: {"endpoint": [f"https://{MIRROR}"]} for host in hosts},
                "configs": {MIRROR: {"tls": {"insecure_skip_verify": True}}},
            },
        }

    @property
    def environment(self) -> dict:
        """The mirror's CA with those that the machine trusts, as by update-ca-certificates.

        Files with sums in this lock stay out of the user's cache.
        """
        return {
            "SSL_CERT_FILE": str(self.folder / "authorities.pem"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    def urls(self) -> dict[str, str]:
        """The lock's URL of each artifact for this architecture, without those of an operating system."""
        return {
            artifact["name"]: row["url"]
            for artifact in self.lock["artifacts"]
            if artifact["name"] in ("k3s", "cni-plugins", AIRGAP)
            for row in artifact["files"]
            if row["architecture"] == ARCHITECTURE
        }

    def references(self) -> dict[str, str]:
        return {row["name"]: row["reference"] for row in self.lock["images"] if row["name"] in IMAGES.values()}

    def fill(self, files: dict[str, pathlib.Path], images: dict[str, pathlib.Path], versions: dict[str, str]) -> None:
        """Puts files by artifact and docker-archives by recipe at the release's paths, then writes the lock file.

        versions: of artifacts with a version other than the release's.
        """
        airgap = self.folder / f"{AIRGAP}.tar"
        joined([images[name] for name in IN_K3S], airgap)
        _run("zstd", "--quiet", "--force", "--rm", airgap, "-o", f"{airgap}.zst")
        held = {**files, AIRGAP: pathlib.Path(f"{airgap}.zst")}
        sums = {name: self.put(url, held[name]) for name, url in self.urls().items()}
        references = self.references()
        digests = {row: self.push(images[recipe], references[row]) for recipe, row in IMAGES.items()}
        self.push(images["coredns"], recipes()["coredns"].reference)
        own = own_lock(self.lock, sums, digests, {**versions, AIRGAP: versions.get("k3s")})
        (self.folder / "lock.yml").write_text(json.dumps(own, indent=2) + "\n")

    def put(self, url: str, source: pathlib.Path) -> str:
        """The file's SHA-256, once it is at the URL's path."""
        parts = urllib.parse.urlsplit(url)
        target = self.folder / "files" / parts.netloc / urllib.parse.unquote(parts.path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copyfile(source, target)
        with target.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def push(self, archive: pathlib.Path, reference: str) -> str:
        """The image's digest in the registry."""
        said = self.folder / "digest"
        _run(
            *("skopeo", "copy", "--quiet", "--insecure-policy", "--digestfile", said),
            *(f"docker-archive:{archive}", f"docker://{self.address}/{reference.partition('/')[2]}"),
            environment=self.environment,
        )
        return said.read_text().strip()


def own_lock(lock: dict, sums: dict[str, str], digests: dict[str, str], versions: dict[str, str | None]) -> dict:
    """The lock of a site with its own builds: its artifacts, the release's addresses, its checksums."""
    artifacts = []
    for row in lock["artifacts"]:
        if row["name"] in sums:
            (file,) = [one for one in row["files"] if one["architecture"] == ARCHITECTURE]
            changed = {"version": versions.get(row["name"]) or row["version"]}
            artifacts.append({**row, **changed, "files": [{**file, "sha256": sums[row["name"]]}]})
    images = [
        {**row, "digests": {ARCHITECTURE: digests[row["name"]]}} for row in lock["images"] if row["name"] in digests
    ]
    return {"origin": "testbed", "artifacts": artifacts, "images": images}


def joined(archives: list[pathlib.Path], out: pathlib.Path) -> None:
    """One docker-archive with the images of several."""
    manifest, held = [], set()
    with tarfile.open(out, "w") as target:
        for number, archive in enumerate(archives):
            with tarfile.open(archive) as source:
                for image in json.load(source.extractfile("manifest.json")):
                    names = {name: f"{number}-{name}" for name in (image["Config"], *image["Layers"])}
                    for name, renamed in names.items():
                        entry = source.getmember(name)
                        stream = source.extractfile(entry)
                        entry.name = renamed
                        if renamed not in held:
                            target.addfile(entry, stream)
                        held.add(renamed)
                    layers = [names[name] for name in image["Layers"]]
                    manifest.append({**image, "Config": names[image["Config"]], "Layers": layers})
        text = json.dumps(manifest).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(text)
        target.addfile(entry, io.BytesIO(text))


def start(program: pathlib.Path, folder: pathlib.Path, port: int, lock: pathlib.Path) -> Site:
    """A Site in an empty folder, which answers until stop()."""
    import yaml

    for needed in ("skopeo", "socat"):
        if not shutil.which(needed):
            step = "LAB_CLUSTER=mirror lab/packages lab"
            raise LabError("the lab's mirror", f"{needed} on PATH", "no such program", step)
    stop(folder)
    (folder / "files").mkdir(parents=True)
    log = folder / "mirror.log"
    with log.open("w") as stream:
        streams = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
        process = subprocess.Popen([program, folder, str(port), MIRROR], start_new_session=True, **streams)
    (folder / "mirror.pid").write_text(str(process.pid))
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                seen = f"it ended with {process.poll()}" if process.poll() is not None else str(error)
                raise LabError("the lab's mirror", f"an answer at port {port}", seen, f"see {log}") from None
            time.sleep(0.1)
    own = (folder / "ca.pem").read_text()
    known = pathlib.Path(os.environ.get("SSL_CERT_FILE") or SYSTEM_AUTHORITIES)
    (folder / "authorities.pem").write_text((known.read_text() if known.exists() else "") + own)
    return Site(f"127.0.0.1:{port}", folder, yaml.safe_load(lock.read_text()))


def stop(folder: pathlib.Path) -> None:
    """Ends our own mirror only: the process of the pid file must have been started for this folder."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "mirror.pid").read_text())
        if str(folder) in pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            os.kill(pid, signal.SIGTERM)
    shutil.rmtree(folder, ignore_errors=True)


def _run(*command: str | pathlib.Path, environment: dict | None = None) -> None:
    words = [str(word) for word in command]
    settings = {**os.environ, **(environment or {})}
    done = subprocess.run(words, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        seen = (done.stderr or done.stdout).strip()[-400:]
        raise LabError("the lab's mirror", f"exit code 0 of: {' '.join(words)}", seen, "see above")
