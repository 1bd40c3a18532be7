"""Pitfalls of the pod network, planted in the running cluster: the failure, the line that verify prints, and the fix.

Ids in the test names are those of docs/failures.md; K3, M5, M7, N1 and N9 are in test_second_run_heals.py. If
the fix is one of our units, a test first disables it to show that the fault is real, then lets it work.
"""

import copy
import json

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls
from ansible_collections.gpufabric.rdma.tests.tools import rendering
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import STARTUP_TAINT, Cluster


def test_m11_the_configuration_of_a_daemon_that_is_gone_is_named_and_removed(breakable):
    conf = breakable.node(breakable.worker, f"cat {pitfalls.CONF}")
    breakable.node(breakable.worker, f"systemctl stop {pitfalls.GUARD}")
    nowhere = {"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": "nowhere"}}}}}
    patch = f"'{json.dumps(nowhere)}'"
    breakable.kubectl("patch", "daemonset", "kube-multus-ds", "-n", "kube-multus", "--type", "merge", "-p", patch)
    gone = "pgrep -x multus-daemon >/dev/null && echo there || echo gone"
    breakable.wait(lambda: breakable.node(breakable.worker, gone) == "gone", "the daemon is gone", pitfalls.PATIENCE)
    # Like after SIGKILL: on SIGTERM the daemon removes its configuration.
    breakable.node(breakable.worker, f"cat >{pitfalls.CONF} <<'EOF'\n{conf}\nEOF")
    pitfalls.apply(breakable, pitfalls.pod("stuck", breakable.worker))
    breakable.wait(lambda: "multus" in pitfalls.complaints(breakable, "stuck"), "the pod's failure", pitfalls.PATIENCE)

    assert "cni:multus-not-running" in pitfalls.lines(pitfalls.look(breakable), breakable.worker)

    breakable.node(breakable.worker, f"systemctl start {pitfalls.GUARD}")
    with breakable.timed("M11: guard started -> dead configuration removed"):
        breakable.wait(
            lambda: breakable.node(breakable.worker, f"ls {pitfalls.CONF}; true") == "", "gone", pitfalls.PATIENCE
        )
    breakable.succeed("cluster.yml")
    pitfalls.wait_running(breakable, "stuck")


def test_k8_m9_what_flannel_and_multus_were_told_by_hand_is_named_and_taken_back(breakable):
    worker = breakable.worker
    own = pitfalls.pod_network_address(breakable, worker)
    pitfalls.plant_flannel_on_the_fabric(breakable, "eth2")
    breakable.wait(
        lambda: pitfalls.pod_network_address(breakable, worker) != own, "pod traffic on rail 0", pitfalls.PATIENCE
    )
    pitfalls.plant_plugins_mounted_elsewhere(breakable)

    looked = pitfalls.look(breakable)
    assert "rail 0" in pitfalls.lines(looked, worker)["cluster:pod-nic"]
    assert "/opt/cni/elsewhere" in pitfalls.lines(looked, breakable.nodes[0])["cni:bin-dir-mounted-elsewhere"]

    with breakable.timed("cluster.yml taking back what was changed by hand"):
        healed = breakable.succeed("cluster.yml")
    taken_back = {f"DaemonSet {namespace}/{name}" for name, namespace in (pitfalls.FLANNEL, pitfalls.MULTUS)}
    assert {change["object"] for host in healed.record.values() for change in host["changes"]} == taken_back
    assert pitfalls.pod_network_address(breakable, worker) == own
    pitfalls.start(breakable, pitfalls.pod("after", worker, "default/rail0"))
    assert [*pitfalls.addresses(breakable, "after")] == ["eth0", "net1"]


def test_k5_a_node_that_is_not_ready_for_want_of_a_pod_network_holds_no_run_up(breakable):
    for name, namespace in (pitfalls.MULTUS, pitfalls.FLANNEL):
        breakable.kubectl("delete", "daemonset", name, "-n", namespace, "--wait=true")
    for name in breakable.nodes:
        breakable.node(name, f"rm -f {pitfalls.CONF} /etc/cni/gpufabric-rdma.d/*")
    breakable.wait(lambda: "cni" in pitfalls.not_ready(breakable, breakable.worker), "NotReady", pitfalls.PATIENCE)

    found = pitfalls.look(breakable).checks(breakable.worker, "failed")
    assert "no-cni" in {check.get("failure") for check in found}, found

    with breakable.timed("cluster.yml from nodes that are not Ready"):
        breakable.succeed("cluster.yml")
    assert breakable.settled()


def test_n3_a_users_pod_is_diagnosed_by_its_name(breakable):
    fixed = pitfalls.taking(pitfalls.pod("fixed", breakable.worker, "default/rail0"), 1)
    fixed["spec"]["containers"][0]["env"] += [{"name": "NCCL_IB_GID_INDEX", "value": "3"}]
    # The same without the resource: the interface is there, the devices are not.
    bare = pitfalls.pod("bare", breakable.worker, "default/rail0")
    pitfalls.start(breakable, fixed, bare)

    told = breakable.run("verify.yml", "-e", f"verification_pod={pitfalls.NAMESPACE}/fixed")
    assert "NCCL_IB_GID_INDEX=3" in pitfalls.everywhere(told, breakable)["pod:gid-index"]

    told = breakable.run("verify.yml", "-e", f"verification_pod={pitfalls.NAMESPACE}/bare")
    assert f"pod:resource:{pitfalls.RESOURCE}" in pitfalls.everywhere(told, breakable)


