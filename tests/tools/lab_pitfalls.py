"""Faults and observations for the tests of the pod network's pitfalls in the lab's cluster."""

import datetime
import json
import shlex

from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

CONF = "/etc/cni/net.d/00-multus.conf"
FOREIGN = "/etc/cni/net.d/00-calico.conflist"
GUARD = "gpufabric-rdma-multus.service"
PLUGIN = "/opt/cni/bin/portmap"
NAMESPACE = "pitfalls"
FLANNEL, MULTUS = ("kube-flannel-ds", "kube-flannel"), ("kube-multus-ds", "kube-multus")
RESOURCE = "rdma/hca_shared_devices_0"  # of rail 0
# Long enough for an emulated node; the figures have the real times.
PATIENCE = 300
# The result of containerd.tools on a lab node: Debian, with everything below /usr.
_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/etc/libibverbs.d")
_TOOLS = {
    "image": "docker.io/rancher/mirrored-pause:3.6",
    "mounts": {path: path if path.startswith(("/usr", "/etc")) else f"/usr{path}" for path in _PATHS},
}


def with_tools(spec: dict) -> dict:
    """The pod's spec, whose only container runs the node's own programs, like verification's test pods."""
    pods.mount_tools(spec, _TOOLS)
    return spec


def attachment(name, config, resource=None):
    annotations = {"k8s.v1.cni.cncf.io/resourceName": resource} if resource else None
    config = {"cniVersion": "0.3.1", "name": name, **config}
    return kubectl_cluster.attachment(name, NAMESPACE, config, annotations)


# N1 and N9: attachments that no pod can use.
SLOT = attachment("slot", {"type": "host-device", "device": "eth2"}, RESOURCE)
LARGE = attachment("large", {"type": "macvlan", "master": "eth3", "mtu": 9000})


def pod(name, node, networks=None, on=None):
    """node: its node, bypassing the scheduler; on: the only node to which the scheduler may bind it."""
    annotations = {"annotations": {"k8s.v1.cni.cncf.io/networks": networks}} if networks else {}
    place = {"nodeName": node} if node else {"nodeSelector": {"kubernetes.io/hostname": on}}
    container = {"name": "main", "command": ["sleep", "100000"]}
    spec = with_tools({**place, "terminationGracePeriodSeconds": 0, "containers": [container]})
    return kubectl_cluster.api_object("v1", "Pod", name, NAMESPACE, annotations, spec=spec)


def taking(pod, amount):
    """The pod, with this many devices of rail 0's resource, which is not restarted after its end."""
    pod["spec"]["restartPolicy"] = "Never"
    pod["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: str(amount)}}
    return pod


def apply(cluster, *objects):
    space = kubectl_cluster.api_object("v1", "Namespace", NAMESPACE)
    listing = {"apiVersion": "v1", "kind": "List", "items": [space, *objects]}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listing))


def running(cluster, name):
    return cluster.get("pod", name, "-n", NAMESPACE).get("status", {}).get("phase") == "Running"


def wait_running(cluster, *names, patience=PATIENCE):
    for name in names:
        cluster.wait(lambda name=name: running(cluster, name), f"{name} runs", patience)


def start(cluster, *pods, patience=PATIENCE):
    apply(cluster, *pods)
    wait_running(cluster, *(one["metadata"]["name"] for one in pods), patience=patience)


def inside(cluster, name, *words, stdin=None):
    options = ("-i",) if stdin else ()
    return cluster.kubectl("exec", *options, name, "-n", NAMESPACE, "--", *words, stdin=stdin)


def bound_at(cluster, name):
    """When the scheduler bound the pod to its node; Unix time, whole seconds."""
    conditions = cluster.get("pod", name, "-n", NAMESPACE)["status"]["conditions"]
    told = next(row["lastTransitionTime"] for row in conditions if row["type"] == "PodScheduled")
    return datetime.datetime.fromisoformat(told.replace("Z", "+00:00")).timestamp()


def addresses(cluster, name):
    """{interface: address} of the pod, as Multus reports them."""
    found = cluster.get("pod", name, "-n", NAMESPACE).get("metadata", {}).get("annotations", {})
    rows = json.loads(found.get("k8s.v1.cni.cncf.io/network-status", "[]"))
    return {row.get("interface"): (row.get("ips") or [None])[0] for row in rows}


