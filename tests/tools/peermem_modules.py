"""Real kernel modules for the doctor, compiled by Kbuild against real headers; built once for a source text."""

from __future__ import annotations

import fcntl
import hashlib
import pathlib
import subprocess

from ansible_collections.gpufabric.rdma.tests.tools import kernel_headers

CACHE = kernel_headers.CACHE.parent / "driver-test-modules"

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
# Each set is one Kbuild run; a client gets the CRC of the provider that is built beside it.
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
    folder = CACHE / f"{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "Module.symvers").exists():
            for module, text in sources.items():
                (folder / f"{module}.c").write_text(text)
            (folder / "Makefile").write_text("obj-m := " + " ".join(f"{module}.o" for module in sources) + "\n")
            done = subprocess.run(
                ["make", "-s", "-C", str(headers), f"M={folder}", "modules"],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
    return folder
