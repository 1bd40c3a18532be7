"""The pairs of the tests between nodes and between pods, for verification and matrix."""

from ...module_utils._core.text import count, four_facts
from .._core import fleet, terminal
from .._verify import cluster, pairs
from .._verify import pods as verify_pods
from . import plan as matrix_plan
from . import pods as matrix_pods


def plan(args: dict, task_vars: dict, check_mode: bool) -> dict:
    """The result of an action. args: options tests, hosts, variables, bandwidth and port of the module plan."""
    planners = {
        "fabric": lambda: pairs.plan_nodes(_nodes(args, task_vars)),
        "networks": lambda: _networks(args, task_vars),
        "pods": lambda: _pods(args, task_vars),
        "rounds": lambda: _rounds(_nodes(args, task_vars), check_mode),
        "pod_rounds": lambda: _pod_rounds(args, task_vars),
    }
    return planners[args["tests"]]()


def _networks(args: dict, task_vars: dict) -> dict:
    nodes = [node for node in _nodes(args, task_vars) if node["read"].get("networks")]
    return {"networks": verify_pods.networks(nodes, _shared(args, task_vars, "offered").get("cluster"))}


def _pods(args: dict, task_vars: dict) -> dict:
    names = {key: name for key, name in args["variables"].items() if key in ("read", "cni")}
    known = fleet.nodes(task_vars, args["hosts"], names, "read")
    asked = cluster.of_play(
        cluster.places(known), _shared(args, task_vars, "offered"), task_vars[fleet.READ]["variables"]
    )
    return {"plan": matrix_pods.pods(asked) if args["bandwidth"] else verify_pods.plan(asked)}


def _rounds(known: list[dict], check_mode: bool) -> dict:
    nodes, options = [matrix_plan.known(node) for node in known], matrix_plan.settings(known)
    planned = matrix_plan.plan(nodes, options)
    findings = matrix_plan.consent_findings([planned], nodes)
    if findings and not check_mode:
        terminal.show(f"{four_facts(findings)}\n")
        what = f"{count(len(findings), 'HCA')} in use and matrix_load_allowed is not set"
        return {"failed": True, "msg": f"{what}; nothing has been sent. Each is listed above."}
    if not options["host"]:
        planned = {**planned, "rounds": [], "tests": {}, "alone": []}
    return _announced(planned, nodes, options)


def _pod_rounds(args: dict, task_vars: dict) -> dict:
    known = _nodes(args, task_vars)
    nodes, options = [matrix_plan.known(node) for node in known], matrix_plan.settings(known)
    planned, ran = (_shared(args, task_vars, key) for key in ("pods", "ran"))
    tested = {"plan": planned["plan"], "run": ran, "port": args["port"]}
    return _announced(matrix_pods.plan(tested, nodes, options), nodes, options)


def _announced(planned: dict, nodes: list[dict], options: dict) -> dict:
    # Nothing to announce for hosts if matrix_host is off.
    if planned["tests"] or planned["alone"]:
        terminal.show(f"{matrix_plan.announcement([planned], nodes, options)}\n")
    tests = planned["tests"] if planned["path"] == matrix_plan.HOST else None
    return pairs.outcome(planned, tests, len(nodes), options["round_seconds"])


def _nodes(args: dict, task_vars: dict) -> list[dict]:
    names = {"read": args["variables"].get("read", "read")}
    return [of_host["node"] for of_host in fleet.nodes(task_vars, args["hosts"], names, "read")]


def _shared(args: dict, task_vars: dict, key: str) -> dict:
    return task_vars.get(args["variables"].get(key)) or {}
