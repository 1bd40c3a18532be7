"""The pods of verification: the plan, the tools, the meaning of their answers, and the id of each planted fault."""

import copy
import json
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import containerd
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import kubectl, pod_probe, pods, running_pods
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods as kube_pods
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pod_checks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.cluster import Cluster
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, tree
from ansible_collections.gpufabric.rdma.tests.tools.kubectl_cluster import rail

pytestmark = pytest.mark.usefixtures("short_names")

ROCE = (tree.texts("output") / "pod-roce.txt").read_text()


def netdev(index, mtu, *addresses, default_route=False):
    return {"index": index, "mtu": mtu, "type": "ether", "addresses": [*addresses], "default_route": default_route}


def host(number=1, rails=None):
    netdevs = {"eth0": netdev(2, 1500, f"10.0.0.{number}/24", default_route=True)}
    return {
        "host": f"node{number}",
        "rails": [rail()] if rails is None else rails,
        "netdevs": {**netdevs, "eth2": netdev(5, 9000), "eth3": netdev(6, 9000)},
        "routes": [],
        "files": {},
        "cni": {"findings": [], "not_verified": [], "configurations": ["/etc/cni/net.d/00-multus.conf"]},
        "tools": {"image": "rancher/mirrored-pause:3.6", "mounts": {"/usr": "/usr", "/lib64": "/usr/lib64"}},
    }


def node(number=1, rails=1, **changes):
    resources = {f"rdma/rail{index}": 100 for index in range(rails)}
    known = {"name": f"node{number}", "ready": True, "why": "", "addresses": [f"10.0.0.{number}"], "taints": []}
    known["pod_cidrs"] = [f"10.42.{number - 1}.0/24"]
    return {**known, "capacity": resources, "allocatable": dict(resources), **changes}


def nad(index=0, **changes):
    config = {"cniVersion": "0.3.1", "name": f"rail{index}", "type": "macvlan", "master": f"eth{index + 2}"}
    config["ipam"] = {"type": "whereabouts", "range": f"10.56.{index}.0/24"}
    offered = {kube_pods.RESOURCE: f"rdma/rail{index}"}
    return kubectl_cluster.attachment(f"rail{index}", "default", {**config, **changes}, offered)


def cluster(nodes=None, nads=None, hosts=(), **changes):
    made = {"nodes": nodes or [node()], "nads": [nad()] if nads is None else nads, "dns": True, **changes}
    made["networks"] = pod_checks.networks_of(made, hosts)
    return made


OPTIONS = {"namespace": "gpufabric-verification", "image": "example.test/rdma:1"}


POD_NETWORK = {"name": "cbr0", "interface": "eth0", "ips": ["10.42.0.9"], "default": True}


def status(network="rail0"):
    rail0 = {"name": f"gpufabric-verification/{network}", "interface": "net1", "ips": ["10.56.0.2"]}
    return json.dumps([POD_NETWORK, rail0])


def running(**changes):
    known = {"phase": "Running", "ready": True, "reasons": [], "status": status(), "ip": "10.42.0.9", "node": "node1"}
    return {**known, **changes}


def test_the_answer_of_a_pod_is_read_as_data():
    answer = pod_probe.parse(ROCE)
    assert {**answer, "addresses": answer["addresses"]["net1"], "links": answer["links"]["net1"]}.items() >= {
        "missing": {},
        "user": 1000,
        "ipc_lock": False,
        "addresses": ["10.56.0.2/24"],
        "links": {"parent": 5, "kind": "macvlan", "mtu": 9000},
        "drivers": {"eth0": "veth", "net1": "macvlan"},
        "devices": ["rdma_cm", "umad0", "uverbs0"],
        "ibstat": {"mlx5_0": {1: ("Active", "LinkUp")}},
        "registered": {"mlx5_0": {"code": 0, "bytes": 16388 * 1024, "said": ""}},
    }.items()
    assert answer["routes"][0] == {"destination": "default", "gateway": "10.42.0.1", "netdev": "eth0"}
    assert kube_pods.gid_index(answer["gids"], "mlx5_0", "10.56.0.2") == 7
    odd = {"hca": "mlx5_0", "gid": "no GID", "type": "RoCE v2", "index": 1}
    assert kube_pods.gid_index([odd, *answer["gids"]], "mlx5_0", "10.56.0.2") == 7


def test_what_is_missing_or_broken_off_is_none_and_says_so():
    answer = pod_probe.parse("@@ user\n0\n@@= 0\n@@ verbs\nsh: ibv_devinfo: not found\n@@= 127\n@@ routes\ndefault via")
    assert answer["missing"]["verbs"] == "the tool is missing"
    assert "was cut off" in answer["missing"]["routes"]
    assert answer["verbs"] == answer["ibstat"] == {}


