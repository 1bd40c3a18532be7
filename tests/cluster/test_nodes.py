"""Events of a node on the real kubelet: ports, HCAs, restarts, maintenance. Times are figures."""

import json
import pathlib

import pytest
from ansible_collections.gpufabric.rdma.tests.tools import kernel_modules
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls
from ansible_collections.gpufabric.rdma.tests.tools.kubectl_cluster import api_object

# --- Ports, HCAs, restarts, limits ------------------------------------------------------------------------------------


def offered(cluster, resource):
    """The worker's amount of it, once the API server reports it."""
    cluster.wait(lambda: cluster.allocatable(resource) is not None, "an answer", pitfalls.PATIENCE)
    return cluster.allocatable(resource)


def falls_and_returns(cluster, resource, what, take, give):
    """The node's allocatable goes to 0 and comes back on its own."""
    whole = offered(cluster, resource)
    assert whole > 0
    with cluster.timed(f"{what} gone -> allocatable 0"):
        cluster.node(cluster.worker, take)
        cluster.wait(lambda: cluster.allocatable(resource) == 0, f"{resource} 0", pitfalls.PATIENCE)
    with cluster.timed(f"{what} back -> allocatable whole"):
        cluster.node(cluster.worker, give)
        cluster.wait(lambda: cluster.allocatable(resource) == whole, f"{resource} {whole}", pitfalls.PATIENCE)


def test_a_port_that_goes_down_takes_its_resource_along(cluster):
    falls_and_returns(cluster, pitfalls.RESOURCE, "link of rail 0", "ip link set eth2 down", "ip link set eth2 up")


def test_an_hca_that_is_unplugged_takes_its_resource_along(cluster):
    shown = cluster.node(cluster.worker, "rdma link show rxe7/1").split()
    netdev = shown[shown.index("netdev") + 1]
    add = f"rdma link add rxe7 type rxe netdev {netdev}"
    falls_and_returns(cluster, "rdma/hca_shared_devices_7", "HCA of rail 7", "rdma link delete rxe7", add)


def test_n14_a_kubelet_that_restarts_has_its_resources_again(breakable):
    whole = offered(breakable, pitfalls.RESOURCE)
    with_devices = pitfalls.pod("holder", breakable.worker)
    with_devices["spec"]["containers"][0]["resources"] = {"limits": {pitfalls.RESOURCE: "1"}}
    pitfalls.start(breakable, with_devices)
    before, plugin = breakable.pods(), breakable.main_pids()[breakable.worker].splitlines()[0]

    service = breakable.kubelet_service(breakable.worker)
    with breakable.timed(f"{service} restarted -> all Ready, allocatable whole, pods as before"):
        breakable.node(breakable.worker, f"systemctl restart {service}")
        breakable.wait(
            lambda: (
                breakable.settled()
                and breakable.allocatable(pitfalls.RESOURCE) == whole
                and breakable.pods().keys() == before.keys()
            ),
            "all as before",
        )
    assert breakable.main_pids()[breakable.worker].splitlines()[0] == plugin, "the plugin needs no restart"


def test_r5_without_the_drop_in_verify_names_the_limit_and_one_run_puts_it_back(breakable):
    worker = breakable.worker
    service = breakable.kubelet_service(worker)
    drop_in = f"/etc/systemd/system/{service}.service.d/10-gpufabric-rdma.conf"
    breakable.node(worker, f"rm {drop_in}; systemctl daemon-reload; systemctl restart {service}")
    breakable.wait(breakable.settled, "all Ready")

    verified = breakable.run("verify.yml")
    failed = {check["id"]: check["seen"] for check in verified.checks(worker, "failed")}
    assert verified.code != 0
    assert f"memlock:{service}" in failed, failed
    assert [name for name in failed if ":registration" in name], failed
    roots = {check["failure"] for check in verified.checks(worker, "failed") if check.get("failure")}
    assert roots == {"memlock-too-low"}, failed

    with breakable.timed("site.yml putting the memlock drop-in back"):
        healed = breakable.succeed("site.yml")
    assert healed.checks(worker, "failed") == []


# --- Below Kubernetes: a cable, a foreign file, a rail that is slow ---------------------------------------------------

FOREIGN_FILE = "/etc/modprobe.d/sriov-operator.conf"
OURS = "/etc/modprobe.d/zz-gpufabric-rdma.conf"


