"""The pods that verification runs, and the traffic between them.

Pure. Standard library only: the pods are planned on the controller, their traffic on the server node, once their
addresses are known.

Kinds of pod on each node. `workload`: uid 1000, one resource, one attachment, within the profile `restricted`.
`claim`: the same with a claim (DRA), if both are served. `aligned`: a claim for a GPU and an HCA at one PCIe root.
`seed`: root with IPC_LOCK added, as published guides write it. `rails`: every rail at once, net1 to netN. `host`: in
the node's own network, for HCAs without verbs in other network namespaces (soft-RoCE).
"""

from __future__ import annotations

import ipaddress
import json

from .._cni import nad_lint
from .._core import text as core_text
from .._device_plugin import config
from .._device_plugin.dra import CLASS, PCIE_ROOT
from . import dra
from .ownership import OWNER_LABEL, TESTS

NAMESPACE_LABELS = {
    "pod-security.kubernetes.io/enforce": "privileged",
    "pod-security.kubernetes.io/warn": "privileged",
    "pod-security.kubernetes.io/audit": "privileged",
    "app.kubernetes.io/managed-by": "gpufabric.rdma",
    OWNER_LABEL: TESTS,
}
# Paths of the node's own tools, see containerd.tools.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
STATUS = "k8s.v1.cni.cncf.io/network-status"
# Of Multus: the network that takes the place of the pod network.
DEFAULT = "v1.multus-cni.io/default-network"
RESOURCE = "k8s.v1.cni.cncf.io/resourceName"
TOLERATIONS = (
    {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
)
# A headless Service over the workload pods: ranks of MPI and torchrun reach each other by such names.
PEERS = "peers"
# Pods end on their own in case an interrupted run does not remove them.
_DEADLINE = 1800
SOFTWARE_REASON = (
    "soft-RoCE sends through the network namespace of the node, so a pod's own interface has no verbs; the pod in the "
    "node's network tests them instead"
)
NO_IMAGE = (
    "containerd's configuration has no sandbox image (sandbox_image), over which the node's own tools are "
    "mounted; set verification_image to an image with the tools"
)


# --- what to test -----------------------------------------------------------------------------------------------------


def find_node(host: dict, nodes: list[dict]):
    """The cluster node of an inventory host: by name, else by one of its addresses."""
    return find_nodes([host], nodes)[host["host"]]


def find_nodes(hosts: list[dict], nodes: list[dict]) -> dict:
    """{host: its cluster node, or None}, without comparing each node with each host."""
    by_name: dict = {}
    by_address: dict = {}
    for number, node in enumerate(nodes):
        by_name.setdefault(node["name"].lower(), node)
        for address in node["addresses"]:
            by_address.setdefault(address, number)
    by_host = {}
    for host in hosts:
        node = by_name.get(host["host"].lower())
        if node is None:
            held = (address.partition("/")[0] for netdev in host["netdevs"].values() for address in netdev["addresses"])
            numbers = [by_address[address] for address in held if address in by_address]
            node = nodes[min(numbers)] if numbers else None
        by_host[host["host"]] = node
    return by_host


def own_resource(index: int) -> str:
    """The resource that the role device_plugin creates for a rail."""
    return f"rdma/{config.NAME.format(index=index)}"


def rails_of(host: dict, node: dict, networks: list[dict]) -> list[dict]:
    """Each RDMA resource of a node, or class of a rail that it offers over DRA, with its attachment, in the rails'
    order.

    host: host, rails (index, hca, port, netdev, link_layer, kind, char_devices, traffic_class), netdevs. networks: as
    from nad_lint.from_objects. Each rail has `networks`, those of the node itself on its netdev.
    """
    known = [{**rail, "networks": _own_networks(host["netdevs"].get(rail["netdev"]))} for rail in host["rails"]]
    rails = {own_resource(rail["index"]): rail for rail in known}
    by_netdev = {rail["netdev"]: rail for rail in known if rail["netdev"]}
    offered, attached = [], set()
    for network in networks:
        name = network["resource"]
        if name in node["capacity"] and (name, network["name"]) not in attached:
            attached.add((name, network["name"]))
            rail = by_netdev.get(nad_lint.type_and_master(network, host["host"])[1]) or rails.get(name)
            offered.append({"resource": name, "class": None, "rail": rail, "network": network})
    alone = set(node["capacity"]) - {name for name, _network in attached}
    offered += [
        {"resource": name, "class": None, "rail": rails.get(name), "network": None}
        for name in alone
        if name in rails or name.startswith("rdma/")
    ]
    offered += _over_dra(host, node, known, networks)
    return sorted(
        offered, key=lambda each: ((each["rail"] or {}).get("index", 1000), each["resource"] or each["class"])
    )


def _over_dra(host: dict, node: dict, rails: list[dict], networks: list[dict]):
    """The rails whose class a node's slices serve, each with the network on its netdev."""
    for hca in node.get("hcas") or []:
        rail = next((rail for rail in rails if rail["index"] == hca["rail"]), None)
        if rail is None or hca["class"] is None:
            continue
        on = (network for network in networks if nad_lint.type_and_master(network, host["host"])[1] == rail["netdev"])
        network = next(on, None) if rail["netdev"] else None
        yield {"resource": None, "class": hca["class"], "rail": rail, "network": network}


def _own_networks(netdev) -> list[str]:
    """Networks of a netdev's addresses; not the link-local ones, which say nothing about a shared link."""
    held = [ipaddress.ip_interface(address) for address in (netdev or {}).get("addresses") or []]
    return sorted(
        {str(interface.network) for interface in held if not (interface.ip.is_link_local or interface.ip.is_loopback)}
    )


# --- pods -------------------------------------------------------------------------------------------------------------


def plan(hosts: list[dict], cluster: dict, options: dict) -> dict:
    """namespace, objects (to apply) and pods (with their purpose).

    hosts: see rails_of, and netdevs, tools (as from containerd.tools). cluster: nodes, networks, nads (objects).
    options: namespace, image (None: the node's own tools), gpu_class (DeviceClass of GPUs, "" for none).
    A host that is not a cluster node, or has no resource or image, gets no pod; `left_out` lists it with the reason.
    """
    pods, manifests, left_out, used = [], [], {}, {}
    known = core_text.names(sorted(item["name"] for item in cluster["nodes"])) or "none"
    by_host = find_nodes(hosts, cluster["nodes"])
    for host in hosts:
        node = by_host[host["host"]]
        if node is None:
            left_out[host["host"]] = f"no node of the cluster has its name or one of its addresses; nodes: {known}"
            continue
        served = rails_of(host, node, cluster["networks"])
        if not served:
            left_out[host["host"]] = (
                f"node {node['name']} has no RDMA resource in its capacity, and no rail with a class in a ResourceSlice"
            )
            continue
        tools = {"image": options["image"], "mounts": {}} if options["image"] else host["tools"]
        if tools["image"] is None:
            left_out[host["host"]] = NO_IMAGE
            continue
        for item in served:
            if item["network"]:
                used[item["network"]["name"]] = item["network"]["namespace"]
        first = next((item for item in served if item["network"]), served[0])
        own = [_pod("workload", host, node, [first]), _pod("seed", host, node, [first])]
        if len(served) > 1:
            own.append(_pod("rails", host, node, served))
        if any((item["rail"] or {}).get("kind") == "software" for item in served):
            own.append(_pod("host", host, node, served))
        over_dra = [item for item in served if item["class"]]
        if over_dra and not first["class"]:
            own.append(_pod("claim", host, node, over_dra[:1]))
        if over_dra and options.get("gpu_class") and dra.neighbours(cluster["dra"], node["name"]):
            requests = {"gpu": options["gpu_class"], "rail": CLASS}
            own.append({**_pod("aligned", host, node, []), "requests": requests, "matched": True})
        manifests += [template(pod, options["namespace"]) for pod in own if pod["requests"]]
        manifests += [manifest(pod, options["namespace"], tools) for pod in own]
        pods += [{**pod, "node_tools": bool(tools["mounts"])} for pod in own]
    namespace = options["namespace"]
    _name_peers(pods)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": NAMESPACE_LABELS}}
    objects = [space, peers_service(namespace)] if pods else []
    for nad in cluster["nads"]:
        if used.get(nad["metadata"]["name"]) == nad["metadata"].get("namespace", ""):
            objects.append(_copied(nad, namespace))
    objects += manifests
    return {"namespace": namespace, "objects": objects, "pods": pods, "left_out": left_out}


def peers_service(namespace: str) -> dict:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": PEERS, "namespace": namespace},
        "spec": {
            "clusterIP": "None",
            "selector": {"rdma.gpufabric.io/test": "workload"},
            # Like a training job's: the ranks look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
        },
    }


