# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: pod_test
short_description: The cluster side of verification
version_added: 0.1.0
description:
  - Reads what a cluster offers pods (O(stage=read)), runs the pods that M(gpufabric.rdma.plan_test_pods) planned and
    the traffic between them (O(stage=run)), removes them (O(stage=stop)), looks into a pod of the user (O(stage=pod)).
  - Runs where O(kubectl) runs, the first server. All objects are in a namespace of their own, which goes with them.
author:
  - The gpufabric founders (@gpufabric)
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
    support: full
    details:
      - In check mode nothing is started and nothing is looked into.
  diff_mode:
    description: Will return details on what has changed, when in diff mode.
    support: none
options:
  stage:
    description:
      - V(read) returns nodes, network attachment definitions and whether there is a DNS service.
      - V(run) applies O(objects), awaits the pods, asks each what it sees and, with O(traffic), sends between them.
      - V(rounds) sends the traffic of O(rounds) between pods that run.
      - V(stop) deletes O(namespace).
      - V(pod) reads O(pod), its events and its networks, and asks it what it sees.
    type: str
    required: true
    choices: [read, run, rounds, stop, pod]
  kubectl:
    description: The command, word by word.
    type: list
    elements: str
    default: [k3s, kubectl]
  namespace:
    description: Namespace of the tests.
    type: str
    default: gpufabric-verification
  objects:
    description: What to apply for V(run).
    type: list
    elements: dict
    default: []
  pods:
    description: What each of the pods is for.
    type: list
    elements: dict
    default: []
  traffic:
    description: Whether V(run) sends traffic from each node's pods to those of the next one.
    type: bool
    default: true
  rounds:
    description: Lists of tests, which V(rounds) runs list by list, the tests of a list at the same time.
    type: list
    elements: list
    default: []
  pod:
    description: A pod of the user, as NAMESPACE/NAME.
    type: str
  resolve:
    description: Name of a Service that pods have to resolve. Empty asks for none.
    type: str
    default: ""
  port:
    description: First TCP port of the tests between pods.
    type: int
    default: 18700
  seconds:
    description: How long a bandwidth test sends.
    type: int
    default: 2
  limit:
    description: Seconds after which one test is given up.
    type: int
    default: 30
  wait_seconds:
    description:
      - How long the pods may take to run, and to be removed. So long an API server that does not answer is waited for,
        too.
    type: int
    default: 180
"""

EXAMPLES = r"""
- name: Read cluster resources
  gpufabric.rdma.pod_test:
    stage: read
  delegate_to: "{{ groups['k3s_servers'][0] }}"
  run_once: true
"""

RETURN = r"""
api_error:
  description: Why the cluster could not be asked, or null.
  returned: O(stage=read), O(stage=pod)
  type: str
cluster:
  description: C(nodes), C(nads) (with pools of nv-ipam), C(dns) (whether there is a DNS service), C(namespaces), C(cni)
    (DaemonSets and ConfigMaps of Flannel and Multus), C(plugins) (the same of RDMA device plugins), C(policies)
    (NicClusterPolicy), C(security) (what Pod Security enforces in which namespace).
  returned: O(stage=read), O(stage=pod)
  type: dict
pods:
  description: State of each pod, with C(phase), C(reasons), C(status) (what Multus noted) and C(ip).
  returned: O(stage=run), O(stage=pod)
  type: dict
answers:
  description: What each running pod said, as text.
  returned: O(stage=run), O(stage=pod)
  type: dict
traffic:
  description: C(tests) with their results, and what was C(left_out).
  returned: O(stage=run)
  type: dict
results:
  description: For each end of each test of O(rounds) C(id), C(role), C(ok), C(error); for clients C(gbps) too.
  returned: O(stage=rounds)
  type: list
  elements: dict
seconds:
  description: How long the parts took.
  returned: O(stage=run)
  type: dict