def test_verify_names_the_port_of_a_cable_that_is_pulled(breakable):
    breakable.node(breakable.worker, "ip link set eth3 down")
    verified = breakable.run("verify.yml", "--check")
    failed = {check["id"].partition(":")[0] for check in verified.checks(breakable.worker, "failed")}
    assert verified.code != 0
    assert "port" in failed, failed


def test_a_foreign_file_with_another_mode_stops_the_run_until_it_may_be_overridden(breakable):
    worker = breakable.worker
    breakable.node(worker, f"rm {OURS}; echo options ib_core netns_mode=0 > {FOREIGN_FILE}")

    stopped = breakable.run("host.yml", "--limit", worker)
    assert stopped.code != 0
    assert FOREIGN_FILE in stopped.text
    assert breakable.node(worker, f"test -e {OURS} || echo absent") == "absent"

    breakable.succeed("host.yml", "--limit", worker, "-e", '{"rdma_netns_override_allowed": true}')
    loaded = breakable.node(worker, "modprobe --showconfig | grep '^options ib_core' | tail -n 1")
    assert loaded == "options ib_core netns_mode=1"
    assert breakable.node(worker, f"cat {FOREIGN_FILE}") == "options ib_core netns_mode=0"


def test_the_matrix_names_a_throttled_rail_and_no_other(breakable, tmp_path):
    if len(breakable.nodes) < 2:
        pytest.skip("not verified: the matrix needs two nodes")
    path = tmp_path / "matrix.json"

    def outliers():
        words = {"matrix_seconds": 8, "matrix_round_seconds": 90, "matrix_pods": False, "matrix_json": str(path)}
        run = breakable.run("matrix.yml", "-e", json.dumps(words))
        tests = json.loads(path.read_text())["tests"]
        return run, tests, {test["rail"] for test in tests if test["verdict"] == "outlier"}

    run, before, named = outliers()
    assert (run.code, named) == (0, set()), run.text[-6000:]
    usual = min(test["gbit_per_s"] for test in before if test["gbit_per_s"] is not None)
    # A tenth of the slowest healthy test; enough for the handshake and for acknowledgements.
    rate = max(64, int(usual * 1e6 / 10))
    for node in breakable.nodes:
        breakable.node(node, f"tc qdisc replace dev eth3 root tbf rate {rate}kbit burst 16kb latency 400ms")
    run, _tests, named = outliers()
    assert run.code != 0
    assert named == {1}, run.text[-6000:]


# --- RoCE settings of a NIC, on a double of mlx5's dcbnl --------------------------------------------------------------

SWITCH_PLAN = {"dscp": 26, "priority": 3, "cnp_dscp": 48, "cnp_priority": 6, "lossless": True, "ecn": True}
DCB = "dcb -N app show dev eth2 dscp-prio; dcb pfc show dev eth2 prio-pfc; dcb dcbx show dev eth2"
CARRIER = "cat /sys/class/net/eth2/carrier_changes"
# What a reload of the driver is for this NIC.
RELOAD = """
driver=/sys/bus/virtio/drivers/virtio_net device=$(basename $(readlink -f /sys/class/net/eth2/device))
echo $device >$driver/unbind && echo $device >$driver/bind
"""


def test_a_nic_is_set_with_consent_once_and_again_after_its_driver_is_reloaded(breakable):
    worker = breakable.worker
    kernel_modules.give(breakable, worker, "dcb_nic")
    breakable.node(worker, "insmod /root/dcb_nic.ko nic=eth2")
    carrier = int(breakable.node(worker, CARRIER))

    def run(**more):
        words = {"fabric_plan": SWITCH_PLAN, "fabric_nic_settings": True, **more}
        return breakable.run("host.yml", "--limit", worker, "-e", json.dumps(words))

    def as_planned():
        shown = " ".join(breakable.try_node(worker, DCB).split())
        return all(word in shown for word in ("26:3", "48:6", "3:on", "6:off", "host"))

    refused = run()
    assert refused.code != 0
    assert "NIC eth2 pfc" in refused.text
    assert (int(breakable.node(worker, CARRIER)), as_planned()) == (carrier, False)

    first = run(fabric_link_flap_allowed=True)
    assert first.code == 0, first.text[-6000:]
    assert {(f"NIC eth2 {what}", "set") for what in ("dcbx", "dscp", "cnp-dscp", "pfc")} <= first.changes(worker)
    flapped = int(breakable.node(worker, CARRIER))
    assert (flapped - carrier, as_planned()) == (2, True)

    second = run(fabric_link_flap_allowed=True)
    assert second.code == 0, second.text[-6000:]
    assert second.changes(worker) == set()
    assert int(breakable.node(worker, CARRIER)) == flapped

    breakable.node(worker, RELOAD)
    breakable.wait(as_planned, "the unit's settings on the NIC that its driver made again", 60)