def _host_name(pod: dict) -> str:
    return pod["name"].replace(".", "-")


def _name_peers(pods: list[dict]) -> None:
    """Each workload resolves the next one, the last one the first; on a single node its own name."""
    carrying = [pod for pod in pods if pod["kind"] == "workload"]
    for pod, other in zip(carrying, [*carrying[1:], *carrying[:1]]):
        pod["peer"] = {"pod": other["name"], "name": f"{_host_name(other)}.{PEERS}"}


def _copied(nad: dict, namespace: str) -> dict:
    """The definition in the tests' namespace, because pods in isolated namespaces cannot use another's."""
    annotations = nad["metadata"].get("annotations") or {}
    kept = {key: value for key, value in annotations.items() if key == RESOURCE}
    metadata = {"name": nad["metadata"]["name"], "namespace": namespace, **({"annotations": kept} if kept else {})}
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": metadata,
        "spec": nad.get("spec") or {},
    }


def _pod(kind: str, host: dict, node: dict, served: list[dict]) -> dict:
    attached = [] if kind == "host" else [item for item in served if item["network"]]
    return {
        "name": f"{kind}-{node['name']}"[:63].rstrip("-."),
        "kind": kind,
        "host": host["host"],
        "node": node["name"],
        "resources": list(dict.fromkeys(item["resource"] for item in served if item["resource"])),
        # For a claim: {its name: DeviceClass}.
        "requests": {f"rail-{item['rail']['index']}": item["class"] for item in served if item["class"]},
        "rails": [item["rail"] for item in served if item["rail"]],
        "attachments": [
            {
                "interface": f"net{number}",
                "network": item["network"]["name"],
                "resource": item["resource"],
                "rail": item["rail"],
            }
            for number, item in enumerate(attached, 1)
        ],
    }


