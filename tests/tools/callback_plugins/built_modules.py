# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plays of one test run share the archives that AnsiballZ builds: BUILT_MODULES names the folder that keeps them.

Ansible builds each module's archive again in each run, which takes longer than the module itself.
"""

from __future__ import annotations

import os
import pathlib

from ansible import constants
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: built_modules
type: aggregate
short_description: Share the archives of modules between the plays of a test run
description: For the tests of this collection only; it is not part of it.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "built_modules"

    def __init__(self):
        super().__init__()
        if "BUILT_MODULES" in os.environ:
            pathlib.Path(constants.DEFAULT_LOCAL_TMP, "ansiballz_cache").symlink_to(os.environ["BUILT_MODULES"])
