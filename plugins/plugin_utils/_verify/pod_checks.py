"""What must be true of a pod that does RDMA, and what prevents RDMA in a user's pod, as named checks. Pure."""

import difflib
import json
import re

from ...module_utils._cni import nad_lint, node_lint
from ...module_utils._core import text as core_text
from ...module_utils._core.change import Finding
from ...module_utils._kube import pod_probe, pods
from ...module_utils._kube.kubectl import CANNOT_START
from .._core.addresses import netaddr
from .._findings import messages
from .._findings.checks import FAILED, NOT_VERIFIED, PASSED, check
from . import claim_checks
from . import cluster_checks as verify_cluster_checks
from .claim_checks import obj_of
from .cluster import Cluster

# Messages of the runtime or the kubelet about an unavailable image: they say nothing about RDMA.
_NO_IMAGE = ("ErrImage", "ImagePull", "InvalidImageName")
_PLUGIN = "see the device plugin's log and port states on the node: journalctl -u rdma-device-plugin"
# What `ethtool -i` reports for an interface that the plugin of this type created. None: the card's own driver.
_DRIVERS = {"macvlan": ("macvlan",), "ipvlan": ("ipvlan",), "ipoib": ("ib_ipoib", "ipoib")}
_AGAIN = (
    "see that the API server answers (systemctl status k3s on the first server), and run playbooks/verify.yml again"
)


def cluster_checks(seen: Cluster, drivers: dict, check_mode: bool) -> list[tuple[str, dict]]:
    """(host, check) for everything that was seen in the cluster.

    drivers: {host: driver facts}.
    """
    hosts, read = seen.hosts, seen.read
    if not hosts:
        return []
    first = hosts[0]["host"]
    # A node's own files are reported whether the API server answers or not; without kubectl there is no cluster.
    why = read.get("api_error") or read.get("msg") or "no answer"
    deployed = CANNOT_START not in why
    checks = [(host["host"], item) for host in hosts for item in cni_checks(host)] if deployed else []
    if not read.get("cluster"):
        # A silent API server is a fault of an existing cluster, and no pod has run.
        status = FAILED if deployed and read.get("api_error") and not check_mode else NOT_VERIFIED
        step = "see systemctl status k3s on the first server; without a cluster: verification_pods: false"
        return [(first, check("cluster:api", "cluster", status, "an API server that answers", why, step)), *checks]
    cluster = {**read["cluster"], "networks": networks_of(read["cluster"], hosts)}
    checks += [(first, item) for item in lint_checks(cluster, hosts, seen)]
    checks += [(first, _finding(finding, "cni:")) for finding in node_lint.lint_objects(cluster.get("cni") or [])]
    checks += verify_cluster_checks.lint(cluster, hosts, drivers, seen.fabric_allowed)
    if seen.pod_name:
        if seen.pod.get("api_error") is None and "pods" in seen.pod:
            checks += [(first, item) for item in diagnose(seen.pod, hosts, cluster, seen.pod_name)]
        else:
            told = seen.failure or seen.pod.get("api_error")
            why, step = (told, _AGAIN) if told else ("check mode inspects no pod", "verified in a real run")
            wanted = "a pod that can be inspected"
            checks.append((first, check("pod:look", f"pod {seen.pod_name}", NOT_VERIFIED, wanted, why, step)))
        return checks
    checks += judge_nodes(seen, cluster)
    if seen.failure:
        step = "fix that and run playbooks/verify.yml again"
        checks.append((first, check("pod:tests", "test pods", FAILED, "test pods on each node", seen.failure, step)))
    else:
        checks += judge(seen, cluster, check_mode)
    stopped, obj = _answered(seen.stopped), f"namespace {seen.plan.get('namespace')}"
    told = stopped.get("unanswered") or (stopped.get("msg") if stopped.get("failed") else None)
    for status, why in ((FAILED, stopped.get("left")), (NOT_VERIFIED, told)):
        if why:
            step = f"remove it: k3s kubectl delete {obj}"
            checks.append((first, check("pod:removed", obj, status, "removed", why, step)))
    return checks


def _answered(result: dict) -> dict:
    """What a module returned; for an unreachable node, that nothing is known."""
    if result.get("unreachable"):
        return {"unanswered": f"the node where kubectl runs is unreachable: {core_text.reason(result.get('msg'))}"}
    return result


def networks_of(cluster: dict, hosts: list[dict]) -> list[dict]:
    """The networks of the cluster, with the nodes' files for objects without a configuration."""
    return nad_lint.from_objects(cluster["nads"], nad_lint.files_by_name(hosts))


def lint_checks(cluster: dict, hosts: list[dict], seen: Cluster) -> list[dict]:
    resources = {name for node in cluster["nodes"] for name in node["capacity"]}
    shared = resources & {pods.own_resource(rail["index"]) for host in hosts for rail in host["rails"]}
    findings = nad_lint.lint(
        cluster["networks"],
        hosts,
        {
            "pod_cidrs": sorted({cidr for node in cluster["nodes"] for cidr in node["pod_cidrs"]}),
            "service_cidrs": seen.service_cidrs,
            "shared_resources": sorted(shared),
            "device_resources": sorted(resources - shared),
            "pods_per_node": seen.pods_per_node,
            "forbidden_masters_allowed": seen.masters,
        },
    )
    checks = [_finding(finding) for finding in findings]
    if cluster["networks"] and not checks:
        count = core_text.count(len(cluster["networks"]), "network")
        checks.append(check("nad:lint", "NetworkAttachmentDefinitions", PASSED, "no findings", f"{count} checked"))
    return checks


