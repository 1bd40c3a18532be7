"""Interfaces, routes and network configurations of a node, for comparison with NetworkAttachmentDefinitions."""

from __future__ import annotations

from ..hca import Tree, paths, pci
from ..hca.netdevs import Network
from ..hca.routes import destinations
from ..hca.seams import Seams


def network_info(tree: Tree, directory: str) -> dict:
    """netdevs, routes (except default ones), files (those that Multus reads as configurations, {name: text}), vfs_unit
    (whether the VFs' unit exists).
    """
    names = [name for name in tree.listdir(directory) if name.endswith((".conf", ".conflist", ".json"))]
    return {
        "netdevs": netdevs(tree),
        "routes": [route for route in destinations(tree) if not route["destination"].endswith("/0")],
        "files": {name: tree.read(f"{directory}/{name}") or "" for name in names},
        "vfs_unit": tree.exists(paths.OWN_VFS_UNIT),
    }


def netdevs(tree: Tree) -> dict:
    network = Network(tree, Seams.of(tree))
    known = {}
    for name in network.names():
        netdev = network.netdev(name)
        if netdev:
            known[name] = {key: netdev[key] for key in ("mtu", "type", "addresses", "default_route", "management")}
            index = tree.read(f"/sys/class/net/{name}/ifindex")
            known[name]["index"] = int(index) if index else None
            part = {"bonding_slave", "brport"} & {*tree.listdir(f"/sys/class/net/{name}")}
            known[name]["port_of"] = netdev["master"] if part else None
            device = tree.target(f"/sys/class/net/{name}/device") or ""
            known[name]["pci"] = device if pci.ADDRESS.match(device) else None
            if isinstance(known[name]["addresses"], str):
                known[name]["addresses"] = []
    return known
