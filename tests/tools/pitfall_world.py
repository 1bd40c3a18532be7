"""Two or more healthy nodes in a cluster as input of verify, for tests that plant one failure and check its id.

Host facts are those of a captured node. Objects of the API server, states of pods and their answers are composed; they
go through _kube and the judge of all checks like in a run.
"""

from __future__ import annotations

import copy
import json

import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import node_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import cluster as kube_cluster
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pod_probe, running_pods
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods as kube_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.rails import network_rails
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import judge, pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.cluster import Cluster
from ansible_collections.gpufabric.rdma.tests.tools import tree
from ansible_collections.gpufabric.rdma.tests.tools.kubectl_cluster import api_object, attachment, ready_node

ROCE = (tree.texts("output") / "pod-roce.txt").read_text()
NETDEV, NEXT = "enp1s0f0np0", "enp1s0f1np1"
RESOURCE = kube_pods.own_resource(0)
HOSTS = ("node1", "node2")
LOADED = {"loaded": True, "builtin": False, "available": True, "persisted": [], "blocked_by": []}
CNI_WANTED = {
    "conf_directory": "/etc/cni/net.d",
    "plugin_directory": "/opt/cni/bin",
    "plugins": [],
    "primary": f"{node_lint.PRIMARY_DIRECTORY}/{node_lint.PRIMARY_NAME}",
    "multus": True,
    "health_port": 8081,
}


def converged(facts: dict, variables: dict) -> dict:
    """A GH200 without any planned change, both ports cabled and with jumbo frames."""
    facts["modules"] = {name: dict(LOADED) for name in [*variables["kernel_modules_required"], "nvidia_peermem"]}
    facts["initramfs"]["images"] = []
    facts["subsystem"].update(netns_mode="shared", persisted_netns_mode="shared")
    k3s = {"exists": True, "active": False, "memlock": "infinity", "memlock_running": None, "drop_ins": []}
    facts["limits"]["services"] = {"k3s": k3s, "k3s-agent": {**k3s, "exists": False}}
    facts["limits"]["services"]["containerd"] = {**k3s, "exists": False}
    for hca in facts["hcas"]:
        hca["ports"][0].update(state="ACTIVE", phys_state="LinkUp", active_mtu=4096)
        hca["netdevs"][0].update(mtu=9000, default_route=False)
    for _again in range(2):
        for plan in preflight_host.plans(facts, variables).values():
            for change in plan.changes:
                facts["owned_files"][change.object] = {"mode": "0644", "content": change.after}
    return facts