def complaints(cluster, name, reason="FailedCreatePodSandBox"):
    """Events with this reason for a pod that does not start, from the kubelet or the given source."""
    events = cluster.get("events", "-n", NAMESPACE).get("items", [])
    return "\n".join(
        event["message"] for event in events if event["involvedObject"]["name"] == name and event["reason"] == reason
    )


def unscheduled(cluster, name):
    """The scheduler's messages about an unbound pod."""
    return complaints(cluster, name, "FailedScheduling")


def lines(run, host):
    """{id: line in verify's output} of the failed checks of a host."""
    return {check["id"]: f"{check['object']}: {check['seen']}" for check in run.checks(host, "failed")}


def everywhere(run, cluster):
    """lines() of all hosts: a check of the cluster is listed under the first."""
    return {identity: line for name in cluster.nodes for identity, line in lines(run, name).items()}


def not_ready(cluster, name):
    """Why a node is not Ready; empty when it is."""
    conditions = cluster.get("node", name).get("status", {}).get("conditions", ())
    return "".join(row["message"] for row in conditions if row["type"] == "Ready" and row["status"] != "True")


def plant_missing_plugin(cluster, name):
    """K3: a CNI plugin of the worker is gone, and a new pod of this name fails because of it."""
    cluster.node(cluster.worker, f"rm {PLUGIN}")
    apply(cluster, pod(name, cluster.worker))
    cluster.wait(lambda: "failed to find plugin" in complaints(cluster, name), "the pod's failure", PATIENCE)


def plant_empty_conf(cluster):
    """M5: Multus' configuration on the worker is empty, its guard stopped, and the daemon leaves it so."""
    cluster.node(cluster.worker, f"systemctl stop {GUARD}; : >{CONF}; sleep 20")
    assert cluster.node(cluster.worker, f"stat -c %s {CONF}") == "0", "the daemon itself does not repair it"


def plant_foreign_conf(cluster):
    """M7: a foreign configuration comes first on the worker."""
    text = json.dumps({"cniVersion": "0.3.1", "name": "foreign", "plugins": [{"type": "loopback"}]})
    cluster.node(cluster.worker, f"cat >{FOREIGN} <<'EOF'\n{text}\nEOF")


def _patch(cluster, daemon, path, value):
    """Changes one field of a DaemonSet by hand and waits until its pods are replaced."""
    name, namespace = daemon
    change = json.dumps([{"op": "replace", "path": f"/spec/template/spec/containers/0/{path}", "value": value}])
    cluster.kubectl("patch", "daemonset", name, "-n", namespace, "--type=json", "-p", shlex.quote(change))
    cluster.kubectl("rollout", "status", f"daemonset/{name}", "-n", namespace, f"--timeout={2 * PATIENCE}s")


def _container(cluster, daemon):
    found = cluster.get("daemonset", daemon[0], "-n", daemon[1])
    return found["spec"]["template"]["spec"]["containers"][0]


def plant_flannel_on_the_fabric(cluster, netdev):
    """K8: Flannel uses a rail for pod traffic."""
    arguments = _container(cluster, FLANNEL)["args"]
    place = next(place for place, word in enumerate(arguments) if word.startswith("--iface="))
    _patch(cluster, FLANNEL, f"args/{place}", f"--iface={netdev}")


def plant_plugins_mounted_elsewhere(cluster):
    """M9: the folder of the CNI plugins is at another path in Multus' pod than on the node."""
    mounts = _container(cluster, MULTUS)["volumeMounts"]
    place = next(place for place, mount in enumerate(mounts) if mount["name"] == "cni-bin")
    _patch(cluster, MULTUS, f"volumeMounts/{place}/mountPath", "/opt/cni/elsewhere")


def pod_network_address(cluster, name):
    """The node's address for pod traffic, as Flannel publishes it."""
    return cluster.get("node", name)["metadata"]["annotations"]["flannel.alpha.coreos.com/public-ip"]


def conf_of(cluster):
    """Multus' configuration on the worker; empty while there is none."""
    return cluster.node(cluster.worker, f"cat {CONF} 2>/dev/null; true")


def look(cluster):
    """verify without test pods, which could not start anyway."""
    return cluster.run("verify.yml", "--check")