"""

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pod_probe
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods as kube_pods
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.kubectl import Kubectl, KubectlError
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.objects import unknown_types
from ansible_collections.gpufabric.rdma.plugins.module_utils._traffic import fabric

TYPES = ("nodes", "services", "namespaces", "daemonsets.apps", "configmaps")
OPTIONAL = (
    "network-attachment-definitions.k8s.cni.cncf.io",
    "ippools.nv-ipam.nvidia.com",
    "nicclusterpolicies.mellanox.com",
)
# Where device plugins register, and the label by which Pod Security refuses them.
SOCKETS = ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet")
ENFORCE = "pod-security.kubernetes.io/enforce"
# Reasons for which a container will wait forever.
UNRECOVERABLE = (
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_PATIENCE = 10
_TRIES = 3
_KEPT = 2000
# Tests of a round that run at once, each with two execs through the API server.
_AT_ONCE = 32


# --- read -------------------------------------------------------------------------------------------------------------


def read(kubectl):
    """(cluster, None), or (None, why it could not be asked)."""
    kinds = [*TYPES, *OPTIONAL]
    while True:
        try:
            items = kubectl.items(",".join(kinds), "-A")
            break
        except KubectlError as refused:
            # kubectl names one type that the server does not have; without that one it may answer.
            absent = {name.partition(".")[0] for name in unknown_types(refused.reason)}
            known = [kind for kind in kinds if kind not in OPTIONAL or kind.partition(".")[0] not in absent]
            if known == kinds:
                return None, refused.reason
            kinds = known
    return {
        "nodes": [node(item) for item in items if item["kind"] == "Node"],
        "nads": [bare(item) for item in items if item["kind"] in ("NetworkAttachmentDefinition", "IPPool")],
        "dns": any(
            item["kind"] == "Service" and (item["metadata"].get("labels") or {}).get("k8s-app") == "kube-dns"
            for item in items
        ),
        "namespaces": [item["metadata"]["name"] for item in items if item["kind"] == "Namespace"],
        "cni": cni_objects(items),
        "policies": [
            {**bare(item), "status": item.get("status") or {}} for item in items if item["kind"] == "NicClusterPolicy"
        ],
        "plugins": plugin_objects(items),
        "security": {
            item["metadata"]["name"]: (item["metadata"].get("labels") or {})[ENFORCE]
            for item in items
            if item["kind"] == "Namespace" and ENFORCE in (item["metadata"].get("labels") or {})
        },
    }, None


def cni_objects(items):
    """What runs Flannel and Multus, whoever brought it: their DaemonSets, and the ConfigMaps beside these."""
    daemons = [
        item
        for item in items
        if item["kind"] == "DaemonSet" and any(word in item["metadata"]["name"] for word in ("flannel", "multus"))
    ]
    beside = {item["metadata"]["namespace"] for item in daemons}
    maps = [item for item in items if item["kind"] == "ConfigMap" and item["metadata"]["namespace"] in beside]
    return [bare(item) for item in daemons] + [{**bare(item), "data": item.get("data") or {}} for item in maps]


def plugin_objects(items):
    """Device plugins for RDMA, ours or somebody else's: their DaemonSets, and the ConfigMaps that these mount."""
    daemons, mounted = [], set()
    for item in items:
        if item["kind"] != "DaemonSet" or "rdma" not in item["metadata"]["name"]:
            continue
        volumes = item["spec"]["template"]["spec"].get("volumes") or []
        if any((volume.get("hostPath") or {}).get("path", "").rstrip("/") in SOCKETS for volume in volumes):
            daemons.append(item)
            mounted |= {
                (item["metadata"]["namespace"], volume["configMap"]["name"])
                for volume in volumes
                if "configMap" in volume
            }
    maps = [
        item
        for item in items
        if item["kind"] == "ConfigMap" and (item["metadata"]["namespace"], item["metadata"]["name"]) in mounted
    ]
    return [bare(item) for item in daemons] + [{**bare(item), "data": item.get("data") or {}} for item in maps]


