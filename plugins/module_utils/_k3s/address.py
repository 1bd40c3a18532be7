"""What shares one address of the API among servers leaves on a node: the files that the role k3s writes for keepalived.

PRIVATE to the collection. keepalived rather than kube-vip: it is a signed package of the node's own distribution, and
the address needs neither a datastore nor a running pod, so it moves while the API is down.
"""

from __future__ import annotations

from typing import Optional

from .._core.units import SYSTEM
from ..hca import paths

PROGRAM = "/usr/sbin/keepalived"
# Where the distributions' SELinux policy lets keepalived read its configuration and run scripts.
CONFIG = "/etc/keepalived/gpufabric-rdma-k3s.conf"
CHECK = "/usr/libexec/keepalived/gpufabric-rdma-k3s-ready"
UNIT = f"{SYSTEM}/gpufabric-rdma-k3s-address.service"
FILES = (CONFIG, CHECK, UNIT)


def configured(text: Optional[str]) -> str:
    """The address in our own configuration, or nothing."""
    lines = (text or "").splitlines()
    if not lines or lines[0] != paths.HEADER:
        return ""
    after = [lines[number + 1] for number, line in enumerate(lines[:-1]) if line.strip() == "virtual_ipaddress {"]
    return after[0].strip().partition("/")[0] if after else ""
