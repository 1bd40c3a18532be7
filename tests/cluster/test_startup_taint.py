"""What the roles deploy and wait for starts while nodes still have the startup taint; anything else waits for it to go.

nv-ipam's controller is our object over its own definitions; its program is a stand-in that sleeps, for its image cannot
be had here. What is tested is the scheduler's side.
"""

from __future__ import annotations

import copy
import json

from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls, rendered_objects
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import STARTUP_TAINT
from ansible_collections.gpufabric.rdma.tests.tools.lab_pitfalls import with_tools

CONTROLLER = "nv-ipam-controller"
DEFINITIONS = ("ippools.nv-ipam.nvidia.com", "cidrpools.nv-ipam.nvidia.com")


def with_stand_in(deployment):
    """The Deployment as it is but for the program, its probes and what they listen on."""
    made = copy.deepcopy(deployment)
    (container,) = rendered_objects.pod_of(made)["containers"]
    for name in ("args", "livenessProbe", "readinessProbe"):
        container.pop(name)
    container["command"] = ["sleep", "100000"]
    with_tools(rendered_objects.pod_of(made))
    return made


def without_our_toleration(deployment):
    """As the template was: under the startup taint for ever, and the role waiting for it."""
    made = copy.deepcopy(deployment)
    made["metadata"]["name"] = f"{CONTROLLER}-old"
    made["spec"]["selector"]["matchLabels"] = made["spec"]["template"]["metadata"]["labels"] = {
        "app": f"{CONTROLLER}-old"
    }
    spec = rendered_objects.pod_of(made)
    spec["tolerations"] = [one for one in spec["tolerations"] if one.get("key") != STARTUP_TAINT]
    return made


def nv_ipam():
    """(what the controller needs, the controller) as the role networks renders them."""
    objects = rendered_objects.of_template("networks", "nv-ipam.yml.j2")
    (controller,) = [item for item in objects if item["kind"] == "Deployment"]
    return [item for item in objects if item["kind"] not in ("Deployment", "DaemonSet")], controller


def apply(cluster, *objects):
    listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(listing))


def available(cluster, name):
    return cluster.get("deployment", name, "-n", "kube-system").get("status", {}).get("availableReplicas") == 1


def pod_of(cluster, name):
    (pod,) = cluster.get("pods", "-n", "kube-system", "-l", f"app={name}")["items"]
    return pod


def test_nv_ipams_controller_starts_under_the_startup_taint_and_what_does_not_tolerate_it_waits(breakable):
    for name in breakable.nodes:
        breakable.node(name, "systemctl stop gpufabric-rdma-node-ready")
    breakable.kubectl("taint", "nodes", "--all", f"{STARTUP_TAINT}=:NoSchedule", "--overwrite")
    assert sorted(breakable.startup_taints()) == sorted(breakable.nodes)

    needed, controller = nv_ipam()
    ours = with_stand_in(controller)
    old = without_our_toleration(ours)
    apply(breakable, *needed, ours, old)
    for name in DEFINITIONS:
        breakable.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=120s")
    with breakable.timed("nv-ipam's controller (stand-in) applied -> available, all nodes with the startup taint"):
        breakable.wait(lambda: available(breakable, CONTROLLER), "available", lab_pitfalls.PATIENCE)
    assert sorted(breakable.startup_taints()) == sorted(breakable.nodes), "it was there all the time"

    waiting = pod_of(breakable, f"{CONTROLLER}-old")
    assert "nodeName" not in waiting["spec"]
    (told,) = [row for row in waiting["status"]["conditions"] if row["type"] == "PodScheduled"]
    assert (told["status"], told["reason"]) == ("False", "Unschedulable")
    assert "untolerated taint" in told["message"], told  # 1.35 no longer says which; see below

    breakable.kubectl("taint", "nodes", "--all", f"{STARTUP_TAINT}-")
    with breakable.timed("startup taint removed -> the one that does not tolerate it available"):
        breakable.wait(lambda: available(breakable, f"{CONTROLLER}-old"), "available", lab_pitfalls.PATIENCE)
