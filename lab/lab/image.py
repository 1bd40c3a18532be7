"""The node image: built once from Debian packages, kept under a hash of everything that determines it."""

import fcntl
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

from . import cpio
from .settings import IMAGE_SOURCE, LabError, Settings, say

RELEASE = "bookworm"
SUITES = (RELEASE, f"{RELEASE}-updates", f"{RELEASE}-security")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
BUSYBOX = pathlib.Path("/bin/busybox")


class Image:
    """One built image: the disk, the kernel and the initrd all nodes start from."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.name = folder.name
        self.disk = folder / "disk.raw"
        self.kernel = folder / "vmlinuz"
        self.initrd = folder / "initrd"

    def claim(self, node: pathlib.Path) -> None:
        """Records that this node's disk is based on the image; the node may belong to a lab in another folder."""
        users = self.folder / "users"
        users.mkdir(exist_ok=True)
        (users / hashlib.sha256(bytes(node)).hexdigest()[:16]).write_text(str(node))

    def users(self) -> list[str]:
        """Nodes whose disk is still based on the image."""
        noted = [pathlib.Path(note.read_text()) for note in sorted(self.folder.glob("users/*"))]
        return [str(node) for node in noted if self.name in read(node / "node.json")]


def read(path: pathlib.Path) -> str:
    return path.read_text() if path.exists() else ""


def lines(name: str) -> list[str]:
    text = (IMAGE_SOURCE / name).read_text()
    return [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]


def apt_sources() -> list[str]:
    """This machine's own Debian mirrors, whatever release it runs; an empty list means mmdebstrap's defaults."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', pathlib.Path("/etc/os-release").read_text(), re.MULTILINE))
    codename = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not codename:
        return []
    listing = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    found = set()
    for line in listing.splitlines():
        uri, suite, component = line.split()
        suite = suite.replace(codename, RELEASE, 1) if suite.startswith(codename) else ""
        if suite in SUITES and component == "main":
            found.add(f"deb [signed-by={KEYRING}] {uri} {suite} main")
    return sorted(found) if any(f" {RELEASE} " in line for line in found) else []


def apt_options() -> list[str]:
    """How this machine reaches its mirrors (proxies, certificates): mmdebstrap does not look there on its own."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
    return [f"--aptopt={line}" for line in dump.splitlines() if re.match(r'Acquire::https?::.* "(?!")', line)]


def package_dates() -> list[str]:
    """The dates of the package lists this machine has; a new date may mean new packages, so it is part of the hash."""
    dates = []
    for release in sorted(pathlib.Path("/var/lib/apt/lists").glob(f"*_dists_{RELEASE}*InRelease")):
        date = re.search(r"^Date: (.*)$", release.read_text(errors="replace"), re.MULTILINE)
        dates.append(f"{release.name} {date.group(1) if date else 'without date'}")
    return dates


def recipe() -> dict[str, object]:
    files = [path for path in sorted(IMAGE_SOURCE.rglob("*")) if path.is_file()]
    files += [pathlib.Path(__file__), pathlib.Path(cpio.__file__), BUSYBOX]
    return {
        "files": {
            str(path.relative_to(IMAGE_SOURCE) if path.is_relative_to(IMAGE_SOURCE) else path.name): [
                hashlib.sha256(path.read_bytes()).hexdigest(),
                oct(path.stat().st_mode & 0o111),
            ]
            for path in files
        },
        "sources": apt_sources(),
        "package_dates": package_dates(),
    }


def wanted(settings: Settings) -> Image:
    """The image the files, mirrors and package lists of this moment call for; it need not be built yet."""
    digest = hashlib.sha256(json.dumps(recipe(), sort_keys=True).encode()).hexdigest()
    return Image(settings.images / digest[:16])


