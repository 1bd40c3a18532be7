# Copyright (c) 2026, the gpufabric founders
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods on the API server: run the planned ones, probe each, remove them; probe a user's pod.

PRIVATE to the collection.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

from .._core.change import Refused
from . import cluster, ownership, pod_probe, pod_traffic
from . import pods as kube_pods
from .kubectl import Kubectl, KubectlError, last_words

# Waiting reasons that never resolve.
UNRECOVERABLE = (
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)


def state(item: dict, events: list[dict]) -> dict:
    """Phase, whether it is ready, and all reasons from Kubernetes."""
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


def unrecoverable(one: dict) -> bool:
    return any(reason.startswith(UNRECOVERABLE) for reason in one["reasons"]) or one["phase"] == "Failed"


def await_pods(kubectl: Kubectl, namespace: str, names: list[str], seconds: float, clock=time) -> dict:
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
        waiting = [one for one in states.values() if not one["ready"]]
        if len(states) == len(names) and all(unrecoverable(one) for one in waiting):
            return states
        if clock.monotonic() > deadline:
            return states
        clock.sleep(2)


def ask(kubectl: Kubectl, namespace: str, name: str, resolve: str) -> str:
    """The script's output in a pod, or the error when it could not run."""
    words = ["exec", "-n", namespace, name, "--", "sh", "-c", pod_probe.SCRIPT, "sh", resolve]
    code, said, error = kubectl.run(*words, limit=120)
    return said if code == 0 or said else f"@@ exec\n{error.strip()}\n@@= {code}\n"


def run(kubectl: Kubectl, params: dict) -> dict:
    """Effect: apply the pods, wait for them, probe each, send between them. pods, answers, traffic, seconds.

    params: namespace, objects, pods, traffic (bool), resolve, port, seconds, limit, wait_seconds.
    """
    namespace, pods = params["namespace"], params["pods"]
    seconds = {}
    start = time.monotonic()
    if ownership.tests_namespace(kubectl, namespace):
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
    results = [{**test, "result": pod_traffic.send(kubectl, namespace, test, params)} for test in planned["tests"]]
    seconds["traffic"] = round(time.monotonic() - start, 1)
    return {
        "pods": states,
        "answers": answers,
        "traffic": {"tests": results, "left_out": planned["left_out"]},
        "seconds": seconds,
    }


def remove_pods(kubectl: Kubectl, namespace: str) -> None:
    """Pods of an interrupted run: a pod cannot be changed, only recreated."""
    words = ["delete", "pods", "--all", "-n", namespace, "--grace-period=1", "--ignore-not-found"]
    kubectl.run(*words, limit=120)


def remove(kubectl: Kubectl, namespace: str, seconds: int) -> str | None:
    """Remove the namespace with all that is in it, if it is ours; what is left after so many seconds."""
    try:
        if not ownership.tests_namespace(kubectl, namespace):
            return None
    except KubectlError as failed:
        return last_words(failed.reason)
    except Refused:
        return None  # nothing of ours is in it, and run() has said so
    words = ["delete", "namespace", namespace, "--ignore-not-found", "--wait=true", f"--timeout={seconds}s"]
    code, said, error = kubectl.run(*words, limit=seconds + 20)
    return None if code == 0 else (error or said).strip()


def look_into(kubectl: Kubectl, pod: str, resolve: str) -> dict:
    """api_error, cluster, pods, answers and item of a pod (NAMESPACE/NAME); missing when it does not exist."""
    namespace, _slash, name = pod.rpartition("/")
    namespace = namespace or "default"
    found, error = cluster.read(kubectl)
    if error:
        return {"api_error": error}
    code, said, error = kubectl.run("get", "pod", name, "-n", namespace, "-o", "json")
    found = {"api_error": None, "cluster": found, "pods": {}, "answers": {}, "item": None}
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
        found["answers"][name] = ask(kubectl, namespace, name, resolve)
    return found
