# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Controller side of gpufabric.rdma.matrix: _matrix.plan, _matrix.pods and _matrix.judge decide; this prints."""

from __future__ import annotations

import datetime

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import judge, pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import plan as matrix_plan


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        _validation, args = self.validate_argument_spec(
            argument_spec={
                "stage": {
                    "type": "str",
                    "required": True,
                    "choices": ["plan", "pods", "pod_plan", "steps", "progress", "report"],
                },
                "nodes": {"type": "list", "elements": "dict", "default": []},
                "plan": {"type": "dict"},
                "plans": {"type": "list", "elements": "dict", "default": []},
                "numbers": {"type": "list", "elements": "int", "default": []},
                "results": {"type": "dict", "default": {}},
                "answers": {"type": "list", "elements": "dict", "default": []},
                "failures": {"type": "dict", "default": {}},
                "cluster": {"type": "dict", "default": {}},
            },
        )
        return {"changed": False, **getattr(self, f"_{args['stage']}")(args)}

    def _plan(self, args):
        """Plan the rounds on the hosts; stop where load needs consent; say what is going to happen."""
        nodes, options = [_node(node) for node in args["nodes"]], _options(args["nodes"])
        plan = matrix_plan.plan(nodes, options)
        findings = matrix_plan.consent_problems([plan], nodes)
        if findings and not self._task.check_mode:
            Display().display(f"{core_text.four_facts(findings)}\n")
            return {
                "failed": True,
                "msg": f"{core_text.count(len(findings), 'HCA')} in use and matrix_load_allowed is not set; nothing "
                "has been sent. Each is listed above.",
            }
        if not options["host"]:
            plan = {**plan, "rounds": [], "tests": {}, "alone": []}
        return self._announced(plan, nodes, options)

    def _announced(self, plan, nodes, options):
        # A run on the hosts alone that is switched off needs no word.
        if plan["tests"] or plan["alone"]:
            Display().display(f"{matrix_plan.announcement([plan], nodes, options)}\n")
        return {
            "plan": plan,
            "tranches": matrix_plan.tranches(plan, options),
            "grace_seconds": matrix_plan.grace_seconds(len(nodes)),
        }

    def _steps(self, args):
        """What each host runs in the rounds of one call."""
        return {"hosts": matrix_plan.steps(args["plan"], args["numbers"])}

    def _progress(self, args):
        """Join what the nodes answered and print a line for each round of the call."""
        results = judge.joined(args["answers"])
        total = len(args["plan"]["rounds"])
        for number in args["numbers"]:
            Display().display(judge.round_line(number, total, args["plan"], results))
        return {"results": results}

    def _pods(self, args):
        return {"plan": pods.pods(args["cluster"])}

    def _pod_plan(self, args):
        nodes, options = [_node(node) for node in args["nodes"]], _options(args["nodes"])
        plan = pods.plan(args["cluster"], nodes, options)
        return self._announced(plan, nodes, options)

    def _report(self, args):
        options = {
            **_options(args["nodes"]),
            "hosts": [node["host"] for node in args["nodes"]],
            "failures": args["failures"],
            "check_mode": self._task.check_mode,
        }
        nodes = {node["host"]: node["read"] for node in args["nodes"]}
        at = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        document = judge.document(args["plans"], args["results"], nodes, options, at)
        text = judge.table(document)
        clashes = [clash for plan in args["plans"] for clash in plan["clashes"]]
        for clash in clashes:
            seen = " and ".join(f"{end['host']} ({end['netdev']})" for end in clash["ends"])
            text = f"Address {clash['address']} is held by {seen}; give each node its own.\n\n{text}"
        Display().display(f"{text}\n")
        return {"document": document, "text": text, "tally": judge.tally(document)}


def _node(node):
    variables, read = node["variables"], node["read"]
    return {
        "host": node["host"],
        "facts": node["facts"],
        "address": variables["verification_address"] or node["address"],
        "tools": read["tools"],
        "base_port": variables["matrix_port"],
        # What a captured tree lacks is the tool; that reason stands by itself.
        "runs": True,
        "in_use": read["in_use"],
        "cuda": bool(read["cuda"]),
        "load_allowed": variables["matrix_load_allowed"],
        "expected_gbit_per_s": variables["matrix_expected_gbit_per_s"],
    }


def _options(nodes):
    """The settings of the run; those of the first node count where nodes differ."""
    variables = nodes[0]["variables"]
    names = ("host", "seconds", "round_seconds", "rounds_per_call", "minimum_percent", "peer_percent", "cuda")
    return {name: variables[f"matrix_{name}"] for name in names}