def ensure(settings: Settings) -> Image:
    settings.images.mkdir(parents=True, exist_ok=True)
    with (settings.images / "lock").open("w") as lock:  # a second lab shares the images
        fcntl.flock(lock, fcntl.LOCK_EX)
        image = wanted(settings)
        if image.folder.is_dir():
            say(f"image {image.name}: built before, reused")
        else:
            make(settings, image)
            prune(settings, keep=image)
    return image


def make(settings: Settings, image: Image) -> None:
    for leftover in settings.images.glob("building-*"):
        remove(leftover)
    work = pathlib.Path(tempfile.mkdtemp(prefix="building-", dir=settings.images))
    say(f"image {image.name}: building from {len(lines('packages'))} packages and what they need (once, a minute)")
    try:
        build(work)
        work.chmod(0o755)
        work.rename(image.folder)
    except BaseException:
        remove(work)
        raise
    megabytes = image.disk.stat().st_blocks * 512 // 2**20
    say(f"image {image.name}: built, kernel {(image.folder / 'kernel').read_text().strip()}, {megabytes} MiB on disk")


def prune(settings: Settings, keep: Image | None = None) -> list[str]:
    """Removes the images that no node uses; returns the nodes that use the others."""
    holders: list[str] = []
    for folder in settings.images.glob("*/"):
        if keep and folder.name == keep.name:
            continue
        users = Image(folder).users()
        holders += users
        if not users:
            remove(folder)
    return holders


def build(work: pathlib.Path) -> None:
    sources = work / "sources.list"
    sources.write_text("".join(f"{line}\n" for line in apt_sources()))
    command = [*as_root(), str(IMAGE_SOURCE / "build"), str(work), str(sources), *apt_options()]
    log = work.parent / "build.log"
    with log.open("w") as out:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code:
        tail = "\n          ".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LabError(
            "node image", "lab/image/build ends with 0", f"exit code {code}:\n          {tail}", f"read {log}"
        )
    if os.geteuid():
        subprocess.run([*as_root(), "chown", "-R", f"{os.getuid()}:{os.getgid()}", str(work)], check=True)
    (work / "initrd").write_bytes(initrd(work / "modules"))
    shutil.rmtree(work / "modules")
    (work / "recipe.json").write_text(json.dumps(recipe(), indent=2, sort_keys=True))


def as_root() -> list[str]:
    """Owners and device nodes of the image's files need root; nothing else in the lab does."""
    if os.geteuid() == 0:
        return []
    if not shutil.which("sudo"):
        raise LabError(
            "node image",
            "root, or sudo, for mmdebstrap and mke2fs",
            f"uid {os.geteuid()} and no sudo",
            "run as root once",
        )
    return ["sudo"]


def remove(folder: pathlib.Path) -> None:
    """An interrupted build leaves files owned by root."""
    if os.geteuid() and folder.exists():
        subprocess.run([*as_root(), "rm", "-rf", "--one-file-system", str(folder)], check=True)
    shutil.rmtree(folder, ignore_errors=True)


def initrd(modules: pathlib.Path) -> bytes:
    """The lab's initrd: a static busybox, the drivers of the disk and our init."""
    depends = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        depends[path] = needs.split()
    by_name = {pathlib.PurePath(path).name.partition(".")[0].replace("-", "_"): path for path in depends}
    order: list[str] = []
    for name in lines("initrd-modules"):
        # modules.dep lists what a module needs in reverse order of loading
        for path in [*reversed(depends[by_name[name]]), by_name[name]]:
            if path not in order:
                order.append(path)
    archive = cpio.Archive()
    archive.console()
    for folder in ("proc", "newroot", "node", "modules"):
        archive.folder(folder)
    archive.file("bin/busybox", BUSYBOX.read_bytes(), 0o755)
    archive.file("init", (IMAGE_SOURCE / "init").read_bytes(), 0o755)
    names = [pathlib.PurePath(path).name for path in order]
    for path, name in zip(order, names):
        archive.file(f"modules/{name}", (modules / path).read_bytes())
    archive.file("modules/order", "".join(f"{name}\n" for name in names).encode())
    return archive.bytes()