class World:
    def __init__(self, facts: dict, variables: dict, count: int = len(HOSTS)):
        self.hosts = [f"node{number}" for number in range(1, count + 1)]
        self.facts = {host: copy.deepcopy(facts) for host in self.hosts}
        self.variables = {host: copy.deepcopy(variables) for host in self.hosts}
        self.probes = {host: _probe() for host in self.hosts}
        self.netdevs = {host: netdevs(number) for number, host in enumerate(self.hosts, 1)}
        self.cni = {host: cni_state() for host in self.hosts}
        self.objects = [_node(number) for number in range(1, count + 1)]
        self.objects += [network(), flannel()]
        self.states: dict = {}
        self.answers: dict = {}
        self.user: dict | None = None

    # --- planting -----------------------------------------------------------------------------------------------------

    def offer_nothing(self) -> None:
        """The plugin has no device on any node: the kubelet keeps the resource at 0, and test pods wait for it."""
        for item in self.objects:
            if item["kind"] == "Node":
                item["status"].update(capacity={RESOURCE: "0"}, allocatable={RESOURCE: "0"})
        self.pending(f"Unschedulable: 0/2 nodes are available: 2 Insufficient {RESOURCE}.")

    def pending(self, reason: str, hosts=HOSTS) -> None:
        for host in hosts:
            self.states[host] = {"phase": "Pending", "ready": False, "reasons": [reason]}

    def not_ready(self, message: str) -> None:
        for item in self.objects:
            if item["kind"] == "Node":
                item["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": message}]

    def use(self, annotation="rail0", limits=(RESOURCE,), answer=ROCE, reason=None, paths=()) -> None:
        """Check a user's pod instead of running test pods."""
        metadata = {"annotations": {kube_pods.NETWORKS: annotation} if annotation else {}}
        ready = "False" if reason else "True"
        container = {"name": "app", "resources": {"limits": dict.fromkeys(limits, "1")}}
        volumes = [{"name": f"v{number}", "hostPath": {"path": path}} for number, path in enumerate(paths)]
        status = {"phase": "Pending" if reason else "Running", "conditions": [{"type": "Ready", "status": ready}]}
        if reason:
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}
            status["conditions"].append(scheduled)
        spec = {"nodeName": "node1", "containers": [container], "volumes": volumes}
        self.user = api_object("v1", "Pod", "mine", "default", metadata, spec=spec, status=status)
        self.answers["mine"] = answer

    # --- judging ------------------------------------------------------------------------------------------------------

    def judge(self) -> dict:
        return judge.judge(self.seen(), check_mode=False)

    def seen(self) -> judge.Seen:
        return judge.Seen(
            hosts=list(self.hosts),
            nodes=[self._read(host) for host in self.hosts],
            collected=[{} for _host in self.hosts],
            failures=[""] * len(self.hosts),
            plan={"tests": [], "unpaired": [], "clashes": []},
            unplanned="",
            cluster=self._cluster(),
        )

    def _read(self, host: str) -> dict:
        read = {"probe": self.probes[host], "ansible_facts": {"rdma": self.facts[host]}}
        more = {"variables": self.variables[host], "planned": [], "boot_id": None}
        return {"host": host, "address": host, "read": read, **more}

    def _cluster(self) -> Cluster:
        api = _Api(self)
        cluster, error = kube_cluster.read(api)
        hosts = [
            {
                "host": host,
                "rails": network_rails(self.facts[host]),
                "netdevs": self.netdevs[host],
                "routes": [],
                "files": {},
                "cni": {
                    **{key: [] for key in ("not_verified", "configurations")},
                    "findings": [finding._asdict() for finding in node_lint.lint(self.cni[host], CNI_WANTED)],
                },
            }
            for host in self.hosts
        ]
        given = Cluster(
            hosts,
            {"cluster": cluster, "api_error": error},
            namespace="tests",
            image="example.test/rdma:1",
            pod_name="default/mine" if self.user else None,
            service_cidrs=["10.43.0.0/16"],
        )
        plan = pods.plan(given)
        if self.user:
            return given._replace(plan=plan, pod=running_pods.inspect_pod(api, "default/mine", cluster))
        return given._replace(plan=plan, run=self._run(plan["pods"]))

    def _run(self, pods: list) -> dict:
        states, answers = {}, {}
        numbers = {host: number for number, host in enumerate(self.hosts)}
        on = {pod["name"]: pod["host"] for pod in pods}
        for pod in pods:
            number = numbers[pod["host"]]
            address = rail_address(number)
            planted = self.states.get(pod["host"]) or {}
            noted = [{"interface": "eth0", "ips": [pod_address(number)], "default": True}]
            noted += [
                {"name": f"tests/{item['network']}", "interface": item["interface"], "ips": [address]}
                for item in pod["attachments"]
            ]
            state = {"phase": "Running", "ready": True, "reasons": [], "ip": pod_address(number), "node": pod["node"]}
            states[pod["name"]] = {**state, "status": json.dumps(noted), **planted}
            text = self.answers.get(pod["host"]) or at(ROCE, pod["host"])
            if pod.get("peer"):
                text = text.replace("10.42.0.9  ", f"{pod_address(numbers[on[pod['peer']['pod']]])}  ")
            if pod["kind"] == "seed":
                text = text.replace("@@ user\n1000", "@@ user\n0")
            answers[pod["name"]] = text if states[pod["name"]]["ready"] else ""
        return {"pods": states, "answers": answers, "traffic": {"tests": [], "left_out": []}}


def rail_address(number: int) -> str:
    """Of the pods on the node with this number, from 0 on."""
    return f"10.56.{number // 16}.{number % 16 * 16 + 2}"


def pod_address(number: int) -> str:
    return f"10.{42 + number // 256 * 2}.{number % 256}.9"


def at(text: str, host: str) -> str:
    """An answer with the address that pods of this host get."""
    number = int(host.removeprefix("node")) - 1
    return text.replace("10.56.0.2/", f"{rail_address(number)}/").replace("0a38:0002", f"0a38:{number * 16 + 2:04x}")


class _Api:
    """kubectl in the form that _kube calls it."""

    def __init__(self, world: World):
        self.world = world

    def items(self, *words):
        if words[0] == "pod":
            return [copy.deepcopy(self.world.user)]
        return [] if words[0] == "events" else copy.deepcopy(self.world.objects)

    def items_of(self, optional, *_words, always=()):
        return copy.deepcopy(self.world.objects), [*always, *optional]

    def run(self, *_words, limit):
        return 0, f"{self.world.answers['mine']}\n{pod_probe.END}\n", ""


# --- objects ----------------------------------------------------------------------------------------------------------


def network(**changes) -> dict:
    config = {"cniVersion": "0.3.1", "name": "rail0", "type": "macvlan", "master": NETDEV}
    config["ipam"] = {"type": "whereabouts", "range": "10.56.0.0/16"}
    resource = changes.pop("resource", RESOURCE)
    return attachment("rail0", "default", {**config, **changes}, {kube_pods.RESOURCE: resource})


