"""Controller side of gpufabric.rdma.plan_tests: _verify, _matrix and _nccl decide; this prints and writes."""

from __future__ import annotations

import json
import pathlib

import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.gpufabric.rdma.plugins.module_utils._core import text as core_text
from ansible_collections.gpufabric.rdma.plugins.module_utils._core.change import Refused
from ansible_collections.gpufabric.rdma.plugins.modules import plan_tests as documented
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import fleet, terminal
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.guard import guarded, options
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import plan as matrix_plan
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._matrix import pods as matrix_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import job
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import files
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import cluster, pairs, pods

JOB_HEADER = (
    "# All-reduce over the rails of these nodes. Evidence level E5 (hardware): not verified by the tests of\n"
    "# gpufabric.rdma.\n"
)


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    @guarded
    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        plans = {
            "fabric": self._fabric,
            "networks": self._networks,
            "pods": self._pods,
            "rounds": self._rounds,
            "pod_rounds": self._pod_rounds,
            "nccl_job": self._nccl_job,
        }
        _validation, args = self.validate_argument_spec(
            argument_spec=options(documented.DOCUMENTATION),
            required_if=[("kind", "pod_rounds", ["port"]), ("kind", "nccl_job", ["job"])],
        )
        return {"changed": False, **plans[args["kind"]](args, task_vars)}

    def _fabric(self, args, task_vars):
        return pairs.plan_nodes(_nodes(args, task_vars))

    def _networks(self, args, task_vars):
        nodes = [node for node in _nodes(args, task_vars) if node["read"].get("networks")]
        return {"networks": pods.networks(nodes, _shared(args, task_vars, "offered").get("cluster"))}

    def _pods(self, args, task_vars):
        names = {key: name for key, name in args["variables"].items() if key in ("read", "cni")}
        known = fleet.nodes(task_vars, args["hosts"], names, "read")
        hosts = [
            cluster.host_of(of_host["node"], of_host.get("cni"))
            for of_host in known
            if of_host["node"]["read"].get("networks") and not fleet.failure(of_host.get("cni"))
        ]
        variables = task_vars[fleet.READ]["variables"]
        asked = cluster.of_play(hosts, _shared(args, task_vars, "offered"), variables)
        return {"plan": matrix_pods.pods(asked) if args["bandwidth"] else pods.plan(asked)}

    def _rounds(self, args, task_vars):
        known = _nodes(args, task_vars)
        nodes, options = [matrix_plan.known(node) for node in known], matrix_plan.settings(known)
        try:
            plan = matrix_plan.plan(nodes, options)
        except Refused as refused:
            return {"failed": True, "msg": str(refused)}
        findings = matrix_plan.consent_findings([plan], nodes)
        if findings and not self._task.check_mode:
            what = f"{core_text.count(len(findings), 'HCA')} in use and matrix_load_allowed is not set"
            return _failed(findings, f"{what}; nothing has been sent.")
        if not options["host"]:
            plan = {**plan, "rounds": [], "tests": {}, "alone": []}
        return self._announced(plan, nodes, options)

    def _pod_rounds(self, args, task_vars):
        known = _nodes(args, task_vars)
        nodes, options = [matrix_plan.known(node) for node in known], matrix_plan.settings(known)
        planned, ran = (_shared(args, task_vars, key) for key in ("pods", "ran"))
        tested = {"plan": planned["plan"], "run": ran, "port": args["port"]}
        try:
            return self._announced(matrix_pods.plan(tested, nodes, options), nodes, options)
        except Refused as refused:
            return {"failed": True, "msg": str(refused)}

    @staticmethod
    def _announced(plan, nodes, options):
        # Nothing to announce for hosts if matrix_host is off.
        if plan["tests"] or plan["alone"]:
            terminal.show(f"{matrix_plan.announcement([plan], nodes, options)}\n")
        return {
            "plan": plan,
            "parts": pairs.parts(plan["rounds"], plan["tests"]) if plan["path"] == matrix_plan.HOST else {},
            "grace_seconds": pairs.grace_seconds(len(nodes)),
            "wait_seconds": pairs.wait_seconds(len(plan["rounds"]), len(nodes), options["round_seconds"]),
        }

    def _nccl_job(self, args, task_vars):
        facts = fleet.facts(task_vars, args["hosts"])
        nodes = [{"host": host, "facts": of_host} for host, of_host in zip(args["hosts"], facts)]
        findings = job.findings(nodes, args["job"])
        if findings:
            count = core_text.count(len(findings), "problem")
            return _failed(findings, f"{count} with the nccl-tests job; nothing was written.")
        # The controller tags the values it templates; YAML needs plain ones.
        objects = json.loads(json.dumps(job.objects(nodes, args["job"])))
        text = JOB_HEADER + yaml.safe_dump_all(objects, sort_keys=False, width=1000)
        if args["file"]:
            return files.write({pathlib.Path(args["file"]): text}, self._task.check_mode)
        terminal.show(text)
        return {"objects": objects}


def _nodes(args, task_vars) -> list[dict]:
    names = {"read": args["variables"].get("read", "read")}
    return [of_host["node"] for of_host in fleet.nodes(task_vars, args["hosts"], names, "read")]


def _shared(args, task_vars, key: str) -> dict:
    """What this host has registered for all."""
    return task_vars.get(args["variables"].get(key)) or {}


def _failed(findings: list[dict], what: str) -> dict:
    terminal.show(f"{core_text.four_facts(findings)}\n")
    return {"failed": True, "msg": f"{what} Each is listed above."}