def _finding(finding: Finding, family: str = "") -> dict:
    """A linter's finding as a failed check; family prefixes its id."""
    return check(f"{family}{finding.id}", finding.object, FAILED, finding.wanted, finding.seen, finding.next_step)


def cni_checks(host: dict) -> list[dict]:
    """What cni_lint found on a node, because the next pod there would run into it."""
    read, obj = host.get("cni") or {}, "CNI configuration and plugins"
    if "findings" not in read:
        why = read.get("msg") or "the node was not read"
        step = "fix that and run playbooks/verify.yml again"
        return [check("cni:lint", obj, NOT_VERIFIED, "no findings", why, step)]
    checks = [_finding(Finding(**finding), "cni:") for finding in read["findings"]]
    checks += [
        check("cni:lint", obj, NOT_VERIFIED, "no findings", why, "run it on the node") for why in read["not_verified"]
    ]
    if not checks:
        seen = f"the runtime reads {core_text.listing(read['configurations'])}"
        checks.append(check("cni:lint", obj, PASSED, "no findings", seen))
    return checks


def judge_nodes(seen: Cluster, cluster: dict):
    """(host, check) for each node's membership in the cluster."""
    known = pods.find_nodes(seen.hosts, cluster["nodes"])
    for host in seen.hosts:
        node = known[host["host"]]
        if node is None:
            why = seen.plan.get("left_out", {}).get(host["host"], "no node of the cluster")
            step = "join it to the cluster (role k3s), or remove it from the group"
            yield (host["host"], check("cluster:node", "cluster node", FAILED, "a Ready node", why, step))
            continue
        yield from [(host["host"], item) for item in node_checks(host, node)]


def judge(seen: Cluster, cluster: dict, check_mode: bool) -> list[tuple[str, dict]]:
    """(host, check) for all results of the pods. cluster: what was read of it, with its networks."""
    plan, run = seen.plan, _answered(seen.run)
    # Pods that were not started, because an earlier check says that they could not run.
    step = "fix that (see its own check) and run playbooks/verify.yml again"
    skipped = [(item["pod"], item["reason"]) for item in plan.get("skipped") or []]
    checks = [(pod["host"], _unstarted(pod, reason, step)) for pod, reason in skipped]
    if check_mode:
        told = ("check mode starts no pod", "verified in a real run")
        return checks + [(pod["host"], _unstarted(pod, *told)) for pod in plan["pods"]]
    known = pods.find_nodes(seen.hosts, cluster["nodes"])
    by_host = {host["host"]: host for host in seen.hosts}
    answers = {name: pod_probe.parse(text) for name, text in run.get("answers", {}).items()}
    published, claims = cluster.get("dra") or claim_checks.NOTHING, run.get("claims") or []
    for pod in plan["pods"]:
        state = run.get("pods", {}).get(pod["name"])
        if state is None and run.get("unanswered"):
            checks.append((pod["host"], _unstarted(pod, run["unanswered"], _AGAIN)))
            continue
        if pod["kind"] == "aligned":
            checks.append((pod["host"], claim_checks.aligned(pod, state, claims, published)))
            continue
        if state and state["ready"]:
            checks += [(pod["host"], item) for item in claim_checks.of_pod(pod, claims, published)]
        answer = answers.get(pod["name"])
        own = {**cluster, "nodes": [known[pod["host"]]]}
        checks += [(pod["host"], item) for item in pod_checks(pod, state, answer, by_host[pod["host"]], own)]
        if pod.get("peer") and state and state["ready"] and answer and answer["resolved"]:
            checks.append((pod["host"], _peer(pod, answer, run["pods"].get(pod["peer"]["pod"]))))
    checks += _not_aligned(seen, known)
    checks += verify_cluster_checks.clashes(plan["pods"], answers)
    checks += traffic_checks(run.get("traffic") or {"tests": [], "left_out": []})
    return checks


def _not_aligned(seen: Cluster, known: dict):
    tried = [*seen.plan["pods"], *(skipped["pod"] for skipped in seen.plan.get("skipped") or [])]
    aligned = {pod["host"] for pod in tried if pod["kind"] == "aligned"}
    for host, node in known.items():
        if node and any(hca["class"] for hca in node.get("hcas") or []) and host not in aligned:
            yield (host, claim_checks.not_aligned(node, seen.gpu_class))


def _unstarted(pod: dict, seen: str, step: str) -> dict:
    return check(f"pod:{pod['kind']}", obj_of(pod), NOT_VERIFIED, "a pod that does RDMA", seen, step)


def _check(pod: dict, what: str, status, wanted: str, seen: str, next_step: str = "") -> dict:
    return check(f"pod:{pod['kind']}:{what}", obj_of(pod), status, wanted, seen, next_step)


# --- the node ---------------------------------------------------------------------------------------------------------