def template(pod: dict, namespace: str) -> dict:
    devices: dict = {
        "requests": [{"name": name, "exactly": {"deviceClassName": kind}} for name, kind in pod["requests"].items()]
    }
    if pod.get("matched"):
        devices["constraints"] = [{"requests": list(pod["requests"]), "matchAttribute": PCIE_ROOT}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": pod["name"], "namespace": namespace},
        "spec": {"spec": {"devices": devices}},
    }


def manifest(pod: dict, namespace: str, tools: dict) -> dict:
    """The pod's object. tools: image and mounts (path in the pod: path on the node), as from containerd.tools."""
    metadata: dict = {"name": pod["name"], "namespace": namespace, "labels": {"rdma.gpufabric.io/test": pod["kind"]}}
    if pod["attachments"]:
        wanted = [{"name": item["network"], "interface": item["interface"]} for item in pod["attachments"]]
        metadata["annotations"] = {NETWORKS: json.dumps(wanted)}
    spec: dict = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "activeDeadlineSeconds": _DEADLINE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {"kubernetes.io/hostname": pod["node"]},
        "tolerations": list(TOLERATIONS),
        "securityContext": {},
        "containers": [
            {
                "name": "test",
                "image": tools["image"],
                "imagePullPolicy": "IfNotPresent",
                "command": ["sleep", str(_DEADLINE)],
                "resources": {
                    "requests": {"cpu": "10m", "memory": "32Mi"},
                    "limits": dict.fromkeys(pod["resources"], "1"),
                },
                "securityContext": {},
            }
        ],
    }
    container = spec["containers"][0]
    if pod["kind"] == "workload":
        spec.update(hostname=_host_name(pod), subdomain=PEERS)
    if pod["requests"]:
        spec["resourceClaims"] = [{"name": "hcas", "resourceClaimTemplateName": pod["name"]}]
        container["resources"]["claims"] = [{"name": "hcas"}]
    if tools["mounts"]:
        mount_tools(spec, tools)
    if pod["kind"] == "host":
        spec.update(hostNetwork=True, dnsPolicy="ClusterFirstWithHostNet")
    if pod["kind"] in ("host", "seed"):
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    else:
        spec["securityContext"] = {
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            # ping without a capability: a safe sysctl, in the pod's own network namespace.
            "sysctls": [{"name": "net.ipv4.ping_group_range", "value": "0 2147483647"}],
        }
        container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def mount_tools(spec: dict, tools: dict) -> None:
    """The pod's only container gets the image of the sandboxes and, over it, the node's folders.

    tools: image and mounts, as from containerd.tools.
    """
    names = {path: f"node-{number}" for number, path in enumerate(tools["mounts"])}
    spec["volumes"] = [{"name": name, "hostPath": {"path": tools["mounts"][path]}} for path, name in names.items()]
    spec["containers"][0].update(
        image=tools["image"],
        # A node that runs pods has this image, so no registry is needed.
        imagePullPolicy="Never",
        env=[{"name": "PATH", "value": PATH}],
        volumeMounts=[{"name": name, "mountPath": path, "readOnly": True} for path, name in names.items()],
    )


