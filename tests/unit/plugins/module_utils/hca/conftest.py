"""A builder for small trees in the shape of sysfs: devices below /sys/devices, links everywhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
KERNEL = "6.1.0-test"


class Node:
    """Puts files into a directory; every method returns self, or the caller's next object."""

    def __init__(self, root: Path):
        self.root = root
        self.addresses: dict[str, list[str]] = {}
        self.write("/proc/sys/kernel/osrelease", KERNEL)
        self.write("/proc/sys/kernel/arch", "x86_64")
        self.write("/sys/devices/system/node/online", "0-1")

    def host(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def write(self, path: str, content: str | bytes = "") -> Node:
        target = self.host(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
        return self

    def listed(self, path: str) -> list[str]:
        return sorted(os.listdir(self.host(path))) if self.host(path).is_dir() else []

    def files(self, base: str, **values: object) -> Node:
        for name, value in values.items():
            self.write(f"{base}/{name}", str(value))
        return self

    def link(self, path: str, target: str) -> Node:
        """A relative link from path to target, both absolute paths of the node."""
        place = self.host(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(target, os.path.dirname(path)))
        return self

    def pci(self, chain: str, vendor: str, device: str, code: str, driver: str | None = None, **values: object) -> str:
        """A function at the end of a chain like pci0000:00/0000:00:01.0/0000:01:00.0; bridges are created too."""
        parts = chain.split("/")
        for index in range(1, len(parts)):
            path = "/sys/devices/" + "/".join(parts[: index + 1])
            link = f"/sys/bus/pci/devices/{parts[index]}"
            if not self.host(link).is_symlink():
                last = index == len(parts) - 1
                self.files(path, **{"class": code if last else "0x060400", "vendor": f"0x{vendor if last else '8086'}"})
                self.link(link, path)
        path = f"/sys/devices/{chain}"
        self.files(path, device=f"0x{device}", numa_node=0, local_cpulist="0-71", **values)
        if driver:
            self.link(f"{path}/driver", f"/sys/bus/pci/drivers/{driver}")
        return path

    def netdev(self, name: str, parent: str | None = None, **values: object) -> str:
        path = f"{parent}/net/{name}" if parent else f"/sys/devices/virtual/net/{name}"
        known = {"address": "a0:88:c2:00:00:01", "mtu": 1500, "operstate": "up", "carrier": 1, "type": 1}
        self.files(path, **{**known, "speed": 100000, "dev_port": 0, "dev_id": "0x0", **values})
        if parent:
            self.link(f"{path}/device", parent)
        self.link(f"/sys/class/net/{name}", path)
        return path

    def enslave(self, netdev: str, master: str) -> Node:
        below = os.path.realpath(self.host(f"/sys/class/net/{netdev}"))[len(str(self.root)) :]
        above = f"/sys/devices/virtual/net/{master}"
        return self.link(f"{below}/master", above).link(f"{above}/lower_{netdev}", below)

    def hca(
        self, name: str, parent: str | None = None, ports: int = 1, layer: str = "Ethernet", **values: object
    ) -> str:
        path = f"{parent or '/sys/devices/virtual'}/infiniband/{name}"
        if parent:
            known = {"fw_ver": "28.40.1000", "board_id": "MT_0000000838", "hca_type": "MT4129", "hw_rev": "0"}
            values = {**known, **values}
            self.link(f"{path}/device", parent)
        guid = "a088:c203:0000:0001"
        self.files(path, **{"node_type": "1: CA", "node_guid": guid, "sys_image_guid": guid, **values})
        for number in range(1, ports + 1):
            self.port(path, number, layer)
        self.write(f"/sys/class/infiniband_verbs/uverbs{len(self.listed('/sys/class/infiniband'))}/ibdev", name)
        self.link(f"/sys/class/infiniband/{name}", path)
        return path

    def port(self, hca: str, number: int = 1, layer: str = "Ethernet", **values: object) -> Node:
        known = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "100 Gb/sec (4X EDR)", "link_layer": layer}
        if not self.listed(f"{hca}/ports/{number}/gids"):
            self.write(f"{hca}/ports/{number}/gids/0", "fe80:0000:0000:0000:a288:c2ff:fe00:0001")
        return self.files(f"{hca}/ports/{number}", **{**known, "lid": "0x7", "sm_lid": "0x1", **values})

    def gids(self, hca: str, number: int, entries: dict[int, tuple[str, str, str | None]], size: int = 4) -> Node:
        """entries: {index: (gid, type, netdev)}; every other slot is empty as in the kernel."""
        base = f"{hca}/ports/{number}"
        for index in range(size):
            gid, kind, netdev = entries.get(index, (ZERO, None, None))
            self.write(f"{base}/gids/{index}", gid)
            for attribute, value in (("types", kind), ("ndevs", netdev)):
                path = f"{base}/gid_attrs/{attribute}/{index}"
                # Reading the folder fails with EISDIR, like the kernel's file with EINVAL.
                self.write(path, value) if value else self.host(path).mkdir(parents=True)
        return self

    def default_route(self, netdev: str) -> Node:
        head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
        route = f"{netdev}\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0"
        lan = "lan0\t0002A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0"
        return self.write("/proc/net/route", f"{head}\n{route}\n{lan}")

    def module(self, name: str, **values: object) -> Node:
        return self.files(f"/sys/module/{name}", initstate="live", refcnt=0, **values)

    def tree(self) -> Tree:
        return Tree(str(self.root))

    def facts(self, subset: list[str] | None = None, **options: object) -> dict:
        facts = gather(self.tree(), Seams.recorded({"addresses": self.addresses}), subset, **options)
        json.dumps(facts)  # every fact is sent as JSON
        return facts


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "root")
