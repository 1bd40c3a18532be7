"""Pods on the API server: run the planned ones, probe each, remove them; probe a user's pod."""

from __future__ import annotations

import time

from .._core.change import Refused
from . import dra, ownership, pod_probe, pod_traffic
from . import pods as kube_pods
from .kubectl import Kubectl, KubectlError, Unreachable, complete, conditions, last_words, lost, of_each

# Waiting reasons that never resolve.
UNRECOVERABLE = (
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
# Events that only repeat the state of a container.
_ECHOES = ("BackOff: ", "Failed: Error: ImagePullBackOff", "Failed: Error: ErrImagePull")
_UNMET = ("Unschedulable", "SchedulingGated", "SchedulerError", "ReadinessGatesNotReady")
_EVICTED = ("PreemptionByScheduler", "EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByDeviceTaintManager")
# What refuses pods in a new namespace until a controller has made its account.
_NO_ACCOUNT = 'serviceaccount "default" not found'
# How a program ends that has started.
_ENDS = (None, "Error", "Completed")


def state(item: dict, events: list[dict]) -> dict:
    """Phase, readiness, and all reasons from Kubernetes, the latest last."""
    status = item.get("status") or {}
    deleted = item["metadata"].get("deletionTimestamp")
    reasons = [f"Terminating: since {deleted}"] if deleted else []
    reasons += [
        f"{condition.get('reason')}: {condition.get('message')}"
        for condition in status.get("conditions") or []
        if condition.get("reason") in (_EVICTED if deleted else (*_UNMET, *_EVICTED))
    ]
    ended = ""
    containers = (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or [])
    for container in [one for one in containers if not one.get("ready")]:
        now, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
        ended = max(ended, (last.get("finishedAt") or "")[:19])
        for why in (now.get("waiting"), now.get("terminated"), last if last.get("reason") not in _ENDS else None):
            if why and why.get("reason") not in ("ContainerCreating", "PodInitializing"):
                code = f"exit code {why['exitCode']}" if "exitCode" in why else ""
                reasons.append(f"{why.get('reason')}: {why.get('message') or code}".rstrip(": "))
    if status.get("reason"):
        reasons.append(f"{status['reason']}: {status.get('message') or ''}")
    return {
        "phase": status.get("phase") or "Unknown",
        "ready": conditions(item).get("Ready") == "True",
        "reasons": list(dict.fromkeys(reasons + _warnings(item, events, ended))),
        "status": ((item["metadata"].get("annotations") or {}).get(kube_pods.STATUS)),
        "ip": status.get("podIP"),
        "node": item["spec"].get("nodeName"),
    }


def _warnings(item: dict, events: list[dict], ended: str) -> list[str]:
    """The last warnings about a pod, one of each reason; those from before a container last ended are over."""
    uid, texts = item["metadata"].get("uid"), {}
    for event in sorted(events, key=_time):
        about = event.get("involvedObject") or {}
        text = f"{event.get('reason')}: {event.get('message')}"
        if event.get("type") != "Warning" or text.startswith(_ECHOES) or "" < _time(event) < ended:
            continue
        # An earlier pod of the same name has another UID.
        same = about.get("kind", "Pod") == "Pod" and (not uid or about.get("uid", uid) == uid)
        if same and about.get("name") == item["metadata"]["name"]:
            texts.pop(event.get("reason"), None)
            texts[event.get("reason")] = text
    return list(texts.values())[-3:]


def _time(event: dict) -> str:
    """When it was last seen, to the second: several forms are in use."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp")
    return (last or event.get("eventTime") or "")[:19]


def wait_for_pods(kubectl: Kubectl, namespace: str, names: list[str], seconds: float, clock=time) -> dict:
    """State of the pods once all run, the others cannot recover, or the time is up."""
    deadline = clock.monotonic() + seconds
    while True:
        items = kubectl.items("pods,events", "-n", namespace)
        events = [item for item in items if item["kind"] == "Event"]
        states = {
            item["metadata"]["name"]: state(item, events)
            for item in items
            if item["kind"] == "Pod" and item["metadata"]["name"] in names
        }
        waiting = [pod for pod in states.values() if not pod["ready"]]
        waiting = [pod for pod in waiting if not any(reason.startswith(UNRECOVERABLE) for reason in pod["reasons"])]
        over = len(states) == len(names) and all(pod["phase"] == "Failed" for pod in waiting)
        if over or clock.monotonic() > deadline:
            return states
        clock.sleep(2)


def wait_for_dns(kubectl: Kubectl, seconds: float, clock=time) -> None:
    """Wait until the cluster's DNS service has a ready endpoint, or the time is up.

    CoreDNS tolerates no startup taint, so on a new cluster it starts when the test pods do.
    """
    deadline = clock.monotonic() + seconds
    while True:
        try:
            slices = kubectl.items("endpointslices.discovery.k8s.io", "-A", "--selector=k8s-app=kube-dns")
        except KubectlError:
            return  # the pods are asked anyway, and their answer counts
        endpoints = [endpoint for part in slices for endpoint in part.get("endpoints") or []]
        if any((endpoint.get("conditions") or {}).get("ready") for endpoint in endpoints):
            return
        if not slices or clock.monotonic() > deadline:
            return
        clock.sleep(2)


def ask(
    kubectl: Kubectl, namespace: str, names: list[str], resolve: str, peers: dict[str, str] | None = None, container=""
) -> dict[str, str]:
    """The script's output in each pod, or the reason why it could not run or is truncated.

    resolve: a Service's name that every pod looks up. peers: {pod: name of another pod that it looks up}. container: ""
    for the one that kubectl takes.
    """

    def one(name):
        return _ask(kubectl, namespace, name, resolve, (peers or {}).get(name, ""), container)

    return dict(zip(names, of_each(one, names, pod_probe.unanswered, at_once=4)))


def _ask(kubectl: Kubectl, namespace: str, name: str, resolve: str, peer: str, container: str) -> str:
    argv = ["sh", "-c", pod_probe.SCRIPT, "sh", resolve, peer if resolve else ""]
    words = ("exec", "-n", namespace, name, *(["-c", container] if container else []), "--", *argv)
    code, said, error = complete(kubectl.run(*words, limit=120), pod_probe.whole)
    if lost(code, error):
        kubectl.await_server()
        code, said, error = complete(kubectl.run(*words, limit=120), pod_probe.whole)
    if code == 0:
        return said
    # An API server that reports this twice does answer: the kubelet does not.
    if lost(code, error) and "error dialing backend" not in error:
        return pod_probe.unanswered(f"asked twice: {last_words(error)}")
    return f"@@ exec\n{error.strip()}\n@@= {code}\n"


def run(kubectl: Kubectl, params: dict) -> dict:
    """Effect: apply the pods, wait for them, probe each, send between them. pods, claims, answers, traffic, seconds.

    params: namespace, objects, pods, traffic (bool), resolve, port, seconds, limit, wait_seconds, removed_afterwards.
    Result: unanswered says why the rest is unknown if the API server stopped answering; removed is that of remove().
    """
    result: dict = {"pods": {}, "claims": [], "answers": {}, "traffic": {"tests": [], "left_out": []}, "seconds": {}}
    result["unanswered"] = None
    try:
        _run(kubectl, params, result)
    except Unreachable as silent:
        result["unanswered"] = silent.reason
    if params["removed_afterwards"]:
        result["removed"] = remove(kubectl, params["namespace"], params["wait_seconds"])
    return result


def _run(kubectl: Kubectl, params: dict, result: dict) -> None:
    namespace, pods, seconds = params["namespace"], params["pods"], result["seconds"]
    start = time.monotonic()
    if ownership.tests_namespace(kubectl, namespace):
        # Pods cannot be changed, and nothing can be created in a terminating namespace.
        words = ("delete", "namespace", namespace, "--ignore-not-found", f"--timeout={params['wait_seconds']}s")
        kubectl.output("the test pods of an earlier run deleted", *words, limit=params["wait_seconds"] + 20)
    code, said, error = kubectl.apply(params["objects"], "--force-conflicts")
    while code and _NO_ACCOUNT in error and time.monotonic() < start + params["wait_seconds"]:
        time.sleep(1)
        code, said, error = kubectl.apply(params["objects"], "--force-conflicts")
    if code:
        raise KubectlError("the test pods applied", error or said)
    names = [pod["name"] for pod in pods]
    states = result["pods"] = wait_for_pods(kubectl, namespace, names, params["wait_seconds"])
    seconds["pods"] = round(time.monotonic() - start, 1)
    if any(pod.get("requests") for pod in pods):
        result["claims"] = dra.read(kubectl.items(dra.TYPES[-1], "-n", namespace))["claims"]
    running = [name for name in names if states.get(name, {}).get("ready")]
    if running and params["resolve"]:
        wait_for_dns(kubectl, start + params["wait_seconds"] - time.monotonic())
        seconds["dns"] = round(time.monotonic() - start, 1) - seconds["pods"]
    start = time.monotonic()
    peers = {pod["name"]: pod["peer"]["name"] for pod in pods if pod.get("peer") and pod["peer"]["pod"] in running}
    answers = result["answers"] = ask(kubectl, namespace, running, params["resolve"], peers)
    seconds["answers"] = round(time.monotonic() - start, 1)
    start = time.monotonic()
    parsed = {name: pod_probe.parse(text) for name, text in answers.items()} if params["traffic"] else {}
    planned = kube_pods.traffic(pods, parsed, params["port"])
    results = pod_traffic.send_all(kubectl, namespace, planned["tests"], params)
    result["traffic"] = {
        "tests": [{**test, "result": one} for test, one in zip(planned["tests"], results)],
        "left_out": planned["left_out"],
    }
    seconds["traffic"] = round(time.monotonic() - start, 1)


def remove(kubectl: Kubectl, namespace: str, seconds: int) -> dict:
    """Remove the namespace with all its content, if it is ours, and wait for its pods to end.

    The namespace itself may end later: nothing runs in it by then, and the next run waits for it.
    left: what is left after this many seconds. unanswered: why it is unknown whether anything is left.
    """
    space = ["delete", "namespace", namespace, "--ignore-not-found", "--wait=false"]
    pods = ["delete", "pods", "--all", "-n", namespace, "--ignore-not-found", f"--timeout={seconds}s"]
    for _try in range(2):
        try:
            # The deletion may use all the time: a silent API server shows sooner here.
            if not ownership.tests_namespace(kubectl, namespace):
                return {"left": None, "unanswered": None}
        except Unreachable as silent:
            return {"left": None, "unanswered": silent.reason}
        except KubectlError as failed:
            return {"left": last_words(failed.reason), "unanswered": None}
        except Refused:
            return {"left": None, "unanswered": None}  # it has nothing of ours, as run() has reported
        for words in (space, pods):
            code, said, error = kubectl.run(*words, limit=seconds + 20)
            if code:
                break
        if not lost(code, error):
            return {"left": (error or said).strip() if code else None, "unanswered": None}
    return {"left": None, "unanswered": f"asked twice: {last_words(error)}"}


def inspect_pod(kubectl: Kubectl, pod: str, offered: dict) -> dict:
    """api_error, pods, answers and item of a pod (NAMESPACE/NAME), missing if there is none. offered: the cluster."""
    try:
        return _look_into(kubectl, pod, offered)
    except Unreachable as silent:
        return {"api_error": silent.reason}
    except Refused as refused:
        return {"api_error": str(refused)}


def _claims(item: dict, known: list[dict]) -> dict:
    """{name in the pod: its claim as from dra.claim, None if there is none yet}."""
    names = {claim["name"]: claim.get("resourceClaimName") for claim in item["spec"].get("resourceClaims") or []}
    status = item.get("status") or {}
    names.update((claim["name"], claim.get("resourceClaimName")) for claim in status.get("resourceClaimStatuses") or [])
    by_name = {claim["name"]: claim for claim in known if claim["namespace"] == item["metadata"]["namespace"]}
    return {name: by_name.get(of) for name, of in names.items()}


def _look_into(kubectl: Kubectl, pod: str, offered: dict) -> dict:
    namespace, _slash, name = pod.rpartition("/")
    namespace = namespace or "default"
    seen = {"api_error": None, "pods": {}, "answers": {}, "item": None}
    try:
        (item,) = kubectl.items("pod", name, "-n", namespace)
    except KubectlError as refused:
        if "(NotFound)" not in refused.reason:
            raise
        return {**seen, "missing": refused.reason}
    events = kubectl.items("events", "-n", namespace, "--field-selector", f"involvedObject.name={name}")
    spec, seen["pods"][name] = item["spec"], state(item, events)
    running = [one for one in spec.get("initContainers") or [] if one.get("restartPolicy") == "Always"]
    running += spec["containers"]
    seen["item"] = {
        "namespace": namespace,
        "name": name,
        "annotations": {
            key: value
            for key, value in (item["metadata"].get("annotations") or {}).items()
            if "cni" in key or "network" in key
        },
        "host_paths": [volume["hostPath"]["path"] for volume in spec.get("volumes") or [] if "hostPath" in volume],
        "host_network": bool(spec.get("hostNetwork")),
        "runtime_class": spec.get("runtimeClassName") or "",
        "claims": _claims(item, offered["dra"]["claims"]),
        "security": spec.get("securityContext") or {},
        "containers": [
            {
                "name": container["name"],
                "limits": (container.get("resources") or {}).get("limits") or {},
                "security": container.get("securityContext") or {},
            }
            for container in running
        ],
    }
    if seen["pods"][name]["ready"]:
        # Only the container that requests an RDMA resource has its devices.
        wants = [(one["name"], one.get("resources") or {}) for one in running]
        using = (own for own, had in wants if had.get("claims") or "rdma/" in " ".join(had.get("limits") or {}))
        seen["answers"] = ask(kubectl, namespace, [name], resolve="", container=next(using, ""))
    return seen