def node(item):
    status = item["status"]
    ready = next((one for one in status.get("conditions") or [] if one["type"] == "Ready"), {})

    def resources(values):
        # Extended resources are the ones with a domain; hugepages have none.
        return {name: int(value) for name, value in (values or {}).items() if "/" in name and str(value).isdigit()}

    return {
        "name": item["metadata"]["name"],
        "ready": ready.get("status") == "True",
        "why": ready.get("message") or "",
        "addresses": [one["address"] for one in status.get("addresses") or []],
        "pod_cidrs": item["spec"].get("podCIDRs") or [],
        # Written by Flannel: the address of the NIC that carries pod traffic.
        "pod_network_address": (item["metadata"].get("annotations") or {}).get("flannel.alpha.coreos.com/public-ip"),
        "labels": item["metadata"].get("labels") or {},
        "taints": [f"{one['key']}:{one['effect']}" for one in item["spec"].get("taints") or []],
        "capacity": resources(status.get("capacity")),
        "allocatable": resources(status.get("allocatable")),
    }


def bare(item):
    """Without what a report never needs."""
    meta = {key: item["metadata"][key] for key in ("name", "namespace", "annotations") if item["metadata"].get(key)}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": meta, "spec": item.get("spec") or {}}


# --- pods -------------------------------------------------------------------------------------------------------------


def state(item, events):
    """Phase, whether it is ready, and every reason that Kubernetes gives."""
    status, name = item.get("status") or {}, item["metadata"]["name"]
    reasons = [
        f"{one.get('reason')}: {one.get('message')}"
        for one in status.get("conditions") or []
        if one["status"] != "True" and one.get("reason") == "Unschedulable"
    ]
    if status.get("reason"):
        reasons.append(f"{status['reason']}: {status.get('message') or ''}")
    for container in status.get("containerStatuses") or []:
        for kind in ("waiting", "terminated"):
            why = (container.get("state") or {}).get(kind)
            if why and why.get("reason") not in ("ContainerCreating", "PodInitializing"):
                reasons.append(f"{why.get('reason')}: {why.get('message') or ''}".rstrip(": "))
    warned = [
        f"{event.get('reason')}: {event.get('message')}"
        for event in events
        if event.get("type") == "Warning" and (event.get("involvedObject") or {}).get("name") == name
    ]
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
    return {
        "phase": status.get("phase") or "Unknown",
        "ready": ready,
        "reasons": list(dict.fromkeys(reasons + warned[-2:])),
        "status": ((item["metadata"].get("annotations") or {}).get(kube_pods.STATUS)),
        "ip": status.get("podIP"),
        "node": item["spec"].get("nodeName"),
    }


def unrecoverable(one):
    return any(reason.startswith(UNRECOVERABLE) for reason in one["reasons"]) or one["phase"] == "Failed"


def await_pods(kubectl, namespace, names, seconds, clock=time):
    """State of the pods once all run, or none of the others can any more, or the time is over."""
    deadline = clock.monotonic() + seconds
    while True:
        items = kubectl.items("pods,events", "-n", namespace)
        events = [item for item in items if item["kind"] == "Event"]
        states = {
            item["metadata"]["name"]: state(item, events)
            for item in items
            if item["kind"] == "Pod" and item["metadata"]["name"] in names
        }
        waiting = [one for one in states.values() if not one["ready"]]
        if len(states) == len(names) and all(unrecoverable(one) for one in waiting):
            return states
        if clock.monotonic() > deadline:
            return states
        clock.sleep(2)


def ask(kubectl, namespace, name, resolve):
    """What the script says in a pod; the error instead where it could not be run."""
    words = ["exec", "-n", namespace, name, "--", "sh", "-c", pod_probe.SCRIPT, "sh", resolve]
    code, said, error = kubectl.run(*words, limit=120)
    return said if code == 0 or said else f"@@ exec\n{error.strip()}\n@@= {code}\n"


