"""Overlays of a captured node for tests: access over the HCA, a disk behind the stack, pods, names, Secure Boot."""

from dataclasses import dataclass, field

# This node has DOCA 25.04 on disk and 24.10 in memory; its one HCA is enp59s0np0, its management port eno1.
STALE = "doca-loaded-differs-from-disk"
KERNEL, NEWER = "6.8.0-60-generic", "6.8.0-71-generic"


@dataclass
class Over:
    """Files and links that are laid over a node."""

    files: dict = field(default_factory=dict)
    links: dict = field(default_factory=dict)
    binary: dict = field(default_factory=dict)

    def __add__(self, other):
        return Over(self.files | other.files, self.links | other.links, self.binary | other.binary)

    def on(self, node):
        """The node with these instead of its own."""
        return node | {part: node[part] | getattr(self, part) for part in ("files", "links", "binary")}


def file(path, content="x"):
    return Over({path: content})


def newer_kernel(module_path, release=NEWER):
    base = f"/usr/lib/modules/{release}"
    return Over({f"/boot/vmlinuz-{one}": "" for one in (KERNEL, release)} | {f"{base}/modules.dep": f"{module_path}:"})
