"""The nccl-tests job for the rails, and its logs: lines of NCCL 2.12 to 2.28, with each fault."""

import importlib.util
import json
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._nccl import job, log

OPTIONS = {
    "image": f"registry.example/nccl-tests@sha256:{'a' * 64}",
    "namespace": "gpufabric-nccl-tests",
    "networks": ["rail0", "fabric/rail1"],
    "gpus_per_node": None,
    "address_range": None,
    "form": "job",
    "resources": "rails",
    "script": "print()\n",
    "fabric_plan": None,
}
MPI = {**OPTIONS, "form": "mpijob"}
SCRIPT = pathlib.Path(__file__).resolve().parents[4] / "roles/nccl_tests/files/all_reduce.py"


@pytest.fixture
def nodes(facts_of):
    return [{"host": f"node{number}", "facts": facts_of("h100-8x-cx7-ib")} for number in (1, 2)]


def test_the_variables_name_the_rails_and_never_a_gid_index(nodes):
    made = job.environment(nodes, OPTIONS)
    assert made["NCCL_IB_HCA"] == "=" + ",".join(f"{r['hca']}:{r['port']}" for r in nodes[0]["facts"]["rails"])
    assert (made["NCCL_SOCKET_IFNAME"], made["NCCL_DEBUG"]) == ("eth0", "INFO")
    for options in (OPTIONS, MPI):
        text = json.dumps(job.objects(nodes, options))
        assert [word for word in (*made, "GID_INDEX") if word not in text] == ["GID_INDEX"]


@pytest.mark.parametrize(("changes", "names", "span"), [
    ({}, [f"default/rail{index}" for index in range(8)], "10.56.0.0/21"),
    ({"networks_rails": False}, [], None),
    (
        {"networks_attachments": [{"name": "own", "type": "macvlan", "rail": 1, "namespaces": ["of-mine"]}]},
        ["of-mine/own"],
        None,
    ),
])  # fmt: skip
def test_roce_rails_get_the_networks_that_are_planned_for_them_and_are_refused_without(
    nodes, variables, changes, names, span
):
    for port in [port for node in nodes for hca in node["facts"]["hcas"] for port in hca["ports"]]:
        port["link_layer"] = "Ethernet"
    made = job.rail_networks(nodes, {**variables, **changes})
    assert (*made, job._span(["10.0.0.0/24", "fd00::/64"])) == (names, span, None)
    options = {**OPTIONS, "networks": made[0], "address_range": made[1]}
    objects = {item["object"] for item in job.findings(nodes, options)}
    assert objects == (set() if names else {"variable nccl_tests_networks"})
    made = job.environment(nodes, {**options, "fabric_plan": "oracle"})
    assert (made.get("NCCL_IB_ADDR_RANGE"), made["NCCL_IB_TC"], made["NCCL_IB_SL"]) == (span, "105", "5")


POOLS = [
    {"resourceName": "fast", "selectors": {"ifNames": ["eth2"]}},
    {"ResourceName": "slow", "resourcePrefix": "example.com", "selectors": {"ifNames": ["eth3"]}},
]