def node_checks(host: dict, node: dict) -> list[dict]:
    obj = f"cluster node {node['name']}"
    seen = "Ready" if node["ready"] else f"not Ready: {node['why']}"
    if node["taints"]:
        seen += f"; taints {core_text.listing(node['taints'])}"
    startup = [taint for taint in node["taints"] if taint.startswith("rdma.gpufabric.io/not-ready")]
    good = node["ready"] and not startup
    step = "see: k3s kubectl describe node; the startup taint is removed once CNI, resources and memlock are verified"
    checks = [check("cluster:node", obj, good, "Ready, without startup taint", seen, step)]
    checks += claim_checks.offered(host, node)
    expected = claim_checks.served(host)
    served = [name for name in node["capacity"] if name.startswith("rdma/")]
    # A user's own resource names do not identify rails.
    names = served if served and not set(served) & set(expected) else sorted({*served, *expected})
    for name in names:
        capacity, allocatable = node["capacity"].get(name), node["allocatable"].get(name, 0)
        wanted = "allocatable equal to capacity, and above 0"
        if capacity is None:
            seen = f"not advertised; there are {core_text.listing(sorted(node['capacity'])) or 'no extended resources'}"
        else:
            seen = f"capacity {capacity}, allocatable {allocatable}"
        good = bool(capacity) and allocatable == capacity
        checks.append(check(f"resource:{name}", f"{name} on {node['name']}", good, wanted, seen, _PLUGIN))
    return checks


# --- one pod ----------------------------------------------------------------------------------------------------------


def pod_checks(pod: dict, state, answer, host: dict, cluster: dict) -> list[dict]:
    name = pod["kind"]
    running = _running(pod, state)
    if running["status"] != PASSED:
        return [running]
    if answer is not None and "unanswered" in answer["missing"]:
        seen = answer["missing"]["unanswered"]
        return [running, _check(pod, "answer", NOT_VERIFIED, "a pod that answers", seen, _AGAIN)]
    if answer is None or "exec" in answer["missing"] or answer["user"] is None:
        seen = (answer or {"missing": {}})["missing"].get("exec", "no answer")
        step = "the pod needs a shell (verification_image), and the API server needs access to the kubelet's port 10250"
        return [running, _check(pod, "answer", FAILED, "a pod that answers", seen, step)]
    checks = [running]
    networks = {network["name"]: network for network in cluster["networks"]}
    checks += _status(pod, state, host, networks, cluster)
    checks.append(_user(pod, answer))
    if name != "host":
        checks.append(_default_route(pod, answer))
        checks += [_interface(pod, item, answer, host, networks) for item in pod["attachments"]]
        checks += [_driver(pod, item, answer, networks) for item in pod["attachments"]]
    if name == "workload":
        checks.append(_resolve(pod, answer, cluster))
    checks.append(_devices(pod, answer))
    checks += _registration(pod, answer)
    checks += _verbs(pod, answer, host)
    checks += _gids(pod, answer)
    return checks


def _running(pod: dict, state) -> dict:
    running = _check(pod, "running", FAILED, "Running and ready", "")
    if state is None:
        return {**running, "seen": "the pod is gone", "next_step": "see what deletes pods in the tests' namespace"}
    if state["ready"]:
        return {**running, "status": PASSED, "seen": f"Running, {state['ip']}"}
    status = NOT_VERIFIED if any(word in " ".join(state["reasons"]) for word in _NO_IMAGE) else FAILED
    return {**running, "status": status, "seen": _why(state), "next_step": messages.next_step(state["reasons"])}


def _why(state: dict) -> str:
    return f"{state['phase']}: {'; '.join(state['reasons']) or 'no reason given'}"


def _status(pod: dict, state: dict, host: dict, networks: dict, cluster: dict) -> list[dict]:
    """What Multus recorded: eth0 as default in the pod network, and each netN in the subnet of its network."""
    if pod["kind"] == "host" or not pod["attachments"]:
        return []
    try:
        noted = json.loads(state["status"] or "null")
    except ValueError:
        noted = None
    if not isinstance(noted, list):
        wanted, seen = "a network-status from Multus", "no network-status annotation"
        step = "it was started without Multus: check that 00-multus.conf is valid on the node, and recreate the pod"
        return [_check(pod, "network-status", FAILED, wanted, seen, step)]
    by_interface = {item.get("interface") or "": item for item in noted}
    node = pods.find_node(host, cluster["nodes"])
    first = by_interface.get("eth0") or {}
    wrong, wanted = [], [f"eth0 default in {core_text.listing(node['pod_cidrs']) or 'the pod network'}"]
    if not first.get("default"):
        wrong.append("eth0 is not the default")
    if node["pod_cidrs"] and not _inside(first.get("ips"), node["pod_cidrs"]):
        wrong.append(f"eth0 has {first.get('ips')}")
    for item in pod["attachments"]:
        subnets = _subnets(networks.get(item["network"]), host["host"])
        wanted.append(f"{item['interface']} in {core_text.listing(subnets) or 'its network'}")
        entry = by_interface.get(item["interface"])
        if entry is None:
            wrong.append(f"no {item['interface']}")
        elif not str(entry.get("name", "")).endswith(f"/{item['network']}"):
            wrong.append(f"{item['interface']} is {entry.get('name')}")
        elif subnets and not _inside(entry.get("ips"), subnets):
            wrong.append(f"{item['interface']} has {entry.get('ips')}")
    seen = "; ".join(wrong) or ", ".join(
        f"{name} {' '.join(interface.get('ips') or [])}" for name, interface in by_interface.items()
    )
    step = "see the log of Multus on the node"
    return [_check(pod, "network-status", not wrong, "; ".join(wanted), seen, step)]