# --- The class on the wire: rdma_cm's default, and ib_write_bw's option -----------------------------------------------

RDMA_CM = "/sys/kernel/config/rdma_cm/rxe0"
DEFAULT_TOS = f"""
modprobe rdma_cm; mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
mkdir -p {RDMA_CM} && echo 104 >{RDMA_CM}/ports/1/default_roce_tos
"""
# Writes (ToS, opcode) of the RoCE v2 packets (UDP port 4791) that pass eth2; messages between managers (QP 1) aside.
CAPTURE = """
import json, pathlib, socket
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packets.bind(("eth2", 0))
seen = set()
while True:
    frame = packets.recv(256)
    if frame[12:14] == b"\\x08\\x00" and frame[23] == 17 and int.from_bytes(frame[36:38], "big") == 4791:
        kind = frame[15], frame[42]
        if int.from_bytes(frame[47:50], "big") != 1 and kind not in seen:
            seen.add(kind)
            pathlib.Path("/run/classes.json").write_text(json.dumps(sorted(seen)))
"""


def test_packets_have_the_class_of_the_plan_and_rping_has_rdma_cms_default(breakable):
    if len(breakable.nodes) < 2:
        pytest.skip("not verified: traffic needs two nodes")
    worker = breakable.worker
    for name in breakable.nodes:
        breakable.node(name, DEFAULT_TOS)
    capture = "systemd-run --quiet --unit=capture python3 /run/capture.py"
    breakable.node(worker, f"cat >/run/capture.py <<'EOF'\n{CAPTURE}\nEOF\n{capture}")

    verified = breakable.succeed("verify.yml", "-e", json.dumps({"fabric_plan": SWITCH_PLAN}))
    kinds = json.loads(breakable.node(worker, "cat /run/classes.json"))
    assert {tos for tos, _opcode in kinds} == {104, 106}, kinds
    told = [check["seen"] for name in breakable.nodes for check in verified.checks(name, "passed")]
    assert any("ToS 104" in text for text in told), "verify reports the class that rping had"
    for name in breakable.nodes:
        assert breakable.node(name, f"cat {RDMA_CM}/ports/1/default_roce_tos") == "104", "verify sets nothing"


# --- Planned maintenance ----------------------------------------------------------------------------------------------

PATIENCE = 900
SINCE = 'date -d "$(systemctl show --property=ActiveEnterTimestamp --value {})" +%s'
BOOTED = "sed -n 's/^btime //p' /proc/stat"
# One node after the other, for a reason that is given.
REBOOT = {
    "hosts": "gpu_nodes",
    "gather_facts": False,
    "become": True,
    "serial": 1,
    "max_fail_percentage": 0,
    "any_errors_fatal": True,
    "pre_tasks": [{"ansible.builtin.set_fact": {"rdma_reboot_reasons": ["Planted by a test."]}}],
    "roles": [{"role": "gpufabric.rdma.reboot"}],
}


