# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation shared by modules that only read a node: attributes and the root option."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and returns the same, as it only reads.
  diff_mode:
    support: none
    description: There is no change to show.
  idempotent:
    support: full
    description: Changes nothing.
"""

    ROOT = r"""
options:
  root:
    description:
      - Root directory of the node, for a captured or mounted tree.
    type: path
    default: /
"""
