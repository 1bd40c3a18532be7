"""Claims on HCAs: the devices of test pods, alignment of GPU and HCA, why a claim is Pending."""

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import cluster, dra, pods, running_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import claim_checks, pod_checks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pods as verify_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.cluster import Cluster
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster

HOST = {**kubectl_cluster.hosts()[0], "dra_rails": [0], "tools": {"image": "pause", "mounts": {}}}
ROOTS = ("pci0000:10", "pci0000:80")


def slices(node="node1", taints=(), generation=1, rails=(0,), root=ROOTS[0]):
    at_root = {dra.dra.PCIE_ROOT: {"string": root}}
    devices = [
        {
            "name": f"mlx5-{rail}-u{unit:02d}",
            "attributes": {"name": {"string": f"mlx5_{rail}"}, "rail": {"int": rail}, **at_root},
            "taints": [{"key": key, "effect": "NoSchedule"} for key in taints],
        }
        for rail in rails
        for unit in (0, 1)
    ]
    return slice_of(node, dra.dra.DRIVER, devices, generation)


def gpus(*roots, node="node1"):
    devices = [
        {"name": f"gpu-{number}", "attributes": {dra.dra.PCIE_ROOT: {"string": root}}}
        for number, root in enumerate(roots)
    ]
    return slice_of(node, "gpu.nvidia.com", devices)


def slice_of(node, driver, devices, generation=1):
    pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
    metadata = {"name": f"{driver}-{node}-{generation}"}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def claim(pod, *results, namespace="tests"):
    metadata = {"name": f"{pod}-hcas-abcde", "namespace": namespace, "ownerReferences": [{"kind": "Pod", "name": pod}]}
    devices = [
        {"request": request, "driver": driver, "pool": "node1", "device": device} for request, driver, device in results
    ]
    status = {"allocation": {"devices": {"results": devices}}, "reservedFor": [{"resource": "pods", "name": pod}]}
    return {"kind": "ResourceClaim", "metadata": metadata, "status": status}


