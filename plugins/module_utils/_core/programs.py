"""Where a node's programs are.

PRIVATE to the collection.
"""

from __future__ import annotations

import os
import shutil

BUNDLED = "/var/lib/rancher/k3s/data/current/bin/aux"  # where k3s unpacks its own iptables
# The two families of iptables, and its two back ends: the plain name is a link to one of them, which a node may have
# without it.
FIREWALLS = ("iptables", "ip6tables")
BACKENDS = ("", "-nft", "-legacy")


def found(program: str, *folders: str) -> str | None:
    """Path of a program: the node's own, also where PATH lacks the sbin folders, else one in the further folders."""
    places = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", *folders]
    return shutil.which(program, path=os.pathsep.join(places))
