# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a report on the controller: reading its source documents, writing its files.

PRIVATE to the collection.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib

from ansible.errors import AnsibleActionFail

from ...module_utils._core import files as core_files
from ...module_utils._core.change import Finding
from ...module_utils._core.text import sentence
from .._core import fleet
from . import document

_MADE_BY = {
    "results": "playbooks/verify.yml with verification_results",
    "drift": "playbooks/drift.yml",
    "matrix": "the bandwidth matrix",
}


def write(texts: dict, check_mode: bool) -> dict:
    """Effect: write each file that differs, whole or not at all; in check mode only say which. changed and files."""
    files = []
    for name, text in texts.items():
        path, data = pathlib.Path(os.path.abspath(name)), text.encode()
        changed = not (path.is_file() and path.read_bytes() == data)
        if changed and not check_mode:
            _replace(path, data)
        files.append({"path": str(path), "bytes": len(data), "changed": changed})
    return {"changed": any(file["changed"] for file in files), "files": files}


def as_json(value) -> str:
    return json.dumps(value, indent=1, ensure_ascii=True) + "\n"


def _replace(path: pathlib.Path, data: bytes) -> None:
    try:
        core_files.write(os.fspath(path), data)
    except OSError as error:
        raise AnsibleActionFail(
            f"{path}: wanted to write it on the controller, seen: {error.strerror}; name a folder that you may write to"
        ) from error


def of_this_run(task_vars: dict, judged: str, node: str) -> dict:
    """The results document of what a run knows by now. judged, node: names of the variables with what verify_checks
    returned and with what was read of each host.
    """
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    rows = task_vars[judged]["judged"]
    made = document.collect(rows, fleet.some(task_vars, [row["host"] for row in rows], node), now)
    refuse([("the results of this run", finding) for finding in document.findings(made)])
    return made


def load(kind: str, path: str) -> tuple:
    """(document, findings) of a file."""
    try:
        return json.loads(pathlib.Path(path).read_bytes()), []
    except OSError as error:
        seen = error.strerror
    except ValueError as error:
        seen = f"not valid JSON: {error}"
    wanted = f"the {kind} document that {_MADE_BY[kind]} writes"
    return None, [Finding("the file", wanted, seen, document.ANEW)]


def refuse(findings: list[tuple[str, Finding]]) -> None:
    """Raise if there are any, each with its file; the first twenty are named."""
    if not findings:
        return
    shown = [f"{file}: {sentence(finding)}" for file, finding in findings[:20]]
    more = [f"and {len(findings) - 20} more"] if len(findings) > 20 else []
    raise AnsibleActionFail("\n".join([f"Nothing was written; problems: {len(findings)}", *shown, *more]))
