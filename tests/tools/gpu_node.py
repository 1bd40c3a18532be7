"""A composed node with one NVIDIA GPU and real module files, for the GPUDirect doctor and users of its verdict."""

from __future__ import annotations

import gzip
import lzma
import subprocess

from ansible_collections.gpufabric.rdma.plugins.module_utils._host.gpudirect import VERDICTS, diagnose, examine
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

OFED, DKMS = "updates/dkms/ib_core.ko", "updates/dkms/nvidia-peermem.ko"
GPU = "/sys/devices/pci0000:00/0000:17:00.0"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.172.08  Release Build"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.172.08"


class Node:
    """A tree of a node with one GPU, the NVIDIA driver loaded, and the modules that a test puts in."""

    def __init__(self, root, kernel):
        self.root, self.kernel, self.modules = root, kernel, []
        self.write("/proc/sys/kernel/osrelease", kernel)
        self.write("/proc/sys/kernel/arch", "x86_64")
        for name, value in {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": "0"}.items():
            self.write(f"{GPU}/{name}", value)
        link = self.host("/sys/bus/pci/devices/0000:17:00.0")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to("../../../devices/pci0000:00/0000:17:00.0")
        self.write("/proc/driver/nvidia/version", CLOSED)
        self.write("/sys/module/nvidia/version", "570.172.08")

    def host(self, path):
        return self.root / path.lstrip("/")

    def write(self, path, content=""):
        target = self.host(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def module(self, source, path):
        """Puts a module file where depmod would list it."""
        self.modules.append(path)
        data = source.read_bytes()
        if path.endswith(".xz"):
            data = lzma.compress(data, lzma.FORMAT_XZ, check=lzma.CHECK_CRC32)
        elif path.endswith(".gz"):
            data = gzip.compress(data)
        elif path.endswith(".zst"):
            data = subprocess.run(["zstd", "-q", "-c", str(source)], check=True, capture_output=True).stdout
        self.write(f"/lib/modules/{self.kernel}/{path}", data)
        self.write(f"/lib/modules/{self.kernel}/modules.dep", "".join(f"{name}:\n" for name in self.modules))
        return self

    def diagnose(self, policy="auto", run=None):
        tree = Tree(str(self.root))
        facts = gather(tree, Seams.none(), ["gpus", "driver", "modules"])
        found = diagnose(examine(tree, facts, None, run), policy)
        assert found.verdict in VERDICTS
        return found