def _subnets(network, host: str) -> list[str]:
    """The subnets of a network's addresses on a host; empty if its configuration does not say."""
    subnets = [str(item[0]) for item in nad_lint.ranges_of(nad_lint.config_on(network, host))]
    return list(dict.fromkeys(subnets)) or ([network["subnet"]] if network and network.get("subnet") else [])


def _inside(addresses, networks) -> bool:
    known = [netaddr.IPNetwork(network) for network in networks]
    held = [netaddr.IPNetwork(str(address)).ip for address in addresses or []]
    return any(address in network for address in held for network in known)


def _user(pod: dict, answer: dict) -> dict:
    wanted = 0 if pod["kind"] in ("seed", "host") else 1000
    step = "the image or an admission policy changes the user"
    return _check(pod, "user", answer["user"] == wanted, f"runs as user {wanted}", f"user {answer['user']}", step)


def _default_netdevs(answer: dict) -> list[str]:
    return [route["netdev"] for route in answer["routes"] if route["destination"] in ("default", "0.0.0.0/0")]


def _default_route(pod: dict, answer: dict) -> dict:
    wanted = "the default route only on eth0"
    if "routes" in answer["missing"]:
        return _without(pod, "default-route", wanted, f"ip: {answer['missing']['routes']}")
    through = _default_netdevs(answer)
    seen = f"through {core_text.listing(through) or 'none'}"
    step = "remove default routes from the attachment (routes, gateway of the pool) and from the pod's annotation"
    return _check(pod, "default-route", through == ["eth0"], wanted, seen, step)


def _tools_step(pod: dict) -> str:
    if pod["node_tools"]:
        return f"install the tool on {pod['host']} (rdma-core, perftest, infiniband-diags, ethtool, iproute2, iputils)"
    return "use an image that has it (verification_image)"


def _without(pod: dict, what: str, wanted: str, seen: str) -> dict:
    return _check(pod, what, NOT_VERIFIED, wanted, seen, _tools_step(pod))


def _interface(pod: dict, item: dict, answer: dict, host: dict, networks: dict) -> dict:
    """Whether the address is in the subnet and the interface is on the NIC of its rail."""
    name = item["interface"]
    subnets = _subnets(networks.get(item["network"]), host["host"])
    wanted = f"{name} with an address of {core_text.listing(subnets) or item['network']}"
    if "addresses" in answer["missing"]:
        return _without(pod, name, wanted, f"ip: {answer['missing']['addresses']}")
    addresses, wrong = answer["addresses"].get(name) or [], []
    if subnets and not _inside(addresses, subnets):
        wrong.append(f"addresses {core_text.listing(addresses) or 'none'}")
    elif name not in answer["links"]:
        wrong.append("no such interface")
    kind, master = nad_lint.type_and_master(networks.get(item["network"]), host["host"])
    parent = (answer["links"].get(name) or {}).get("parent")
    rail = item["rail"]
    if kind == "macvlan" and rail and not wrong:
        wanted += f", on {rail['netdev']} of rail {rail['index']}"
        indices = {netdev.get("index"): known for known, netdev in host["netdevs"].items()}
        below = indices.get(parent, master)
        if below != rail["netdev"]:
            wrong.append(f"it is on {below}")
    seen = "; ".join(wrong) or f"{core_text.listing(addresses) or 'no address'}" + (f", on {master}" if master else "")
    return _check(pod, name, not wrong, wanted, seen, "see the log of Multus, and the address block of the node")


def _driver(pod: dict, item: dict, answer: dict, networks: dict) -> dict:
    name = item["interface"]
    kind, _master = nad_lint.type_and_master(networks.get(item["network"]), pod["host"])
    expected = _DRIVERS.get(kind)
    wanted = f"{name} made by {kind or 'its plugin'}"
    link_kind = (answer["links"].get(name) or {}).get("kind")
    driver = answer["drivers"].get(name)
    if driver is None and link_kind is None:
        return _without(pod, f"{name}:driver", wanted, "ethtool: the tool is missing")
    seen = f"driver {driver}" if driver else f"kind {link_kind}"
    if expected is None:
        good = driver is not None and driver not in ("veth", "macvlan", "ipvlan")
    else:
        good = any(word in (driver or link_kind or "") for word in expected)
    step = "check that the network of this name is the intended one (kubectl get net-attach-def)"
    return _check(pod, f"{name}:driver", good, wanted, seen, step)


def _resolve(pod: dict, answer: dict, cluster: dict) -> dict:
    wanted = "a Service name that resolves over eth0"
    if not cluster["dns"]:
        step = "deploy CoreDNS to verify this"
        return _check(pod, "dns", NOT_VERIFIED, wanted, "the cluster has no DNS service", step)
    if answer["resolved"] is None:
        return _without(pod, "dns", wanted, "getent: the tool is missing")
    step = "check that CoreDNS runs and that no attachment takes the route to the service network"
    return _check(pod, "dns", answer["resolved"], wanted, answer["resolve_said"] or "no answer", step)


