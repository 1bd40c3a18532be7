# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The RDMA shared device plugin: pods ask for `rdma/<name>` and get the character devices of the node's HCAs."""

from __future__ import annotations

import pathlib

__version__ = "0.1.0"

# `rdma_device_plugin.hca` is the collection's discovery library. The build puts it into this package; in a checkout it
# is found where it lives, so that there is one source of it.
_LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "plugins/module_utils"
if not (pathlib.Path(__file__).parent / "hca").is_dir() and (_LIBRARY / "hca").is_dir():
    __path__.append(str(_LIBRARY))
