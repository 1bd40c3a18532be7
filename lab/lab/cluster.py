"""What the lab's cluster is made of: a bundle folder, filled from the release or the test bed, as the roles take it."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request

from . import containers, image, mirror, programs
from .settings import CHECKOUT, LabError, Settings, say

LOCK = CHECKOUT / "lock" / "artifacts.yml"
CHOICES = ("auto", "release", "testbed", "mirror", "none")
PROBE_SECONDS = 4
PROGRAMS = ["k3s", "cni-plugins", "flannel", "multus", "coredns"]
WANTED = {"testbed": PROGRAMS, "mirror": [*PROGRAMS, "mirror"]}
# What the double says it is (`k3s --version`).
DOUBLE = "+double1"
LAB_VARIABLES = {
    # The cluster's traffic runs over the LAN between the nodes.
    "k3s_node_ip": "10.77.0.{{ lab_number }}",
    # Emulated cores beside other work: an image of 100 MB can take minutes to unpack.
    "k3s_start_timeout_seconds": 1800,
    "flannel_wait_seconds": 900,
    "multus_wait_seconds": 900,
    "networks_wait_seconds": 900,
    "node_ready_wait_seconds": 900,
    "verification_pod_wait_seconds": 600,
    "verification_api_seconds": 300,
}


def choose() -> tuple[str, str]:
    """(none, testbed, mirror or release; why), from LAB_CLUSTER. auto prefers what has been seen to work."""
    wanted = os.environ.get("LAB_CLUSTER") or "auto"
    if wanted not in CHOICES:
        next_step = "unset LAB_CLUSTER or correct it"
        raise LabError("environment variable LAB_CLUSTER", ", ".join(CHOICES), wanted, next_step)
    if wanted != "auto":
        return wanted, f"LAB_CLUSTER={wanted}"
    try:
        _go, version = programs.find_go()
    except LabError as error:
        url = re.search(r"https://\S+/releases/download/\S+/k3s$", LOCK.read_text(), re.MULTILINE).group()
        if unreachable := probe(url):
            return "none", f"no test bed: {error}\n  and no k3s release ({unreachable})"
        return "release", f"{url} answers; no test bed: {error}"
    return "testbed", f"{version} builds it"


def probe(url: str) -> str | None:
    """None when the release answers in time, else what was seen."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS):
            return None
    except (urllib.error.URLError, OSError) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__


def fill(settings: Settings) -> None:
    """cluster.yml in the lab's folder: what site.yml installs the cluster from. Prints which source was chosen and why.

    The file environment beside it has what the run's process needs: KEY=VALUE, a line each.
    """
    chosen, why = choose()
    folder, variables = settings.state / "bundle", settings.state / "cluster.yml"
    environment = settings.state / "environment"
    environment.unlink(missing_ok=True)
    if chosen == "none":
        say(f"cluster: none, the lab ends after the host layer ({why})")
        shutil.rmtree(folder, ignore_errors=True)
        variables.unlink(missing_ok=True)
        return
    say(f"cluster: {chosen} ({why})")
    given = {"k3s_bundle_dir": str(folder)}
    if chosen == "release":
        say("not verified: no run on the release itself is on record; docs/evidence.md has those on the test bed")
        fill_by_playbook(folder)
    elif chosen == "testbed":
        from_testbed(settings, folder)
    else:
        site = from_mirror(settings)
        given = site.variables
        environment.write_text("".join(f"{key}={value}\n" for key, value in site.environment.items()))
    variables.write_text(json.dumps({"cluster": True, **given, **LAB_VARIABLES}, indent=2) + "\n")


def fill_by_playbook(folder: pathlib.Path) -> None:
    """playbooks/bundle.yml, as users run it."""
    playbook = CHECKOUT / "playbooks" / "bundle.yml"
    command = ["ansible-playbook", str(playbook), "-e", json.dumps({"bundle_dir": str(folder)})]
    if subprocess.run(command, cwd=CHECKOUT, check=False).returncode:
        raise LabError("bundle folder", f"{folder} filled by {playbook.name}", "it failed, see above", "run it again")


