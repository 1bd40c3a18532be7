"""The pairs of the tests between nodes and between pods, for verification and matrix.

The matrix takes the test pods `rails` with every rail at once, `workload` if there is one rail, and `host` for
soft-RoCE, which has no verbs in a pod's own namespace.
"""

from ...module_utils._core.text import count, four_facts
from ...module_utils._kube import pod_probe
from ...module_utils._kube import pods as kube_pods
from .._core import fleet, terminal
from .._core.addresses import network as as_network
from .._verify import cluster, pairs
from .._verify import pods as test_pods
from . import plan as matrix_plan


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
    return {"networks": test_pods.networks(nodes, _shared(args, task_vars, "offered").get("cluster"))}


def _pods(args: dict, task_vars: dict) -> dict:
    names = {key: name for key, name in args["variables"].items() if key in ("read", "cni")}
    known = fleet.nodes(task_vars, args["hosts"], names, "read")
    asked = cluster.of_play(
        cluster.places(known), _shared(args, task_vars, "offered"), task_vars[fleet.READ]["variables"]
    )
    return {"plan": _of_matrix(asked) if args["bandwidth"] else test_pods.plan(asked)}


def _of_matrix(asked: cluster.Cluster) -> dict:
    """namespace, objects, pods and left_out, as from kube_pods.plan, without those that the matrix does not need."""
    read = asked.read
    if not read.get("cluster"):
        why = read.get("api_error") or read.get("msg") or "the cluster did not answer"
        left_out = {host["host"]: f"the cluster could not be read: {why}" for host in asked.hosts}
        return {"namespace": asked.namespace, "objects": [], "pods": [], "left_out": left_out}
    # Pods of the user and GPU pods are not measured.
    planned = test_pods.plan(asked._replace(pod_name=None, gpu_class=None))
    return test_pods.only(planned, {pod["name"] for pod in planned["pods"] if _needed(pod, planned["pods"])})


def _needed(pod: dict, every: list[dict]) -> bool:
    kinds = {other["kind"] for other in every if other["host"] == pod["host"]}
    if all(rail["kind"] == "software" for rail in pod["rails"]):
        return pod["kind"] == "host"
    return pod["kind"] in ("rails", "host") or (pod["kind"] == "workload" and "rails" not in kinds)


def _rounds(known: list[dict], check_mode: bool) -> dict:
    nodes, options = [matrix_plan.known(node) for node in known], matrix_plan.settings(known)
    planned = matrix_plan.plan(nodes, options)
    findings = matrix_plan.consent_findings(planned, nodes)
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
    pods, ran = (_shared(args, task_vars, key) for key in ("pods", "ran"))
    on_host = {end["id"]: end for node in nodes for end in matrix_plan.ends_of(node)}
    ends = list(_ends(pods["plan"]["pods"], ran, on_host))
    # The test pods ask for no GPU.
    ports, without_gpu = {end["node"]: args["port"] for end in ends}, {**options, "cuda": False}
    planned = matrix_plan.planned(ends, ports, without_gpu, matrix_plan.POD, len({end["host"] for end in ends}))
    for host, reason in pods["plan"]["left_out"].items():
        planned["alone"] += [matrix_plan.without(end, reason) for end in on_host.values() if end["host"] == host]
    return _announced(planned, nodes, options)


def _ends(pods: list[dict], run: dict, on_host: dict):
    """The ends of the rails in pods. run: what test_pods returned. on_host: the same ends on their nodes, by id."""
    states, answers = run.get("pods") or {}, run.get("answers") or {}
    for pod in pods:
        said = answers.get(pod["name"])
        for rail in pod["rails"]:
            known = on_host.get((pod["host"], rail["index"], rail["hca"], rail["port"]))
            if known and (rail["kind"] == "software") == (pod["kind"] == "host"):
                answer = pod_probe.parse(said) if said else None
                yield _end(pod, rail, known, answer, _why(states.get(pod["name"]), answer, run))


def _why(state, answer, run: dict) -> str:
    missing = (answer or {}).get("missing") or {}
    told = missing.get("unanswered") or missing.get("exec") or "; ".join((state or {}).get("reasons") or [])
    return told or (run.get("unanswered") if state is None else None) or "it is not running"


def _end(pod: dict, rail: dict, known: dict, answer, why: str) -> dict:
    """The end of a rail in a pod; `reason` says why it cannot be used. why: for a pod that does not answer."""
    own = next((end for end in kube_pods.ends_of(pod, answer) if end["rail"] == rail["index"]), None)
    end = {
        **known,
        "pod": pod["name"],
        "node": pod["node"],
        "networks": {},
        "gids": {},
        "management": None,
        # The pod has its own tool or the node's, so only the user's reason against the node's end counts.
        "reason": known["refused"],
    }
    if own is None:
        return {**end, "reason": end["reason"] or f"pod {pod['name']}: {why}"}
    network = own["network"] or next(iter(known["networks"]), None)
    if network is None or not (own["ip"] or own["management"]):
        return {**end, "reason": end["reason"] or f"pod {pod['name']} has no address on {own['interface']}"}
    net = as_network(network)
    return {
        **end,
        "management": own["management"],
        "netdev": own["interface"],
        "networks": {str(net.cidr) if net else network: own["ip"]},
        "gids": {own["ip"]: own["gid"]},
    }


def _announced(planned: dict, nodes: list[dict], options: dict) -> dict:
    # Nothing to announce for hosts if matrix_host is off.
    if planned["tests"] or planned["alone"]:
        terminal.show(f"{matrix_plan.announcement(planned, nodes, options)}\n")
    tests = planned["tests"] if planned["path"] == matrix_plan.HOST else None
    return pairs.outcome(planned, tests, len(nodes), options["round_seconds"])


def _nodes(args: dict, task_vars: dict) -> list[dict]:
    names = {"read": args["variables"].get("read", "read")}
    return [of_host["node"] for of_host in fleet.nodes(task_vars, args["hosts"], names, "read")]


def _shared(args: dict, task_vars: dict, key: str) -> dict:
    return task_vars.get(args["variables"].get(key)) or {}