def shell(*argv):
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("program", ["sh", "bash", "busybox sh"])
def test_the_script_runs_in_plain_shells_and_tells_no_environment(program, monkeypatch):
    monkeypatch.setenv("NCCL_IB_GID_INDEX", "3")
    monkeypatch.setenv("SECRET_OF_THE_USER", "hunter2")
    done = shell(*program.split(), "-c", pod_probe.SCRIPT, "sh", "localhost")
    assert (done.returncode, done.stderr, "hunter2" in done.stdout) == (0, "", False)
    answer = pod_probe.parse(done.stdout)
    assert isinstance(answer["user"], int)
    assert (answer["environment"], answer["resolved"]) == ({"NCCL_IB_GID_INDEX": "3"}, True)
    assert answer["links"]["lo"] == {"parent": None, "kind": None, "mtu": 65536}, "BusyBox' ip knows no -d"
    assert {"verbs", "ibstat"} <= set(answer["missing"]) or answer["verbs"]


def test_registration_is_what_the_kernel_counts_not_what_the_tool_says(tmp_path, script):
    """With a double of the tool that registers nothing: it exits at once, and nothing counts as registered."""
    script("ibv_rc_pingpong", 'echo "Couldn\'t register MR" >&2\nexit 1')
    functions = pod_probe.SCRIPT.partition("probe user")[0]
    done = shell("sh", "-c", f"PATH={tmp_path}:$PATH\n{functions}\nprobe 'register mlx5_0' register mlx5_0 1")
    registered = pod_probe.parse(done.stdout)["registered"]["mlx5_0"]
    assert (registered["bytes"], registered["code"]) == (0, 1)
    assert "Couldn't register MR" in registered["said"]


def planned(hosts=None, offered=None):
    hosts = hosts or [host()]
    return kube_pods.plan(hosts, offered or cluster(), OPTIONS)


def objects(plan, kind):
    return [item for item in plan["objects"] if item["kind"] == kind]