def deployment(name, node):
    """One pod that belongs only on this node, and is recreated when it is evicted."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pitfalls.pod(name, None, on=node)["spec"]}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    return api_object("apps/v1", "Deployment", name, pitfalls.NAMESPACE, spec=spec)


def pods(cluster, name):
    """{uid: node} of the deployment's running pods."""
    found = cluster.get("pods", "-n", pitfalls.NAMESPACE, f"--selector=app={name}").get("items", ())
    return {
        pod["metadata"]["uid"]: pod["spec"]["nodeName"]
        for pod in found
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


@pytest.fixture
def bound(breakable):
    """The cluster with a pod bound to each node; {node: uid of its pod}."""
    pitfalls.apply(breakable, *(deployment(f"bound-{name}", name) for name in breakable.nodes))
    breakable.wait(lambda: all(pods(breakable, f"bound-{name}") for name in breakable.nodes), "pods run", PATIENCE)
    return {name: next(iter(pods(breakable, f"bound-{name}"))) for name in breakable.nodes}


def test_both_nodes_are_rebooted_one_after_the_other_each_drained_and_back(breakable, bound, tmp_path):
    playbook = pathlib.Path(tmp_path, "reboot.yml")
    playbook.write_text(json.dumps([REBOOT]))
    before = {name: breakable.node(name, BOOTED) for name in breakable.nodes}

    asked = breakable.run(playbook, "-e", '{"reboot_allowed": true, "reboot_drain_allowed": null}')
    assert asked.code != 0
    assert "reboot_drain_allowed=true" in asked.text
    assert {name: breakable.node(name, BOOTED) for name in breakable.nodes} == before, "no consent, no reboot"

    with breakable.timed("both nodes drained, rebooted and back, one after the other"):
        breakable.succeed(playbook, "-e", '{"reboot_allowed": true, "reboot_drain_allowed": true}')

    booted = {name: int(breakable.node(name, BOOTED)) for name in breakable.nodes}
    assert all(booted[name] > int(before[name]) for name in breakable.nodes)
    # In the order of the inventory: the next node goes only once the kubelet of the previous one reports again.
    for earlier, later in zip(breakable.nodes, breakable.nodes[1:]):
        service = breakable.kubelet_service(earlier)
        assert booted[later] > int(breakable.node(earlier, SINCE.format(service)))
    assert not any("unschedulable" in breakable.get("node", name)["spec"] for name in breakable.nodes)
    records = [breakable.node(name, "ls /var/lib/gpufabric-rdma/reboot.json 2>/dev/null; true") for name in booted]
    assert records == [""] * len(records)
    breakable.wait(
        lambda: all(set(pods(breakable, f"bound-{name}").values()) == {name} for name in breakable.nodes),
        "the pods are back on their nodes",
        PATIENCE,
    )
    assert all(bound[name] not in pods(breakable, f"bound-{name}") for name in breakable.nodes), "each was evicted"


# --- GPU and rail on one NUMA node: rail 0 is on node 0, rail 1 on node 1; the double has one GPU on each -------------

POLICY = "k3s_topology_manager_policy=single-numa-node"
HOME = "/usr/local/lib/rdma-device-plugin"
START = f"systemd-run --quiet --unit=gpu-double {HOME}/venv/bin/python3 /run/gpu_double.py {HOME}/plugin.pyz"
GPU = "nvidia.com/gpu"
# A double of NVIDIA's GPU device plugin: two GPUs, one on each NUMA node, over the kubelet's real sockets, with the
# interpreter and the gRPC code of the RDMA device plugin. A container that gets GPUs finds their ids in GPU_DOUBLE.
DOUBLE = f"""
import pathlib, sys, threading
from concurrent import futures
import grpc
sys.path.insert(0, sys.argv[1])
from rdma_device_plugin.kubelet import Stub, deviceplugin_pb2 as api, serve

class Gpus:
    def GetDevicePluginOptions(self, request, context):
        return api.DevicePluginOptions()

    def ListAndWatch(self, request, context):
        answer = api.ListAndWatchResponse()
        for node in (0, 1):
            answer.devices.add(ID=f"gpu-{{node}}", health="Healthy").topology.nodes.add(ID=node)
        yield answer
        threading.Event().wait()

    def Allocate(self, request, context):
        answer = api.AllocateResponse()
        for container in request.container_requests:
            answer.container_responses.add().envs["GPU_DOUBLE"] = ",".join(sorted(container.devices_ids))
        return answer

own = pathlib.Path("/var/lib/kubelet/device-plugins/gpu-double.sock")
own.unlink(missing_ok=True)
server = grpc.server(futures.ThreadPoolExecutor(4))
serve(server, api, "DevicePlugin", Gpus())
server.add_insecure_port(f"unix://{{own}}")
server.start()
with grpc.insecure_channel(f"unix://{{own.parent}}/kubelet.sock") as kubelet:
    asked = api.RegisterRequest(version="v1beta1", endpoint=own.name, resource_name="{GPU}")
    Stub(kubelet, api, "Registration").Register(asked, timeout=60)
server.wait_for_termination()
"""
RAILS = (pitfalls.RESOURCE, "rdma/hca_shared_devices_1")


def asking_pod(cluster, name, *resources):
    made = pitfalls.pod(name, cluster.worker)
    made["spec"]["restartPolicy"] = "Never"
    made["spec"]["containers"][0]["resources"] = {"limits": dict.fromkeys(resources, "1")}
    pitfalls.apply(cluster, made)


def gpu_of(cluster, name):
    pitfalls.wait_running(cluster, name)
    said = pitfalls.inside(cluster, name, "cat", "/proc/1/environ")
    return dict(entry.split("=", 1) for entry in said.split("\0") if "=" in entry)["GPU_DOUBLE"]


def refusal(cluster, name):
    status = cluster.get("pod", name, "-n", pitfalls.NAMESPACE).get("status", {})
    return status.get("reason", "") if status.get("phase") == "Failed" else ""


def test_a_pod_gets_gpu_and_rail_of_one_numa_node_or_is_refused(breakable):
    worker, service = breakable.worker, breakable.kubelet_service(breakable.worker)
    plugin = breakable.main_pids()[worker].splitlines()[0]
    with breakable.timed("cluster.yml setting the topology manager's policy"):
        done = breakable.succeed("cluster.yml", "-e", POLICY)
    objects = {change["object"] for change in done.record[worker]["changes"]}
    assert f"service {service}" in objects, objects
    assert breakable.main_pids()[worker].splitlines()[0] == plugin, "the plugin needs no restart"

    breakable.node(worker, f"cat >/run/gpu_double.py <<'EOF'\n{DOUBLE}\nEOF\n{START}")
    breakable.wait(lambda: breakable.allocatable(GPU) == 2, f"{GPU} 2", pitfalls.PATIENCE)

    asking_pod(breakable, "first", GPU, RAILS[1])
    assert gpu_of(breakable, "first") == "gpu-1"
    # The remaining GPU is on the other NUMA node.
    asking_pod(breakable, "mismatch", GPU, RAILS[1])
    breakable.wait(lambda: refusal(breakable, "mismatch") != "", "refused", pitfalls.PATIENCE)
    assert refusal(breakable, "mismatch") == "TopologyAffinityError"
    asking_pod(breakable, "second", GPU, RAILS[0])
    assert gpu_of(breakable, "second") == "gpu-0"

    # Two resources in one container, from both rails: no NUMA node has both.
    asking_pod(breakable, "both", *RAILS)
    breakable.wait(lambda: refusal(breakable, "both") != "", "refused", pitfalls.PATIENCE)
    assert refusal(breakable, "both") == "TopologyAffinityError"

    # After it was deleted and recreated, the pod gets its place again.
    breakable.kubectl("delete", "pod", "first", "-n", pitfalls.NAMESPACE, "--wait=true")
    with breakable.timed("pod with GPU and rail deleted and made again"):
        asking_pod(breakable, "again", GPU, RAILS[1])
        assert gpu_of(breakable, "again") == "gpu-1"


SEND = (
    "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('{}', 0)); "
    "[(time.sleep(0.01), s.sendto(b'x', ('{}', 9))) for _ in range(100)]"
)


@pytest.mark.parametrize(("chain", "by"), [([], "net1"), ([{"type": "sbr"}], "net2")])
def test_with_two_networks_in_one_subnet_a_pod_sends_by_its_own_with_source_route(breakable, chain, by):
    """The plugins as `source_route` of an attachment renders them; each pod has the lower address on net1."""
    for rail in (0, 1):
        pool = {"subnet": "10.99.0.0/24", "rangeStart": f"10.99.0.{rail + 1}0", "rangeEnd": f"10.99.0.{rail + 1}9"}
        macvlan = {"type": "macvlan", "master": f"eth{rail + 2}", "ipam": {"type": "host-local", "ranges": [[pool]]}}
        pitfalls.apply(breakable, pitfalls.attachment(f"same{rail}", {"plugins": [macvlan, *chain]}))
    names = ("sends", "hears")
    pitfalls.start(breakable, *(pitfalls.pod(name, breakable.worker, "same0,same1") for name in names))
    sender, hearer = (pitfalls.addresses(breakable, name)["net2"] for name in names)

    def sent():
        counters = (f"/sys/class/net/net{number}/statistics/tx_packets" for number in (1, 2))
        return [int(text) for text in pitfalls.inside(breakable, "sends", "cat", *counters).split()]

    before = sent()
    pitfalls.inside(breakable, "sends", "python3", "-", stdin=SEND.format(sender, hearer))
    carried = [now - then >= 100 for now, then in zip(sent(), before)]
    assert carried == [by == "net1", by == "net2"]