def _peer(pod: dict, answer: dict, other) -> dict:
    """Whether a headless Service gives a pod's address by its name, as MPI and torchrun ranks find each other."""
    step = "see the endpoints of the headless Service (k3s kubectl get endpointslices -A) and the log of CoreDNS"
    ip = (other or {}).get("ip")
    wanted = f"{pod['peer']['name']}, over a headless Service, is {ip or 'the address of its pod'}"
    if ip is None or answer["peer"] is None:
        seen = "not asked: the other pod does not run, or this one has no getent and no nslookup"
        seen = f"pod {pod['peer']['pod']} has no address" if ip is None else seen
        return _check(pod, "peer", NOT_VERIFIED, wanted, seen, step)
    words = {word for line in answer["peer"] for word in line.split()}
    seen = " ".join(dict.fromkeys(line.split()[0] for line in answer["peer"] if line.split())) or "no answer"
    return _check(pod, "peer", ip in words, wanted, seen, step)


# --- RDMA -------------------------------------------------------------------------------------------------------------


def _expected_devices(pod: dict):
    """Devices that the plugin must provide for a pod's resources; None if a resource is not a rail's."""
    known = {pods.own_resource(rail["index"]): rail for rail in pod["rails"]}
    if set(pod["resources"]) - set(known):
        return None
    given = [known[resource] for resource in pod["resources"]]
    given += [rail for rail in pod["rails"] if f"rail-{rail['index']}" in (pod.get("requests") or {})]
    names = {name for rail in given for name in rail["char_devices"] if name}
    return {*names, "rdma_cm"}


def _devices(pod: dict, answer: dict) -> dict:
    there = set(answer["devices"])
    expected = _expected_devices(pod)
    if expected is None:
        wanted = "uverbsN and rdma_cm, and only RDMA devices"
        missing = [] if any(name.startswith("uverbs") for name in there) else ["uverbsN"]
        missing += [] if "rdma_cm" in there else ["rdma_cm"]
        extra = [name for name in there if not name.startswith(("uverbs", "umad", "issm", "rdma_cm"))]
    else:
        wanted = f"/dev/infiniband with {core_text.listing(sorted(expected))} and no others"
        missing = sorted(expected - there)
        # Subnet management has its own device besides umad, if the HCA allows it.
        extra = sorted(name for name in there - expected if not name.startswith("issm"))
    wrong = [f"without {core_text.listing(missing)}"] if missing else []
    wrong += [f"with {core_text.listing(sorted(extra))} besides"] if extra else []
    seen = "; ".join(wrong) or core_text.listing(sorted(there))
    step = "load ib_umad, ib_uverbs and rdma_ucm on the node, and see the device plugin's log"
    if extra and not missing:
        step = "devices of another HCA mean one resource for several HCAs: use one resource per rail"
    return _check(pod, "devices", not wrong, wanted, seen, step)


def _registration(pod: dict, answer: dict):
    size = pod_probe.REGISTERED // 2**20
    wanted = f"{size} MiB registered with the HCA"
    step = (
        "raise LimitMEMLOCK of the service that starts containers (role limits), restart it and recreate the pod: a "
        "pod keeps the limit it started with. IPC_LOCK only helps root"
    )
    if not answer["registered"]:
        status, seen = (NOT_VERIFIED, "not tried") if answer["granted"] else (FAILED, "no HCA to try it on")
        yield _check(pod, "registration", status, wanted, seen, step)
        return
    for hca, tried in sorted(answer["registered"].items()):
        identity = f"pod:{pod['kind']}:registration:{hca}"
        obj = f"{obj_of(pod)}, {hca}"
        if tried["code"] == pod_probe.MISSING:
            seen = "ibv_rc_pingpong: the tool is missing"
            yield check(identity, obj, NOT_VERIFIED, wanted, seen, _tools_step(pod))
            continue
        limit = f"ulimit -l {answer['memlock']}, IPC_LOCK {'effective' if answer['ipc_lock'] else 'not effective'}"
        seen = f"{tried['bytes'] // 2**20} MiB; {limit}" + (f"; {tried['said']}" if tried["said"] else "")
        good = tried["bytes"] >= pod_probe.REGISTERED
        yield check(identity, obj, good, wanted, seen, step)


def _verbs(pod: dict, answer: dict, host: dict):
    for rail in pod["rails"]:
        obj = f"{obj_of(pod)}, {rail['hca']}/{rail['port']}"
        identity = f"pod:{pod['kind']}:verbs:{rail['hca']}"
        wanted = f"PORT_ACTIVE, {rail['link_layer']}, active_mtu {rail['active_mtu']}"
        port = (answer["verbs"].get(rail["hca"]) or {}).get(rail["port"])
        if "verbs" in answer["missing"]:
            seen = f"ibv_devinfo: {answer['missing']['verbs']}"
            yield check(identity, obj, NOT_VERIFIED, wanted, seen, _tools_step(pod))
        elif port is None:
            seen = f"ibv_devinfo lists {core_text.listing(sorted(answer['verbs'])) or 'no HCA'}"
            yield check(identity, obj, FAILED, wanted, seen, _PLUGIN)
        else:
            good = port.get("state") == "PORT_ACTIVE" and port.get("link_layer") == rail["link_layer"]
            good = good and (not isinstance(rail["active_mtu"], int) or port.get("active_mtu") == rail["active_mtu"])
            seen = f"{port.get('state')}, {port.get('link_layer')}, active_mtu {port.get('active_mtu')}"
            step = "see the port's check on the node; active_mtu follows the MTU of its interface (1500 gives 1024)"
            yield check(identity, obj, good, wanted, seen, step)
        yield _ibstat(pod, answer, rail, obj)