def flannel(cidr: str = "10.42.0.0/16") -> dict:
    data = {"net-conf.json": json.dumps({"Network": cidr, "Backend": {"Type": "vxlan"}})}
    return api_object("v1", "ConfigMap", "kube-flannel-cfg", "kube-flannel", data=data)


def flannel_daemon() -> dict:
    """Objects that make cluster_info read Flannel's configuration."""
    image = f"flannel@sha256:{'0' * 64}"
    spec = {"template": {"spec": {"containers": [{"name": "kube-flannel", "image": image}]}}}
    return api_object("apps/v1", "DaemonSet", "kube-flannel-ds", "kube-flannel", spec=spec)


def guide_plugin(entries=None, namespace="kube-system", selector=None) -> list[dict]:
    """ConfigMap and DaemonSet of guide 000, with another configList, namespace or nodeSelector."""
    text = (tree.texts("guides") / "000-shared-device-plugin.txt").read_text()
    config, daemon = list(yaml.safe_load_all(text))
    for item in (config, daemon):
        item["metadata"]["namespace"] = namespace
    if entries is not None:
        config["data"]["config.json"] = entries if isinstance(entries, str) else json.dumps({"configList": entries})
    daemon["spec"]["template"]["spec"]["nodeSelector"] = selector or {}
    return [config, daemon]


def selecting(*names: str) -> list[dict]:
    return [{"resourceName": "hca_shared_devices_0", "rdmaHcaMax": 63, "selectors": {"ifNames": list(names)}}]


def policy(state: str = "ready", parts=(), **spec) -> dict:
    status = {"state": state, "appliedStates": [{"name": name, "state": one} for name, one in parts]}
    return api_object("mellanox.com/v1alpha1", "NicClusterPolicy", "nic-cluster-policy", spec=spec, status=status)


def management_address(number: int) -> str:
    return f"10.0.{number // 256}.{number % 256}"


def _node(number: int) -> dict:
    pod_cidr = pod_address(number - 1).removesuffix("9") + "0/24"
    resources = {"cpu": "72", RESOURCE: "63"}
    return ready_node(f"node{number}", management_address(number), pod_cidr, resources, labels={})


def _probe() -> dict:
    locked = {"locked": 16 * 2**20, "error": None, "reason": None}
    usable = {"mode": "0666", "owner": "root", "group": "root", "usable": True}
    devices = {name: dict(usable) for name in ("rdma_cm", "uverbs0", "uverbs1")}
    devices |= {name: {**usable, "mode": "0600", "usable": False} for name in ("umad0", "umad1")}
    return {
        "char_devices": devices,
        "memlock": {"k3s": locked},
        "plugins": {},
        "tools": ["rping", "ib_write_bw"],
        "loaded": [],
    }


def netdevs(number: int) -> dict:
    plain = {"mtu": 9000, "type": "ether", "addresses": [], "default_route": False}
    management = {"index": 2, "mtu": 1500, "addresses": [f"{management_address(number)}/24"], "default_route": True}
    return {
        "eth0": {**plain, **management},
        NETDEV: {**plain, "index": 5},
        NEXT: {**plain, "index": 6},
        "ib0": {**plain, "index": 7, "mtu": 2044, "type": "infiniband"},
    }


def cni_state() -> dict:
    multus = {"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus-shim"}
    multus["clusterNetwork"] = f"/host{CNI_WANTED['primary']}"
    plugins = [{"type": "flannel", "delegate": {"isDefaultGateway": True}}, {"type": "portmap"}]
    primary = {"name": "cbr0", "cniVersion": "0.3.1", "plugins": plugins}
    program = {"mode": "0755", "size": 4096, "script": False, "elf": {"machine": "aarch64", "size": 4096}}
    names = ("bridge", "flannel", "host-local", "loopback", "macvlan", "multus-shim", "portmap")
    runtime = {"source": None, "conf_dir": "/etc/cni/net.d", "bin_dirs": ["/opt/cni/bin"], "max_conf_num": 1}
    return {
        "machine": "aarch64",
        "runtime": {**runtime, "use_internal_loopback": False},
        "confs": [{"path": "/etc/cni/net.d/00-multus.conf", "content": json.dumps(multus)}],
        "others": [],
        "primary": [{"path": CNI_WANTED["primary"], "content": json.dumps(primary)}],
        "networks": [],
        "programs": {name: {**program, "path": f"/opt/cni/bin/{name}"} for name in names},
        "leftovers": [],
        "socket": "answers",
        "existing": {CNI_WANTED["primary"]: True},
        "sysctls": dict.fromkeys(node_lint.SYSCTLS, "1"),
        "ports": [],
        "flannel": True,
    }
