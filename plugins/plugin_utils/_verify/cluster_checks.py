"""Faults in a cluster's device plugins, policies, labels and pod network. A missing object is not a fault. Pure."""

import json

from ...module_utils._core import text as core_text
from ...module_utils._device_plugin import config
from ...module_utils._kube import pods as kube_pods
from .._core.addresses import netaddr
from .._findings.checks import FAILED, check
from .._preflight import pod_network

# The Pod Security level that a namespace needs for pods that use the node's devices.
_LEVEL = "privileged"
_READY = ("ready", "ignore")
# Driver flavors that a container must not load a second time.
_HOST_DRIVERS = ("doca", "mlnx_ofed")
_VXLAN_LINK = pod_network.LINKS["vxlan"]
_FEATURE = "feature.node.kubernetes.io/"


def lint(cluster: dict, hosts: list[dict], drivers: dict, fabric_allowed: bool = False) -> list[tuple[str, dict]]:
    """(host, failed check) for each fault. Faults of an object of the cluster are listed under the first host.

    cluster: nodes, policies (with status), plugins (DaemonSets of device plugins, their ConfigMaps),
    cni (those of Flannel), security ({namespace: level that Pod Security enforces}); any may be absent.
    hosts: host, rails, netdevs. drivers: {host: driver facts}. fabric_allowed: whether pod traffic may share a rail.
    """
    first = hosts[0]["host"]
    checks = [(first, item) for item in _policies(cluster)]
    checks += [(first, item) for item in _security(cluster)]
    configs, broken = _configs(cluster)
    checks += [(first, item) for item in broken]
    known = kube_pods.find_nodes(hosts, cluster["nodes"])
    for host in hosts:
        node = known[host["host"]]
        if node is None:
            continue
        of_host = [*_driver(cluster, host, node, drivers.get(host["host"])), *_labels(cluster, host, node)]
        mine = [(_title(item), entries) for item, entries in configs if _meant(item, node)]
        of_host += [*_selected(mine, host, node), *_pod_cidr(cluster, node), *_pod_nic(host, node, fabric_allowed)]
        checks += [(host["host"], item) for item in of_host]
    return checks


def _title(item: dict) -> str:
    space = item["metadata"].get("namespace")
    return f"{item['kind']} {space + '/' if space else ''}{item['metadata']['name']}"


def _config_of(policy: dict):
    return ((policy["spec"] or {}).get("rdmaSharedDevicePlugin") or {}).get("config")


def _policies(cluster: dict):
    for policy in cluster.get("policies") or []:
        given = _config_of(policy)
        if given is not None and not isinstance(given, str):
            seen = f"a {'list' if isinstance(given, list) else 'mapping'} in YAML"
            step = "write it as a block scalar (config: |) with valid JSON"
            wanted = "rdmaSharedDevicePlugin.config as a JSON string"
            yield check("policy:config", _title(policy), FAILED, wanted, seen, step)
        status = policy.get("status") or {}
        late = [
            f"{state['name']} {state['state']}"
            for state in status.get("appliedStates") or []
            if state["state"] not in _READY
        ]
        if status.get("state") not in (None, "ready") or late:
            seen = f"{status.get('state') or 'no state'}" + (f"; {core_text.listing(late)}" if late else "")
            step = "see the log of the operator and of the component's pods in its namespace"
            yield check("policy:state", _title(policy), FAILED, "ready, with all its components", seen, step)


def _driver(cluster: dict, host: dict, node: dict, driver):
    installed = ((driver or {}).get("installed") or {}).get("flavor")
    if installed not in _HOST_DRIVERS:
        return
    step = f"remove the ofedDriver block from the policy, or {installed} from the node"
    obj, wanted = f"driver of {host['host']}", "one source of the driver: the host or a container"
    for policy in cluster.get("policies") or []:
        if (policy["spec"] or {}).get("ofedDriver") and _meant(policy, node):
            seen = f"{installed} is installed on the node, and {_title(policy)} sets ofedDriver"
            yield check("policy:driver", obj, FAILED, wanted, seen, step)


def _meant(item: dict, node: dict) -> bool:
    """Whether an object is for a node: a NicNodePolicy selects some, anything else is for all."""
    return ((item.get("spec") or {}).get("nodeSelector") or {}).items() <= (node.get("labels") or {}).items()


