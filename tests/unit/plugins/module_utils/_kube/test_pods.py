"""The pods of verification: what is planned, what their answers mean, and the name of each planted fault."""

from __future__ import annotations

import copy
import json
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config as device_plugin_config
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import kubectl, pod_probe
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods as kube_pods
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import pod_checks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.cluster import Cluster
from ansible_collections.gpufabric.rdma.tests.tools import tree

ROCE = (tree.texts("output") / "pod-roce.txt").read_text()


@pytest.fixture(autouse=True)
def resource_names(monkeypatch):
    """Short names, whatever the device plugin calls its resources."""
    monkeypatch.setattr(device_plugin_config, "NAME", "rail{index}")


def rail(index=0, kind="pci", layer="Ethernet"):
    return {
        "index": index,
        "hca": f"mlx5_{index}",
        "port": 1,
        "netdev": f"eth{index + 2}" if layer == "Ethernet" else None,
        "pci": f"0000:{index + 1}8:00.0",
        "kind": kind,
        "link_layer": layer,
        "active_mtu": 4096,
        "char_devices": [f"uverbs{index}", f"umad{index}"],
    }


def netdev(index, mtu, *addresses, default_route=False):
    return {"index": index, "mtu": mtu, "type": "ether", "addresses": [*addresses], "default_route": default_route}


def host(number=1, rails=None):
    return {
        "host": f"node{number}",
        "rails": [rail()] if rails is None else rails,
        "netdevs": {
            "eth0": netdev(2, 1500, f"10.0.0.{number}/24", default_route=True),
            "eth2": netdev(5, 9000),
            "eth3": netdev(6, 9000),
        },
        "routes": [],
        "files": {},
        "cni": {"findings": [], "not_verified": [], "configurations": ["/etc/cni/net.d/00-multus.conf"]},
        "tools": {"image": "rancher/mirrored-pause:3.6", "mounts": {"/usr": "/usr", "/lib64": "/usr/lib64"}},
    }


def node(number=1, rails=1, **changes):
    resources = {f"rdma/rail{index}": 100 for index in range(rails)}
    return {
        "name": f"node{number}",
        "ready": True,
        "why": "",
        "addresses": [f"10.0.0.{number}"],
        "pod_cidrs": [f"10.42.{number - 1}.0/24"],
        "taints": [],
        "capacity": resources,
        "allocatable": dict(resources),
        **changes,
    }


def nad(index=0, **changes):
    config = {
        "cniVersion": "0.3.1",
        "name": f"rail{index}",
        "type": "macvlan",
        "master": f"eth{index + 2}",
        "ipam": {"type": "whereabouts", "range": f"10.56.{index}.0/24"},
        **changes,
    }
    return {
        "apiVersion": "k8s.cni.cncf.io/v1",
        "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "name": f"rail{index}",
            "namespace": "default",
            "annotations": {kube_pods.RESOURCE: f"rdma/rail{index}"},
        },
        "spec": {"config": json.dumps(config)},
    }


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
    return {
        "phase": "Running",
        "ready": True,
        "reasons": [],
        "status": status(),
        "ip": "10.42.0.9",
        "node": "node1",
        **changes,
    }


# --- the script -------------------------------------------------------------------------------------------------------


def test_the_answer_of_a_pod_is_read_as_data():
    answer = pod_probe.parse(ROCE)
    assert answer["missing"] == {}
    assert answer["user"] == 1000
    assert answer["ipc_lock"] is False
    assert answer["addresses"]["net1"] == ["10.56.0.2/24"]
    assert answer["routes"][0] == {"destination": "default", "gateway": "10.42.0.1", "netdev": "eth0"}
    assert answer["links"]["net1"] == {"parent": 5, "kind": "macvlan", "mtu": 9000}
    assert answer["drivers"] == {"eth0": "veth", "net1": "macvlan"}
    assert answer["devices"] == ["rdma_cm", "umad0", "uverbs0"]
    assert answer["verbs"] == {"mlx5_0": {1: {"state": "PORT_ACTIVE", "active_mtu": 4096, "link_layer": "Ethernet"}}}
    assert answer["ibstat"] == {"mlx5_0": {1: ("Active", "LinkUp")}}
    assert kube_pods.gid_index(answer["gids"], "mlx5_0", "10.56.0.2") == 7
    assert answer["registered"] == {"mlx5_0": {"code": 0, "bytes": 16388 * 1024, "said": ""}}
    assert answer["resolved"] is True