def _ibstat(pod: dict, answer: dict, rail: dict, obj: str) -> dict:
    identity, wanted = f"pod:{pod['kind']}:ibstat:{rail['hca']}", "Active, LinkUp"
    if "ibstat" in answer["missing"]:
        seen = f"ibstat: {answer['missing']['ibstat']}"
        return check(identity, obj, NOT_VERIFIED, wanted, seen, _tools_step(pod))
    port = (answer["ibstat"].get(rail["hca"]) or {}).get(rail["port"])
    if port is None:
        seen = f"ibstat lists {core_text.listing(sorted(answer['ibstat'])) or 'no HCA'}"
        return check(identity, obj, FAILED, wanted, seen, "load ib_umad on the node; ibstat needs umad")
    seen = ", ".join(port)
    return check(identity, obj, port == ("Active", "LinkUp"), wanted, seen, "see the port's check on the node")


def _gids(pod: dict, answer: dict):
    """For RoCE a GID of the pod's own address, whose index differs from pod to pod; for InfiniBand the port's."""
    interfaces = {item["rail"]["index"]: item["interface"] for item in pod["attachments"] if item["rail"]}
    for rail in pod["rails"]:
        obj = f"{obj_of(pod)}, {rail['hca']}/{rail['port']}"
        identity = f"pod:{pod['kind']}:gid:{rail['hca']}"
        table = [gid for gid in answer["gids"] if gid["hca"] == rail["hca"] and gid["port"] == rail["port"]]
        if rail["link_layer"] == "InfiniBand":
            seen = f"{len(table)} GIDs" + (f", index {table[0]['index']}" if table else "")
            step = "start a subnet manager; see the port's check on the node"
            yield check(identity, obj, table, "a GID of the port", seen, step)
            continue
        interface = rail["netdev"] if pod["kind"] == "host" else interfaces.get(rail["index"])
        if interface is None:
            continue
        addresses = [address.partition("/")[0] for address in answer["addresses"].get(interface) or []]
        index = next((pods.gid_index(answer["gids"], rail["hca"], ip) for ip in addresses), None)
        wanted = f"a RoCE v2 GID of {core_text.listing(addresses) or interface}"
        if index is not None:
            seen = f"index {index} in this pod; let NCCL find it (no NCCL_IB_GID_INDEX)"
            yield check(identity, obj, PASSED, wanted, seen)
            continue
        seen = f"{len(table)} GIDs, none of them from {interface}"
        if rail["kind"] == "software" and pod["kind"] != "host":
            seen = f"{seen}; {pods.SOFTWARE_REASON}"
            yield check(identity, obj, NOT_VERIFIED, wanted, seen, "test on real HCAs")
            continue
        step = "attach the pod to an interface of the same HCA: its GIDs come from interfaces in the pod's namespace"
        yield check(identity, obj, FAILED, wanted, seen, step)


# --- between pods -----------------------------------------------------------------------------------------------------


# What was not sent, and the next step.
_LEFT_OUT = {
    "net": ("verbs over net1", "nothing to do here; verbs over net1 are tested on real HCAs"),
    "peer": ("traffic with another node", "add a node"),
    "wire": (
        "traffic with another node",
        "if pods should have one network on the rail, give its NICs addresses in one network on all nodes, or none",
    ),
}


def traffic_checks(traffic: dict):
    for test in traffic["tests"]:
        client, server, result = test["client"], test["server"], test["result"]
        obj = f"{test['tool']} rail {test['rail']} over {test['place']}: pod on {client['host']} -> {server['host']}"
        wanted = {"ping": "3 answers", "rping": "answered pings"}.get(test["tool"], "RDMA writes")
        step = "check the ping of the same rail first; then GID types, and the MTU at both ends"
        if test["tool"] == "ping":
            step = "check that the switch forwards between the ports, that VLAN and MTU match, and both ARP entries"
        status, seen = result["ok"], result.get("error") or ""
        if result["ok"] is None:
            status, step = NOT_VERIFIED, _AGAIN
        elif result["ok"]:
            seen = "answered" if test["tool"] == "ping" else f"{result['seconds']} s"
        judged = check(f"pod:{test['id']}", obj, status, f"{wanted} from {test['address']}", seen, step)
        if result["ok"] and test["tool"] != "ping":
            judged["figures"] = {key: result[key] for key in ("seconds", "mb_per_s", "gbps") if key in result}
        yield (client["host"], judged)
    for item in traffic["left_out"]:
        what, step = _LEFT_OUT[item["what"]]
        obj = f"{what}, rail {item['rail']}"
        judged = check(f"pod:{item['what']}:rail{item['rail']}", obj, NOT_VERIFIED, what, item["reason"], step)
        yield (item["host"], judged)


# --- a pod of the user ------------------------------------------------------------------------------------------------


