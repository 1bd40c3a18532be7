# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configurations of networks that differ from node to node, as files that Multus reads.

PRIVATE to the collection. Pure: actual and wanted content of the directory in, Plan out. JSON has no comments, so
a file name prefix marks ours; all other files stay.
"""

from __future__ import annotations

import json

from .._core.change import Plan
from .._core.files import plan_file, plan_removal

PREFIX = "gpufabric-rdma-"


def plan(facts: dict, wanted: dict, directory: str) -> Plan:
    """facts: owned_files {path: {content, mode}} and others {path: content}; wanted: {network name: text}."""
    made = Plan()
    taken = {_name(text): path for path, text in facts["others"].items()}
    for name in sorted(wanted):
        if name in taken:
            made.finding(
                f"network {name}",
                "one file with this name in its configuration",
                f"{taken[name]}, which is not ours, has it too; Multus uses the first",
                f"remove {taken[name]}, or rename the attachment",
            )
    if made.findings:
        return made
    paths = {f"{directory}/{PREFIX}{name}.conf": text for name, text in wanted.items()}
    for path in sorted(paths):
        plan_file(made, facts, path, paths[path])
    for path in sorted(set(facts["owned_files"]) - set(paths)):
        plan_removal(made, facts, path)
    return made


def _name(text: str):
    try:
        return json.loads(text).get("name")
    except (ValueError, AttributeError):
        return None
