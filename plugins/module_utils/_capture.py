# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Capture of a node: the files, links and answers that its facts come from, as one scrubbed fixture."""

from __future__ import annotations

import os


def fold(section):
    """{path: value} with the paths of one folder gathered below it, which keeps a fixture short and readable."""
    folders = {}
    for path, value in section.items():
        folder, name = os.path.split(path)
        folders.setdefault(folder, {})[name] = value
    folded = {}
    for folder, entries in sorted(folders.items()):
        if len(entries) == 1:
            ((name, value),) = entries.items()
            folded[os.path.join(folder, name)] = value
        else:
            folded[folder] = dict(sorted(entries.items()))
    return folded
