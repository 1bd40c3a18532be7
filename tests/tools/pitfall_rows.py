"""The rows of the catalogue of failures: what plants each one, and what verify must report.

A plant changes one thing on two sound nodes, and what that causes in a real cluster.
"""

from __future__ import annotations

from typing import Callable, NamedTuple

from ansible_collections.gpufabric.rdma.tests.tools import pitfall_world
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_world import NETDEV, RESOURCE, ROCE, at

BOTH = ("node1", "node2")


def replaced(before: str, after: str, text: str = ROCE) -> str:
    assert before in text
    return text.replace(before, after)


def section(name: str, content: str, text: str = ROCE) -> str:
    """The answer with one section's content replaced."""
    head, mark, tail = text.partition(f"@@ {name}\n")
    assert mark
    return f"{head}{mark}{content}@@= 0\n{tail.partition('@@= 0')[2].lstrip()}"


NO_GIDS = section("gids", "")
NO_NET1 = section("addresses", "2: eth0    inet 10.42.0.9/24 scope global eth0\n", NO_GIDS)


# --- shared plugin (guide 000) ----------------------------------------------------------------------------------------


def wrong_names(world):
    world.objects += pitfall_world.guide_plugin()
    world.offer_nothing()


def no_slot(world):
    world.pending(f"Unschedulable: 0/2 nodes are available: 2 Insufficient {RESOURCE}.")


def other_hca(world):
    world.use(answer=NO_GIDS)


def mounted_devices(world):
    world.use(annotation=None, limits=(), paths=["/dev/infiniband"], answer=NO_GIDS)


def broken_json(world):
    world.objects += pitfall_world.guide_plugin('{"configList": [{"resourceName": "a",}]}')
    world.offer_nothing()


def one_of_two(world):
    world.objects += pitfall_world.guide_plugin(pitfall_world.selecting(NETDEV))
    for facts in world.facts.values():
        facts["rails"] = world.other["gh200-two-rails"]["rails"]


# --- NicClusterPolicy (guide 001) -------------------------------------------------------------------------------------


def config_map(world):
    config = {"configList": pitfall_world.selecting("ibs1f0")}
    parts = [("state-RDMA-device-plugin", "notReady")]
    world.objects.append(pitfall_world.policy("notReady", parts, rdmaSharedDevicePlugin={"config": config}))
    world.offer_nothing()


def two_drivers(world):
    world.objects.append(pitfall_world.policy("notReady", [("state-OFED", "notReady")], ofedDriver={"version": "x"}))
    for facts in world.facts.values():
        facts["driver"]["installed"] = {"flavor": "doca", "version": "3.1.0", "packages": {}}
    world.not_ready("container runtime network not ready")


def exclusive(world):
    for facts in world.facts.values():
        facts["subsystem"]["netns_mode"] = "exclusive"
    world.offer_nothing()


def no_ipc_lock(world):
    world.use(answer=replaced("@@ memlock\nunlimited", "@@ memlock\n64", replaced("@@ user\n1000", "@@ user\n0")))


def no_annotation(world):
    world.use(annotation=None, answer=NO_NET1)


def not_ready(world):
    world.objects.append(pitfall_world.policy("notReady", [("state-OFED", "ignore"), ("state-multus-cni", "notReady")]))


# --- SR-IOV (guide 002) -----------------------------------------------------------------------------------------------


def other_name(world):
    world.use(annotation="sriov-rdma-nett", reason="cannot find a network-attachment-definition (sriov-rdma-nett)")


def no_address(world):
    world.use(answer=NO_NET1)


def no_resource(world):
    world.use(limits=(), answer=section("devices", "ls: /dev/infiniband: No such file or directory\n", NO_GIDS))


def no_vf(world):
    resource = "openshift.io/mellanoxnics"
    world.objects = [item for item in world.objects if item["kind"] != "NetworkAttachmentDefinition"]
    world.objects.append(pitfall_world.network(type="sriov", resource=resource))
    for item in world.objects:
        if item["kind"] == "Node":
            item["status"]["capacity"][resource] = item["status"]["allocatable"][resource] = "8"
    world.use(limits=(resource,), reason=f"0/2 nodes are available: 2 Insufficient {resource}.")


def same_address(world):
    world.answers["node2"] = ROCE


# --- AKS (guide 003) --------------------------------------------------------------------------------------------------


