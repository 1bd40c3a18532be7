"""One shared API address of the servers: keepalived's files on a node, and whether the address is free.

Keepalived rather than kube-vip: it is a signed package of the node's own distribution, and the address needs neither a
datastore nor a running pod, so it moves while the API is down.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
from typing import Callable, Optional

from .._core.units import SYSTEM
from ..hca import Tree, paths

PROGRAM = "/usr/sbin/keepalived"
# Where the distributions' SELinux policy lets keepalived read its configuration and run scripts.
CONFIG = "/etc/keepalived/gpufabric-rdma-k3s.conf"
CHECK = "/usr/libexec/keepalived/gpufabric-rdma-k3s-ready"
UNIT = f"{SYSTEM}/gpufabric-rdma-k3s-address.service"
FILES = (CONFIG, CHECK, UNIT)
ARP_SECONDS = 1
ARP_COMPLETE = 0x2  # ATF_COM of include/uapi/linux/if_arp.h


def configured(text: Optional[str]) -> str:
    """The address in our own configuration, or nothing."""
    lines = (text or "").splitlines()
    if not lines or lines[0] != paths.HEADER:
        return ""
    after = [lines[number + 1] for number, line in enumerate(lines[:-1]) if line.strip() == "virtual_ipaddress {"]
    return after[0].strip().partition("/")[0] if after else ""


def shared(wanted: str, run: Callable) -> dict:
    """{answers: link address of the machine that has the address, or nothing; installed, offered: keepalived}.

    offered is None if the package manager cannot tell without the network.
    """
    installed = os.path.exists(PROGRAM)
    offered = None
    if not installed and shutil.which("apt-cache"):
        said = run(["apt-cache", "policy", "keepalived"])[1]
        offered = bool(re.search(r"^ +Candidate: (?!\(none\))", said, re.MULTILINE))
    return {"answers": link_address(wanted), "installed": installed, "offered": offered}


def link_address(wanted: str) -> str:
    """The link address that answers for an address of this network, by the kernel's ARP."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.sendto(b"", (wanted, 9))
    time.sleep(ARP_SECONDS)
    for line in (Tree("/").read("/proc/net/arp") or "").splitlines()[1:]:
        words = line.split()
        if words[0] == wanted and int(words[2], 16) & ARP_COMPLETE:
            return words[3]
    return ""