def test_what_is_missing_or_broken_off_is_none_and_says_so():
    answer = pod_probe.parse("@@ user\n0\n@@= 0\n@@ verbs\nsh: ibv_devinfo: not found\n@@= 127\n@@ routes\ndefault via")
    assert answer["missing"]["verbs"] == "the tool is missing"
    assert "was cut off" in answer["missing"]["routes"]
    assert answer["verbs"] == {}
    assert answer["ibstat"] == {}


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox sh"])
def test_the_script_runs_in_plain_shells_and_tells_no_environment(shell, monkeypatch):
    monkeypatch.setenv("NCCL_IB_GID_INDEX", "3")
    monkeypatch.setenv("SECRET_OF_THE_USER", "hunter2")
    done = subprocess.run(
        [*shell.split(), "-c", pod_probe.SCRIPT, "sh", "localhost"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "hunter2" not in done.stdout
    answer = pod_probe.parse(done.stdout)
    assert isinstance(answer["user"], int)
    assert answer["environment"] == {"NCCL_IB_GID_INDEX": "3"}
    assert answer["resolved"] is True
    assert answer["links"]["lo"] == {"parent": None, "kind": None, "mtu": 65536}, "BusyBox' ip knows no -d"
    assert {"verbs", "ibstat"} <= set(answer["missing"]) or answer["verbs"]


def test_registration_is_what_the_kernel_counts_not_what_the_tool_says(tmp_path):
    """With a double of the tool that registers nothing: it ends at once, and nothing counts as registered."""
    tool = tmp_path / "ibv_rc_pingpong"
    tool.write_text('#!/bin/sh\necho "Couldn\'t register MR" >&2\nexit 1\n')
    tool.chmod(0o755)
    functions = pod_probe.SCRIPT.partition("probe user")[0]
    done = subprocess.run(
        ["sh", "-c", f"PATH={tmp_path}:$PATH\n{functions}\nprobe 'register mlx5_0' register mlx5_0 1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    registered = pod_probe.parse(done.stdout)["registered"]["mlx5_0"]
    assert registered["bytes"] == 0
    assert registered["code"] == 1
    assert "Couldn't register MR" in registered["said"]


# --- the plan ---------------------------------------------------------------------------------------------------------


def planned(hosts=None, offered=None):
    hosts = hosts or [host()]
    return kube_pods.plan(hosts, offered or cluster(), OPTIONS)


def objects(plan, kind):
    return [item for item in plan["objects"] if item["kind"] == kind]


def test_a_node_with_one_rail_gets_a_workload_and_a_seed_pod():
    plan = planned()
    assert [pod["name"] for pod in plan["pods"]] == ["workload-node1", "seed-node1"]
    namespace = objects(plan, "Namespace")[0]
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    copied = objects(plan, "NetworkAttachmentDefinition")[0]
    assert copied["metadata"]["namespace"] == OPTIONS["namespace"]
    assert copied["spec"] == nad()["spec"]
    workload, seed = (item["spec"] for item in objects(plan, "Pod"))
    assert workload["securityContext"]["runAsUser"] == 1000
    assert workload["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert seed["containers"][0]["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    for spec in (workload, seed):
        assert spec["containers"][0]["resources"]["limits"] == {"rdma/rail0": "1"}
        assert spec["nodeSelector"] == {"kubernetes.io/hostname": "node1"}
        assert spec["activeDeadlineSeconds"]
        assert "hostNetwork" not in spec
        assert "privileged" not in json.dumps(spec)


@pytest.mark.parametrize("count", [2, 8])
def test_one_pod_takes_every_rail_in_order(count):
    hosts = [host(1, [rail(index) for index in range(count)])]
    plan = planned(hosts, cluster([node(1, count)], [nad(index) for index in range(count)]))
    pod = next(pod for pod in plan["pods"] if pod["kind"] == "rails")
    assert [(item["interface"], item["network"], item["rail"]["hca"]) for item in pod["attachments"]] == [
        (f"net{index + 1}", f"rail{index}", f"mlx5_{index}") for index in range(count)
    ]
    made = next(item for item in objects(plan, "Pod") if item["metadata"]["name"] == pod["name"])
    assert json.loads(made["metadata"]["annotations"][kube_pods.NETWORKS]) == [
        {"name": f"rail{index}", "interface": f"net{index + 1}"} for index in range(count)
    ]
    assert len(made["spec"]["containers"][0]["resources"]["limits"]) == count


def test_one_resource_may_serve_every_rail():
    hosts = [host(1, [rail(0), rail(1)])]
    nads = [nad(0), nad(1)]
    for item in nads:
        item["metadata"]["annotations"][kube_pods.RESOURCE] = "rdma/shared"
    offered = cluster([node(1, capacity={"rdma/shared": 63}, allocatable={"rdma/shared": 63})], nads)
    pod = next(pod for pod in planned(hosts, offered)["pods"] if pod["kind"] == "rails")
    assert pod["resources"] == ["rdma/shared"]
    assert [item["rail"]["index"] for item in pod["attachments"]] == [0, 1]


def test_software_hcas_get_a_pod_in_the_nodes_network_and_infiniband_needs_no_attachment():
    plan = planned([host(1, [rail(kind="software")])])
    made = next(item for item in objects(plan, "Pod") if item["metadata"]["name"] == "host-node1")
    assert made["spec"]["hostNetwork"] is True
    assert "annotations" not in made["metadata"]
    plan = planned([host(1, [rail(layer="InfiniBand")])], cluster(nads=[]))
    assert [pod["attachments"] for pod in plan["pods"]] == [[], []]
    assert all("annotations" not in item["metadata"] for item in objects(plan, "Pod"))


def test_a_host_is_found_by_name_or_address_and_otherwise_left_out_with_the_reason():
    elsewhere = {**host(), "host": "gpu-a"}
    assert kube_pods.find_node(elsewhere, [node()])["name"] == "node1"
    plan = planned([{**elsewhere, "netdevs": {}}])
    assert plan["objects"] == []
    assert "node1" in plan["left_out"]["gpu-a"]
    without = planned(offered=cluster([node(capacity={}, allocatable={})]))
    assert "no RDMA resource" in without["left_out"]["node1"]


def answers_for(pods, software=False):
    """Answers as both nodes would give them: addresses 10.56.0.2 and 10.56.0.18."""
    found = {}
    for pod in pods:
        last = 2 if pod["node"] == "node1" else 18
        text = ROCE.replace("10.56.0.2", f"10.56.0.{last}").replace("0a38:0002", f"0a38:{last:04x}")
        if pod["kind"] == "host":
            text = text.replace("net1", "eth2")
        found[pod["name"]] = pod_probe.parse(text)
    return found


def two(kind="pci"):
    hosts = [host(number, [rail(kind=kind)]) for number in (1, 2)]
    return kube_pods.plan(hosts, cluster([node(1), node(2)]), OPTIONS)["pods"]


def test_traffic_goes_over_net1_with_the_gid_of_the_pods_own_table():
    pods = two()
    made = kube_pods.traffic(pods, answers_for(pods), 18700)
    assert [test["tool"] for test in made["tests"]] == ["ping", "rping", "ib_write_bw"]
    assert {test["address"] for test in made["tests"]} == {"10.56.0.18"}
    assert made["tests"][2]["client"]["gid"] == 7
    assert kube_pods.ping_command(made["tests"][0])[-3:] == ["-I", "net1", "10.56.0.18"]
    assert len({test["tcp_port"] for test in made["tests"][1:]}) == 2
    assert made["left_out"] == []


def test_soft_roce_carries_verbs_in_the_nodes_network_and_says_why_not_over_net1():
    pods = two("software")
    made = kube_pods.traffic(pods, answers_for(pods), 18700)
    assert [(test["tool"], test["place"]) for test in made["tests"]] == [
        ("ping", "net1"),
        ("rping", "the node's network"),
        ("ib_write_bw", "the node's network"),
    ]
    assert [item["reason"] for item in made["left_out"]] == [kube_pods.SOFTWARE_REASON]


def test_infiniband_without_an_address_shakes_hands_over_the_pod_network():
    hosts = [host(number, [rail(layer="InfiniBand")]) for number in (1, 2)]
    pods = kube_pods.plan(hosts, cluster([node(1), node(2)], nads=[]), OPTIONS)["pods"]
    (test,) = kube_pods.traffic(pods, answers_for(pods), 18700)["tests"]
    assert (test["tool"], test["address"], test["client"]["gid"]) == ("ib_write_bw", "10.42.0.9", None)
    alone = kube_pods.traffic(two()[:2], answers_for(two()[:2]), 18700)
    assert (alone["tests"], len(alone["left_out"])) == ([], 1)


def three_on(*networks, kind="pci"):
    """Traffic between three nodes, whose own address on rail 0 is in these networks; None: they have none there."""
    hosts = [host(number, [rail(kind=kind)]) for number in range(1, len(networks) + 1)]
    for one, network in zip(hosts, networks):
        one["netdevs"]["eth2"]["addresses"] = [*([network] if network else []), "fe80::1/64"]
    nodes = [node(number) for number in range(1, len(networks) + 1)]
    pods = kube_pods.plan(hosts, cluster(nodes), OPTIONS)["pods"]
    made = kube_pods.traffic(pods, answers_for(pods), 18700)
    return [(test["client"]["host"], test["server"]["host"]) for test in made["tests"]], made["left_out"]


def test_nodes_whose_rail_is_in_networks_of_its_own_send_nothing_and_say_so():
    sent, left_out = three_on("10.77.1.1/24", "10.77.2.2/24", "10.77.1.3/24")
    assert set(sent) == {("node1", "node3")}
    assert [(item["host"], item["what"]) for item in left_out] == [("node2", "wire")]
    assert left_out[0]["reason"] == "no peer in 10.77.2.0/24: rail 0 of node1 10.77.1.0/24, node3 10.77.1.0/24"
    ((name, item),) = pod_checks.traffic_checks({"tests": [], "left_out": left_out})
    assert (name, item["status"]) == ("node2", "not_verified")
    sent, left_out = three_on("10.77.1.1/24", "10.77.2.2/24", kind="software")
    assert (sent, [item["host"] for item in left_out]) == ([], ["node1", "node2"])


@pytest.mark.parametrize(
    "networks", [(None, "10.77.2.2/24", None), ("10.77.1.1/16", "10.77.2.2/16", None), (None, None, None)]
)
def test_a_rail_without_addresses_of_the_nodes_is_one_wire_until_its_pods_say_otherwise(networks):
    sent, left_out = three_on(*networks)
    assert set(sent) == {("node1", "node2"), ("node2", "node3")}
    assert left_out == []


# --- the verdict ------------------------------------------------------------------------------------------------------


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


def test_a_sound_pod_passes_every_check():
    found = verdicts()
    assert {item["status"] for item in found.values()} == {"passed"}
    plain = "running network-status user default-route net1 net1:driver dns devices"
    of_hca = "registration verbs ibstat gid"
    names = [*plain.split(), *(f"{name}:mlx5_0" for name in of_hca.split())]
    assert set(found) == {f"pod:workload:{name}" for name in names}
    assert "index 7" in found["pod:workload:gid:mlx5_0"]["seen"]


def replaced(before, after):
    assert before in ROCE
    return ROCE.replace(before, after)


FILE = "crw-rw-rw- 1 root root 231,"
# {fault: (what the pod says, what it says then, checks that fail)}
FAULTS = {
    "two default routes": ("10.56.0.0/24 dev", "default via 10.56.0.1 dev net1\n10.56.0.0/24 dev", "default-route"),
    "an address of another network": ("inet 10.56.0.2/24", "inet 10.99.0.2/24", "net1 gid:mlx5_0"),
    "net1 on another rail's interface": ("net1@if5", "net1@if6", "net1"),
    "net1 made by another plugin": ("driver: macvlan", "driver: veth", "net1:driver"),
    "no umad": (f"{FILE}   0 Nov 21 19:00 umad0\n", "", "devices"),
    "a file in the place of a device": (f"{FILE} 192", "-rw-rw-rw- 1 root root 0", "devices"),
    "the HCA of another rail": ("uverbs0\n", f"uverbs0\n{FILE} 193 Nov 21 19:00 uverbs1\n", "devices"),
    "too little locked memory": (
        *("pinned 16388 kB\n@@= 0", "Couldn't register MR\npinned 0 kB\n@@= 1", "registration:mlx5_0"),
    ),
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


@pytest.mark.parametrize(
    ("tool", "section", "identity"),
    [
        ("ibstat", "ibstat", "pod:workload:ibstat:mlx5_0"),
        ("ibv_rc_pingpong", "register mlx5_0", "pod:workload:registration:mlx5_0"),
        ("getent", "resolve", "pod:workload:dns"),
    ],
)
def test_a_tool_that_the_image_lacks_is_not_verified_and_no_pass(tool, section, identity):
    head, _mark, tail = ROCE.partition(f"@@ {section}\n")
    answer = f"{head}@@ {section}\nsh: {tool}: not found\n@@= 127\n{tail.partition('@@= 0')[2]}"
    for image, step in ((OPTIONS["image"], "verification_image"), (None, "install the tool on node1")):
        item = verdicts(answer, image=image)[identity]
        assert item["status"] == "not_verified"
        assert step in item["next_step"]


PEER = "@@ peer\n10.42.0.12     STREAM workload-node2.peers\n10.42.0.12     DGRAM\n@@= 0\n"


def peer_checks(*sections, ip="10.42.0.12", hosts=2):
    """The check of the first node's workload pod; ip: of the second's."""
    nodes = [host(number) for number in range(1, hosts + 1)]
    offered = cluster(nodes=[node(number) for number in range(1, hosts + 1)])
    plan = kube_pods.plan(nodes, offered, OPTIONS)
    states = {pod["name"]: {**running(), "ip": ip} for pod in plan["pods"]}
    answer = ROCE.partition("@@ peer")[0] + "".join(sections)
    run = {"pods": states, "answers": {pod["name"]: answer for pod in plan["pods"] if pod["kind"] == "workload"}}
    found = pod_checks.judge(nodes, offered, plan, run, {"check_mode": False})
    return plan, [item for name, item in found if item["id"] == "pod:workload:peer" and name == nodes[0]["host"]]


def test_each_workload_looks_up_the_next_one_over_a_headless_service():
    plan, _checks = peer_checks(PEER)
    assert [pod["peer"]["name"] for pod in plan["pods"] if pod["kind"] == "workload"] == [
        "workload-node2.peers",
        "workload-node1.peers",
    ]
    assert not any("peer" in pod for pod in plan["pods"] if pod["kind"] != "workload")
    (service,) = [one for one in plan["objects"] if one["kind"] == "Service"]
    assert service["spec"] == {
        "clusterIP": "None",
        "selector": {"rdma.gpufabric.io/test": "workload"},
        "publishNotReadyAddresses": True,
    }
    for pod in (one for one in plan["objects"] if one["kind"] == "Pod"):
        named = {name: pod["spec"][name] for name in ("hostname", "subdomain") if name in pod["spec"]}
        workload = pod["metadata"]["labels"]["rdma.gpufabric.io/test"] == "workload"
        assert named == ({"hostname": pod["metadata"]["name"], "subdomain": "peers"} if workload else {})
    (alone,) = [pod for pod in peer_checks(hosts=1)[0]["pods"] if pod["kind"] == "workload"]
    assert alone["peer"]["pod"] == alone["name"]


@pytest.mark.parametrize(
    ("section", "ip", "status", "words"),
    [
        (PEER, "10.42.0.12", "passed", "10.42.0.12"),
        (PEER, "10.42.0.13", "failed", "10.42.0.12"),
        ("@@ peer\n@@= 2\n", "10.42.0.12", "failed", "no answer"),
        ("", "10.42.0.12", "not_verified", "not asked"),
        (PEER, None, "not_verified", "has no address"),
    ],
)
def test_the_peers_name_has_to_give_its_pods_address(section, ip, status, words):
    _plan, (item,) = peer_checks(section, ip=ip)
    assert item["status"] == status
    assert words in item["seen"]


def test_a_node_with_dots_in_its_name_has_a_pod_with_a_name_of_dns():
    (workload, *_others) = kube_pods.plan([host(1)], cluster(nodes=[node(1, name="node1.example.org")]), OPTIONS)[
        "pods"
    ]
    made = kube_pods.manifest(workload, "tests", {"image": "a", "mounts": {}})
    assert made["metadata"]["name"] == "workload-node1.example.org"
    assert made["spec"]["hostname"] == "workload-node1-example-org"


@pytest.mark.parametrize(
    ("noted", "words"),
    [
        (None, "no network-status"),
        (json.dumps([POD_NETWORK]), "no net1"),
        (status().replace("10.56.0.2", "10.99.0.2"), "net1 has"),
        (status().replace("10.42.0.9", "10.88.0.9"), "eth0 has"),
        (status().replace('"default": true', '"default": false'), "not the default"),
        (status(network="other"), "net1 is"),
    ],
)
def test_what_multus_noted_is_compared_with_what_was_asked_for(noted, words):
    found = verdicts(state=running(status=noted))
    assert failed(found) == ["pod:workload:network-status"]
    assert words in found["pod:workload:network-status"]["seen"]


@pytest.mark.parametrize(
    ("reason", "status", "step"),
    [
        ("Unschedulable: 0/2 nodes are available: 2 Insufficient rdma/rail0.", "failed", "allocatable"),
        ("Unschedulable: 1 node(s) had untolerated taint {rdma.gpufabric.io/not-ready: }", "failed", "startup taint"),
        ('FailedCreatePodSandBox: failed to find plugin "loopback" in path [/a]', "failed", "cni_plugins"),
        ("FailedCreatePodSandBox: no net directory under pci device 1", "failed", "nad_lint"),
        ("FailedCreatePodSandBox: dial unix /run/multus/multus.sock: connect: refused", "failed", "Multus"),
        ("FailedCreatePodSandBox: no IP addresses available in range set", "failed", "per_node_block_size"),
        ("something new", "failed", "describe pod"),
        # These say nothing of RDMA.
        ("ErrImagePull: failed to pull", "not_verified", "verification_image"),
        ("ImagePullBackOff: Back-off pulling image", "not_verified", "verification_image"),
        ("InvalidImageName: couldn't parse image name", "not_verified", "verification_image"),
        ("ErrImageNeverPull: not present with pull policy of Never", "not_verified", "k3s crictl images"),
    ],
)
def test_a_pod_that_does_not_run_says_why_and_what_to_do(reason, status, step):
    found = verdicts(answer=None, state=running(phase="Pending", ready=False, reasons=[reason]))
    assert list(found) == ["pod:workload:running"]
    item = found["pod:workload:running"]
    assert item["status"] == status
    assert reason in item["seen"]
    assert step in item["next_step"]


@pytest.mark.parametrize(
    ("image", "used", "policy", "paths"),
    [
        (None, "rancher/mirrored-pause:3.6", "Never", ["/usr", "/lib64"]),
        ("example.test/rdma:1", "example.test/rdma:1", "IfNotPresent", []),
    ],
)
def test_without_an_image_the_pods_run_the_tools_of_their_node(image, used, policy, paths):
    plan = kube_pods.plan([host()], cluster(), {**OPTIONS, "image": image})
    assert plan["left_out"] == {}
    for pod in objects(plan, "Pod"):
        (container,) = pod["spec"]["containers"]
        assert (container["image"], container["imagePullPolicy"]) == (used, policy)
        assert [mount["mountPath"] for mount in container.get("volumeMounts", [])] == paths
    assert {pod["node_tools"] for pod in plan["pods"]} == {image is None}


def test_a_node_whose_sandboxes_image_is_unknown_is_left_out_with_the_reason():
    node1 = {**host(), "tools": {"image": None, "mounts": {"/usr": "/usr"}}}
    plan = kube_pods.plan([node1, host(2)], cluster([node(1), node(2)]), {**OPTIONS, "image": None})
    assert plan["left_out"] == {"node1": kube_pods.NO_IMAGE}
    assert {pod["host"] for pod in plan["pods"]} == {"node2"}


@pytest.mark.parametrize(
    ("changes", "identity"),
    [
        ({"allocatable": {"rdma/rail0": 0}}, "resource:rdma/rail0"),
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


def test_soft_roce_gids_of_net1_and_a_name_without_dns_are_not_verified():
    found = verdicts(replaced("ffff:0a38:0002", "ffff:0a00:0001"), hosts=[host(1, [rail(kind="software")])])
    assert found["pod:workload:gid:mlx5_0"]["status"] == "not_verified"
    assert verdicts(offered=cluster(dns=False))["pod:workload:dns"]["status"] == "not_verified"


def test_traffic_is_judged_by_its_results():
    pods = two()
    tests = kube_pods.traffic(pods, answers_for(pods), 18700)["tests"]
    good = {"ok": True, "error": None, "seconds": 2.0, "mb_per_s": 9000.0, "gbps": 75.5}
    bad = {"ok": False, "error": "100% packet loss"}
    results = [{**test, "result": bad if test["tool"] == "ping" else good} for test in tests]
    made = pod_checks.traffic_checks({"tests": results, "left_out": []})
    assert [(host_name, item["status"]) for host_name, item in made] == [
        ("node1", "failed"),
        ("node1", "passed"),
        ("node1", "passed"),
    ]
    assert made[2][1]["figures"] == {"seconds": 2.0, "mb_per_s": 9000.0, "gbps": 75.5}


# --- all together -----------------------------------------------------------------------------------------------------


def seen(**changes):
    hosts = [host()]
    offered = cluster()
    plan = kube_pods.plan(hosts, offered, OPTIONS)
    answers = {
        pod["name"]: replaced("@@ user\n1000", "@@ user\n0") if pod["kind"] == "seed" else ROCE for pod in plan["pods"]
    }
    states = {pod["name"]: running() for pod in plan["pods"]}
    return Cluster(
        hosts,
        {"api_error": None, "cluster": {key: offered[key] for key in ("nodes", "nads", "dns")}},
        service_cidrs=["10.43.0.0/16"],
        plan=plan,
        run={"pods": states, "answers": answers, "traffic": {"tests": [], "left_out": []}},
    )._replace(**changes)


def ids(found, wanted="failed"):
    return [item["id"] for _host, item in found if item["status"] == wanted]


@pytest.mark.parametrize(
    ("changes", "failing", "not_verified"),
    [
        ({}, [], []),
        ({"read": {"api_error": "connection refused", "cluster": None}}, ["cluster:api"], []),
        ({"read": {"api_error": f"k3s {kubectl.CANNOT_START}: none", "cluster": None}}, [], ["cluster:api"]),
        ({"read": {"unreachable": True, "msg": "no route to host"}}, [], ["cluster:api"]),
        ({"failure": "no end after 60 s"}, ["pod:tests"], []),
        ({"stopped": {"left": "timed out"}}, ["pod:removed"], []),
        ({"pod_name": "default/mine"}, [], ["pod:look"]),
    ],
)
def test_what_could_not_be_done_is_reported_by_name(changes, failing, not_verified):
    found = pod_checks.cluster_checks(seen(**changes), {}, False)
    assert (ids(found), ids(found, "not_verified")) == (failing, not_verified)


def test_what_the_node_and_the_objects_of_cni_show_is_reported_as_failed_checks_of_their_place():
    given = seen()
    finding = {"id": "conf-empty", "object": "00-multus.conf", "wanted": "JSON", "seen": "0 bytes", "next_step": "wait"}
    given.hosts[0]["cni"]["findings"] = [finding]
    daemon = {"image": "multus:latest", "name": "kube-multus"}
    given.read["cluster"]["cni"] = [
        {
            "kind": "DaemonSet",
            "metadata": {"name": "kube-multus-ds", "namespace": "kube-multus"},
            "spec": {"template": {"spec": {"containers": [daemon]}}},
        },
    ]
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


# --- a pod of the user ------------------------------------------------------------------------------------------------


def own(annotation="rail0", limits=("rdma/rail0",), security=None, answer=ROCE, namespace="default", **changes):
    item = {
        "namespace": namespace,
        "name": "mine",
        "annotations": {kube_pods.NETWORKS: annotation} if annotation else {},
        "host_network": False,
        "security": {},
        "containers": [{"name": "app", "limits": dict.fromkeys(limits, "1"), "security": security or {}}],
    }
    seen = {"api_error": None, "pods": {"mine": running()}, "answers": {"mine": answer}}
    return {**seen, "item": item, **changes}


def diagnosis(**changes):
    found = own(**changes)
    offered = {**cluster(), "networks": pod_checks.networks_of(cluster(), [])}
    made = pod_checks.diagnose(found, [host()], offered, "default/mine")
    return {item["id"]: item for item in made if item["status"] != "passed"}


@pytest.mark.parametrize("annotation", ["rail0", "default/rail0@net1", '[{"name": "rail0"}]'])
def test_nothing_is_wrong_with_a_sound_pod(annotation):
    assert diagnosis(annotation=annotation) == {}


PENDING = running(ready=False, phase="Pending", reasons=["Unschedulable: Insufficient rdma/rail0"])


@pytest.mark.parametrize(
    ("changes", "identity", "words"),
    [
        ({"limits": ()}, "resource:rdma/rail0", "no container requests rdma/rail0"),
        ({"annotation": None}, "annotation", "without a networks annotation"),
        ({"namespace": "train"}, "network:rail0", "there is one in default"),
        ({"annotation": "rail7"}, "network:rail7", "no network of this name"),
        ({"annotation": "[{"}, "annotation", "Expecting"),
        ({"security": {"privileged": True}}, "privileges", "privileged"),
        ({"pods": {"mine": PENDING}}, "running", "Insufficient"),
        ({"missing": 'pods "mine" not found'}, "exists", "not found"),
        ({"answer": ("@@ memlock\nunlimited", "@@ memlock\n8192")}, "ipc-lock", "IPC_LOCK not effective"),
        ({"answer": ("@@ environment\n", "@@ environment\nNCCL_IB_GID_INDEX=3\n")}, "gid-index", "GID_INDEX=3"),
        ({"answer": ("@@ routes\n", "@@ routes\ndefault via 198.18.0.1 dev net1\n")}, "default-route", "net1"),
        ({"answer": (ROCE, "@@ exec\nno such command sh\n@@= 126\n")}, "answer", "no shell"),
    ],
)
def test_what_keeps_a_pod_from_rdma_is_named(changes, identity, words):
    answer = {"answer": replaced(*changes["answer"])} if "answer" in changes else {}
    found = diagnosis(**copy.deepcopy(changes) | answer)[f"pod:{identity}"]
    assert words in found["seen"]
    assert found["next_step"]
