# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Python libraries that the controller needs beside ansible-core.

PRIVATE to the collection.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable

from ...module_utils._core.change import Finding


def missing(name: str) -> Finding:
    """What is said where a library is not installed."""
    return Finding(
        "controller",
        f"the Python library {name}",
        f"none in {sys.executable}",
        f"install it beside ansible-core: {sys.executable} -m pip install {name}",
    )


def findings(names: Iterable[str]) -> list[Finding]:
    """One finding for each library that this Python cannot import."""
    return [missing(name) for name in names if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # sys.modules has it without a spec
        return sys.modules.get(name) is not None
