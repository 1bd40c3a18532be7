# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module says that changes a node: its attributes, and the root below which it works."""

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
attributes:
  check_mode:
    support: full
    description: Can run in C(check_mode) and return what it would change without changing it.
  diff_mode:
    support: full
    description: Returns one diff entry for each change when in diff mode.
  idempotent:
    support: full
    description: A second run with the same options changes nothing.
"""

    ROOT = r"""
options:
  root:
    description:
      - Directory that holds the node. Below anything but V(/) files are written and no kernel, service manager or other
        running part of this machine is touched; RV(not_verified) lists what was left out.
    type: path
    default: /
"""
