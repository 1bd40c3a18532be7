"""Writes tests/fixtures/tables: what playbooks/discover.yml prints for nodes of tests/fixtures.

A test compares them; run this after a wanted change and look at the difference.
"""

from __future__ import annotations

import pathlib
import tempfile

from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings.tables import report
from ansible_collections.gpufabric.rdma.tests.tools import tree

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "fixtures/tables"

# name: (nodes, expected ports, nodes that could not be read)
REPORTS = {
    "gh200": (["gh200-cx7-roce"], {}, {}),
    "gh200-port-expected": (["gh200-cx7-roce"], {"gh200-cx7-roce": ["mlx5_1/1", "mlx5_7/1"]}, {}),
    "racks": (["h100-8x-cx7-ib", "a100-8x-cx6"], {}, {}),
    "shapes": (
        [
            *("bond", "vfs", "sfs", "names-persistent", "ipoib-children", "mlx4-two-ports", "hfi1", "irdma", "efa"),
            *("rxe-and-siw", "two-cards-cx6dx", "gids-256"),
        ],
        {},
        {},
    ),
    "troubles": (
        ["card-without-mlx5-ib", "card-on-vfio", "exclusive-netns-foreign-file", "doca-loaded-differs-from-disk"],
        {},
        {"gpu-17": "Failed to connect to the host via ssh: connect to host gpu-17 port 22: No route to host"},
    ),
}


def render(name: str) -> str:
    hosts, expected, failures = REPORTS[name]
    nodes = {}
    for host in hosts:
        with tempfile.TemporaryDirectory() as target:
            facts = gather(Tree(str(tree.lay_out(tree.load(host), target))))
        nodes[host] = {"facts": facts, "expected_ports": expected.get(host)}
    nodes.update({host: {"failure": reason} for host, reason in failures.items()})
    return report(nodes)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in REPORTS:
        (FOLDER / f"{name}.txt").write_text(render(name))
