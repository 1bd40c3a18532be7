# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.report: the package _report decides what the files hold."""

from __future__ import annotations

import pathlib

from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
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
        paths = {kind: args[kind] for kind in document.SCHEMAS if args[kind]}
        read = {kind: files.load(kind, path) for kind, path in paths.items()}
        wrong = [(paths[kind], finding) for kind, (_found, finding) in read.items() if finding]
        if wrong:
            return _failed(wrong)
        results = {"drift": None, "matrix": None, **read["results"][0]}
        results.update({kind: found for kind, (found, _finding) in read.items() if kind != "results"})
        try:
            texts = {
                "report.html": terminal.here(page.page(results, args["title"])),
                "report.json": files.as_json(results),
                "report.xml": junit.text(results),
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            wanted, seen = "documents as docs/schemas/results-1.json describes them", f"{type(error).__name__}: {error}"
            return _failed([(", ".join(paths.values()), Finding("content", wanted, seen, document.ANEW))])
        directory = pathlib.Path(args["directory"])
        written = files.write({directory / name: text for name, text in texts.items()}, self._task.check_mode)
        level, headline = judge.headline(judge.nodes(results))
        return {**written, "level": level, "headline": headline}


def _failed(wrong: list) -> dict:
    told = [f"{path}: {sentence(finding)}" for path, finding in wrong]
    findings = at("the controller", [finding for _path, finding in wrong])
    return {"changed": False, "failed": True, "findings": findings, "msg": "\n".join(["Nothing was written.", *told])}