def run(kubectl, params):
    namespace, pods = params["namespace"], params["pods"]
    seconds = {}
    start = time.monotonic()
    remove_pods(kubectl, namespace)
    code, said, error = kubectl.apply(params["objects"], "--force-conflicts")
    if code:
        raise KubectlError("the test pods applied", error or said)
    names = [pod["name"] for pod in pods]
    states = await_pods(kubectl, namespace, names, params["wait_seconds"])
    seconds["pods"] = round(time.monotonic() - start, 1)
    start = time.monotonic()
    running = [name for name in names if states.get(name, {}).get("ready")]
    with ThreadPoolExecutor(max_workers=4) as pool:
        said = pool.map(lambda name: ask(kubectl, namespace, name, params["resolve"]), running)
        answers = dict(zip(running, said))
    seconds["answers"] = round(time.monotonic() - start, 1)
    start = time.monotonic()
    parsed = {name: pod_probe.parse(text) for name, text in answers.items()} if params["traffic"] else {}
    planned = kube_pods.traffic(pods, parsed, params["port"])
    results = [{**test, "result": send(kubectl, namespace, test, params)} for test in planned["tests"]]
    seconds["traffic"] = round(time.monotonic() - start, 1)
    return {
        "pods": states,
        "answers": answers,
        "traffic": {"tests": results, "left_out": planned["left_out"]},
        "seconds": seconds,
    }


def remove_pods(kubectl, namespace):
    """Those of an earlier run that was cut off: a pod cannot be changed, only made anew."""
    words = ["delete", "pods", "--all", "-n", namespace, "--grace-period=1", "--ignore-not-found"]
    kubectl.run(*words, limit=120)


# --- traffic ----------------------------------------------------------------------------------------------------------


def send(kubectl, namespace, test, params):
    """Run one test; what it says of itself."""
    if test["tool"] == "ping":
        argv = kube_pods.ping_command(test)
        code, said, error = kubectl.run(
            "exec", "-n", namespace, test["client"]["pod"], "--", *argv, limit=params["limit"]
        )
        output = said + error
        ok = code == 0 and " 0% packet loss" in output
        return {"ok": ok, "error": None if ok else _last(output, code), "output": output[-_KEPT:]}
    limit = str(params["limit"])
    argv = ["timeout", limit, *fabric.server_command(test, params["seconds"])]
    server = kubectl.serve(test["server"]["pod"], argv, namespace)
    try:
        return connect(kubectl, namespace, test, params)
    finally:
        server.terminate()
        try:
            server.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


def run_rounds(kubectl, params):
    """The results of all rounds; a round begins once the one before has ended."""
    results = []
    for tests in params["rounds"]:
        with ThreadPoolExecutor(max_workers=min(len(tests), _AT_ONCE) or 1) as pool:
            said = pool.map(lambda test: send(kubectl, params["namespace"], test, params), tests)
            results += [{"id": test["id"], "role": "client", **one} for test, one in zip(tests, said)]
    return {"results": results}


def connect(kubectl, namespace, test, params):
    argv = ["timeout", str(params["limit"]), *fabric.client_command(test, params["seconds"])]
    deadline, tries = time.monotonic() + _PATIENCE, 0
    while True:
        start, tries = time.monotonic(), tries + 1
        code, said, error = kubectl.run(
            "exec", "-n", namespace, test["client"]["pod"], "--", *argv, limit=params["limit"] + 10
        )
        took = time.monotonic() - start
        result = fabric.parse(test["tool"], code, said + error, params["seconds"])
        # The server's own exec may still be on its way, longer than all patience where the API server is slow.
        again = took <= 5 or fabric.refused(said + error)
        if result["ok"] or not again or (tries >= _TRIES and time.monotonic() > deadline):
            return {**result, "seconds": round(took, 1), "command": " ".join(argv), "output": (said + error)[-_KEPT:]}
        time.sleep(1)


