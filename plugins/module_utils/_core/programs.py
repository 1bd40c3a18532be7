"""A node's programs and processes, and the ports in use."""

from __future__ import annotations

import os
import shutil

from ..hca import Tree

BUNDLED = "/var/lib/rancher/k3s/data/current/bin/aux"  # where k3s unpacks its own iptables
# The two families of iptables, and its two back ends: the plain name is a link to one of them, which a node may have
# without the link.
FIREWALLS = ("iptables", "ip6tables")
BACKENDS = ("", "-nft", "-legacy")


def found(program: str, *folders: str) -> str | None:
    """Path of a program: the node's own, even if PATH lacks the sbin folders, else one in the other folders."""
    places = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", *folders]
    return shutil.which(program, path=os.pathsep.join(places))


def born(pid: int) -> str | None:
    """Start time of a process in ticks since boot, because process ids are reused; None if it is gone or a zombie."""
    fields = (Tree("/").read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else None


def bound(tree: Tree, protocol: str) -> list[int]:
    """Ports that something listens on (TCP) or is bound to (UDP), over IPv4 and IPv6."""
    ports = set()
    for path in (f"/proc/net/{protocol}", f"/proc/net/{protocol}6"):
        for line in (tree.read(path) or "").splitlines()[1:]:
            columns = line.split()
            if len(columns) > 3 and columns[3] == {"tcp": "0A", "udp": "07"}[protocol]:
                ports.add(int(columns[1].rpartition(":")[2], 16))
    return sorted(ports)
