"""The bandwidth matrix between pods: which test pods it needs, and its rounds once their addresses are known.

Pure. The pods are those of _pod_plan: `rails` with every rail at once, `workload` if there is one rail, `host` for
soft-RoCE, which has no verbs in a pod's own namespace.
"""

from ...module_utils._kube import pod_probe
from ...module_utils._kube import pods as kube_pods
from .._core.addresses import network as as_network
from .._verify import pods as test_pods
from .._verify.cluster import Cluster
from . import plan as matrix_plan


def pods(cluster: Cluster) -> dict:
    """namespace, objects, pods and left_out, as from kube_pods.plan, without those that the matrix does not need."""
    read = cluster.read
    if not read.get("cluster"):
        why = read.get("api_error") or read.get("msg") or "the cluster did not answer"
        left_out = {host["host"]: f"the cluster could not be read: {why}" for host in cluster.hosts}
        return {"namespace": cluster.namespace, "objects": [], "pods": [], "left_out": left_out}
    # Pods of the user and GPU pods are not measured.
    plan = test_pods.plan(cluster._replace(pod_name=None, gpu_class=None))
    return test_pods.only(plan, {pod["name"] for pod in plan["pods"] if _needed(pod, plan["pods"])})


def _needed(pod: dict, every: list[dict]) -> bool:
    kinds = {other["kind"] for other in every if other["host"] == pod["host"]}
    if all(rail["kind"] == "software" for rail in pod["rails"]):
        return pod["kind"] == "host"
    return pod["kind"] in ("rails", "host") or (pod["kind"] == "workload" and "rails" not in kinds)


def plan(cluster: dict, nodes: list[dict], options: dict) -> dict:
    """The rounds, as matrix_plan.plan returns them.

    cluster: plan (result of `pods`), run (what test_pods returned), port. nodes: as for matrix_plan.plan.
    """
    on_host = {end["id"]: end for node in nodes for end in matrix_plan.ends_of(node)}
    states, answers = cluster["run"].get("pods") or {}, cluster["run"].get("answers") or {}
    ends = []
    for pod in cluster["plan"]["pods"]:
        said = answers.get(pod["name"])
        for rail in pod["rails"]:
            known = on_host.get((pod["host"], rail["index"], rail["hca"], rail["port"]))
            if known and (rail["kind"] == "software") == (pod["kind"] == "host"):
                answer = pod_probe.parse(said) if said else None
                ends.append(_end(pod, rail, known, answer, _why(states.get(pod["name"]), answer, cluster["run"])))
    base_ports = {end["node"]: cluster["port"] for end in ends}
    # The test pods ask for no GPU.
    planned = matrix_plan.plan_pods(ends, base_ports, {**options, "cuda": False})
    for host, reason in cluster["plan"]["left_out"].items():
        planned["alone"] += [matrix_plan.without(end, reason) for end in on_host.values() if end["host"] == host]
    return planned


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