def _configs(cluster: dict) -> tuple[list[tuple[dict, list]], list[dict]]:
    """([(object, its configList)], checks of those that cannot be read)."""
    texts = [
        (item, item["data"]["config.json"], "plugin:config")
        for item in cluster.get("plugins") or []
        if item["kind"] == "ConfigMap" and "config.json" in item["data"]
    ]
    texts += [
        (policy, given, "policy:config")
        for policy in cluster.get("policies") or []
        for given in [_config_of(policy)]
        if isinstance(given, str)
    ]
    lists, checks = [], []
    for item, text, identity in texts:
        try:
            document = json.loads(text)
        except ValueError as error:
            document, seen = None, f"not valid JSON: {error}"
        else:
            seen = "JSON without configList"
        entries = document.get("configList") if isinstance(document, dict) else None
        if isinstance(entries, list) and entries and all(isinstance(entry, dict) for entry in entries):
            lists.append((item, entries))
        else:
            step = "correct it; the plugin exits on it (CrashLoopBackOff)"
            checks.append(check(identity, _title(item), FAILED, "JSON with a configList", seen, step))
    return lists, checks


def _selected(configs: list, host: dict, node: dict) -> list[dict]:
    """Rails that no entry selects. Only ifNames is checked: other selectors may match anything."""
    rails = {rail["netdev"]: rail for rail in host["rails"] if rail["netdev"]}
    every = [entry for _title_of, entries in configs for entry in entries]
    lists = [config.interfaces(entry) for entry in every if not config.keys(entry).get("extraselectors")]
    if not rails or not every or len(lists) < len(every) or not all(lists):
        return []
    names = {name for selected in lists for name in selected}
    missed = sorted(set(rails) - names)
    obj = f"{core_text.listing(title for title, _entries in configs)} for {node['name']}"
    step = "correct ifNames to what ip -br link shows, or set device_plugin_resources: rails, which uses the facts"
    seen = f"ifNames {core_text.listing(sorted(names))}"
    if len(missed) == len(rails):
        seen += f"; interfaces of the rails: {core_text.listing(sorted(rails))}"
        return [check("plugin:selector", obj, FAILED, "ifNames of this node", seen, step)]
    if missed:
        numbers = ", ".join(f"rail {rails[name]['index']} ({name})" for name in missed)
        return [check("plugin:coverage", obj, FAILED, "each rail in an entry", f"{seen}; without {numbers}", step)]
    return []


def _daemons(cluster: dict) -> list[dict]:
    return [item for item in cluster.get("plugins") or [] if item["kind"] == "DaemonSet"]


def _labels(cluster: dict, host: dict, node: dict):
    for item in _daemons(cluster) if host["rails"] else []:
        selector = item["spec"]["template"]["spec"].get("nodeSelector") or {}
        labels = node.get("labels") or {}
        lacking = [f"{key}={value}" for key, value in sorted(selector.items()) if labels.get(key) != value]
        if any(label.startswith(_FEATURE) for label in lacking):
            seen = f"{_title(item)} selects {core_text.listing(lacking)}, which the node lacks"
            step = "set the label (k3s_node_features_by_nfd: false, or Node Feature Discovery with its rule)"
            obj, wanted = f"labels of {node['name']}", "the labels that the device plugin's pods select"
            yield check("plugin:node-label", obj, FAILED, wanted, seen, step)


def _security(cluster: dict):
    levels = cluster.get("security") or {}
    for space in sorted({item["metadata"].get("namespace") or "default" for item in _daemons(cluster)}):
        if levels.get(space) not in (None, _LEVEL):
            step = f"kubectl label --overwrite ns {space} pod-security.kubernetes.io/enforce={_LEVEL}"
            seen = f"enforce {levels[space]}: pods that reach devices are refused"
            wanted = f"Pod Security level {_LEVEL} where device plugins run"
            yield check("namespace:pod-security", f"namespace {space}", FAILED, wanted, seen, step)


def _pod_cidr(cluster: dict, node: dict) -> list[dict]:
    for item in cluster.get("cni") or []:
        text = (item.get("data") or {}).get("net-conf.json")
        try:
            network = netaddr.IPNetwork(json.loads(text)["Network"]) if text else None
        except (netaddr.AddrFormatError, ValueError, KeyError, TypeError):
            network = None  # Flannel reports this itself and exits
        outside = [cidr for cidr in node["pod_cidrs"] if network and not _within(cidr, network)]
        if outside:
            seen = f"{core_text.listing(outside)}; {_title(item)} has Network {network}"
            step = "set flannel_cidr to the cluster-cidr of k3s and run playbooks/site.yml"
            obj = f"podCIDR of {node['name']}"
            return [check("cluster:pod-cidr", obj, FAILED, "a part of Flannel's network", seen, step)]
    return []