def diagnose(pod: dict, hosts: list[dict], cluster: dict, name: str) -> list[dict]:
    """What prevents RDMA in a user's pod. pod: the pod as cluster_info returned it. cluster: with its networks."""
    obj = f"pod {name}"
    if pod.get("missing"):
        step = "set it as NAMESPACE/NAME in verification_pod"
        return [check("pod:exists", obj, FAILED, "a pod of this name", pod["missing"], step)]
    item = pod["item"]
    state, networks = pod["pods"][item["name"]], cluster["networks"]
    wanted, refused = _selections(item)
    checks = [refused] if refused else []
    if item["host_network"] and wanted:
        step = "remove hostNetwork, or the annotation"
        seen = "hostNetwork: true, so Multus attaches nothing: the pod uses the interfaces of the node"
        checks.append(check("pod:annotation", obj, FAILED, "a network of the pod's own", seen, step))
        wanted = []
    if re.search("kata|gvisor|runsc", item["runtime_class"]):
        step = "leave runtimeClassName out in pods that do RDMA"
        seen = f"runtimeClassName {item['runtime_class']}, which keeps the node's devices out"
        checks.append(check("pod:runtime-class", obj, FAILED, "a runtime that passes device files on", seen, step))
    limits = {
        resource
        for container in item["containers"]
        for resource, number in container["limits"].items()
        if core_text.quantity(number)
    }
    known = {network["resource"] for network in networks}
    resources = sorted(resource for resource in limits if resource.startswith("rdma/") or resource in known)
    checks += _offered(obj, resources, cluster)
    checks += _attachments(obj, item, wanted, networks, resources)
    checks += claim_checks.of_user(obj, item.get("claims") or {}, state, cluster.get("dra") or claim_checks.NOTHING)
    if refused is None and not (item.get("claims") and not resources):
        checks += _held_resources(obj, wanted, resources, limits, item)
    checks.append(_privileges(obj, item))
    answer = pod_probe.parse(pod["answers"].get(item["name"], ""))
    checks += verify_cluster_checks.user_pod(item, answer, networks, wanted)
    if not state["ready"]:
        ended = state["phase"] == "Succeeded"
        step = "its containers have ended; check a pod that runs" if ended else messages.next_step(state["reasons"])
        status = NOT_VERIFIED if ended else FAILED
        return [*checks, check("pod:running", obj, status, "Running and ready", _why(state), step)]
    checks.append(check("pod:running", obj, PASSED, "Running and ready", f"on {state['node']}"))
    return [*checks, *_inside_user_pod(obj, item, answer, wanted)]


def _selections(item: dict):
    """[(namespace, name, interface)] of the networks annotation, and a failed check if it cannot be used."""
    text, default = (str(item["annotations"].get(key) or "").strip() for key in (pods.NETWORKS, pods.DEFAULT))
    try:
        selected = [(space, name, "eth0") for space, name, _own in _parsed(default, item["namespace"])]
        return selected + _parsed(text, item["namespace"]), None
    except ValueError as error:
        step = 'write it as [{"name": "rail0"}], or as rail0,rail1'
        obj = f"pod {item['namespace']}/{item['name']}"
        return [], check("pod:annotation", obj, FAILED, "an annotation that Multus can read", f"{error}", step)


