"""The nccl-tests job: its variables come from the rails, no GID index among them, and no image without a digest."""

from __future__ import annotations

import importlib.util
import json
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import job as nccl_job
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import log as nccl_log
from ansible_collections.gpufabric.rdma.tests.tools import tree

OPTIONS = {
    "image": f"registry.example/nccl-tests@sha256:{'a' * 64}",
    "namespace": "gpufabric-nccl-tests",
    "networks": ["rail0", "fabric/rail1"],
    "gpus_per_node": None,
    "address_range": None,
    "form": "job",
    "resources": "rails",
    "script": "print()\n",
}
MPI = {**OPTIONS, "form": "mpijob"}
SCRIPT = pathlib.Path(__file__).resolve().parents[5] / "roles/nccl_tests/files/all_reduce.py"


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    root = tmp_path_factory.mktemp("node")
    tree.lay_out(tree.load("h100-8x-cx7-ib"), root)
    return json.dumps(gather(Tree(str(root)), Seams.of(Tree(str(root)))))


def nodes(facts):
    return [{"host": f"node{number}", "facts": json.loads(facts)} for number in (1, 2)]


def test_the_variables_name_the_rails_and_never_a_gid_index(facts):
    two = nodes(facts)
    found = nccl_job.environment(two, OPTIONS)
    assert found["NCCL_IB_HCA"] == "=" + ",".join(f"{r['hca']}:{r['port']}" for r in two[0]["facts"]["rails"])
    assert (found["NCCL_SOCKET_IFNAME"], found["NCCL_DEBUG"]) == ("eth0", "INFO")
    for options in (OPTIONS, MPI):
        made = json.dumps(nccl_job.objects(two, options))
        assert all(name in made for name in found)
        assert "GID_INDEX" not in made


def test_the_address_range_holds_every_rail_of_every_node(facts):
    two = nodes(facts)
    for number, one in enumerate(two):
        rails = {rail["hca"]: rail["index"] for rail in one["facts"]["rails"]}
        for hca in one["facts"]["hcas"]:
            rail = rails.get(hca["name"])
            mine = [f"10.56.{rail}.{number + 1}/24", "fe80::1/64"] if rail is not None else []
            hca["netdevs"] = [{"addresses": mine}]
    assert nccl_job.address_range(two) == "10.56.0.0/21"
    assert nccl_job.environment(two, {**OPTIONS, "address_range": "10.0.0.0/8"})["NCCL_IB_ADDR_RANGE"] == "10.0.0.0/8"


def test_every_form_asks_for_every_gpu_and_rail_and_one_worker_a_node(facts):
    for options in (OPTIONS, MPI):
        namespace, *made = nccl_job.objects(nodes(facts), options)
        assert {item["metadata"]["namespace"] for item in made} == {namespace["metadata"]["name"]}
        spec = made[-1]["spec"]
        template = spec["template"] if options is OPTIONS else spec["mpiReplicaSpecs"]["Worker"]["template"]
        limits = template["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == "8"
        assert sorted(name for name in limits if name.startswith("rdma/")) == [
            f"rdma/hca_shared_devices_{index}" for index in range(8)
        ]
        networks = json.loads(template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
        assert networks == [{"name": "rail0"}, {"name": "rail1", "namespace": "fabric"}]
        (apart,) = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        assert "privileged" not in json.dumps(made)
        assert "hostNetwork" not in json.dumps(made)


def test_the_pods_of_the_job_find_each_other_without_an_operator(facts):
    _namespace, scripts, service, job = nccl_job.objects(nodes(facts), OPTIONS)
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    # The label that the Job's controller puts on its pods.
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    command = pod["containers"][0]["command"][2]
    # Pod 0 of an indexed Job has the host name NAME-0.
    assert f"--master-addr={job['metadata']['name']}-0.{service['metadata']['name']} " in command
    assert "--nnodes=2 --nproc-per-node=8 " in command
    assert '--node-rank="$JOB_COMPLETION_INDEX"' in command
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert command.endswith(f"{mounts['scripts']}/all_reduce.py")
    assert scripts["data"] == {"all_reduce.py": OPTIONS["script"]}


def test_the_mpijob_starts_a_rank_for_each_gpu(facts):
    _namespace, job = nccl_job.objects(nodes(facts), MPI)
    worker = job["spec"]["mpiReplicaSpecs"]["Worker"]
    assert (worker["replicas"], job["spec"]["slotsPerWorker"]) == (2, 8)
    command = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert command[:6] == ["mpirun", "--allow-run-as-root", "--tag-output", "-np", "16", "--bind-to"]
    assert "UCX_NET_DEVICES=eth0" in command


@pytest.mark.parametrize("form", [OPTIONS, MPI], ids=["job", "mpijob"])
def test_resources_of_the_users_own_pools_are_asked_for_by_their_names(facts, form):
    pools = [
        {"resourceName": "fast", "selectors": {"ifNames": ["eth2"]}},
        {"ResourceName": "slow", "resourcePrefix": "example.com", "selectors": {"ifNames": ["eth3"]}},
    ]
    made = json.dumps(nccl_job.objects(nodes(facts), {**form, "resources": pools}))
    assert '"limits": {"nvidia.com/gpu": "8", "rdma/fast": "1", "example.com/slow": "1"}' in made


@pytest.fixture(scope="module")
def script():
    """The script that the Job runs; PyTorch is imported by its main() alone."""
    spec = importlib.util.spec_from_file_location("all_reduce", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_the_job_is_read_like_that_of_nccl_tests(script):
    rows = [script.row(8, 2e-5, 16, 0), script.row(1 << 30, 0.004, 16, 0)]
    found = nccl_log.parse("\n".join([script.HEADER, *rows, script.summary([0.5, 500], 0)]))
    assert found["rows"] == [(8, 0.0), (1 << 30, 503.32)]
    assert (found["wrong"], found["average_gbyte_per_s"]) == (0, 250.25)
    assert nccl_log.parse(script.summary([1.0], 3))["wrong"] == 3


def test_sizes_double_up_to_8_gib_or_to_half_of_the_free_memory(script):
    assert list(script.sizes(80 << 30))[::29] == [8, 4 << 30]
    assert max(script.sizes(80 << 30)) == 8 << 30
    assert list(script.sizes(100)) == [8, 16, 32]


@pytest.mark.parametrize("image", [None, "registry.example/nccl-tests:latest"])
def test_an_image_without_a_digest_is_refused(facts, image):
    found = nccl_job.findings(nodes(facts), {**OPTIONS, "image": image})
    assert [one["object"] for one in found] == ["variable nccl_tests_image"]


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
    assert moved["hca"] in found[-1]["seen"]
