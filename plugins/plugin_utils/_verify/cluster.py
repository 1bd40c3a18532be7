"""A cluster, as input for planning and judging its test pods. Pure."""

from typing import NamedTuple

from .._core import fleet
from .._core.rails import dra_rails, network_rails
from .._preflight import fabric_plan


class Cluster(NamedTuple):
    hosts: list[dict]  # as from host_of
    read: dict  # what cluster_info returned
    namespace: str = "gpufabric-verification"
    image: str | None = None  # None: the nodes' own tools
    gpu_class: str | None = None
    pod_name: str | None = None  # of a user's pod, instead of test pods
    service_cidrs: list[str] = []
    pods_per_node: int | None = None
    masters: list[str] = []  # interfaces of default routes that pods may share
    fabric_allowed: bool = False  # whether pod traffic may share a rail
    plan: dict = {}  # of the test pods
    run: dict = {}  # what test_pods returned
    stopped: dict = {}  # the same, as it removed them
    pod: dict = {}  # the user's, as cluster_info returned it
    failure: str = ""  # why the pod tests stopped


def of_play(hosts: list[dict], read: dict, variables: dict) -> Cluster:
    """Before any pod runs. variables: typed, of the node that runs the task."""
    return Cluster(
        hosts,
        read,
        namespace=variables["verification_namespace"],
        image=variables["verification_image"],
        gpu_class=variables["verification_gpu_class"],
        pod_name=variables["verification_pod"],
        service_cidrs=variables["k3s_service_cidr"].split(","),
        pods_per_node=variables["networks_pods_per_node"],
        masters=variables["networks_default_route_masters"],
        fabric_allowed=variables["flannel_fabric_allowed"],
    )


def places(known: list[dict]) -> list[dict]:
    """Input for planning pods on the nodes whose networks were read. known: node and cni, what cni_lint returned."""
    return [
        host_of(of_host["node"], of_host.get("cni"))
        for of_host in known
        if of_host["node"]["read"].get("networks") and not fleet.failure(of_host.get("cni"))
    ]


def host_of(node: dict, cni: dict | None = None) -> dict:
    """Input for planning pods on a node. cni: what cni_lint returned, if it ran.

    node: host, variables, read with networks (as from node_facts), and the RDMA facts in either.
    """
    variables, networks = node["variables"], node["read"]["networks"]
    facts = node["facts"] if "facts" in node else node["read"]["ansible_facts"]["rdma"]
    plan = fabric_plan.of(variables["fabric_plan"])
    rails = [{**rail, "traffic_class": fabric_plan.side(plan, rail["link_layer"])} for rail in network_rails(facts)]
    return {
        "host": node["host"],
        "rails": rails,
        "dra_rails": list(dra_rails(variables, facts)),
        **{key: networks[key] for key in ("netdevs", "routes", "files", "tools")},
        **({} if cni is None else {"cni": cni}),
    }