def _parsed(text: str, namespace: str) -> list[tuple]:
    """(namespace, name, interface) of each network, as Multus reads a text; ValueError where it refuses the pod."""
    if any(sign in text for sign in '[{"'):
        given = json.loads(text)
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise ValueError("JSON that is no list of mappings")
        selected = [tuple(one.get(key) for key in ("namespace", "name", "interface")) for one in given]
    else:
        parts = [part.strip().partition("@") for part in text.split(",")] if text else []
        selected = [(*place.rpartition("/")[::2], interface) for place, _at, interface in parts]
    named = [(space or namespace, name, own or f"net{number}") for number, (space, name, own) in enumerate(selected, 1)]
    taken = ["eth0"]
    for space, name, interface in named:
        odd = [one for one in (space, name) if not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", str(one))]
        if odd:
            raise ValueError(f"{odd[0]!r} is no name of a network: wanted lower-case letters, digits and -")
        if not isinstance(interface, str) or len(interface) > 15 or interface in taken:
            raise ValueError(f"interface {interface} of {name} is taken already, or longer than 15 characters")
        taken.append(interface)
    return named


def _attachments(obj: str, item: dict, wanted: list, networks: list[dict], resources: list[str]) -> list[dict]:
    checks = []
    for namespace, name, interface in wanted:
        network = next((known for known in networks if (known["namespace"], known["name"]) == (namespace, name)), None)
        expected = f"network {namespace}/{name}"
        if network is None:
            others = sorted(known["namespace"] for known in networks if known["name"] == name)
            here = sorted(known["name"] for known in networks if known["namespace"] == namespace)
            seen = "no network of this name anywhere"
            step = f"networks of {namespace}: {core_text.listing(here) or 'none'}"
            if others:
                seen = f"there is one in {core_text.listing(others)}"
                step = f"add {namespace} to its namespaces (networks_attachments, networks_namespaces)"
            checks.append(check(f"pod:network:{name}", obj, FAILED, expected, seen, step))
            continue
        checks.append(check(f"pod:network:{name}", obj, PASSED, expected, f"as {interface}"))
        needed = network["resource"]
        if needed and needed not in resources:
            seen = f"the annotation lists {name}, but no container requests {needed}"
            step = f"add to a container: resources.limits {needed}: 1. The interface does not provide /dev/infiniband"
            checks.append(check(f"pod:resource:{needed}", obj, FAILED, f"{needed} in the limits", seen, step))
    return checks


def _offered(obj: str, resources: list[str], cluster: dict):
    """Resources that no node has, which a pod waits for without end."""
    there = {name for node in cluster["nodes"] for name in node["capacity"]}
    there |= set((cluster.get("dra") or {}).get("extended") or ())
    for resource in sorted(set(resources) - there):
        seen = f"{resource}; there are {core_text.listing(sorted(filter(None, there))) or 'none'}"
        step = "correct the name in the limits, or resourcePrefix and resourceName of the plugin"
        yield check(f"pod:offered:{resource}", obj, FAILED, "a resource that a node offers", seen, step)


def _held_resources(obj: str, wanted: list, resources: list[str], limits: set, item: dict):
    if item["host_network"]:
        return
    for resource in resources:
        names = {name for _namespace, name, _netdev in wanted}
        yield check(f"pod:resource:{resource}", obj, PASSED, f"{resource} in the limits", "requested")
        if not names:
            seen = f"{resource} without a networks annotation: RoCE needs an interface of the same HCA in the pod"
            step = f"add the annotation {pods.NETWORKS}; verbs over InfiniBand need none"
            near = difflib.get_close_matches(pods.NETWORKS, set(item["annotations"]) - {pods.STATUS}, 1, 0.9)
            seen += "".join(f", but with {key}, which nobody reads" for key in near)
            status = FAILED if near else NOT_VERIFIED
            yield check("pod:annotation", obj, status, "a network for the resource", seen, step)
    if not resources:
        step = "add to a container: resources.limits rdma/NAME: 1"
        seen = core_text.listing(sorted(limits)) or "none"
        yield check("pod:resource", obj, FAILED, "an RDMA resource in the limits", seen, step)


def _privileges(obj: str, item: dict) -> dict:
    """Without IPC_LOCK the limit also applies to root; with a raised limit no user needs the capability."""
    rights = [container["security"] for container in item["containers"]]
    added = {name for own in rights for name in (own.get("capabilities") or {}).get("add") or []}
    if any(own.get("privileged") for own in rights):
        seen = "a privileged container: it can open every device of the node"
        step = "remove privileged: device files come with the resource, locked memory with the limit or IPC_LOCK"
        return check("pod:privileges", obj, NOT_VERIFIED, "no more rights than needed", seen, step)
    seen = "IPC_LOCK is added" if "IPC_LOCK" in added else "no IPC_LOCK"
    return check("pod:privileges", obj, PASSED, "no more rights than needed", seen)


def _inside_user_pod(obj: str, item: dict, answer: dict, wanted: list):
    if "exec" in answer["missing"] or not (answer["links"] or answer["devices"]):
        seen = answer["missing"].get("unanswered") or "the image has no shell, or lacks the tools"
        yield check("pod:answer", obj, NOT_VERIFIED, "a pod that answers", seen, "inspect it with: kubectl debug")
        return
    for _namespace, name, interface in wanted:
        seen = core_text.listing(answer["addresses"].get(interface) or []) or "none"
        step = "the pod was started before the network or without Multus: recreate it"
        good = interface in answer["links"]
        yield check(f"pod:{interface}", obj, good, f"{interface} of {name}", seen, step)
    through = _default_netdevs(answer)
    if len(through) > 1 or (wanted and through and through != ["eth0"]):
        step = "remove it from the network (routes, defaultGateway of the pool) or the annotation (default-route)"
        seen = f"through {core_text.listing(through)}"
        yield check("pod:default-route", obj, FAILED, "the default route only on eth0", seen, step)
    devices = answer["devices"]
    good = any(device.startswith("uverbs") for device in devices) and "rdma_cm" in devices
    step = "the container requests no RDMA resource, or the device plugin had none left"
    wish, seen = "uverbsN and rdma_cm in /dev/infiniband", core_text.listing(devices) or "nothing"
    yield check("pod:devices", obj, good, wish, seen, step)
    limit = answer["memlock"]
    locked = limit == "unlimited" or answer["ipc_lock"] or int(limit if (limit or "").isdigit() else 0) > 2**20
    step = (
        "raise the limit of the service that starts containers (role limits) and recreate the pod; for root, "
        "securityContext.capabilities.add: [IPC_LOCK] also works"
    )
    seen = f"ulimit -l {limit}, IPC_LOCK {'' if answer['ipc_lock'] else 'not '}effective, user {answer['user']}"
    yield check("pod:ipc-lock", obj, locked, "memory that can be locked", seen, step)
    fixed = answer["environment"].get("NCCL_IB_GID_INDEX")
    if fixed is not None:
        step = "unset it: NCCL 2.21 and later find the index; with NCCL_IB_ADDR_RANGE they find that of net1"
        seen = f"NCCL_IB_GID_INDEX={fixed}"
        yield check("pod:gid-index", obj, FAILED, "no fixed GID index: it differs from pod to pod", seen, step)
    if answer["granted"] and not answer["gids"]:
        step = "attach the pod to an interface of the same HCA: its GIDs come from interfaces in the pod's namespace"
        seen = f"all GIDs of {core_text.listing(sorted(answer['granted'].values()))} are zero"
        yield check("pod:gids", obj, FAILED, "a GID to send from", seen, step)