# --- traffic ----------------------------------------------------------------------------------------------------------


def traffic(pods: list[dict], answers: dict, base_port: int) -> dict:
    """tests (ping, rping and ib_write_bw between the pods of neighbouring nodes) and left_out, each with its reason.

    answers: {pod name: parsed probe}. Each rail's nodes form a chain, or several if the nodes' own addresses on the
    rail are in different networks, as on the host. Tests have the form that _traffic.fabric runs.
    """
    tests, left_out = [], []
    unknown = {pod["host"]: answers[pod["name"]] for pod in pods if _unanswered(answers.get(pod["name"]))}
    ends = [end for pod in pods for end in ends_of(pod, answers.get(pod["name"]))]
    numbers = sorted({end["rail"] for end in ends})
    ports = {pod["node"]: base_port for pod in pods}
    for number in numbers:
        plain = _chains(one_a_node([end for end in ends if end["rail"] == number and end["kind"] != "host"]))
        hosted = _chains([end for end in ends if end["rail"] == number and end["kind"] == "host"])
        for client, server in _neighbours(plain):
            if client["ip"] and server["ip"]:
                tests.append(_test("ping", client, server, server["ip"], 0))
            if "software" in (client["hca_kind"], server["hca_kind"]):
                left_out.append({"rail": number, "host": client["host"], "what": "net", "reason": SOFTWARE_REASON})
            else:
                left_out += _unaddressed(client, server)
                tests += _verbs(client, server, ports)
        for client, server in _neighbours(hosted):
            left_out += _unaddressed(client, server)
            tests += _verbs(client, server, ports)
        left_out += [_alone(chain[0], plain, unknown) for chain in plain if len(chain) == 1]
    return {"tests": tests, "left_out": left_out}


def _chains(ends: list[dict]) -> list[list[dict]]:
    """The ends in order, as one chain unless two of them are known to be on different links."""
    chains: list[list[dict]] = []
    for end in ends:
        for chain in chains:
            if _may_meet(chain[-1], end):
                chain.append(end)
                break
        else:
            chains.append([end])
    return chains


def _may_meet(one: dict, other: dict) -> bool:
    return not (one["networks"] and other["networks"]) or bool(set(one["networks"]) & set(other["networks"]))


def _neighbours(chains: list[list[dict]]) -> list[tuple[dict, dict]]:
    return [pair for chain in chains for pair in zip(chain, chain[1:])]


def _unanswered(answer) -> bool:
    return bool(answer) and not {"exec", "unanswered"}.isdisjoint(answer["missing"])


def _unaddressed(client: dict, server: dict) -> list[dict]:
    """Without an address of the server's pod nothing can be sent to it."""
    if server["ip"] or server["management"]:
        return []
    reason = f"no address of pod {server['pod']} on {server['node']} is known"
    return [{"rail": client["rail"], "host": client["host"], "what": "peer", "reason": reason}]


def _alone(end: dict, chains: list[list[dict]], unknown: dict) -> dict:
    silent = sorted(host for host in unknown if host != end["host"])
    others = [other for chain in chains for other in chain if other is not end]
    if others:
        here = ", ".join(end["networks"])
        there = ", ".join(f"{other['host']} {' '.join(other['networks'])}" for other in others[:3])
        what, reason = "wire", f"no peer in {here}: rail {end['rail']} of {there}"
    elif silent:
        what, reason = "peer", f"no peer: the test pod on {silent[0]} did not answer"
    else:
        what, reason = "peer", "no peer: no other node runs a test pod on this rail"
    return {"rail": end["rail"], "host": end["host"], "what": what, "reason": reason}


