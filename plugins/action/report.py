# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.report: reads and writes files here; the package _report decides what they hold."""

from __future__ import annotations

import datetime
import json
import os
import pathlib

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import files
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document, judge, junit, page

_MADE_BY = {
    "results": "playbooks/verify.yml with verification_results",
    "drift": "playbooks/drift.yml",
    "matrix": "the bandwidth matrix",
}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "stage": {"type": "str", "required": True, "choices": ["collect", "render"]},
                "judged": {"type": "list", "elements": "dict", "default": []},
                "nodes": {"type": "list", "elements": "dict", "default": []},
                "path": {"type": "path"},
                "results": {"type": "path"},
                "drift": {"type": "path"},
                "matrix": {"type": "path"},
                "directory": {"type": "path"},
                "title": {"type": "str", "default": "RDMA report"},
            },
            required_if=[("stage", "collect", ["path"]), ("stage", "render", ["results", "directory"])],
        )
        return getattr(self, f"_{args['stage']}")(args)

    def _collect(self, args):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        made = document.collect(args["judged"], args["nodes"], now)
        _refuse([{**finding, "file": "the results of this run"} for finding in document.findings(made)])
        return self._write({args["path"]: _json(made)})

    def _render(self, args):
        read = {kind: _load(kind, args[kind]) for kind in ("results", "drift", "matrix") if args[kind]}
        findings = [
            {**finding, "file": args[kind]}
            for kind, (found, wrong) in read.items()
            for finding in wrong or _wrong(kind, found)
        ]
        _refuse(findings)
        results = {"drift": None, "matrix": None, **read["results"][0]}
        results.update({kind: found for kind, (found, _wrong_with_it) in read.items() if kind != "results"})
        directory = pathlib.Path(args["directory"])
        written = self._write(
            {
                directory / "report.html": page.page(results, args["title"]),
                directory / "report.json": _json(results),
                directory / "report.xml": junit.text(results),
            }
        )
        level, headline = judge.headline(judge.nodes(results))
        return {**written, "level": level, "headline": headline}

    def _write(self, texts):
        """Write each file that differs, whole or not at all; in check mode only say which."""
        files = []
        for name, text in texts.items():
            path, data = pathlib.Path(os.path.abspath(name)), text.encode()
            changed = not (path.is_file() and path.read_bytes() == data)
            if changed and not self._task.check_mode:
                _replace(path, data)
            files.append({"path": str(path), "bytes": len(data), "changed": changed})
        return {"changed": any(file["changed"] for file in files), "files": files}


def _json(value):
    return json.dumps(value, indent=1, ensure_ascii=True) + "\n"


def _replace(path, data):
    try:
        files.write(os.fspath(path), data)
    except OSError as error:
        raise AnsibleActionFail(
            f"{path}: wanted to write it on the controller, seen: {error.strerror}; name a folder that you may write to"
        ) from error


def _load(kind, path):
    """(document, problems) of a file."""
    try:
        return json.loads(pathlib.Path(path).read_bytes()), []
    except OSError as error:
        seen = error.strerror
    except ValueError as error:
        seen = f"no JSON: {error}"
    return None, [{"object": "the file", "wanted": f"the {kind} document that {_MADE_BY[kind]} writes", "seen": seen}]


def _wrong(kind, found):
    return document.findings(found) if kind == "results" else document.of_kind(found, kind)


def _refuse(findings):
    if not findings:
        return
    shown = [f"{one['file']}: {one['object']}: wanted {one['wanted']}, seen {one['seen']}" for one in findings[:20]]
    more = [f"and {len(findings) - 20} more"] if len(findings) > 20 else []
    step = "Write the file anew with the playbook it comes from, of this version of the collection."
    raise AnsibleActionFail("\n".join([f"Nothing was written; problems: {len(findings)}", *shown, *more, step]))
