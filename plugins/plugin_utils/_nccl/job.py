"""The all-reduce job for the rails in the facts.

Pure. Two forms: `job`, an indexed Job whose pods find each other by a headless Service, with torchrun and no operator;
`mpijob`, all_reduce_perf of nccl-tests under the Kubeflow MPI operator (kubeflow.org/v2beta1), which this collection
does not install. Evidence level E5: no test of this project has run either.
"""

import json
import re

from ...module_utils._core import text
from ...module_utils._core.change import Finding, at
from .._core.addresses import netaddr
from .._core.rails import network_rails
from .._preflight import fabric_plan
from .._preflight import networks as network_plan

NAME = "gpufabric-all-reduce"
JOB, MPIJOB = "job", "mpijob"
_PORT = 29500  # torchrun's own default
_SCRIPTS = "/opt/gpufabric"
_SECONDS = 1800
_PINNED = re.compile(r"@sha256:[0-9a-f]{64}$")


def rail_networks(nodes: list[dict], variables: dict) -> tuple[list[str], str | None]:
    """What the role networks plans for the rails: (NAMESPACE/NAME in the order of the rails, the smallest network that
    holds all of their subnets, None if a subnet is not known). variables: networks_* of the play.
    """
    known = [{"host": node["host"], "rails": network_rails(node["facts"])} for node in nodes]
    planned = [item for item in network_plan.wanted(variables, known)[0] if item.get("rail") is not None]
    planned.sort(key=lambda item: item["rail"])
    subnets = [item.get("subnet") for item in planned]
    return [f"{item['namespaces'][0]}/{item['name']}" for item in planned], None if None in subnets else _span(subnets)


def _span(subnets: list[str]) -> str | None:
    if len({netaddr.IPNetwork(subnet).version for subnet in subnets}) != 1:
        return None
    span = netaddr.IPNetwork(subnets[0])
    while not all(netaddr.IPNetwork(subnet) in span for subnet in subnets):
        span.prefixlen -= 1
    return str(span.cidr)


def findings(nodes: list[dict], options: dict) -> list[dict]:
    """What prevents the job, of all hosts (see at). nodes: host, facts. options: see `objects`."""
    problems = []

    def add(obj, wanted, seen, step, host="all nodes"):
        problems.extend(at(host, [Finding(obj, wanted, seen, step)]))

    if not options["image"] or not _PINNED.search(options["image"]):
        seen = options["image"] or "not set"
        holds = "PyTorch with NCCL" if options["form"] == JOB else "nccl-tests, MPI and sshd"
        step = f"set it to an image with {holds} that you trust, by its digest"
        add("variable nccl_tests_image", "an image pinned by digest, NAME@sha256:…", seen, step)
    if len(nodes) < 2:
        add("nodes", "two nodes or more", text.count(len(nodes), "node"), "add nodes to the play")
    for node in nodes:
        if not node["facts"]["rails"]:
            add("rails", "a rail or more", "none", "run playbooks/discover.yml to see why", node["host"])
        if not (options["gpus_per_node"] or node["facts"]["gpus"]):
            add("GPUs", "a GPU or more", "the facts show none", "set nccl_tests_gpus_per_node", node["host"])
    roce = [node for node in nodes if "Ethernet" in {rail["link_layer"] for rail in network_rails(node["facts"])}]
    if roce and not options["networks"]:
        step = "set networks_rails: true, or name them in nccl_tests_networks: without one a pod has no GID"
        add("variable nccl_tests_networks", "a network for each RoCE rail", "none", step)
    rails = {rail["hca"] for node in nodes for rail in node["facts"]["rails"]}
    for node in nodes:
        own = {rail["hca"] for rail in node["facts"]["rails"]}
        other = {hca["name"] for hca in node["facts"]["hcas"]} - own
        for name in sorted(other & rails):
            step = "give the HCAs the same names on all nodes, or run the job on nodes that agree"
            seen = f"{name} is a rail elsewhere and none here"
            add("NCCL_IB_HCA", "one list of names that fits every node", seen, step, node["host"])
    return problems


