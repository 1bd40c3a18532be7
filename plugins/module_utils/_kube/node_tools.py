"""What a test pod needs to run the node's own tools: an image that is on every node, and the folders of the node.

Reads files only. The image is that of the sandboxes (`pause`), which the node has pinned; over it lie the node's
folders of programs and libraries, read-only. The tools then match the node's rdma-core and its providers, DOCA's
included, no registry is asked, and nothing has to be built for an architecture.
"""

from __future__ import annotations

from .._cni import containerd
from .._host.networks import network_info
from ..hca import Tree

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The loader's path is compiled into each program (/lib64, /lib), so on a merged /usr the links are mounted too.
_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Where libraries lie, which names stand for which program, and the list of verbs providers. DOCA has folders in /opt.
_FURTHER = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/libibverbs.d", "/opt/mellanox")


def read(tree: Tree) -> dict:
    """image (of the sandboxes; None where containerd's configuration names none) and mounts: {path in the pod: path
    on the node}, for folders and files that exist."""
    _source, texts = containerd.read(tree)
    mounts = {path: tree.realpath(path) for path in (*_FOLDERS, *_FURTHER) if tree.exists(path)}
    return {"image": containerd.sandbox_image(texts), "mounts": mounts}


def networks(tree: Tree, directory: str) -> dict:
    """What node_facts returns as networks."""
    return {"tools": read(tree), **network_info(tree, directory)}
