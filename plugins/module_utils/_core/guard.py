# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The end of a module that changes nothing and takes no secret; change.reported() is that of all others.

PRIVATE to the collection.
"""

from __future__ import annotations

import functools
import os
from typing import Callable

from .change import Refused, unforeseen


def guarded(main: Callable[[], None]) -> Callable[[], None]:
    """Decorate main(). What it raises ends in Ansible's own report, after one sentence."""

    @functools.wraps(main)
    def typed() -> None:
        try:
            main()
        except Refused:
            raise
        except Exception as error:
            name = os.path.splitext(os.path.basename(main.__code__.co_filename))[0]
            raise RuntimeError(unforeseen(f"module {name}", error)["msg"]) from error

    return typed