def _pod_nic(host: dict, node: dict, fabric_allowed: bool):
    """K8: the NIC that Flannel chose when it started, and the MTU that it read then."""
    address = node.get("pod_network_address")
    nics = [
        (name, netdev["mtu"])
        for name, netdev in host["netdevs"].items()
        if address in {held.partition("/")[0] for held in netdev["addresses"]}
    ]
    for name, mtu in nics:
        rail = next((rail["index"] for rail in host["rails"] if rail["netdev"] == name), None)
        if rail is not None and not fabric_allowed and not host["netdevs"][name]["default_route"]:
            seen = f"Flannel uses {name} ({address}), which is rail {rail}: pod traffic shares it with RDMA"
            step = (
                "set k3s_node_ip (or flannel_interface) to the node's own network and run playbooks/site.yml; "
                "flannel_fabric_allowed: true if that is intended"
            )
            wanted = "pod traffic on the node's own network"
            yield check("cluster:pod-nic", f"pod network of {node['name']}", FAILED, wanted, seen, step)
        link, room = host["netdevs"].get(_VXLAN_LINK), (mtu or 0) - pod_network.OVERHEAD["vxlan"]
        if link and link["mtu"] and mtu and link["mtu"] > room:
            seen = f"{link['mtu']}, with MTU {mtu} on {name}: large packets between nodes are lost"
            step = "give the NIC its MTU, then k3s kubectl -n kube-flannel rollout restart daemonset/kube-flannel-ds"
            obj = f"MTU of {_VXLAN_LINK} on {node['name']}"
            yield check("cluster:pod-mtu", obj, FAILED, f"{room} or less", seen, step)


def _within(cidr: str, network) -> bool:
    other = netaddr.IPNetwork(cidr)
    return other.version != network.version or other in network


def user_pod(item: dict, answer: dict, networks: list[dict], selections: list) -> list[dict]:
    """Faults of a user's pod that its manifest and its interfaces show. item: as from cluster_info.

    answer: the pod's parsed answer. selections: (namespace, network, interface) of its annotation.
    """
    obj, checks = f"pod {item['namespace']}/{item['name']}", []
    mounted = [path for path in item.get("host_paths") or [] if path in ("/dev", "/dev/") or "/dev/infiniband" in path]
    limits = [name for container in item["containers"] for name in container["limits"]]
    if mounted and not any(name.startswith("rdma/") for name in limits):
        seen = f"hostPath {core_text.listing(mounted)} and no RDMA resource: its device files cannot be opened"
        step = "remove the volume and request the resource: resources.limits rdma/NAME: 1"
        checks.append(check("pod:host-path", obj, FAILED, "device files from the device plugin", seen, step))
    with_ipam = {(network["namespace"], network["name"]) for network in networks if _has_ipam(network)}
    for space, name, interface in selections:
        if (space, name) in with_ipam and interface in answer["links"] and not answer["addresses"].get(interface):
            step = "see whether the pool or the node's block is used up (per_node_block_size), or does not exist"
            wanted = f"{interface} with an address of {name}"
            checks.append(
                check(f"pod:address:{interface}", obj, FAILED, wanted, f"{interface} without an address", step)
            )
    return checks


def _has_ipam(network: dict) -> bool:
    return any('"ipam"' in text and '"type"' in text.partition('"ipam"')[2] for text in network["configs"].values())


def clashes(pods: list[dict], answers: dict):
    """(host, check) for each address that pods of different nodes share in one network; a node tracks its own."""
    holders = core_text.grouped(
        ((item["network"], address.partition("/")[0]), pod)
        for pod in pods
        if pod["name"] in answers
        for item in pod["attachments"]
        for address in answers[pod["name"]]["addresses"].get(item["interface"]) or []
    )
    for (network, address), held in sorted(holders.items(), key=lambda holder: holder[0]):
        if len({pod["node"] for pod in held}) > 1:
            seen = " and ".join(f"pod {pod['kind']} on {pod['node']}" for pod in held)
            step = "give each node its own block: nv-ipam, or networks_attachments"
            obj = f"address {address} of network {network}"
            for host in dict.fromkeys(pod["host"] for pod in held):
                yield host, check("pod:address-clash", obj, FAILED, "one holder", seen, step)