CLASSES = [
    {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    for name in ("rail-0.rdma.gpufabric.io", "gpu.nvidia.com")
]


def offered(*items):
    found = dra.read([*CLASSES, *items])
    node = {"name": "node1", "capacity": {}, "addresses": [], "hcas": dra.hcas(found, "node1")}
    return {"nodes": [node], "networks": [], "nads": [], "dra": found}


def planned(*items, gpu_class="gpu.nvidia.com"):
    return pods.plan([HOST], offered(*items), {"namespace": "tests", "image": None, "gpu_class": gpu_class})


def named(plan):
    return {(item["kind"], item["metadata"]["name"]): item for item in plan["objects"]}


def test_a_pod_claims_a_gpu_with_a_rail_where_a_driver_publishes_gpus():
    plan = planned(slices(), gpus(ROOTS[0]))
    devices = named(plan)["ResourceClaimTemplate", "aligned-node1"]["spec"]["spec"]["devices"]
    classes = [one["exactly"]["deviceClassName"] for one in devices["requests"]]
    assert classes == ["gpu.nvidia.com", "rail.rdma.gpufabric.io"]
    assert devices["constraints"] == [{"requests": ["gpu", "rail"], "matchAttribute": dra.dra.PCIE_ROOT}]
    for without in (planned(slices()), planned(slices(), gpus(ROOTS[0]), gpu_class=""), planned(gpus(ROOTS[0]))):
        assert "aligned" not in [pod["kind"] for pod in without["pods"]]


@pytest.mark.parametrize(("items", "status", "words"), [
    ([slices()], "passed", "2 devices, class rail-0.rdma.gpufabric.io"),
    ([], "failed", "not published"),
    ([slices(taints=["rdma.gpufabric.io/port-down"])], "failed", "taint rdma.gpufabric.io/port-down:NoSchedule"),
    # An older generation of the pool is ignored, like in the scheduler.
    ([slices(), slices(rails=(1,), generation=2)], "failed", "not published"),
])  # fmt: skip
def test_each_rail_over_dra_is_published_with_its_class(items, status, words):
    node = offered(*items)["nodes"][0]
    (made,) = claim_checks.offered(HOST, node)
    assert (made["status"], words in made["seen"]) == (status, True)
    assert claim_checks.served(HOST) == claim_checks.offered({**HOST, "dra_rails": []}, node) == []


@pytest.mark.parametrize(("device", "status", "words"), [
    ("mlx5-0-u01", "passed", "mlx5-0-u01"),
    ("gone", "failed", "request rail-0 without a device"),
    ("mlx5-1-u00", "failed", "has mlx5-1-u00 of rail 1"),
])  # fmt: skip
def test_a_test_pod_holds_the_rail_that_it_claimed(device, status, words):
    seen = dra.read([slices(rails=(0, 1)), claim("workload-node1", ("rail-0", dra.dra.DRIVER, device))])
    (made,) = claim_checks.of_pod(planned(slices())["pods"][0], seen["claims"], seen)
    assert (made["status"], words in made["seen"]) == (status, True)


PENDING = {"ready": False, "phase": "Pending", "reasons": ["Unschedulable: 0/2 nodes: 2 cannot allocate all claims."]}
PAIR = ("gpu", "gpu.nvidia.com", "gpu-0"), ("rail", dra.dra.DRIVER, "mlx5-0-u00")
HELD = claim("aligned-node1", *PAIR)
TAKEN = claim("other", PAIR[0], namespace="team")


@pytest.mark.parametrize(("ready", "items", "status", "words"), [
    (True, [gpus(*ROOTS), HELD], "passed", "gpu-0 at pci0000:10, mlx5-0-u00 at pci0000:10"),
    (True, [gpus(*reversed(ROOTS)), HELD], "failed", ""),
    # Free, with an HCA next to it: the scheduler's reason and its next step.
    (False, [gpus(*ROOTS)], "failed", "cannot allocate all claims"),
    (False, [gpus(ROOTS[1])], "failed", "no HCA at the root of a free GPU: gpu-0 at pci0000:80"),
    (False, [gpus(ROOTS[0]), TAKEN], "not_verified", "all 1 GPUs of node1"),
])  # fmt: skip
def test_a_pair_is_judged_by_what_its_devices_say_or_why_it_cannot_be_had(ready, items, status, words):
    pod = next(pod for pod in planned(slices(), gpus(*ROOTS))["pods"] if pod["kind"] == "aligned")
    seen = dra.read([slices(), *items])
    made = claim_checks.aligned(pod, {"ready": True} if ready else PENDING, seen["claims"], seen)
    assert (made["status"], words in made["seen"]) == (status, True)


def test_without_a_gpu_driver_it_is_not_verified_with_the_reason():
    node = offered(slices())["nodes"][0]
    made = [claim_checks.not_aligned(node, name) for name in ("gpu.nvidia.com", "")]
    assert [one["status"] for one in made] == ["not_verified"] * 2
    assert made[0]["seen"] != made[1]["seen"]


@pytest.mark.parametrize(("reason", "words"), [
    ("0/1 nodes are available: 1 cannot allocate all claims.", "kubectl get resourceslices"),
    ("resourceclaim in use", "ResourceClaimTemplate"),
])  # fmt: skip
def test_a_pending_claim_of_a_user_is_named_with_the_schedulers_reason_and_the_next_step(reason, words):
    state = {"reasons": [f"Unschedulable: {reason}"]}
    (made,) = claim_checks.of_user("pod a/b", {"pair": None}, state, claim_checks.NOTHING)
    assert (made["status"], made["seen"], words in made["next_step"]) == ("failed", state["reasons"][0], True)


SECOND = ("gpu1", "gpu.nvidia.com", "gpu-1")


@pytest.mark.parametrize(("root", "results", "verdicts"), [
    (ROOTS[0], PAIR, ["pod:claim:x passed", "pod:aligned:x passed"]),
    (ROOTS[1], PAIR, ["pod:claim:x passed", "pod:aligned:x failed"]),
    (ROOTS[0], (*PAIR, SECOND), ["pod:claim:x passed"]),  # several pairs in one claim are listed only
])  # fmt: skip
def test_a_users_pair_is_judged(root, results, verdicts):
    seen = dra.read([slices(root=root), gpus(*ROOTS), claim("train", *results)])
    made = claim_checks.of_user("pod a/train", {"x": seen["claims"][0]}, {"reasons": []}, seen)
    assert [f"{one['id']} {one['status']}" for one in made] == verdicts


def test_claims_on_a_nodes_hcas():
    held = dra.held(dra.read([slices(), claim("train", *PAIR)]))
    row = {"claim": "tests/train-hcas-abcde", "pods": ["train"], "hca": "mlx5_0", "rail": 0, "device": "mlx5-0-u00"}
    assert (held["node1"], "node2" in held) == ([row], False)


# --- run for real against the double ----------------------------------------------------------------------------------


def test_pods_with_claims_are_run_and_what_they_were_given_is_judged(tmp_path, monkeypatch):
    """Two nodes, an HCA and two GPUs each, GPU 1 at the HCA's root: the double allocates as the slices say."""
    double = kubectl_cluster.make(tmp_path / "cluster.json")
    double.add(*CLASSES)
    for name in ("node1", "node2"):
        for item in (slices(name), gpus(ROOTS[1], ROOTS[0], node=name)):
            double.add(item)
    hosts = [{**host, "dra_rails": [0], "tools": {"image": "pause", "mounts": {}}} for host in kubectl_cluster.hosts()]
    client = double.client()
    read, error = cluster.read(client)
    assert error is None
    # No resource: the rail is only served over DRA.
    read["nodes"] = [{**node, "capacity": {}, "allocatable": {}} for node in read["nodes"]]
    plan = verify_pods.plan(Cluster(hosts, {"cluster": read}, namespace="tests", gpu_class="gpu.nvidia.com"))
    assert sorted({pod["kind"] for pod in plan["pods"]}) == ["aligned", "seed", "workload"]
    double.state(pending={"workload-node2": ["0/2 nodes are available: 2 cannot allocate all claims."]})
    params = {"namespace": "tests", "traffic": False, "resolve": "", "wait_seconds": 1, "port": 18700}
    params["removed_afterwards"] = False
    monkeypatch.setattr(running_pods.time, "sleep", lambda _seconds: None)
    run = running_pods.run(client, {**params, "objects": plan["objects"], "pods": plan["pods"]})
    offered = {**read, "networks": pod_checks.networks_of(read, hosts)}
    seen = Cluster(hosts, {}, gpu_class="gpu.nvidia.com", plan=plan, run=run)
    found = {(host, one["id"]): one for host, one in pod_checks.judge(seen, offered, False)}
    aligned = [found[host, "pod:aligned"] for host in ("node1", "node2")]
    assert [one["status"] for one in aligned] == ["passed", "passed"], aligned
    assert all("gpu-1 at pci0000:10, mlx5-0-u00 at pci0000:10" in one["seen"] for one in aligned)
    assert found["node1", "pod:workload:claim"]["status"] == "passed"
    pending = found["node2", "pod:workload:running"]
    assert pending["status"] == "failed"
    assert "cannot allocate all claims" in pending["seen"]
