"""What a run has begun on the node and recorded there, and no run has ended yet."""

from __future__ import annotations

from .tree import Tree

RECORDS = {
    "driver_reload": "/var/lib/gpufabric-rdma/driver_reload.json",
    "reboot": "/var/lib/gpufabric-rdma/reboot.json",
}


def names(tree: Tree) -> list[str]:
    return [name for name, path in RECORDS.items() if tree.exists(path)]
