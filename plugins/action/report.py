# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.report: the package _report decides what the files hold."""

from __future__ import annotations

import pathlib

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document, files, judge, junit, page


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "results": {"type": "path", "required": True},
                "drift": {"type": "path"},
                "matrix": {"type": "path"},
                "directory": {"type": "path", "required": True},
                "title": {"type": "str", "default": "RDMA report"},
            }
        )
        read = {kind: files.load(kind, args[kind]) for kind in ("results", "drift", "matrix") if args[kind]}
        findings = [
            (args[kind], finding) for kind, (found, wrong) in read.items() for finding in wrong or _wrong(kind, found)
        ]
        files.refuse(findings)
        results = {"drift": None, "matrix": None, **read["results"][0]}
        results.update({kind: found for kind, (found, _wrong_with_it) in read.items() if kind != "results"})
        directory = pathlib.Path(args["directory"])
        written = files.write(
            {
                directory / "report.html": page.page(results, args["title"]),
                directory / "report.json": files.as_json(results),
                directory / "report.xml": junit.text(results),
            },
            self._task.check_mode,
        )
        level, headline = judge.headline(judge.nodes(results))
        return {**written, "level": level, "headline": headline}


def _wrong(kind, found):
    return document.findings(found) if kind == "results" else document.of_kind(found, kind)
