# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a node's RDMA state: plain file reads below a root directory, no fork on Debian, no side effects.

Standard library only, Python 3.9 or later; the Ansible modules and the device plugin use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .tree import Tree

if TYPE_CHECKING:
    from .facts import SCHEMA, SUBSETS, gather
    from .seams import Seams

__all__ = ["SCHEMA", "SUBSETS", "Seams", "Tree", "gather"]


def __getattr__(name: str) -> Any:
    """Load all readers only on request: the device plugin, which must start fast, needs five of them."""
    if name == "Seams":
        from .seams import Seams

        return Seams
    if name in __all__:
        from . import facts

        return getattr(facts, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
