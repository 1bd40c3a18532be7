# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads what a node has of RDMA: plain file reads below a root directory, no fork on Debian, no side effect.

Standard library only, Python 3.9 or later; the Ansible modules and the device plugin stand on it.
"""

from __future__ import annotations

from .facts import SCHEMA, SUBSETS, gather
from .seams import Seams
from .tree import Tree

__all__ = ["SCHEMA", "SUBSETS", "Seams", "Tree", "gather"]
