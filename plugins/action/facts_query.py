# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.facts_query: _query decides; this reads captures, prints and fails."""

from __future__ import annotations

import json
import pathlib

from ansible import context
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Finding, at
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.text import sentence
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._query import captures, question


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "query": {"type": "str", "required": True},
                "nodes": {"type": "dict"},
                "captures": {"type": "path"},
            },
            mutually_exclusive=[("nodes", "captures")],
        )
        host = task_vars["inventory_hostname"]
        # Ansible tags what it templates, and jmespath knows plain types only.
        query = _whole(json.loads(json.dumps(args["query"])))
        if findings := question.findings(query):
            return _refused(host, findings)
        if args["captures"]:
            facts, unread = _read(args["captures"])
            if not facts and not unread:
                seen = "none" if pathlib.Path(args["captures"]).is_dir() else "no such folder"
                step = "write them with the playbook capture: -e capture_dir=FOLDER"
                return _refused(host, [Finding(f"folder {args['captures']}", "captures, NAME.yml", seen, step)])
        elif args["nodes"] is not None:
            nodes = json.loads(json.dumps(args["nodes"]))
            facts = {name: node["facts"] for name, node in nodes.items() if node.get("facts")}
            unread = {
                name: node.get("failure") or "no reason given" for name, node in nodes.items() if name not in facts
            }
        else:
            return {"changed": False}
        if findings := question.unknown_facts(query, facts):
            return _refused(host, findings)
        outcome = question.ask(query, facts)
        terminal.show(question.text(query, outcome, unread))
        return {"changed": False, "query": query, **outcome, "unread": unread}


def _whole(query):
    """The query as typed: of -e "NAME=hcas[?firmware < '1']" Ansible keeps what stands before the first space."""
    for given in context.CLIARGS.get("extra_vars") or ():
        typed = str(given).partition("=")[2]
        if query and typed.startswith(query) and not question.findings(typed):
            return typed
    return query


def _read(folder):
    """({name: facts}, {name: reason}) of the captures of a folder."""
    facts, unread = {}, {}
    for path in captures.files(folder):
        try:
            facts[path.stem] = captures.facts(path)
        except captures.NotACapture as error:
            unread[path.stem] = f"{path.name} is not a capture: {error}"
    return facts, unread


def _refused(host, findings):
    message = "\n".join(map(sentence, findings))
    return {"changed": False, "failed": True, "msg": message, "findings": at(host, findings)}
