# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The RDMA shared device plugin: pods ask for `rdma/<name>` and get the character devices of the node's HCAs."""

from __future__ import annotations

import os

__version__ = "0.1.0"

# `rdma_device_plugin.hca` is the collection's discovery library. The build copies it into this package; a checkout
# imports it from there, so there is only one source.
_HERE = os.path.dirname(os.path.realpath(__file__))
_LIBRARY = os.path.join(os.path.dirname(os.path.dirname(_HERE)), "plugins/module_utils")
if not os.path.isdir(f"{_HERE}/hca") and os.path.isdir(f"{_LIBRARY}/hca"):
    __path__.append(_LIBRARY)
