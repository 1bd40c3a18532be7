"""Real kernel headers, and real modules for the doctor compiled against them.

Headers are the machine's own, else Debian packages unpacked into .cache. Nothing is installed and root is not needed:
apt fetches from the machine's configured mirror.
"""

import fcntl
import hashlib
import os
import pathlib
import re
import subprocess

import pytest

CACHE = pathlib.Path(__file__).resolve().parents[2] / ".cache/kernel-headers"
LABCTL = CACHE.parents[1] / "lab/labctl"
MODULES = CACHE.parent / "driver-test-modules"


class NoHeaders(Exception):
    """Why there are none; the tests that need them report it as not verified."""


def build_tree() -> pathlib.Path:
    """A folder that Kbuild accepts: installed headers of the newest kernel, else freshly unpacked ones."""
    installed = sorted(path.parent for path in pathlib.Path("/usr/src").glob("linux-headers-*/Module.symvers"))
    if installed:
        return installed[-1]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _unpacked()


def release(tree: pathlib.Path) -> str:
    """The kernel of modules that are built in this folder."""
    return (tree / "include/generated/utsrelease.h").read_text().split('"')[1]


def _unpacked() -> pathlib.Path:
    ready = sorted(CACHE.glob("*/usr/src/linux-headers-*/.ready"))
    if ready:
        return ready[-1].parent
    architecture = _run("dpkg", "--print-architecture").strip()
    meta = f"linux-headers-{architecture}"
    depends = _run("apt-cache", "depends", meta)
    found = re.search(r"Depends: linux-headers-(\S+)", depends)
    if not found:
        raise NoHeaders(f"apt knows no package {meta} (Debian only)")
    name = found.group(1)
    packages = _depended(f"linux-headers-{name}")
    target = CACHE / name
    target.mkdir(exist_ok=True)
    for package in packages:
        _run("apt-get", "-q", "download", package, cwd=target)
    for archive in sorted(target.glob("*.deb")):
        _run("dpkg-deb", "--extract", str(archive), str(target))
        archive.unlink()
    tree = target / f"usr/src/linux-headers-{name}"
    # The package's Makefile refers to its other half by the absolute path of an installation.
    for makefile in (tree / "Makefile", *target.glob("usr/src/linux-headers-*-common/Makefile")):
        makefile.write_text(makefile.read_text().replace("/usr/src/", f"{target}/usr/src/"))
    (tree / ".ready").touch()
    return tree


def _depended(package: str) -> list[str]:
    """The package and those of its dependencies that make up the build tree."""
    listing = _run("apt-cache", "depends", package)
    more = re.findall(r"Depends: (linux-(?:headers|kbuild)-\S+)", listing)
    return [package, *more]


def _run(*argv: str, cwd: os.PathLike | None = None) -> str:
    try:
        done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoHeaders(f"{argv[0]} is not installed") from error
    if done.returncode:
        raise NoHeaders(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def give(cluster, node: str, name: str) -> None:
    """NAME.c from beside this file, built for the kernel of a lab node, as /root/NAME.ko on it."""
    try:
        headers = build_tree()
    except NoHeaders as reason:
        pytest.skip(f"not verified: no kernel headers ({reason})")
    if cluster.node(node, "uname -r") != release(headers):
        pytest.skip("not verified: the headers here are not of the node's kernel")
    source = pathlib.Path(__file__).with_name(f"{name}.c").read_text()
    with (build(headers, name, {name: source}) / f"{name}.ko").open("rb") as stream:
        subprocess.run([LABCTL, "ssh", node, f"cat >/root/{name}.ko"], stdin=stream, check=True)


PROVIDER = """
#include <linux/module.h>
void *ib_register_peer_memory_client(%(arguments)s);
void *ib_register_peer_memory_client(%(arguments)s) { return NULL; }
EXPORT_SYMBOL(ib_register_peer_memory_client);
MODULE_LICENSE("GPL");
MODULE_VERSION("%(version)s");
"""
BARE = """
#include <linux/module.h>
MODULE_LICENSE("GPL");
"""
CLIENT = """
#include <linux/module.h>
void *ib_register_peer_memory_client(%(arguments)s);
static int __init start(void) { return ib_register_peer_memory_client(NULL, 0) ? 0 : -EINVAL; }
module_init(start);
MODULE_LICENSE("GPL");
MODULE_VERSION("570.172.08");
"""
STUB = """
#include <linux/module.h>
static int __init start(void) { return -EINVAL; }
module_init(start);
MODULE_LICENSE("GPL");
MODULE_VERSION("570.172.08");
"""
OLD = {"arguments": "const void *client, int version", "version": "24.10"}
NEW = {"arguments": "const void *client, unsigned long version", "version": "25.10"}
# Each set is one Kbuild run; a client gets the CRC of the provider that is built with it.
SETS = {
    "old": {"ib_core": PROVIDER % OLD, "nvidia-peermem": CLIENT % OLD},
    "new": {"ib_core": PROVIDER % NEW, "nvidia-peermem": CLIENT % NEW},
    "inbox": {"ib_core": BARE, "nvidia-peermem": STUB},
}


def build_all(headers: pathlib.Path) -> dict[str, pathlib.Path]:
    """{set: folder with ib_core.ko, nvidia-peermem.ko and Module.symvers}."""
    return {name: build(headers, name, sources) for name, sources in SETS.items()}


def build(headers, name, sources):
    digest = hashlib.sha256(repr((str(headers), sorted(sources.items()))).encode()).hexdigest()[:16]
    folder = MODULES / f"{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "Module.symvers").exists():
            for module, text in sources.items():
                (folder / f"{module}.c").write_text(text)
            (folder / "Makefile").write_text("obj-m := " + " ".join(f"{module}.o" for module in sources) + "\n")
            make = ["make", "-s", "-C", str(headers), f"M={folder}", "modules"]
            done = subprocess.run(make, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    return folder
