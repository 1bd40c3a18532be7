"""The nccl-tests job: its variables come from the rails, no GID index among them, and no image without a digest."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Seams, Tree, gather
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import job as nccl_job
from ansible_collections.gpufabric.rdma.tests.tools import tree

OPTIONS = {
    "image": f"registry.example/nccl-tests@sha256:{'a' * 64}",
    "namespace": "gpufabric-nccl-tests",
    "networks": ["rail0", "fabric/rail1"],
    "gpus_per_node": None,
    "address_range": None,
}


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    found = {}
    for name in ("h100-8x-cx7-ib",):
        root = tmp_path_factory.mktemp(name)
        tree.lay_out(tree.load(name), root)
        reader = Tree(str(root))
        found[name] = json.dumps(
            gather(reader, Seams.of(reader), rails=[{"pci": "0000:01:00.0"}] if "gh" in name else [])
        )
    return found


def nodes(facts, name="h100-8x-cx7-ib"):
    return [{"host": f"node{number}", "facts": json.loads(facts[name])} for number in (1, 2)]


def test_the_variables_name_the_rails_and_never_a_gid_index(facts):
    two = nodes(facts)
    found = nccl_job.environment(two, OPTIONS)
    assert found["NCCL_IB_HCA"] == "=" + ",".join(f"{r['hca']}:{r['port']}" for r in two[0]["facts"]["rails"])
    assert found["NCCL_SOCKET_IFNAME"] == found["UCX_NET_DEVICES"] == "eth0"
    assert found["NCCL_DEBUG"] == "INFO"
    assert "GID_INDEX" not in json.dumps(nccl_job.objects(two, OPTIONS))


def test_the_address_range_holds_every_rail_of_every_node(facts):
    two = nodes(facts)
    for number, one in enumerate(two):
        for hca in one["facts"]["hcas"]:
            for netdev in hca["netdevs"]:
                netdev["addresses"] = []
        rails = {rail["hca"]: rail["index"] for rail in one["facts"]["rails"]}
        for hca in one["facts"]["hcas"]:
            if hca["name"] in rails:
                hca["netdevs"] = [{"addresses": [f"10.56.{rails[hca['name']]}.{number + 1}/24", "fe80::1/64"]}]
    assert nccl_job.address_range(two) == "10.56.0.0/21"
    assert nccl_job.environment(two, {**OPTIONS, "address_range": "10.0.0.0/8"})["NCCL_IB_ADDR_RANGE"] == "10.0.0.0/8"


def test_the_job_asks_for_every_gpu_and_rail_and_one_worker_a_node(facts):
    namespace, job = nccl_job.objects(nodes(facts), OPTIONS)
    assert namespace["metadata"]["name"] == job["metadata"]["namespace"]
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]
    assert (worker["replicas"], job["spec"]["slotsPerWorker"]) == (2, 8)
    limits = worker["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "8"
    assert sum(name.startswith("rdma/") for name in limits) == 8
    networks = json.loads(worker["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    assert networks == [{"name": "rail0"}, {"name": "rail1", "namespace": "fabric"}]
    command = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert command[:6] == ["mpirun", "--allow-run-as-root", "--tag-output", "-np", "16", "--bind-to"]
    assert "privileged" not in json.dumps(job)
    assert "hostNetwork" not in json.dumps(job)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"image": None}, "variable nccl_tests_image"),
        ({"image": "registry.example/nccl-tests:latest"}, "variable nccl_tests_image"),
    ],
)
def test_an_image_without_a_digest_is_refused(facts, change, wanted):
    assert [p["object"] for p in nccl_job.findings(nodes(facts), {**OPTIONS, **change})] == [wanted]


def test_every_problem_comes_at_once(facts):
    two = nodes(facts)
    assert nccl_job.findings(two, OPTIONS) == []
    moved = two[1]["facts"]["rails"].pop()
    two[1]["facts"]["gpus"] = []
    found = nccl_job.findings([two[0], two[1]], {**OPTIONS, "image": "x"})
    assert [(p["host"], p["object"]) for p in found] == [
        ("all nodes", "variable nccl_tests_image"),
        ("node2", "GPUs"),
        ("node2", "NCCL_IB_HCA"),
    ]
    assert f"{moved['hca']} is a rail elsewhere and none here" in found[-1]["seen"]
