"""How modules gather the facts of a node."""

from __future__ import annotations

import os
from typing import Any, Optional

from ..hca import Tree
from ..hca.facts import gather
from ..hca.rails import KEYS
from ..hca.seams import Seams
from .gpudirect import Runner, complete

# The option `rails`, as gpufabric.rdma.reading.rails documents it.
RAILS = {
    "type": "list",
    "elements": "dict",
    "default": [],
    "options": {**{key: {"type": "str"} for key in KEYS}, "port": {"type": "int"}},
    "mutually_exclusive": [KEYS],
    "required_one_of": [KEYS],
}


def existing(module: Any) -> None:
    """fail_json if the module's root is not a directory."""
    root = module.params["root"]
    if not os.path.isdir(root):
        module.fail_json(
            msg=f"root {root}: wanted the root directory of a node, seen none; use / for this machine, or the "
            "directory with the tree of a captured node"
        )


def rdma_facts(module: Any, subsets: Optional[list[str]] = None) -> tuple[dict, int]:
    """The facts of the node below the module's root, which is `existing`, and the number of processes started."""
    params = module.params
    tree = Tree(params["root"])
    seams = Seams.of(tree)
    facts = gather(tree, seams, subsets or ["all"], params["software_hcas"], params["rails"])
    run = Runner(module)
    return complete(facts, tree, seams, run), seams.forks + run.forks
