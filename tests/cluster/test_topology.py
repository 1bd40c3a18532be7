"""GPU and rail on one NUMA node: the real topology manager, the plugin's hints, a double of the GPU plugin.

Rail 0 is on NUMA node 0 of the lab's nodes, rail 1 on node 1; the double has one GPU on each.
"""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.tests.tools import gpu_plugin_double, lab_pitfalls
from ansible_collections.gpufabric.rdma.tests.tools.lab_nodes import CHECKOUT

POLICY = "k3s_topology_manager_policy=single-numa-node"
HOME = "/usr/local/lib/rdma-device-plugin"
START = "systemd-run --quiet --unit=gpu-double {home}/venv/bin/python3 /run/gpu_double.py {home}/plugin.pyz"
GPU = gpu_plugin_double.RESOURCE
RAILS = (lab_pitfalls.RESOURCE, "rdma/hca_shared_devices_1")


def asking_pod(cluster, name, *resources):
    made = lab_pitfalls.pod(name, cluster.worker)
    made["spec"]["restartPolicy"] = "Never"
    made["spec"]["containers"][0]["resources"] = {"limits": dict.fromkeys(resources, "1")}
    lab_pitfalls.apply(cluster, made)


def gpu_of(cluster, name):
    cluster.wait(lambda: lab_pitfalls.running(cluster, name), f"{name} runs", lab_pitfalls.PATIENCE)
    said = cluster.kubectl("exec", name, "-n", lab_pitfalls.NAMESPACE, "--", "cat", "/proc/1/environ")
    return dict(entry.split("=", 1) for entry in said.split("\0") if "=" in entry)["GPU_DOUBLE"]


def refusal(cluster, name):
    status = cluster.get("pod", name, "-n", lab_pitfalls.NAMESPACE).get("status", {})
    return status.get("reason", "") if status.get("phase") == "Failed" else ""


def test_a_pod_gets_gpu_and_rail_of_one_numa_node_or_is_refused(breakable):
    worker, service = breakable.worker, breakable.kubelet_service(breakable.worker)
    plugin = breakable.main_pids()[worker].splitlines()[0]
    with breakable.timed("cluster.yml setting the topology manager's policy"):
        done = breakable.run("cluster.yml", "-e", POLICY)
    assert done.code == 0, done.text[-6000:]
    objects = {change["object"] for change in done.record["hosts"][worker]["changes"]}
    assert f"service {service}" in objects, objects
    assert breakable.main_pids()[worker].splitlines()[0] == plugin, "the plugin needs no restart"

    double = (CHECKOUT / "tests/tools/gpu_plugin_double.py").read_text()
    breakable.node(worker, f"cat >/run/gpu_double.py <<'EOF'\n{double}\nEOF\n{START.format(home=HOME)}")
    wanted = f"{GPU} 2"
    breakable.wait(lambda: breakable.allocatable(GPU) == 2, wanted, lab_pitfalls.PATIENCE)

    asking_pod(breakable, "first", GPU, RAILS[1])
    assert gpu_of(breakable, "first") == "gpu-1"
    # The remaining GPU is on the other NUMA node.
    asking_pod(breakable, "mismatch", GPU, RAILS[1])
    breakable.wait(lambda: refusal(breakable, "mismatch") != "", "refused", lab_pitfalls.PATIENCE)
    assert refusal(breakable, "mismatch") == "TopologyAffinityError"
    asking_pod(breakable, "second", GPU, RAILS[0])
    assert gpu_of(breakable, "second") == "gpu-0"

    # Two resources in one container, from both rails: no NUMA node has both.
    asking_pod(breakable, "both", *RAILS)
    breakable.wait(lambda: refusal(breakable, "both") != "", "refused", lab_pitfalls.PATIENCE)
    assert refusal(breakable, "both") == "TopologyAffinityError"

    # Deleted and made again, the pod finds its place again.
    breakable.kubectl("delete", "pod", "first", "-n", lab_pitfalls.NAMESPACE, "--wait=true")
    with breakable.timed("pod with GPU and rail deleted and made again"):
        asking_pod(breakable, "again", GPU, RAILS[1])
        assert gpu_of(breakable, "again") == "gpu-1"