def from_mirror(settings: Settings) -> mirror.Site:
    """No folder: a mirror that serves the test bed under the release's names, to the controller and to the nodes."""
    built = programs.ensure(WANTED["mirror"])
    images = containers.ensure(image.ensure(settings), list(containers.recipes()), built)
    files = {"k3s": built["k3s"] / "k3s", "cni-plugins": plugins_archive(built["cni-plugins"])}
    versions = {"k3s": programs.PARTS["k3s"].version + DOUBLE}
    site = mirror.start(built["mirror"] / "mirror", settings.state / "mirror", settings.mirror_port, LOCK)
    site.fill(files, images, versions)
    say(f"mirror: https://{site.address}, until lab/labctl down")
    return site


def from_testbed(settings: Settings, folder: pathlib.Path) -> None:
    """Fills the folder with the test bed's programs and images; what is there already stays."""
    built = programs.ensure(WANTED["testbed"])
    images = containers.ensure(image.ensure(settings), list(containers.recipes()), built)
    for kind in ("files", "images"):
        (folder / kind / "amd64").mkdir(parents=True, exist_ok=True)
    version = {name: programs.PARTS[name].version for name in built}
    rows = [("k3s", version["k3s"] + DOUBLE, "k3s", built["k3s"] / "k3s")]
    plugins = plugins_archive(built["cni-plugins"])
    release = f"cni-plugins-linux-amd64-{version['cni-plugins']}.tgz"
    rows.append(("cni-plugins", version["cni-plugins"], release, plugins))
    files = []
    for name, number, file, source in rows:
        path = put(folder, f"files/amd64/{file}", source)
        files.append({"name": name, "version": number, "architecture": "amd64", **path})
    described = []
    for name, recipe in containers.recipes().items():
        path = put(folder, f"images/amd64/{name}.tar", images[name])
        described.append({"reference": recipe.reference, "architecture": "amd64", **path})
    fetch_wheels(folder / "wheels")
    # JSON is YAML, and this program needs the standard library only.
    document = {"schema": 1, "origin": "testbed", "files": files, "images": described}
    (folder / "bundle.yml").write_text(json.dumps(document, indent=2) + "\n")
    say(f"bundle: {len(files)} files and {len(described)} images in {folder}")


def fetch_wheels(folder: pathlib.Path) -> None:
    """The device plugin's libraries for the nodes' Python; sums are compared by the script."""
    script = CHECKOUT / "device_plugin" / "fetch_wheels.py"
    if subprocess.run([sys.executable, str(script), str(folder)], check=False).returncode:
        raise LabError("wheels of the device plugin", f"those of its lock in {folder}", "see above", "run it again")


def plugins_archive(built: pathlib.Path) -> pathlib.Path:
    """The CNI plugins as they are released; the same programs give the same bytes."""
    kept = programs.CACHE / f"cni-plugins-linux-amd64-{programs.PARTS['cni-plugins'].version}-{built.name}.tgz"
    if not kept.exists():
        kept.write_bytes(packed(built))
    return kept


def packed(folder: pathlib.Path) -> bytes:
    """The programs as the archive in which CNI plugins are released."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            entry = tarfile.TarInfo(f"./{path.name}")
            entry.size, entry.mode = path.stat().st_size, 0o755
            with path.open("rb") as stream:
                archive.addfile(entry, stream)
    return gzip.compress(held.getvalue(), compresslevel=6, mtime=0)


def put(folder: pathlib.Path, name: str, source: pathlib.Path) -> dict[str, str]:
    """Path and sha256 of a file of the bundle, which shares the cache's storage where it can."""
    target = folder / name
    if not (target.exists() and target.samefile(source)):
        target.unlink(missing_ok=True)
        try:
            target.hardlink_to(source)
        except OSError:
            shutil.copy2(source, target)
    with target.open("rb") as stream:
        return {"path": name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
