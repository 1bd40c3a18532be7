"""The catalogue of failures: each row planted alone on two sound nodes, and the one root that verify names."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import catalogue as findings_catalogue
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import diagnosis
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import pod_network
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.variables import documented_roles
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify import host_checks
from ansible_collections.gpufabric.rdma.tests.tools import pitfall_world, render_failures
from ansible_collections.gpufabric.rdma.tests.tools.pitfall_world import NETDEV, RESOURCE, ROCE, World, at


@pytest.fixture
def world(captured):
    made = World(captured["gh200-cx7-roce"], captured["variables"])
    made.other = captured
    return made


def failed(judged: dict, host: str) -> dict:
    return {item["id"]: item for item in judged["checks"][host] if item["status"] == "failed"}


def test_two_sound_nodes_have_no_failure(world):
    judged = world.judge()
    assert [failed(judged, host) for host in world.hosts] == [{}, {}]
    assert [node["diagnosis"] for node in judged["judged"]] == [None, None]
    assert not any("failure" in item for items in judged["checks"].values() for item in items)


# --- what is planted, from the published guides ----------------------------------------------------------------------

BOTH, ONE = ("node1", "node2"), ("node1",)


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


def wrong_names(world):
    world.objects += pitfall_world.guide_plugin()
    world.offer_nothing()


def no_slot(world):
    world.pending(f"Unschedulable: 0/2 nodes are available: 2 Insufficient {RESOURCE}.")


def mounted_devices(world):
    world.use(annotation=None, limits=(), paths=["/dev/infiniband"], answer=NO_GIDS)


def broken_json(world):
    world.objects += pitfall_world.guide_plugin('{"configList": [{"resourceName": "a",}]}')
    world.offer_nothing()


def one_of_two(world):
    world.objects += pitfall_world.guide_plugin(pitfall_world.selecting(NETDEV))
    for facts in world.facts.values():
        facts["rails"] = world.other["gh200-two-rails"]["rails"]


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


def small_mtu(world):
    for host in BOTH:
        text = replaced("active_mtu:		4096 (5)", "active_mtu:		1024 (3)").replace("mtu 9000", "mtu 1500")
        world.answers[host] = at(text, host)


PODS_WAIT = {"pod:workload:running", "pod:seed:running"}
WAITS = PODS_WAIT | {f"resource:{RESOURCE}"}
# {row: (plant, the root, ids that must be listed beneath it on the first host, hosts that must have it)}
ROWS = {
    "shared plugin: 0 allocatable because ifNames don't match": (wrong_names, "nothing-allocatable", PODS_WAIT, BOTH),
    "shared plugin: pods Pending": (no_slot, "pods-pending", set(), BOTH),
    "shared plugin: permission denied on /dev/infiniband": (
        mounted_devices,
        "infiniband-permission-denied",
        {"pod:resource", "pod:gids"},
        ONE,
    ),
    "shared plugin: bad config crash loop": (broken_json, "plugin-config-invalid", WAITS, BOTH),
    "shared plugin: selector too narrow": (one_of_two, "selector-too-narrow", set(), BOTH),
    "NicClusterPolicy: config as YAML map": (config_map, "policy-config-map", WAITS | {"policy:state"}, BOTH),
    "NicClusterPolicy: driver loaded twice": (two_drivers, "driver-loaded-twice", {"cluster:node"}, BOTH),
    "NicClusterPolicy: exclusive netns": (exclusive, "netns-exclusive", WAITS, BOTH),
    "NicClusterPolicy: missing IPC_LOCK": (no_ipc_lock, "memlock-too-low", set(), ONE),
    "NicClusterPolicy: resource but no IP on net1": (no_annotation, "resource-without-network", {"pod:gids"}, ONE),
    "NicClusterPolicy: policy notReady": (not_ready, "policy-not-ready", set(), ONE),
    "SR-IOV: net1 without IP": (no_address, "net1-without-address", {"pod:gids"}, ONE),
    "SR-IOV: /dev/infiniband missing": (no_resource, "infiniband-missing", {"pod:gids"}, ONE),
    "SR-IOV: VF allocation failed": (no_vf, "vf-exhausted", set(), ONE),
    "SR-IOV: duplicate IPs": (same_address, "duplicate-addresses", set(), BOTH),
    "AKS: GPUs exhausted": (no_gpu, "gpus-exhausted", set(), ONE),
    "AKS: Pod Security label": (refused_namespace, "pod-security-refuses", WAITS, BOTH),
    "AKS: NFD label missing": (no_label, "nfd-label-missing", WAITS, BOTH),
    "GH200: mlx5_ib absent": (no_mlx5_ib, "mlx5-ib-absent", WAITS, BOTH),
    "GH200: port down": (port_down, "port-down", WAITS, BOTH),
    "GH200: NotReady before CNI": (before_cni, "no-cni", set(), BOTH),
    "GH200: pod CIDR mismatch": (other_cidr, "pod-cidr-mismatch", {"cluster:node"}, BOTH),
    "GH200: CNI binaries missing": (no_program, "cni-binaries", set(), BOTH),
    "GH200: 00-multus ordering": (podman_first, "multus-not-first", {"pod:workload:net1"}, BOTH),
    "GH200: macvlan on the management NIC": (on_management, "macvlan-on-management", {"pod:workload:net1"}, BOTH),
    "GH200: active MTU 1024": (small_mtu, "active-mtu-1024", set(), BOTH),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_planted_is_the_one_root(name, world):
    """On each host that it concerns, with everything that failed explained by it, and nothing elsewhere."""
    plant, root, beneath, hosts = ROWS[name]
    plant(world)
    found = {node["host"]: node["diagnosis"] for node in world.judge()["judged"] if node["diagnosis"]}
    assert {host: verdict["root"] for host, verdict in found.items()} == dict.fromkeys(hosts, root)
    assert [verdict["besides"] for verdict in found.values()] == [[]] * len(hosts)
    assert beneath <= {item["id"] for item in found[hosts[0]]["consequences"]}


# --- the rules --------------------------------------------------------------------------------------------------------


def made(identity, obj="thing", seen="bad", status="failed"):
    return host_checks.check(identity, obj, status, "good", seen, "fix it")


# Signs that no row plants: {check: (what it saw, the root)}.
SIGHTS = {
    "module:nvidia_peermem": ("not loaded", "peermem-absent"),
    "pod:seed:registration:mlx5_0": (
        "0 MiB; ulimit -l 64, IPC_LOCK; Permission denied",
        "infiniband-permission-denied",
    ),
    "pod:peer:registration:mlx5_0": ("0 MiB; ulimit -l 8192; Couldn't allocate MR", "memlock-too-low"),
    "pod:a:running": ('Pending: failed to find plugin "macvlan" in path [/opt/cni/bin]', "cni-binaries"),
    "cni:several-configurations": ("2 are loaded", "multus-not-first"),
    "cluster:node": ("not Ready: cni plugin not initialized", "no-cni"),
    "pod:running": ('Failed: violates PodSecurity "baseline"', "pod-security-refuses"),
    "pod:tests": ('the test pods could not be made: violates PodSecurity "restricted"', "pod-security-refuses"),
    "policy:config": ("not valid JSON: Expecting value", "plugin-config-invalid"),
    "resource:rdma/1": ("not advertised; there are rdma/hca_shared_devices_0", "selector-too-narrow"),
    "resource:rdma/0": ("not advertised; there are no extended resources", "nothing-allocatable"),
    "nad:ipoib-ethernet": ("eth2 is Ethernet", "roce-or-infiniband"),
    "state:NIC eth2 MTU": ("1500", "active-mtu-1024"),
    "nad:mtu": ("mtu 9000; eth2 of node1 has 1500", "active-mtu-1024"),
    "nad:block-clash": ("node1 and node2 both hand out 10.0.0.2", "duplicate-addresses"),
    "pod:b:running": ("Pending: cannot find a network-attachment-definition (rail0)", "network-name-differs"),
    "pod:workload:net1": ("addresses none", "net1-without-address"),
    "pod:c:running": ("Pending: no IP addresses available in range set", "net1-without-address"),
    "pod:workload:devices": ("without uverbs0", "infiniband-missing"),
    "nccl:transport": ("NET/Socket : Using [0]eth0", "nccl-tcp"),
    "pod:workload:gid:mlx5_0": ("4 GIDs, none of net1", "nccl-tcp"),
    "pod:gid-index": ("NCCL_IB_GID_INDEX=3", "nccl-tcp"),
    "port:mlx5_0/1": ("state INIT, phys_state LinkUp", "port-down"),
}


@pytest.mark.parametrize("identity", SIGHTS)
def test_a_sign_is_named(identity):
    seen, root = SIGHTS[identity]
    verdicts = diagnosis.diagnose({"node1": [made(identity, seen=seen)]})[1]
    assert {host: verdict["root"] for host, verdict in verdicts.items()} == {"node1": root}


def test_a_second_fault_that_has_nothing_to_do_with_the_first_stays_beside_it():
    by_host = {"node1": [made("memlock:k3s"), made("nad:default-route"), made("pod:workload:user")]}
    checks, verdicts = diagnosis.diagnose(by_host)
    assert verdicts["node1"]["root"] == "memlock-too-low"
    assert [item["id"] for item in verdicts["node1"]["besides"]] == ["nad:default-route", "pod:workload:user"]
    assert [item.get("failure") for item in checks["node1"]] == ["memlock-too-low", "macvlan-on-management", None]
    assert [item.get("root") for item in checks["node1"]] == [True, None, None]


def test_what_is_wrong_with_a_rail_explains_nothing_on_another():
    port = made("port:mlx5_1/1", "port mlx5_1/1 (rail 1, netdev eth3)", "state DOWN, phys_state Disabled")
    mine = made("resource:rdma/hca_shared_devices_1", "hca_shared_devices_1 on node1", "capacity 63, allocatable 0")
    other = made("resource:rdma/hca_shared_devices_0", "hca_shared_devices_0 on node1", "capacity 63, allocatable 0")
    checks, _verdicts = diagnosis.diagnose({"node1": [port, mine, other]})
    assert [item.get("consequence_of") for item in checks["node1"]] == [None, "port-down", None]


def test_a_connection_fails_because_of_its_far_end_and_a_pod_because_of_an_object_of_the_cluster():
    far = made("fabric:rail0-a-b-rping", "rping rail 0: a mlx5_0 -> b mlx5_0", "no result")
    third = made("fabric:rail0-a-c-rping", "rping rail 0: a mlx5_0 -> c mlx5_0", "no result")
    checks, verdicts = diagnosis.diagnose({"a": [far, third], "b": [made("module:mlx5_ib")], "c": []})
    assert [item.get("consequence_of") for item in checks["a"]] == ["mlx5-ib-absent", None]
    assert (verdicts["a"]["root"], verdicts["a"]["on"]) == ("mlx5-ib-absent", "b")
    waits = made("pod:workload:running", "pod workload on b", "Pending: FailedCreatePodSandBox")
    checks, verdicts = diagnosis.diagnose({"a": [made("nad:macvlan-infiniband")], "b": [waits]})
    assert checks["b"][0]["consequence_of"] == verdicts["b"]["root"] == "roce-or-infiniband"


def test_what_passed_or_could_not_be_checked_is_never_named():
    items = [made("module:mlx5_ib", status=status) for status in ("passed", "not_verified", "unused")]
    items.append(made("pod:annotation", seen="rdma/ib without a networks annotation", status="not_verified"))
    assert diagnosis.diagnose({"node1": items}) == ({"node1": items}, {})


# --- refused before anything is changed -------------------------------------------------------------------------------


def refused_module(name):
    def findings(captured):
        facts, variables = _copy(captured)
        blocked = [{"path": "/etc/modprobe.d/x.conf", "line": 1, "text": f"blacklist {name}"}]
        facts["modules"][name] = {**facts["modules"][name], "loaded": False, "blocked_by": blocked}
        variables["kernel_modules_gpudirect"] = "peermem"
        return preflight_host.plan(facts, variables)["findings"]

    return findings


def foreign_netns(captured):
    _facts, variables = _copy(captured)
    return preflight_host.plans(captured["exclusive-netns-foreign-file"], variables)["rdma_netns"].findings


def bad_resources(captured):
    _facts, variables = _copy(captured)
    options = {name: option for role in documented_roles().values() for name, option in role.items()}
    variables["device_plugin_resources"] = "rail"
    return preflight_host.values(variables, options)


def flannel_cidr(captured):
    facts, _variables = _copy(captured)
    wanted = {"cidr": "10.244.0.0/16", "backend": "vxlan", "mtu": 0, "interface": "", "fabric_allowed": None}
    wanted.update(api_server="", node_address="", cluster_cidr="10.42.0.0/16", service_cidr="10.43.0.0/16")
    return pod_network.findings(facts, wanted)


def attachment(**changes):
    def findings(_captured):
        netdevs = pitfall_world.netdevs
        nodes = [{"host": host, "netdevs": netdevs(number), "routes": []} for number, host in enumerate(BOTH, 1)]
        return nad_lint.lint(nad_lint.from_objects([pitfall_world.network(**changes)]), nodes, {})

    return findings


def _copy(captured):
    one = World(captured["gh200-cx7-roce"], captured["variables"])
    return one.facts["node1"], one.variables["node1"]


REFUSED = {
    "mlx5-ib-absent": (refused_module("mlx5_ib"),),
    "peermem-absent": (refused_module("nvidia_peermem"),),
    "plugin-config-invalid": (bad_resources,),
    "pod-cidr-mismatch": (flannel_cidr,),
    "macvlan-on-management": (attachment(master="eth0", ipam={}),),
    "duplicate-addresses": (attachment(ipam={"type": "host-local", "subnet": "10.56.0.0/24"}),),
    "roce-or-infiniband": (attachment(master="ib0", ipam={}), attachment(type="ipoib", ipam={})),
    "netns-exclusive": (foreign_netns,),
}


@pytest.mark.parametrize("identity", REFUSED)
def test_a_refused_run_says_which_failure_it_prevented(identity, captured):
    for findings in REFUSED[identity]:
        found = [item._asdict() for item in findings(captured)]
        assert {findings_catalogue.prevented(item) for item in found} == {identity}
        assert identity in preflight_host.failure_text([{"host": "node1", **item} for item in found], ["node1"])[1]


# --- the catalogue itself ---------------------------------------------------------------------------------------------


def test_the_variables_that_it_names_exist():
    roles = documented_roles()
    options = {name for role in roles.values() for name in role}
    prefixes = "|".join(roles)
    for failure in findings_catalogue.CATALOGUE:
        for name in re.findall(rf"\b(?:{prefixes})_\w+", f"{failure.fix} {failure.cause} {failure.evidence}"):
            assert name in options or name == "per_node_block_size", f"{failure.id}: {name}"


def test_the_page_is_the_catalogue():
    assert render_failures.TARGET.read_text() == render_failures.render()