@pytest.mark.parametrize("options", [OPTIONS, MPI], ids=["job", "mpijob"])
def test_every_form_asks_for_every_gpu_and_rail_and_one_worker_a_node(nodes, options):
    namespace, *made = job.objects(nodes, options)
    assert {item["metadata"]["namespace"] for item in made} == {namespace["metadata"]["name"]}
    spec = made[-1]["spec"]
    template = spec["template"] if options is OPTIONS else spec["mpiReplicaSpecs"]["Worker"]["template"]
    limits = template["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8", **{f"rdma/hca_shared_devices_{index}": "1" for index in range(8)}}
    networks = json.loads(template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    assert networks == [{"name": "rail0"}, {"name": "rail1", "namespace": "fabric"}]
    (apart,) = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert not [word for word in ("privileged", "hostNetwork") if word in json.dumps(made)]
    own = json.dumps(job.objects(nodes, {**options, "resources": POOLS}))
    assert '"limits": {"nvidia.com/gpu": "8", "rdma/fast": "1", "example.com/slow": "1"}' in own


def test_the_pods_of_the_job_find_each_other_without_an_operator(nodes):
    _namespace, scripts, service, made = job.objects(nodes, OPTIONS)
    spec = made["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", 2)
    # The label that the Job's controller puts on its pods.
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": made["metadata"]["name"]}
    pod = spec["template"]["spec"]
    command = pod["containers"][0]["command"][2]
    # Pod 0 of an indexed Job has the host name NAME-0.
    assert f"--master-addr={made['metadata']['name']}-0.{service['metadata']['name']} " in command
    assert [text in command for text in ("=2 --nproc-per-node=8 ", '--node-rank="$JOB_COMPLETION_INDEX"')] == [True] * 2
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert command.endswith(f"{mounts['scripts']}/all_reduce.py")
    assert scripts["data"] == {"all_reduce.py": OPTIONS["script"]}


def test_the_mpijob_starts_a_rank_for_each_gpu(nodes):
    made = job.objects(nodes, MPI)[-1]["spec"]
    replicas = made["mpiReplicaSpecs"]
    assert (replicas["Worker"]["replicas"], made["slotsPerWorker"]) == (2, 8)
    command = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
    assert command[:6] == ["mpirun", "--allow-run-as-root", "--tag-output", "-np", "16", "--bind-to"]
    assert "UCX_NET_DEVICES=eth0" in command


@pytest.fixture(scope="module")
def script():
    """The script that the Job runs; only its main() imports PyTorch."""
    spec = importlib.util.spec_from_file_location("all_reduce", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_the_job_is_read_like_that_of_nccl_tests(script):
    rows = [script.row(8, 2e-5, 16, 0), script.row(1 << 30, 0.004, 16, 0)]
    found = log.parse("\n".join([script.HEADER, *rows, script.summary([0.5, 500], 0)]))
    assert found["rows"] == [(8, 0.0), (1 << 30, 503.32)]
    assert (found["wrong"], found["average_gbyte_per_s"]) == (0, 250.25)
    assert log.parse(script.summary([1.0], 3))["wrong"] == 3


def test_sizes_double_up_to_8_gib_or_to_half_of_the_free_memory(script):
    assert list(script.sizes(80 << 30))[::29] == [8, 4 << 30]
    assert max(script.sizes(80 << 30)) == 8 << 30
    assert list(script.sizes(100)) == [8, 16, 32]


def test_every_problem_comes_at_once(nodes):
    assert job.findings(nodes, OPTIONS) == []
    for image in (None, "registry.example/nccl-tests:latest"):
        made = job.findings(nodes, {**OPTIONS, "image": image})
        assert [one["object"] for one in made] == ["variable nccl_tests_image"]
    moved = nodes[1]["facts"]["rails"].pop()
    nodes[1]["facts"]["gpus"] = []
    made = job.findings(nodes, {**OPTIONS, "image": "x"})
    objects = [("all nodes", "variable nccl_tests_image"), ("node2", "GPUs"), ("node2", "NCCL_IB_HCA")]
    assert [(one["host"], one["object"]) for one in made] == objects
    assert moved["hca"] in made[-1]["seen"]


# --- logs -------------------------------------------------------------------------------------------------------------

HEALTHY = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
# Using devices
#  Rank  0 Group  0 Pid  31842 on    worker0 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  28110 on    worker1 device  0 [0x18] NVIDIA H100 80GB HBM3
worker0:31842:31842 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
worker0:31842:31842 [0] NCCL INFO Bootstrap : Using eth0:10.42.0.9<0>
worker0:31842:31842 [0] NCCL INFO NCCL version 2.21.5+cuda12.4
worker0:31842:31905 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.42.0.9<0>
worker1:28110:28171 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.42.1.9<0>
worker0:31842:31905 [0] NCCL INFO Using non-device net plugin version 0
worker0:31842:31905 [0] NCCL INFO Using network IB
worker1:28110:28171 [0] NCCL INFO Using network IB
worker0:31842:31905 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'
worker0:31842:31905 [0] NCCL INFO Channel 00/02 :    0   1
worker0:31842:31950 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
worker0:31842:31950 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA
worker1:28110:28190 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA
worker1:28110:28190 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [send] via NET/IB/1/GDRDMA
worker0:31842:31950 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[2] via P2P/CUMEM
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    17.08    0.00    0.00      0    16.76    0.00    0.00      0
  8589934592    2147483648     float     sum      -1   180860   92.49   92.49      0   180902   92.48   92.48      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 47.4509
#
"""


def judged(text, hcas=("mlx5_0", "mlx5_1"), minimum=None):
    return {item["id"]: item for item in log.checks(log.parse(text), list(hcas), minimum)}


def failed(checks):
    return [name for name, item in checks.items() if item["status"] == "failed"]


def test_a_healthy_log_passes_and_names_what_it_found():
    checks, parsed = judged(HEALTHY, minimum=80), log.parse(HEALTHY)
    assert {item["status"] for item in checks.values()} == {"passed"}
    assert (parsed["version"], parsed["networks"]) == ("2.21.5", ["IB"])
    assert log.used_hcas(parsed) == {"worker0": ["mlx5_0", "mlx5_1"], "worker1": ["mlx5_0", "mlx5_1"]}
    assert checks["nccl:bandwidth"]["seen"] == "92.49 GByte/s at 8589934592 bytes, 47.4509 on average over all sizes"
    assert checks["nccl:gpudirect"]["seen"] == "on 4 connections"
    # The prefix of mpirun, srun or kubectl changes nothing.
    prefixes = ["[1,0]<stdout>:", "[prterun-gpu1-39@1,0]<stdout>: ", "3: ", "[pod/a-0/worker] 2026-05-05T06:16:47.1Z "]
    for prefix in prefixes:
        assert log.parse("\n".join(prefix + line for line in HEALTHY.splitlines())) == parsed


TCP = """\
worker0:924:924 [0] NCCL INFO NET/IB : No device found.
worker0:924:924 [0] NCCL INFO NET/Socket : Using [0]eth0:10.42.0.9<0>
worker0:924:924 [0] NCCL INFO Using network Socket
worker0:924:930 [0] NCCL INFO NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'
worker0:924:930 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
worker0:924:930 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
"""


def test_tcp_fails_and_says_why_there_is_no_verbs_device():
    checks = judged(TCP)
    assert failed(checks) == ["nccl:transport"]
    shown = log.report("job.log", log.parse(TCP), list(checks.values()))
    assert [item["object"] for item in checks.values() if item["object"] not in shown] == []
    assert checks["nccl:transport"]["next_step"].split()[0] in shown
    assert checks["nccl:transport"]["seen"] == ("NET/Socket on 2 of 2 connections; NET/IB : No device found on worker0")
    assert checks["nccl:gpudirect"]["status"] == checks["nccl:rails"]["status"] == "not_verified"


def test_joined_hcas_count_each():
    made = "worker0:1:1 [0] NCCL INFO NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2\n"
    made += "worker0:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/2/GDRDMA\n"
    assert log.used_hcas(log.parse(made)) == {"worker0": ["mlx5_0", "mlx5_1"]}


def over(network, index, gdr):
    return [{"host": "w0", "network": network, "index": index, "gdr": gdr}]


@pytest.mark.parametrize(("line", "key", "expected"), [
    # 2.10 and before: no communicator behind the channel, the bus id in brackets
    ("Channel 00 : 0[1000] -> 8[1000] [receive] via NET/IB/0/GDRDMA", "channels", over("IB", 0, True)),
    ("Channel 01 : 15[df000] -> 0[1d000] [send] via NET/IB/3", "channels", over("IB", 3, False)),
    # 2.12: 00/0; a proxy of another rank; shared buffers
    ("Channel 02/0 : 11[3] -> 2[2] [send] via NET/IB/5(4)/GDRDMA", "channels", over("IB", 5, True)),
    ("Channel 00/1 : 1[1] -> 8[0] [receive] via NET/IB/0/GDRDMA/Shared", "channels", over("IB", 0, True)),
    ("Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/0/GDRDMA(PCI)/Shared", "channels", over("IB", 0, True)),
    # plugins
    ("NET/IB : GPU Direct RDMA (nvidia-peermem) enabled for HCA 0 'mlx5_0", "gdr", {("w0", "mlx5_0"): True}),
    ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IBext_v8/2/GDRDMA", "channels", over("IBext_v8", 2, True)),
    ("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/NCCL RDMA Plugin v10/0", "channels",
     over("NCCL RDMA Plugin v10", 0, False)),
    # Channels inside a node do not count.
    ("Channel 00/0 : 8[0] -> 15[7] via P2P/IPC", "channels", []),
    ("NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.168.11.1<0>", "devices", {"w0": {0: ("mlx5_0", 1, "IB")}}),
    ("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB p:10.10.10.10<0>", "devices",
     {"w0": {0: ("mlx5_0", 1, "RoCE"), 1: ("mlx5_1", 1, "RoCE")}}),
    ("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "gdr", {("w0", "mlx5_0"): True}),
    ("NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_0'", "gdr", {("w0", "mlx5_0"): True}),
])  # fmt: skip
def test_what_each_version_says_of_connections_devices_and_gpudirect(line, key, expected):
    assert log.parse(f"w0:17:99 [3] NCCL INFO {line}\n")[key] == expected


LINE = "Channel 01/0 : 1[0] -> 0[0] [send] via NET/IB/1/GDRDMA"
CUT = HEALTHY.partition("#       size")[0]
IDLE = HEALTHY.replace("NET/IB/1/GDRDMA", "NET/IB/0/GDRDMA")
WARNED = f"{CUT}worker1:28110:28190 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_modify_qp failed with error 110\n"
GID = f"worker0:1:1 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 3.\n{HEALTHY}"
WITHOUT = HEALTHY.replace("/GDRDMA", "").replace("RDMA Enabled for", "RDMA Disabled for")
TCP_ONCE = HEALTHY.replace(LINE, LINE.replace("IB/1/GDRDMA", "Socket/0"))
ABSENT = "absent on 4 of 4 connections (worker0, worker1); disabled for mlx5_0"


# The log, options, the failing checks, the unverified ones, and what one of them saw.
@pytest.mark.parametrize(("text", "options", "failing", "not_verified", "seen"), [
    (TCP_ONCE, {}, ["nccl:transport", "nccl:rails"], [], "NET/Socket on 1 of 4 connections"),
    (WITHOUT, {}, ["nccl:gpudirect"], [], ABSENT),
    (IDLE, {}, ["nccl:rails"], [], "idle: worker0: mlx5_1; worker1: mlx5_1"),
    (IDLE, {"hcas": ()}, [], None, ""),
    (GID, {}, ["nccl:gid-index"], [], "set to 3"),
    (HEALTHY.replace(": 0 OK", ": 248 FAILED"), {}, ["nccl:result"], [], "248"),
    (HEALTHY, {"minimum": 100}, ["nccl:bandwidth"], [], "92.49"),
    (CUT, {}, [], ["nccl:result", "nccl:bandwidth"], ""),
    (WARNED, {}, ["nccl:result"], ["nccl:bandwidth"], "ibv_modify_qp failed"),
    (WARNED.replace("worker1:28", "[2026-05-05 06:16:47] worker1:28"), {}, ["nccl:result"], ["nccl:bandwidth"], "ibv_"),
])  # fmt: skip
def test_a_fault_fails_its_check_and_no_other(text, options, failing, not_verified, seen):
    checks = judged(text, **options)
    assert failed(checks) == failing
    unsure = [identity for identity, item in checks.items() if item["status"] == "not_verified"]
    assert not_verified is None or unsure == not_verified
    assert any(seen in item["seen"] for item in checks.values())


def test_an_empty_log_passes_nothing():
    for text in ("", "# Avg bus bandwidth    : 47.450947.4509\n"):  # of two ranks
        assert {item["status"] for name, item in judged(text).items() if name != "nccl:gid-index"} == {"not_verified"}