def environment(nodes: list[dict], options: dict) -> dict:
    """The variables that all ranks get. No GID index: it differs from pod to pod."""
    ports = {(rail["hca"], rail["port"]): rail["index"] for node in nodes for rail in node["facts"]["rails"]}
    names = [f"{hca}:{port}" for hca, port in sorted(ports, key=lambda key: (ports[key], key))]
    layers = {rail["link_layer"] for node in nodes for rail in network_rails(node["facts"])}
    return {
        "NCCL_DEBUG": "INFO",
        # `=` matches these names exactly, not as prefixes.
        "NCCL_IB_HCA": f"={','.join(names)}",
        **({"NCCL_IB_ADDR_RANGE": options["address_range"]} if options["address_range"] else {}),
        "NCCL_SOCKET_IFNAME": "eth0",
        **fabric_plan.environment(fabric_plan.of(options["fabric_plan"]), layers),
    }


def objects(nodes: list[dict], options: dict) -> list[dict]:
    """Namespace and parts of the job.

    options: form, image, namespace, networks, gpus_per_node, address_range, resources (as device_plugin_resources),
    script (the text of all_reduce.py, for the form job), fabric_plan.
    """
    gpus = options["gpus_per_node"] or min(len(node["facts"]["gpus"]) for node in nodes)
    workload = _job if options["form"] == JOB else _mpijob
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options["namespace"]}}
    return [namespace, *workload(nodes, gpus, options)]


def _worker(nodes: list[dict], gpus: int, options: dict, labels: dict, command: list[str] | None) -> dict:
    """The template of the pods with GPUs and rails, one per node."""
    rails = dict.fromkeys(network_plan.shared_resources(options["resources"], [node["facts"] for node in nodes]), "1")
    container = {
        "name": "worker",
        "image": options["image"],
        **({"command": command} if command else {}),
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "resources": {"limits": {"nvidia.com/gpu": str(gpus), **rails}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    networks = json.dumps([_network(name) for name in options["networks"]])
    return {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": networks}} if options["networks"] else {},
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        },
    }


def _job(nodes: list[dict], gpus: int, options: dict) -> list[dict]:
    """Script, headless Service and indexed Job. Pod 0 is where all ranks meet."""
    metadata = {"name": NAME, "namespace": options["namespace"]}
    labels = {"batch.kubernetes.io/job-name": NAME}
    words = (
        f"torchrun --nnodes={len(nodes)} --nproc-per-node={gpus} --master-addr={NAME}-0.{NAME} --master-port={_PORT}"
    )
    command = ["sh", "-c", f'exec {words} --node-rank="$JOB_COMPLETION_INDEX" {_SCRIPTS}/all_reduce.py']
    template = _worker(nodes, gpus, options, labels, command)
    spec = template["spec"]
    (container,) = spec["containers"]
    container["env"] = [{"name": name, "value": value} for name, value in environment(nodes, options).items()]
    container["volumeMounts"].append({"name": "scripts", "mountPath": _SCRIPTS, "readOnly": True})
    spec["volumes"].append({"name": "scripts", "configMap": {"name": NAME}})
    spec.update(subdomain=NAME, restartPolicy="Never")
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"all_reduce.py": options["script"]}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": labels,
                "ports": [{"name": "rendezvous", "port": _PORT}],
            },
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "completionMode": "Indexed",
                "completions": len(nodes),
                "parallelism": len(nodes),
                "backoffLimit": 0,
                "activeDeadlineSeconds": _SECONDS,
                "template": template,
            },
        },
    ]


def _mpijob(nodes: list[dict], gpus: int, options: dict) -> list[dict]:
    words = ["mpirun", "--allow-run-as-root", "--tag-output", "-np", str(gpus * len(nodes)), "--bind-to", "none"]
    # MPI only starts the ranks; its own traffic stays on the pod network.
    for name, value in {**environment(nodes, options), "UCX_NET_DEVICES": "eth0"}.items():
        words += ["-x", f"{name}={value}"]
    words += ["all_reduce_perf", "-b", "8", "-e", "8G", "-f", "2", "-g", "1"]
    labels = {"training.kubeflow.org/job-name": NAME, "training.kubeflow.org/job-role": "worker"}
    worker = _worker(nodes, gpus, options, labels, None)
    launcher = {"spec": {"containers": [{"name": "launcher", "image": options["image"], "command": words}]}}
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": NAME, "namespace": options["namespace"]},
            "spec": {
                "slotsPerWorker": gpus,
                "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": 0, "activeDeadlineSeconds": _SECONDS},
                "mpiReplicaSpecs": {
                    "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launcher},
                    "Worker": {"replicas": len(nodes), "template": worker},
                },
            },
        }
    ]


def _network(name: str) -> dict:
    namespace, _slash, own = name.rpartition("/")
    return {"name": own, **({"namespace": namespace} if namespace else {})}
