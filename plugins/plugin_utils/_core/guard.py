# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The guard of action plugins: what module_utils._core.guard is for modules.

PRIVATE to the collection.
"""

from __future__ import annotations

import functools
import pathlib

from ansible.errors import AnsibleError

from ...module_utils._core.guard import CHANGING, unexpected

MODULES = pathlib.Path(__file__).resolve().parents[2] / "modules"


def guarded(run):
    """Decorate ActionModule.run(). Ansible's own errors pass: they name what is wrong with the task."""

    @functools.wraps(run)
    def typed(self, tmp=None, task_vars=None):
        try:
            return run(self, tmp, task_vars)
        except AnsibleError:
            raise
        except Exception as error:  # noqa: BLE001 - that is what it is for
            name = self._task.action.rpartition(".")[2]
            changing = CHANGING in (MODULES / f"{name}.py").read_text(encoding="utf-8") and not self._task.check_mode
            return {"failed": True, **unexpected(f"action {name}", error, changing)}

    return typed
