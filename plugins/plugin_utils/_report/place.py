# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the page of a run goes, and whether it can be written there.

PRIVATE to the collection. Runs on the controller.
"""

from __future__ import annotations

import os
import pathlib
import tempfile

from ...module_utils._core.change import Finding

_SET = "set report_file to a path that can be written, or report_written to false"


def page(file: str | None, sources: list[str]) -> pathlib.Path:
    """The absolute path of the page: the one given, else one beside the inventory.

    sources: the inventory as given to Ansible. The first one that exists gives folder and name, NAME-report.html; never
    inside an inventory that is a folder, where Ansible would read it as a source. Without one: report.html in the
    working directory.
    """
    if file:
        return pathlib.Path(os.path.abspath(file))
    for source in map(os.path.abspath, sources):
        if os.path.exists(source):
            path = pathlib.Path(source)
            return path.with_name(f"{path.name if path.is_dir() else path.stem}-report.html")
    return pathlib.Path(os.path.abspath("report.html"))


def findings(path: pathlib.Path) -> list[Finding]:
    """Why a file could not be written at this absolute path; leaves no trace."""
    name = f"the report {path}"
    if os.path.isdir(path):
        return [Finding(name, "a file to write", "a folder", _SET)]
    folder = next(parent for parent in path.parents if os.path.exists(parent))
    try:
        with tempfile.TemporaryFile(dir=folder):
            return []
    except OSError as error:
        return [Finding(name, "a folder on the controller that can be written", f"{folder}: {error.strerror}", _SET)]