def test_a_node_with_one_rail_gets_a_workload_and_a_seed_pod():
    plan = planned()
    assert [pod["name"] for pod in plan["pods"]] == ["workload-node1", "seed-node1"]
    namespace, copied = objects(plan, "Namespace")[0], objects(plan, "NetworkAttachmentDefinition")[0]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert (copied["metadata"]["namespace"], copied["spec"]) == (OPTIONS["namespace"], nad()["spec"])
    workload, seed = (item["spec"] for item in objects(plan, "Pod"))
    assert workload["securityContext"]["runAsUser"] == 1000
    assert workload["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert seed["containers"][0]["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    for spec in (workload, seed):
        assert spec["containers"][0]["resources"]["limits"] == {"rdma/rail0": "1"}
        assert spec["nodeSelector"] == {"kubernetes.io/hostname": "node1"}
        assert spec["activeDeadlineSeconds"]
        assert not {"hostNetwork", "privileged"} & set(json.dumps(spec).split('"'))


def rails_pod(plan):
    return next(pod for pod in plan["pods"] if pod["kind"] == "rails")


def manifest_of(plan, name):
    return next(item for item in objects(plan, "Pod") if item["metadata"]["name"] == name)


@pytest.mark.parametrize("count", [2, 8])
def test_one_pod_takes_every_rail_in_order(count):
    hosts = [host(1, [rail(index) for index in range(count)])]
    plan = planned(hosts, cluster([node(1, count)], [nad(index) for index in range(count)]))
    pod = rails_pod(plan)
    wanted = [(f"net{index + 1}", f"rail{index}", f"mlx5_{index}") for index in range(count)]
    assert [(item["interface"], item["network"], item["rail"]["hca"]) for item in pod["attachments"]] == wanted
    made = manifest_of(plan, pod["name"])
    asked = json.loads(made["metadata"]["annotations"][kube_pods.NETWORKS])
    assert [(item["interface"], item["name"]) for item in asked] == [row[:2] for row in wanted]
    assert len(made["spec"]["containers"][0]["resources"]["limits"]) == count


def test_one_resource_may_serve_every_rail():
    shared, nads = {"rdma/shared": 63}, [nad(0), nad(1)]
    for item in nads:
        item["metadata"]["annotations"][kube_pods.RESOURCE] = "rdma/shared"
    offered = cluster([node(1, capacity=shared, allocatable=shared)], nads)
    pod = rails_pod(planned([host(1, [rail(0), rail(1)])], offered))
    assert (pod["resources"], [item["rail"]["index"] for item in pod["attachments"]]) == (["rdma/shared"], [0, 1])


def test_software_hcas_get_a_pod_in_the_nodes_network():
    plan = planned([host(1, [rail(kind="software")])])
    made = manifest_of(plan, "host-node1")
    assert (made["spec"]["hostNetwork"], "annotations" in made["metadata"]) == (True, False)


def test_a_host_is_found_by_name_or_address_and_otherwise_left_out_with_the_reason():
    elsewhere = {**host(), "host": "gpu-a"}
    assert kube_pods.find_node(elsewhere, [node()])["name"] == "node1"
    plan = planned([{**elsewhere, "netdevs": {}}])
    assert (plan["objects"], "node1" in plan["left_out"]["gpu-a"]) == ([], True)
    without = planned(offered=cluster([node(capacity={}, allocatable={})]))
    assert "no RDMA resource" in without["left_out"]["node1"]


def answer_of(pod):
    last = 2 if pod["node"] == "node1" else 18
    text = ROCE.replace("10.56.0.2", f"10.56.0.{last}").replace("0a38:0002", f"0a38:{last:04x}")
    return pod_probe.parse(text.replace("net1", "eth2") if pod["kind"] == "host" else text)


def two(kind="pci"):
    hosts = [host(number, [{**rail(kind=kind), "traffic_class": 106}]) for number in (1, 2)]
    return kube_pods.plan(hosts, cluster([node(1), node(2)]), OPTIONS)["pods"]


def traffic(pods):
    found = kube_pods.traffic(pods, {pod["name"]: answer_of(pod) for pod in pods}, 18700)
    return found["tests"], found["left_out"]


def test_traffic_goes_over_net1_with_the_gid_of_the_pods_own_table():
    tests, left_out = traffic(two())
    assert [test["tool"] for test in tests] == ["ping", "rping", "ib_write_bw"]
    assert {test["address"] for test in tests} == {"10.56.0.18"}
    assert (tests[2]["client"]["gid"], tests[2]["client"]["traffic_class"], left_out) == (7, 106, [])
    assert kube_pods.ping_command(tests[0])[-3:] == ["-I", "net1", "10.56.0.18"]
    assert len({test["tcp_port"] for test in tests[1:]}) == 2


def test_soft_roce_carries_verbs_in_the_nodes_network_and_says_why_not_over_net1():
    tests, left_out = traffic(two("software"))
    places = {"ping": "net1", "rping": "the node's network", "ib_write_bw": "the node's network"}
    assert {test["tool"]: test["place"] for test in tests} == places
    assert [item["reason"] for item in left_out] == [kube_pods.SOFTWARE_REASON]


def test_infiniband_without_an_address_shakes_hands_over_the_pod_network():
    hosts = [host(number, [rail(layer="InfiniBand")]) for number in (1, 2)]
    (test,) = traffic(kube_pods.plan(hosts, cluster([node(1), node(2)], nads=[]), OPTIONS)["pods"])[0]
    assert (test["tool"], test["address"], test["client"]["gid"]) == ("ib_write_bw", "10.42.0.9", None)
    tests, left_out = traffic(two()[:2])
    assert (tests, len(left_out)) == ([], 1)


def three_on(*networks, kind="pci"):
    """Traffic between three nodes, whose own address on rail 0 is in these networks; None for no address."""
    hosts = [host(number, [rail(kind=kind)]) for number in range(1, len(networks) + 1)]
    for one, network in zip(hosts, networks):
        one["netdevs"]["eth2"]["addresses"] = [*([network] if network else []), "fe80::1/64"]
    nodes = [node(number) for number in range(1, len(networks) + 1)]
    tests, left_out = traffic(kube_pods.plan(hosts, cluster(nodes), OPTIONS)["pods"])
    return [(test["client"]["host"], test["server"]["host"]) for test in tests], left_out


def test_nodes_whose_rail_is_in_networks_of_its_own_send_nothing_and_say_so():
    sent, left_out = three_on("10.77.1.1/24", "10.77.2.2/24", "10.77.1.3/24")
    assert set(sent) == {("node1", "node3")}
    assert [(item["host"], item["what"]) for item in left_out] == [("node2", "wire")]
    assert left_out[0]["reason"] == "no peer in 10.77.2.0/24: rail 0 of node1 10.77.1.0/24, node3 10.77.1.0/24"
    ((name, item),) = pod_checks.traffic_checks({"tests": [], "left_out": left_out})
    assert (name, item["status"]) == ("node2", "not_verified")
    sent, left_out = three_on("10.77.1.1/24", "10.77.2.2/24", kind="software")
    assert (sent, [item["host"] for item in left_out]) == ([], ["node1", "node2"])


def verdicts(answer=ROCE, state=None, hosts=None, offered=None, kind="workload", image=OPTIONS["image"]):
    hosts = hosts or [host()]
    offered = offered or cluster()
    options = {**OPTIONS, "image": image}
    pod = next(pod for pod in kube_pods.plan(hosts, offered, options)["pods"] if pod["kind"] == kind)
    parsed = pod_probe.parse(answer) if answer is not None else None
    made = pod_checks.pod_checks(pod, state or running(), parsed, hosts[0], offered)
    for item in made:
        assert item["wanted"], item
        assert bool(item["next_step"]) is (item["status"] in ("failed", "not_verified")), item
    return {item["id"]: item for item in made}


def failed(found):
    return [name for name, item in found.items() if item["status"] == "failed"]


def replaced(before, after):
    assert before in ROCE
    return ROCE.replace(before, after)


FILE = "crw-rw-rw- 1 root root 231,"
# {fault: (the pod's normal output, its output with the fault, failing checks)}
FAULTS = {
    "two default routes": ("10.56.0.0/24 dev", "default via 10.56.0.1 dev net1\n10.56.0.0/24 dev", "default-route"),
    "an address of another network": ("inet 10.56.0.2/24", "inet 10.99.0.2/24", "net1 gid:mlx5_0"),
    "net1 on another rail's interface": ("net1@if5", "net1@if6", "net1"),
    "net1 made by another plugin": ("driver: macvlan", "driver: veth", "net1:driver"),
    "no umad": (f"{FILE}   0 Nov 21 19:00 umad0\n", "", "devices"),
    "a file in the place of a device": (f"{FILE} 192", "-rw-rw-rw- 1 root root 0", "devices"),
    "the HCA of another rail": ("uverbs0\n", f"uverbs0\n{FILE} 193 Nov 21 19:00 uverbs1\n", "devices"),
    "too little memory": ("pinned 16388 kB\n@@= 0", "Couldn't\npinned 0 kB\n@@= 1", "registration:mlx5_0"),
    "the port is down": ("PORT_ACTIVE (4)", "PORT_DOWN (1)", "verbs:mlx5_0"),
    "an MTU of 1500 below": ("active_mtu:		4096 (5)", "active_mtu:		1024 (3)", "verbs:mlx5_0"),
    "ibstat says Down": ("State: Active", "State: Down", "ibstat:mlx5_0"),
    "no GID of net1": ("ffff:0a38:0002", "ffff:0a00:0001", "gid:mlx5_0"),
    "a name does not resolve": ("kubernetes.default.svc.cluster.local\n@@= 0", "\n@@= 2", "dns"),
    "runs as root": ("@@ user\n1000", "@@ user\n0", "user"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_the_check_of_its_name(fault):
    before, after, expected = FAULTS[fault]
    assert failed(verdicts(replaced(before, after))) == [f"pod:workload:{name}" for name in expected.split()]


PEER = "@@ peer\n10.42.0.12     STREAM workload-node2.peers\n10.42.0.12     DGRAM\n@@= 0\n"


def peer_checks(*sections, ip="10.42.0.12", hosts=2):
    """The check of the first node's workload pod; ip: of the second's."""
    nodes = [host(number) for number in range(1, hosts + 1)]
    offered = cluster(nodes=[node(number) for number in range(1, hosts + 1)])
    plan = kube_pods.plan(nodes, offered, OPTIONS)
    states = {pod["name"]: {**running(), "ip": ip} for pod in plan["pods"]}
    answer = ROCE.partition("@@ peer")[0] + "".join(sections)
    run = {"pods": states, "answers": {pod["name"]: answer for pod in plan["pods"] if pod["kind"] == "workload"}}
    found = pod_checks.judge(Cluster(nodes, {}, plan=plan, run=run), offered, False)
    return plan, [item for name, item in found if item["id"] == "pod:workload:peer" and name == nodes[0]["host"]]


def test_each_workload_looks_up_the_next_one_over_a_headless_service():
    plan, _checks = peer_checks(PEER)
    peers = {pod["name"]: pod["peer"]["pod"] for pod in plan["pods"] if "peer" in pod}
    assert peers == {"workload-node1": "workload-node2", "workload-node2": "workload-node1"}
    spec = objects(plan, "Service")[0]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["selector"] == {"rdma.gpufabric.io/test": "workload"}
    named = {pod["spec"].get("hostname"): pod["spec"].get("subdomain") for pod in objects(plan, "Pod")}
    assert named == {**dict.fromkeys(peers, "peers"), None: None}
    alone = peer_checks(hosts=1)[0]["pods"][0]
    assert alone["peer"]["pod"] == alone["name"]


@pytest.mark.parametrize(("section", "ip", "status", "words"), [
    (PEER, "10.42.0.12", "passed", "10.42.0.12"),
    (PEER, "10.42.0.13", "failed", "10.42.0.12"),
    ("@@ peer\n@@= 2\n", "10.42.0.12", "failed", "no answer"),
    ("", "10.42.0.12", "not_verified", "not asked"),
    (PEER, None, "not_verified", "has no address"),
])  # fmt: skip
def test_the_peers_name_has_to_give_its_pods_address(section, ip, status, words):
    _plan, (item,) = peer_checks(section, ip=ip)
    assert (item["status"], words in item["seen"]) == (status, True)


def test_a_node_with_dots_in_its_name_has_a_pod_with_a_name_of_dns():
    workload = planned(offered=cluster([node(1, name="node1.example.org")]))["pods"][0]
    made = kube_pods.manifest(workload, "tests", {"image": "a", "mounts": {}})
    names = (made["metadata"]["name"], made["spec"]["hostname"])
    assert names == ("workload-node1.example.org", "workload-node1-example-org")


def lacking(tool, section):
    head, _mark, tail = ROCE.partition(f"@@ {section}\n")
    return f"{head}@@ {section}\nsh: {tool}: not found\n@@= 127\n{tail.partition('@@= 0')[2]}"


def noted(text):
    return {"state": running(status=text)}


def waiting(reason):
    return {"answer": None, "state": running(phase="Pending", ready=False, reasons=[reason])}


NO_GID = {"answer": replaced("ffff:0a38:0002", "ffff:0a00:0001"), "hosts": [host(1, [rail(kind="software")])]}
TAINT = "Unschedulable: 1 node(s) had untolerated taint {rdma.gpufabric.io/not-ready: }"
CHAINED = nad(ipam={}, plugins=[{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.56.0.0/24"}}])
NOT_DEFAULT = status().replace('"default": true', '"default": false')


@pytest.mark.parametrize(("given", "check", "status", "words"), [
    ({"answer": lacking("ibstat", "ibstat")}, "ibstat:mlx5_0", "not_verified", "verification_image"),
    ({"answer": lacking("getent", "resolve")}, "dns", "not_verified", "verification_image"),
    ({"answer": lacking("getent", "resolve"), "image": None}, "dns", "not_verified", "the tool on node1"),
    (
        {"answer": lacking("ibv_rc_pingpong", "register mlx5_0"), "image": None},
        *("registration:mlx5_0", "not_verified", "the tool on node1"),
    ),
    (noted(None), "network-status", "failed", "no network-status"),
    (noted(json.dumps([POD_NETWORK])), "network-status", "failed", "no net1"),
    (noted(status().replace("10.56.0.2", "10.99.0.2")), "network-status", "failed", "net1 has"),
    ({**noted(status().replace("10.56.0.2", "10.99.0.2")), "offered": cluster(nads=[CHAINED])},
        *("network-status", "failed", "net1 has")),
    (noted(status().replace("10.42.0.9", "10.88.0.9")), "network-status", "failed", "eth0 has"),
    (noted(NOT_DEFAULT), "network-status", "failed", "not the default"),
    (noted(status(network="other")), "network-status", "failed", "net1 is"),
    (waiting("Unschedulable: 0/2 nodes: 2 Insufficient rdma/rail0."), "running", "failed", "allocatable"),
    (waiting(TAINT), "running", "failed", "startup taint"),
    (waiting("something new"), "running", "failed", "describe pod"),
    # These say nothing about RDMA.
    (waiting("ErrImagePull: failed to pull"), "running", "not_verified", "verification_image"),
    (waiting("InvalidImageName: couldn't parse"), "running", "not_verified", "verification_image"),
    (waiting("ErrImageNeverPull: not present"), "running", "not_verified", "k3s crictl images"),
    (NO_GID, "gid:mlx5_0", "not_verified", ""),
    ({"offered": cluster(dns=False)}, "dns", "not_verified", ""),
])  # fmt: skip
def test_what_a_pod_lacks_or_waits_for_is_said_with_what_to_do(given, check, status, words):
    found = verdicts(**given)
    item = found[f"pod:workload:{check}"]
    assert (item["status"], words in f"{item['seen']} {item['next_step']}") == (status, True)
    assert status == "not_verified" or failed(found) == [f"pod:workload:{check}"]
    assert check != "running" or (len(found), given["state"]["reasons"][0] in item["seen"]) == (1, True)


def event(text, second, **about):
    seen = {"lastTimestamp": f"2026-11-28T07:00:0{second}Z", "involvedObject": {"name": "p", **about}}
    return {"type": "Warning", "reason": text[:1], "message": text, **seen}


def again(**last):
    container = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": last}}
    return {"initContainerStatuses": [container]}


@pytest.mark.parametrize(("status", "events", "reasons"), [
    ({}, [event("ax", 3), event("by", 2), event("az", 1)], ["b: by", "a: ax"]),
    ({}, [event("a", 1), event("b", 2, uid="an earlier pod"), event("c", 3, kind="ReplicaSet")], ["a: a"]),
    ({"conditions": [{"type": "X", "status": "False", "reason": "SchedulingGated"}]}, [], ["SchedulingGated: None"]),
    ({"conditions": [{"type": "X", "status": "True", "reason": "EvictionByEvictionAPI"}]}, [],
        ["EvictionByEvictionAPI: None"]),
    (again(reason="OOMKilled"), [], ["CrashLoopBackOff", "OOMKilled"]),
    ({"reason": "Evicted", "containerStatuses": [{"state": {"terminated": {"reason": "Error", "exitCode": 137}}}]},
        *([], ["Error: exit code 137", "Evicted: "])),
    (again(reason="Error", finishedAt="2026-11-28T07:00:05Z"), [event("a", 4)], ["CrashLoopBackOff"]),
])  # fmt: skip
def test_the_last_reason_is_what_holds_the_pod_now(status, events, reasons):
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {}, "status": status}
    assert running_pods.state(pod, events)["reasons"] == reasons


def test_a_node_whose_sandboxes_image_is_unknown_is_left_out_with_the_reason():
    node1 = {**host(), "tools": {"image": None, "mounts": {"/usr": "/usr"}}}
    plan = kube_pods.plan([node1, host(2)], cluster([node(1), node(2)]), {**OPTIONS, "image": None})
    assert plan["left_out"] == {"node1": kube_pods.NO_IMAGE}
    assert {pod["host"] for pod in plan["pods"]} == {"node2"}


@pytest.mark.parametrize(
    ("changes", "identity"),
    [
        ({"allocatable": {"rdma/rail0": 99}}, "resource:rdma/rail0"),
        ({"capacity": {}, "allocatable": {}}, "resource:rdma/rail0"),
        ({"ready": False, "why": "cni plugin not initialized"}, "cluster:node"),
        ({"taints": ["rdma.gpufabric.io/not-ready:NoSchedule"]}, "cluster:node"),
    ],
)
def test_a_node_has_to_be_ready_and_to_offer_all_it_has(changes, identity):
    made = pod_checks.node_checks(host(), node(**changes))
    assert [item["id"] for item in made if item["status"] == "failed"] == [identity]
    assert [item for item in pod_checks.node_checks(host(), node()) if item["status"] != "passed"] == []


def test_traffic_is_judged_by_its_results():
    tests, _left_out = traffic(two())
    good = {"ok": True, "error": None, "seconds": 2.0, "mb_per_s": 9000.0, "gbps": 75.5}
    bad = {"ok": False, "error": "100% packet loss"}
    results = [{**test, "result": bad if test["tool"] == "ping" else good} for test in tests]
    made = list(pod_checks.traffic_checks({"tests": results, "left_out": []}))
    assert [item["status"] for _name, item in made] == ["failed", "passed", "passed"]
    assert made[2][1]["figures"] == {"seconds": 2.0, "mb_per_s": 9000.0, "gbps": 75.5}


def seen(**changes):
    hosts = [host()]
    offered = cluster()
    plan = kube_pods.plan(hosts, offered, OPTIONS)
    root, states = replaced("@@ user\n1000", "@@ user\n0"), {pod["name"]: running() for pod in plan["pods"]}
    answers = {pod["name"]: root if pod["kind"] == "seed" else ROCE for pod in plan["pods"]}
    return Cluster(
        hosts,
        {"api_error": None, "cluster": {key: offered[key] for key in ("nodes", "nads", "dns")}},
        service_cidrs=["10.43.0.0/16"],
        plan=plan,
        run={"pods": states, "answers": answers, "traffic": {"tests": [], "left_out": []}},
    )._replace(**changes)


def ids(found, wanted="failed"):
    return [item["id"] for _host, item in found if item["status"] == wanted]


@pytest.mark.parametrize(("changes", "failing", "not_verified"), [
    ({}, [], []),
    ({"read": {"api_error": "connection refused", "cluster": None}}, ["cluster:api"], []),
    ({"read": {"api_error": f"k3s {kubectl.CANNOT_START}: none", "cluster": None}}, [], ["cluster:api"]),
    ({"read": {"unreachable": True, "msg": "no route to host"}}, [], ["cluster:api"]),
    ({"failure": "no end after 60 s"}, ["pod:tests"], []),
    ({"stopped": {"left": "timed out"}}, ["pod:removed"], []),
    ({"pod_name": "default/mine"}, [], ["pod:look"]),
])  # fmt: skip
def test_what_could_not_be_done_is_reported_by_name(changes, failing, not_verified):
    found = pod_checks.cluster_checks(seen(**changes), {}, False)
    assert (ids(found), ids(found, "not_verified")) == (failing, not_verified)


def test_what_the_node_and_the_objects_of_cni_show_is_reported_as_failed_checks_of_their_place():
    given = seen()
    finding = {"id": "conf-empty", "object": "00-multus.conf", "wanted": "JSON", "seen": "0 bytes", "next_step": "wait"}
    given.hosts[0]["cni"]["findings"] = [finding]
    pod = {"spec": {"containers": [{"image": "multus:latest", "name": "kube-multus"}]}}
    meta = {"name": "kube-multus-ds", "namespace": "kube-multus"}
    given.read["cluster"]["cni"] = [{"kind": "DaemonSet", "metadata": meta, "spec": {"template": pod}}]
    found = pod_checks.cluster_checks(given, {}, True)
    told = {(name, item["id"], item["status"]) for name, item in found}
    assert {("node1", "cni:conf-empty", "failed"), ("node1", "cni:image-not-pinned", "failed")} <= told
    assert ("node1", "cni:lint", "passed") not in told


def test_check_mode_starts_no_pod_and_lints_all_the_same():
    found = pod_checks.cluster_checks(seen(read={"api_error": "connection refused", "cluster": None}), {}, True)
    assert (ids(found), ids(found, "not_verified")) == ([], ["cluster:api"]), "the run may yet start it"
    bad = seen()
    bad.read["cluster"]["nads"] = [nad(master="eth9")]
    found = pod_checks.cluster_checks(bad._replace(run={}), {}, True)
    assert ids(found) == ["nad:master-absent"]
    assert ids(found, "not_verified") == ["pod:workload", "pod:seed"]


def own(annotation="rail0", limits=("rdma/rail0",), security=None, answer=ROCE, space="default", more=(), **changes):
    container = {"name": "app", "limits": dict.fromkeys(limits, "1"), "security": security or {}}
    annotations = {kube_pods.NETWORKS: annotation} if annotation else {}
    item = {"namespace": space, "name": "mine", "annotations": annotations, "host_network": False, "security": {}}
    seen = {"api_error": None, "pods": {"mine": running()}, "answers": {"mine": answer}}
    return {**seen, "item": {**item, "runtime_class": "", "containers": [container], **dict(more)}, **changes}


def diagnosis(**changes):
    found = own(**changes)
    offered = {**cluster(), "networks": pod_checks.networks_of(cluster(), [])}
    made = pod_checks.diagnose(found, [host()], offered, "default/mine")
    return {item["id"]: item for item in made if item["status"] != "passed"}


@pytest.mark.parametrize("annotation", ["rail0", "default/rail0@net1", '[{"name": "rail0"}]'])
def test_nothing_is_wrong_with_a_sound_pod(annotation):
    assert diagnosis(annotation=annotation) == {}


PENDING = running(ready=False, phase="Pending", reasons=["Unschedulable: Insufficient rdma/rail0"])


@pytest.mark.parametrize(("changes", "identity", "words"), [
    ({"limits": ()}, "resource:rdma/rail0", "no container requests rdma/rail0"),
    ({"annotation": None}, "annotation", "without a networks annotation"),
    ({"space": "train"}, "network:rail0", "there is one in default"),
    ({"annotation": "rail7"}, "network:rail7", "no network of this name"),
    ({"annotation": "[{"}, "annotation", "Expecting"),
    ({"annotation": '["rail0"]'}, "annotation", "mapping"),
    ({"annotation": '{"name": "rail0"}'}, "annotation", "no list of mappings"),
    ({"annotation": "rail0,rail1@net1"}, "annotation", "net1 of rail1 is taken"),
    ({"more": {"annotations": {"k8s.v1.cni.cncf.io/network": "rail0"}}}, "annotation", "nobody reads"),
    ({"more": {"host_network": True}}, "annotation", "hostNetwork"),
    ({"more": {"runtime_class": "kata-qemu"}}, "runtime-class", "kata-qemu"),
    ({"limits": ("rdma/rail_0",)}, "offered:rdma/rail_0", "rdma/rail0"),
    ({"security": {"privileged": True}}, "privileges", "privileged"),
    ({"pods": {"mine": PENDING}}, "running", "Insufficient"),
    ({"missing": 'pods "mine" not found'}, "exists", "not found"),
    ({"answer": ("@@ memlock\nunlimited", "@@ memlock\n8192")}, "ipc-lock", "IPC_LOCK not effective"),
    ({"answer": ("@@ environment\n", "@@ environment\nNCCL_IB_GID_INDEX=3\n")}, "gid-index", "GID_INDEX=3"),
    ({"answer": ("@@ routes\n", "@@ routes\ndefault via 198.18.0.1 dev net1\n")}, "default-route", "net1"),
    ({"answer": (ROCE, "@@ exec\nno such command sh\n@@= 126\n")}, "answer", "no shell"),
])  # fmt: skip
def test_what_keeps_a_pod_from_rdma_is_named(changes, identity, words):
    answer = {"answer": replaced(*changes["answer"])} if "answer" in changes else {}
    found = diagnosis(**copy.deepcopy(changes) | answer)[f"pod:{identity}"]
    assert (words in found["seen"], bool(found["next_step"])) == (True, True)


def test_the_container_with_the_resource_is_asked_sidecars_too():
    side = {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"rdma/rail0": "1"}}}
    spec = {"containers": [{"name": "proxy"}], "initContainers": [{"name": "once"}, side]}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    item, asked = {"metadata": {"name": "p", "namespace": "default"}, "spec": spec, "status": status}, []

    class Api:
        def items(self, kind, *_words):
            return [item] if kind == "pod" else []

        def run(self, *words, limit):
            asked.append(words[words.index("-c") + 1])
            return 0, f"x\n{pod_probe.END}\n", ""

    found = running_pods.inspect_pod(Api(), "default/p", {"dra": {"claims": []}})
    assert ([one["name"] for one in found["item"]["containers"]], asked) == (["side", "proxy"], ["side"])


K3S = "var/lib/rancher/k3s/agent/etc/containerd/config.toml"
# As rendered by k3s for containerd 2, and the form of earlier versions.
VERSION_3 = """version = 3
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "rancher/mirrored-pause:3.6"
"""
VERSION_2 = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\n  sandbox_image = "registry.k8s.io/pause:3.9"\n'


@pytest.fixture
def root(tmp_path):
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "etc/libibverbs.d", "var"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1")
    return tmp_path


def test_folders_are_mounted_where_programs_look_for_them(root):
    for name in ("bin", "lib"):
        (root / name).symlink_to(f"usr/{name}")
    own = ("/sbin", "/lib64", "/opt/mellanox", "/etc/alternatives")
    for path in own:
        (root / path[1:]).mkdir(parents=True)
    as_they_are = {path: path for path in ("/usr", "/etc/ld.so.cache", "/etc/libibverbs.d", *own)}
    assert containerd.tools(Tree(str(root)))["mounts"] == {**as_they_are, "/bin": "/usr/bin", "/lib": "/usr/lib"}


@pytest.mark.parametrize(("files", "image"), [
    ({}, None),
    ({K3S: "version = 3\n"}, None),
    ({K3S: VERSION_3}, "rancher/mirrored-pause:3.6"),
    ({"etc/containerd/config.toml": VERSION_2}, "registry.k8s.io/pause:3.9"),
    ({K3S: VERSION_3, "etc/containerd/config.toml": VERSION_2}, "rancher/mirrored-pause:3.6"),
    ({"etc/containerd/config.toml": f'imports = ["conf.d/*.toml"]\n{VERSION_2}',
        "etc/containerd/conf.d/pause.toml": VERSION_2.replace("pause:3.9", "pause:3.10")},
        "registry.k8s.io/pause:3.10"),
    ({K3S: VERSION_2.replace('"registry.k8s.io/pause:3.9"', "7")}, None),
], ids=["no containerd", "none", "version 3", "version 2", "k3s first", "an import wins", "no name"])  # fmt: skip
def test_the_image_is_that_of_the_sandboxes(root, put, files, image):
    for path, text in files.items():
        put(path, text)
    assert containerd.tools(Tree(str(root)))["image"] == image


def test_a_pod_with_the_nodes_tools_asks_no_registry_and_cannot_write_to_the_node():
    spec = {"containers": [{"name": "test", "image": None, "command": ["sleep", "1"]}]}
    pods.mount_tools(spec, {"image": "pause:1", "mounts": {"/usr": "/usr", "/lib64": "/usr/lib64"}})
    (container,) = spec["containers"]
    assert container["env"] == [{"name": "PATH", "value": pods.PATH}]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    mounts = {mount["mountPath"]: paths[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts == {"/usr": "/usr", "/lib64": "/usr/lib64"}


def test_a_program_that_the_kernel_refuses_is_run_by_its_loader(tmp_path):
    """The shell returns 126 for a file capability outside the bounding set; the program replaces ping."""
    refused = tmp_path / "refusing"
    refused.mkdir()
    # A shell function takes precedence, like the kernel's refusal; the loader then gets the real file.
    (refused / "ping").symlink_to("/bin/echo")
    words = pods.ping_command({"client": {"interface": "net1"}, "address": "10.56.0.3"})
    words[2] = f'command() {{ echo "{refused}/ping"; }}\nping() {{ return 126; }}\n{words[2]}'
    done = shell(*words)
    assert (done.returncode, done.stdout) == (0, "-c 3 -W 2 -I net1 10.56.0.3\n")