def low_limit(world):
    text = replaced("pinned 16388 kB\n@@= 0", "Couldn't allocate MR\npinned 0 kB\n@@= 1")
    for host in BOTH:
        world.facts[host]["limits"]["services"]["k3s"].update(active=True, memlock_running=65536)
        world.answers[host] = at(replaced("@@ memlock\nunlimited", "@@ memlock\n64", text), host)


def no_gpu(world):
    world.use(limits=(RESOURCE, "nvidia.com/gpu"), reason="0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")


def refused_namespace(world):
    world.objects += pitfall_world.guide_plugin(pitfall_world.selecting(NETDEV, pitfall_world.NEXT), "network-operator")
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": "network-operator", "labels": labels}
    world.objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    world.offer_nothing()


def no_label(world):
    selector = {"feature.node.kubernetes.io/pci-15b3.present": "true"}
    entries = pitfall_world.selecting(NETDEV, pitfall_world.NEXT)
    world.objects += pitfall_world.guide_plugin(entries, selector=selector)
    world.offer_nothing()


# --- GH200 (guide 004) ------------------------------------------------------------------------------------------------


def no_mlx5_ib(world):
    for host in BOTH:
        cards = world.other["card-without-mlx5-ib"]["cards_without_rdma"]
        world.facts[host].update(hcas=[], rails=[], cards_without_rdma=cards)
        world.facts[host]["modules"]["mlx5_ib"].update(loaded=False)
        devices = world.probes[host]["char_devices"]
        world.probes[host]["char_devices"] = {"rdma_cm": devices["rdma_cm"]}
    world.offer_nothing()


def port_down(world):
    for facts in world.facts.values():
        facts["hcas"][0]["ports"][0].update(state="DOWN", phys_state="Disabled")
    world.offer_nothing()


def before_cni(world):
    for state in world.cni.values():
        state.update(confs=[], primary=[], existing={})
    world.not_ready("container runtime network not ready: NetworkReady=false: cni plugin not initialized")
    world.pending("Unschedulable: 2 node(s) had untolerated taint {node.kubernetes.io/not-ready: }")


def other_cidr(world):
    world.objects = [item for item in world.objects if item["kind"] != "ConfigMap"]
    world.objects += [pitfall_world.flannel("10.244.0.0/16"), pitfall_world.flannel_daemon()]
    for state in world.cni.values():
        state.update(existing={})
    world.not_ready("container runtime network not ready")


def other_processor(world):
    for state in world.cni.values():
        state["programs"]["bridge"]["elf"]["machine"] = "x86_64"
    world.pending(
        'FailedCreatePodSandBox: plugin type="bridge" failed (add): fork/exec /opt/cni/bin/bridge: exec format error'
    )


def no_program(world):
    for state in world.cni.values():
        del state["programs"]["bridge"]
    world.pending('FailedCreatePodSandBox: failed to find plugin "bridge" in path [/opt/cni/bin]')


def podman_first(world):
    podman = '{"name": "podman", "cniVersion": "0.4.0", "plugins": [{"type": "bridge"}]}'
    for host, state in world.cni.items():
        state["confs"].insert(0, {"path": "/etc/cni/net.d/00-aaa.conflist", "content": podman})
        world.states[host] = {"status": None}
        world.answers[host] = NO_NET1


def on_management(world):
    world.objects[2] = pitfall_world.network(master="eth0")
    for host in BOTH:
        world.answers[host] = at(replaced("net1@if5", "net1@if2"), host)


def host_local(world):
    world.objects[2] = pitfall_world.network(ipam={"type": "host-local", "subnet": "10.56.0.0/24"})
    world.answers["node2"] = ROCE


def no_peermem(world):
    for host in BOTH:
        world.variables[host]["kernel_modules_gpudirect"] = "peermem"
        world.facts[host]["modules"]["nvidia_peermem"]["loaded"] = False
        world.facts[host]["gpudirect"].update(evidence=None, mode="none", peermem_loadable=True)


def macvlan_on_infiniband(world):
    world.objects[2] = pitfall_world.network(master="ib0")
    world.pending("FailedCreatePodSandBox: failed to create macvlan: invalid argument")


def small_mtu(world):
    for host in BOTH:
        text = replaced("active_mtu:		4096 (5)", "active_mtu:		1024 (3)").replace("mtu 9000", "mtu 1500")
        world.answers[host] = at(text, host)


class Row(NamedTuple):
    """plant, the root, ids of checks that must be listed beneath it on the first of the hosts that must have it."""

    plant: Callable
    root: str
    beneath: set = set()
    hosts: tuple = BOTH