def _last(output, code):
    lines = [line for line in output.splitlines() if line.strip()]
    return f"{lines[-1].strip()} (exit status {code})" if lines else f"exit status {code}"


def stop(kubectl, namespace, seconds):
    """Remove the namespace with all that is in it; what is left after so many seconds."""
    words = ["delete", "namespace", namespace, "--ignore-not-found", "--wait=true", f"--timeout={seconds}s"]
    code, said, error = kubectl.run(*words, limit=seconds + 20)
    return {"left": None if code == 0 else (error or said).strip()}


# --- a pod of the user ------------------------------------------------------------------------------------------------


def look_into(kubectl, params):
    namespace, _slash, name = params["pod"].rpartition("/")
    namespace = namespace or "default"
    cluster, error = read(kubectl)
    if error:
        return {"api_error": error}
    code, said, error = kubectl.run("get", "pod", name, "-n", namespace, "-o", "json")
    found = {"api_error": None, "cluster": cluster, "pods": {}, "answers": {}, "item": None}
    if code:
        found["missing"] = (error or said).strip()
        return found
    item = json.loads(said)
    events = kubectl.items("events", "-n", namespace, "--field-selector", f"involvedObject.name={name}")
    one = state(item, events)
    found["pods"][name] = one
    found["item"] = {
        "namespace": namespace,
        "name": name,
        "annotations": {
            key: value
            for key, value in (item["metadata"].get("annotations") or {}).items()
            if key in (kube_pods.NETWORKS, kube_pods.STATUS)
        },
        "host_paths": [
            volume["hostPath"]["path"] for volume in item["spec"].get("volumes") or [] if "hostPath" in volume
        ],
        "host_network": bool(item["spec"].get("hostNetwork")),
        "security": item["spec"].get("securityContext") or {},
        "containers": [
            {
                "name": container["name"],
                "limits": (container.get("resources") or {}).get("limits") or {},
                "security": container.get("securityContext") or {},
            }
            for container in item["spec"]["containers"]
        ],
    }
    if one["ready"]:
        found["answers"][name] = ask(kubectl, namespace, name, params["resolve"])
    return found


def main():
    module = AnsibleModule(
        argument_spec={
            "stage": {"type": "str", "required": True, "choices": ["read", "run", "rounds", "stop", "pod"]},
            "kubectl": {"type": "list", "elements": "str", "default": ["k3s", "kubectl"]},
            "namespace": {"type": "str", "default": "gpufabric-verification"},
            "objects": {"type": "list", "elements": "dict", "default": []},
            "pods": {"type": "list", "elements": "dict", "default": []},
            "traffic": {"type": "bool", "default": True},
            "rounds": {"type": "list", "elements": "list", "default": []},
            "pod": {"type": "str"},
            "resolve": {"type": "str", "default": ""},
            "port": {"type": "int", "default": 18700},
            "seconds": {"type": "int", "default": 2},
            "limit": {"type": "int", "default": 30},
            "wait_seconds": {"type": "int", "default": 180},
        },
        required_if=[("stage", "pod", ["pod"])],
        supports_check_mode=True,
    )
    params = module.params
    stage = params["stage"]
    kubectl = Kubectl(params["kubectl"], patience=params["wait_seconds"] if stage == "run" else 0)
    try:
        if stage == "read":
            # Not by the name `unreachable`, which would tell Ansible that the node is.
            cluster, error = read(kubectl)
            result = {"cluster": cluster, "api_error": error}
        elif module.check_mode:
            result = {}
        elif stage == "run":
            result = run(kubectl, params)
        elif stage == "rounds":
            result = run_rounds(kubectl, params)
        elif stage == "stop":
            result = stop(kubectl, params["namespace"], params["wait_seconds"])
        else:
            result = look_into(kubectl, params)
    except KubectlError as failed:
        module.fail_json(msg=f"stage {stage} of the verification did not run through: {failed}")
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
