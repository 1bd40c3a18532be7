"""Read a node's RDMA state: plain file reads below a root directory, no fork on Debian, no side effects.

Standard library only, Python 3.9 or later; the Ansible modules and the device plugin use it. `facts.gather` reads all
of it. This file imports only the tree: Ansible sends its imports with every call of every module, and the device
plugin, which must start fast, needs only five readers.
"""

from __future__ import annotations

from .tree import Tree

__all__ = ["Tree"]
