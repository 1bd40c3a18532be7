"""Whether an address that servers are to share is free, and whether this node can share it.

PRIVATE to the collection. Runs on the live node only: the kernel asks the network for the address.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import time
from typing import Callable, Optional

from ..hca import Tree
from . import address

ARP_SECONDS = 1
ARP_COMPLETE = 0x2  # ATF_COM of include/uapi/linux/if_arp.h


def shared(wanted: str, run: Callable) -> dict:
    """{answers: link address of the machine that has the address, or nothing; installed, offered: keepalived}.

    offered is None where the package manager cannot say it without the network.
    """
    installed = os.path.exists(address.PROGRAM)
    offered = None
    if not installed and shutil.which("apt-cache"):
        said = run(["apt-cache", "policy", "keepalived"])[1]
        offered = bool(re.search(r"^ +Candidate: (?!\(none\))", said, re.MULTILINE))
    return {"answers": link_address(wanted), "installed": installed, "offered": offered}


def link_address(wanted: str, tree: Optional[Tree] = None, sleep=time.sleep) -> str:
    """The link address that answers for an address of this network, by the kernel's own ARP."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.sendto(b"", (wanted, 9))
    sleep(ARP_SECONDS)
    for line in ((tree or Tree("/")).read("/proc/net/arp") or "").splitlines()[1:]:
        words = line.split()
        if words[0] == wanted and int(words[2], 16) & ARP_COMPLETE:
            return words[3]
    return ""