def ends_of(pod: dict, answer):
    """The rails a running pod can send on; with the address and the GID index from its own probe."""
    if answer is None or _unanswered(answer):
        return
    interfaces = {item["rail"]["index"]: item["interface"] for item in pod["attachments"] if item["rail"]}
    for rail in pod["rails"] if pod["kind"] != "seed" else []:
        interface = rail["netdev"] if pod["kind"] == "host" else interfaces.get(rail["index"])
        addresses = answer["addresses"].get(interface or "") or []
        ip = addresses[0].partition("/")[0] if addresses else None
        network = str(ipaddress.ip_interface(addresses[0]).network) if ip else None
        eth0 = next((address.partition("/")[0] for address in answer["addresses"].get("eth0") or []), None)
        yield {
            "pod": pod["name"],
            "kind": pod["kind"],
            "host": pod["host"],
            "node": pod["node"],
            "rail": rail["index"],
            "interface": interface,
            "ip": ip,
            "network": network,
            "networks": rail["networks"],
            "management": eth0,
            "hca": rail["hca"],
            "port": rail["port"],
            "hca_kind": rail["kind"],
            "link_layer": rail["link_layer"],
            "gid": gid_index(answer["gids"], rail["hca"], ip),
            "traffic_class": rail.get("traffic_class"),
        }


def one_a_node(ends: list[dict]) -> list[dict]:
    """One end per node: the pod with all rails before the one with a single one."""
    chosen: dict = {}
    for end in ends:
        known = chosen.get(end["node"])
        if known is None or (known["kind"], end["kind"]) == ("workload", "rails"):
            chosen[end["node"]] = end
    return [chosen[node] for node in sorted(chosen)]


def gid_index(gids: list[dict], hca: str, ip):
    """Index of the RoCE v2 GID of an address in the pod's own table; None if it is missing."""
    own = (gid for gid in gids if gid["hca"] == hca and gid["type"] == "RoCE v2")
    return next((gid["index"] for gid in own if ip and gid_address(gid["gid"]) == ip), None)


def gid_address(gid: str) -> str | None:
    """The address in a RoCE GID; None if the text is not a GID."""
    try:
        address = ipaddress.IPv6Address(gid)
    except ValueError:
        return None
    return str(address.ipv4_mapped or address)


def _verbs(client: dict, server: dict, ports: dict) -> list[dict]:
    tests = []
    for tool in ("rping", "ib_write_bw"):
        if tool == "rping" and not server["ip"]:
            continue  # rdma_cm resolves IP addresses only
        port = ports[server["node"]]
        ports[server["node"]] += 1
        # ib_write_bw exchanges its queue pair numbers over TCP; the pod network is enough for that.
        address = server["ip"] or server["management"]
        if address is None:
            continue
        tests.append(_test(tool, client, server, address, port))
    return tests


def _test(tool: str, client: dict, server: dict, address, port: int) -> dict:
    def side(end):
        gid = None if end["link_layer"] == "InfiniBand" else end["gid"]
        kept = ("pod", "host", "hca", "port", "ip", "interface", "traffic_class")
        return {**{key: end[key] for key in kept}, "gid": gid}

    place = "the node's network" if client["kind"] == "host" else client["interface"] or "verbs alone"
    return {
        "id": f"pod-rail{client['rail']}-{client['node']}-{server['node']}-{client['kind']}-{tool}",
        "tool": tool,
        "rail": client["rail"],
        "place": place,
        "address": address,
        "tcp_port": port,
        "client": side(client),
        "server": side(server),
    }


# The kernel refuses (126) a program with a file capability that the pod's bounding set lacks. Run by the loader, the
# same program has no capability and sends through a ping socket.
_PING = """ping "$@"; code=$?
[ "$code" = 126 ] || exit "$code"
for loader in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do
    [ ! -e "$loader" ] || exec "$loader" "$(command -v ping)" "$@"
done
exit "$code"
"""


def ping_command(test: dict) -> list[str]:
    words = ["ping", "-c", "3", "-W", "2", "-I", test["client"]["interface"], test["address"]]
    return ["sh", "-c", _PING, *words]