@pytest.mark.parametrize("how", ["hard reset", "reboot"])
@pytest.mark.parametrize("name", Cluster.nodes[::-1])
def test_m3_m4_n13_a_new_boot_needs_no_hand_and_no_pod_comes_up_without_multus(breakable, name, how):
    # `next` waits across the boot for the devices of `all`, which ends with the boot: no step depends on timing.
    whole = breakable.get("node", name)["status"]["allocatable"][pitfalls.RESOURCE]
    before = {
        "bound": pitfalls.pod("bound", name, "default/rail0"),
        "all": pitfalls.taking(pitfalls.pod("all", name), whole),
    }
    pitfalls.start(breakable, *before.values())
    assert "net1" in pitfalls.addresses(breakable, "bound")
    pitfalls.apply(breakable, pitfalls.taking(pitfalls.pod("next", None, "default/rail0", on=name), 1))
    breakable.wait(
        lambda: f"Insufficient {pitfalls.RESOURCE}" in pitfalls.unscheduled(breakable, "next"),
        "no place for `next`",
        pitfalls.PATIENCE,
    )
    assert "untolerated taint" not in pitfalls.unscheduled(breakable, "next")
    failed = len(pitfalls.complaints(breakable, "bound").splitlines())
    with breakable.timed(f"{name}: {how} -> all nodes Ready, all pods running, taint gone"):
        breakable.reboot(name, how)
        breakable.wait_bound_untainted("next", pitfalls.NAMESPACE, name, 900)
        # It has ended, or `next` would not be bound; Kubernetes does not restart it.
        breakable.kubectl("delete", "pod", "all", "-n", pitfalls.NAMESPACE)
        breakable.wait(lambda: breakable.came_back(name), "what ran on the node runs again", 900)
        breakable.wait(breakable.settled, "all Ready", 900)
        breakable.wait(lambda: not breakable.startup_taints(), "no startup taint", 900)
    # The scheduler rejected the node until the startup taint was gone. Its times are in whole seconds.
    assert "untolerated taint" in pitfalls.unscheduled(breakable, "next")
    was_set, removed = breakable.startup_taint_times(name)
    bound = pitfalls.bound_at(breakable, "next")
    breakable.note(
        f"{removed - was_set:7.1f} s  startup taint on {name}; the waiting pod bound {bound - removed:.1f} s later"
    )
    assert was_set < removed < bound + 1
    assert [*pitfalls.addresses(breakable, "next")] == ["eth0", "net1"]
    assert pitfalls.complaints(breakable, "next") == ""

    # The annotation is Multus' last record; the pod itself shows the present state.
    inside = pitfalls.inside(breakable, "bound", "ls", "/sys/class/net").split()
    assert {"eth0", "net1"} <= set(inside)
    found = pitfalls.complaints(breakable, "bound")
    breakable.note(f"{len(found.splitlines()) - failed:7}    failed sandboxes after the {how} of {name}")
    status = breakable.get("node", name)["status"]
    assert status["allocatable"][pitfalls.RESOURCE] == status["capacity"][pitfalls.RESOURCE] != "0"
    breakable.succeed("verify.yml")


# --- pods that tolerate the startup taint, and pods that wait for its removal -----------------------------------------
#
# nv-ipam's controller is our object over its own definitions; its program is a stand-in that sleeps, because its
# image is not available here. The test is about the scheduler.

CONTROLLER = "nv-ipam-controller"
DEFINITIONS = ("ippools.nv-ipam.nvidia.com", "cidrpools.nv-ipam.nvidia.com")


def with_stand_in(deployment):
    """The Deployment, except for the program, its probes and their ports."""
    made = copy.deepcopy(deployment)
    (container,) = rendering.pod_of(made)["containers"]
    for name in ("args", "livenessProbe", "readinessProbe"):
        container.pop(name)
    container["command"] = ["sleep", "100000"]
    pitfalls.with_tools(rendering.pod_of(made))
    return made


def without_our_toleration(deployment):
    """Like the old template: under the startup taint forever, while the role waits for it."""
    made = copy.deepcopy(deployment)
    made["metadata"]["name"] = f"{CONTROLLER}-old"
    made["spec"]["selector"]["matchLabels"] = made["spec"]["template"]["metadata"]["labels"] = {
        "app": f"{CONTROLLER}-old"
    }
    spec = rendering.pod_of(made)
    spec["tolerations"] = [one for one in spec["tolerations"] if one.get("key") != STARTUP_TAINT]
    return made


def nv_ipam():
    """(the controller's dependencies, the controller) as the role networks renders them."""
    objects = rendering.of_template("networks", "nv-ipam.yml.j2")
    (controller,) = [item for item in objects if item["kind"] == "Deployment"]
    return [item for item in objects if item["kind"] not in ("Deployment", "DaemonSet")], controller


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
    pitfalls.apply(breakable, *needed, ours, old)
    for name in DEFINITIONS:
        breakable.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=120s")
    with breakable.timed("nv-ipam's controller (stand-in) applied -> available, all nodes with the startup taint"):
        breakable.wait(lambda: available(breakable, CONTROLLER), "available", pitfalls.PATIENCE)
    assert sorted(breakable.startup_taints()) == sorted(breakable.nodes), "it was there all the time"

    waiting = pod_of(breakable, f"{CONTROLLER}-old")
    assert "nodeName" not in waiting["spec"]
    (told,) = [row for row in waiting["status"]["conditions"] if row["type"] == "PodScheduled"]
    assert (told["status"], told["reason"]) == ("False", "Unschedulable")
    assert "untolerated taint" in told["message"], told  # 1.35 no longer says which; see below

    breakable.kubectl("taint", "nodes", "--all", f"{STARTUP_TAINT}-")
    with breakable.timed("startup taint removed -> the one that does not tolerate it available"):
        breakable.wait(lambda: available(breakable, f"{CONTROLLER}-old"), "available", pitfalls.PATIENCE)