WAITS = {f"resource:{RESOURCE}", "pod:workload:running", "pod:seed:running"}
PODS_WAIT = {"pod:workload:running", "pod:seed:running"}
ONE = ("node1",)

ROWS = {
    "shared plugin: 0 allocatable because ifNames don't match": Row(wrong_names, "nothing-allocatable", PODS_WAIT),
    "shared plugin: pods Pending": Row(no_slot, "pods-pending"),
    "shared plugin: NCCL falls back to TCP": Row(other_hca, "nccl-tcp", hosts=ONE),
    "shared plugin: permission denied on /dev/infiniband": Row(
        mounted_devices, "infiniband-permission-denied", {"pod:resource", "pod:gids"}, ONE
    ),
    "shared plugin: bad config crash loop": Row(broken_json, "plugin-config-invalid", WAITS),
    "shared plugin: selector too narrow": Row(one_of_two, "selector-too-narrow"),
    "NicClusterPolicy: config as YAML map": Row(config_map, "policy-config-map", WAITS | {"policy:state"}),
    "NicClusterPolicy: driver loaded twice": Row(two_drivers, "driver-loaded-twice", {"cluster:node"}),
    "NicClusterPolicy: exclusive netns": Row(exclusive, "netns-exclusive", WAITS),
    "NicClusterPolicy: missing IPC_LOCK": Row(no_ipc_lock, "memlock-too-low", hosts=ONE),
    "NicClusterPolicy: resource but no IP on net1": Row(no_annotation, "resource-without-network", {"pod:gids"}, ONE),
    "NicClusterPolicy: policy notReady": Row(not_ready, "policy-not-ready", hosts=ONE),
    "SR-IOV: net1 missing because names differ": Row(other_name, "network-name-differs", hosts=ONE),
    "SR-IOV: net1 without IP": Row(no_address, "net1-without-address", {"pod:gids"}, ONE),
    "SR-IOV: /dev/infiniband missing": Row(no_resource, "infiniband-missing", {"pod:gids"}, ONE),
    "SR-IOV: VF allocation failed": Row(no_vf, "vf-exhausted", hosts=ONE),
    "SR-IOV: duplicate IPs": Row(same_address, "duplicate-addresses"),
    "AKS: memlock 64 kB": Row(low_limit, "memlock-too-low"),
    "AKS: GPUs exhausted": Row(no_gpu, "gpus-exhausted", hosts=ONE),
    "AKS: Pod Security label": Row(refused_namespace, "pod-security-refuses", WAITS),
    "AKS: NFD label missing": Row(no_label, "nfd-label-missing", WAITS),
    "GH200: mlx5_ib absent": Row(no_mlx5_ib, "mlx5-ib-absent", WAITS),
    "GH200: port down": Row(port_down, "port-down", WAITS),
    "GH200: exclusive": Row(exclusive, "netns-exclusive", WAITS),
    "GH200: NotReady before CNI": Row(before_cni, "no-cni"),
    "GH200: pod CIDR mismatch": Row(other_cidr, "pod-cidr-mismatch", {"cluster:node"}),
    "GH200: CNI binaries missing": Row(no_program, "cni-binaries"),
    "GH200: CNI binaries of another arch": Row(other_processor, "cni-binaries"),
    "GH200: 00-multus ordering": Row(podman_first, "multus-not-first", {"pod:workload:net1"}),
    "GH200: macvlan on the management NIC": Row(on_management, "macvlan-on-management", {"pod:workload:net1"}),
    "GH200: host-local on many nodes": Row(host_local, "duplicate-addresses", hosts=BOTH),
    "GH200: nvidia_peermem absent": Row(no_peermem, "peermem-absent"),
    "GH200: RoCE and InfiniBand confused": Row(macvlan_on_infiniband, "roce-or-infiniband"),
    "GH200: active MTU 1024": Row(small_mtu, "active-mtu-1024"),
}

# Failures of level E3: {id: the test that plants it in the lab's cluster and wants verify to name it}.
ON_THE_CLUSTER = {
    "memlock-too-low": (
        "tests/cluster/test_node_events.py::test_r5_without_the_drop_in_verify_names_the_limit_and_one_run_puts_it_back"
    ),
    "no-cni": (
        "tests/cluster/test_pitfalls.py::test_k5_a_node_that_is_not_ready_for_want_of_a_pod_network_holds_no_run_up"
    ),
}
