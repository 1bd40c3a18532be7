"""The catalogue of failures: each row planted on two otherwise healthy nodes, and the one root that verify reports.

And the texts of a pod that does not start: each, wrapped as users see it, leads to the component that said it.
"""

import copy
import re

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import catalogue as findings_catalogue
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import diagnosis, messages
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings.tables import WIDTH, problems, report, table
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import pod_network
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.variables import documented_roles, options
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


# --- planted faults, from the published guides -----------------------------------------------------------------------

BOTH, ONE = ("node1", "node2"), ("node1",)


def replaced(before: str, after: str, text: str = ROCE) -> str:
    assert before in text
    return text.replace(before, after)


def section(name: str, content: str, text: str = ROCE) -> str:
    head, mark, tail = text.partition(f"@@ {name}\n")
    assert mark
    return f"{head}{mark}{content}@@= 0\n{tail.partition('@@= 0')[2].lstrip()}"


NO_GIDS = section("gids", "")
NO_NET1 = section("addresses", "2: eth0    inet 10.42.0.9/24 scope global eth0\n", NO_GIDS)


def of_kind(world, kind):
    return [item for item in world.objects if item["kind"] == kind]


def guide(world, *arguments, **options):
    """The plugin of guide 000, which offers nothing."""
    world.objects += pitfall_world.guide_plugin(*arguments, **options)
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


def not_ready(world):
    world.objects.append(pitfall_world.policy("notReady", [("state-OFED", "ignore"), ("state-multus-cni", "notReady")]))


def no_vf(world):
    resource = "openshift.io/mellanoxnics"
    world.objects = [item for item in world.objects if item["kind"] != "NetworkAttachmentDefinition"]
    world.objects.append(pitfall_world.network(type="sriov", resource=resource))
    for item in of_kind(world, "Node"):
        item["status"]["capacity"][resource] = item["status"]["allocatable"][resource] = "8"
    world.use(limits=(resource,), reason=f"0/2 nodes are available: 2 Insufficient {resource}.")


def refused_namespace(world):
    metadata = {"name": "network-operator", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    world.objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    guide(world, BOTH_NETDEVS, "network-operator")


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
    world.answers = {host: at(replaced("net1@if5", "net1@if2"), host) for host in BOTH}


def small_mtu(world):
    text = replaced("active_mtu:		4096 (5)", "active_mtu:		1024 (3)").replace("mtu 9000", "mtu 1500")
    world.answers = {host: at(text, host) for host in BOTH}


BOTH_NETDEVS = pitfall_world.selecting(NETDEV, pitfall_world.NEXT)
BAD_JSON = '{"configList": [{"resourceName": "a",}]}'
UNLABELLED = {"selector": {"feature.node.kubernetes.io/pci-15b3.present": "true"}}
NO_DEVICES = section("devices", "ls: /dev/infiniband: No such file or directory\n", NO_GIDS)
SHORT = replaced("@@ memlock\nunlimited", "@@ memlock\n64", replaced("@@ user\n1000", "@@ user\n0"))
NO_GPU = {"limits": (RESOURCE, "nvidia.com/gpu"), "reason": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."}
NO_SLOT = f"Unschedulable: 0/2 nodes are available: 2 Insufficient {RESOURCE}."
MOUNTED = {"annotation": None, "limits": (), "paths": ["/dev/infiniband"], "answer": NO_GIDS}
PODS_WAIT = {"pod:workload:running", "pod:seed:running"}
WAITS = PODS_WAIT | {f"resource:{RESOURCE}"}
GIDS, NET1, NODE = {"pod:gids"}, {"pod:workload:net1"}, {"cluster:node"}
# root: (plant, ids that must be listed beneath it on the first host, hosts that must have it)
ROWS = {
    "nothing-allocatable": (guide, PODS_WAIT, BOTH),  # ifNames that no node has
    "pods-pending": (lambda world: world.pending(NO_SLOT), set(), BOTH),
    "infiniband-permission-denied": (lambda world: world.use(**MOUNTED), {"pod:resource", "pod:gids"}, ONE),
    "plugin-config-invalid": (lambda world: guide(world, BAD_JSON), WAITS, BOTH),
    "selector-too-narrow": (one_of_two, set(), BOTH),
    "policy-config-map": (config_map, WAITS | {"policy:state"}, BOTH),
    "driver-loaded-twice": (two_drivers, NODE, BOTH),
    "netns-exclusive": (exclusive, WAITS, BOTH),
    "memlock-too-low": (lambda world: world.use(answer=SHORT), set(), ONE),
    "resource-without-network": (lambda world: world.use(annotation=None, answer=NO_NET1), GIDS, ONE),
    "policy-not-ready": (not_ready, set(), ONE),
    "net1-without-address": (lambda world: world.use(answer=NO_NET1), GIDS, ONE),
    "infiniband-missing": (lambda world: world.use(limits=(), answer=NO_DEVICES), GIDS, ONE),
    "vf-exhausted": (no_vf, set(), ONE),
    "duplicate-addresses": (lambda world: world.answers.update(node2=ROCE), set(), BOTH),
    "gpus-exhausted": (lambda world: world.use(**NO_GPU), set(), ONE),
    "pod-security-refuses": (refused_namespace, WAITS, BOTH),
    "nfd-label-missing": (lambda world: guide(world, BOTH_NETDEVS, **UNLABELLED), WAITS, BOTH),
    "mlx5-ib-absent": (no_mlx5_ib, WAITS, BOTH),
    "port-down": (port_down, WAITS, BOTH),
    "no-cni": (before_cni, set(), BOTH),
    "pod-cidr-mismatch": (other_cidr, NODE, BOTH),
    "cni-binaries": (no_program, set(), BOTH),
    "multus-not-first": (podman_first, NET1, BOTH),
    "macvlan-on-management": (on_management, NET1, BOTH),
    "active-mtu-1024": (small_mtu, set(), BOTH),
}


@pytest.mark.parametrize("root", ROWS)
def test_what_is_planted_is_the_one_root(root, world):
    """On each affected host, where it explains all failures, and nowhere else."""
    plant, beneath, hosts = ROWS[root]
    plant(world)
    found = {node["host"]: node["diagnosis"] for node in world.judge()["judged"] if node["diagnosis"]}
    assert {host: verdict["root"] for host, verdict in found.items()} == dict.fromkeys(hosts, root)
    assert [verdict["besides"] for verdict in found.values()] == [[]] * len(hosts)
    assert beneath <= {item["id"] for item in found[hosts[0]]["consequences"]}
    shown = " ".join(diagnosis.text(found).split())
    objects = [item["object"] for item in (*found[hosts[0]]["shown"], *found[hosts[0]]["consequences"])]
    assert [word for word in (root, *hosts, *objects) if " ".join(word.split()) not in shown] == []


# --- the rules --------------------------------------------------------------------------------------------------------


def made(identity, obj="thing", seen="bad", status="failed"):
    return host_checks.check(identity, obj, status, "good", seen, "fix it")


# Signs that no row plants: {check: (what it saw, the root)}.
SIGHTS = {
    "module:nvidia_peermem": ("not loaded", "peermem-absent"),
    "pod:seed:registration:mlx5_0": ("0 MiB; IPC_LOCK; Permission denied", "infiniband-permission-denied"),
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
    "pod:d:running": ('Pending: plugin type="flannel" failed (add): no IP addresses available in range set', None),
    "pod:e:running": ("Pending: 2 Insufficient nvidia.com/mig-1g.10gb", "gpus-exhausted"),
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
    assert {host: verdict["root"] for host, verdict in verdicts.items()} == ({"node1": root} if root else {})


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
    def findings(facts, variables, _captured):
        blocked = [{"path": "/etc/modprobe.d/x.conf", "line": 1, "text": f"blacklist {name}"}]
        facts["modules"][name].update(loaded=False, blocked_by=blocked)
        return preflight_host.plan(facts, {**variables, "kernel_modules_gpudirect": "peermem"})["findings"]

    return findings


def foreign_netns(_facts, variables, captured):
    return preflight_host.plans(captured["exclusive-netns-foreign-file"], variables)["rdma_netns"].findings


def bad_resources(_facts, variables, _captured):
    return preflight_host.values({**variables, "device_plugin_resources": "rail"}, options())


def flannel_cidr(facts, variables, _captured):
    return pod_network.findings(facts, {**variables, "flannel_cidr": "10.244.0.0/16"})


def attachment(**changes):
    netdevs = pitfall_world.netdevs
    nodes = [{"host": host, "netdevs": netdevs(number), "routes": []} for number, host in enumerate(BOTH, 1)]
    return lambda *_given: nad_lint.lint(nad_lint.from_objects([pitfall_world.network(**changes)]), nodes, {})


@pytest.mark.parametrize(("identity", "findings"), [
    ("mlx5-ib-absent", refused_module("mlx5_ib")),
    ("peermem-absent", refused_module("nvidia_peermem")),
    ("plugin-config-invalid", bad_resources),
    ("pod-cidr-mismatch", flannel_cidr),
    ("macvlan-on-management", attachment(master="eth0", ipam={})),
    ("duplicate-addresses", attachment(ipam={"type": "host-local", "subnet": "10.56.0.0/24"})),
    ("roce-or-infiniband", attachment(master="ib0", ipam={})),
    ("roce-or-infiniband", attachment(type="ipoib", ipam={})),
    ("netns-exclusive", foreign_netns),
])  # fmt: skip
def test_a_refused_run_says_which_failure_it_prevented(identity, findings, captured):
    made = [item._asdict() for item in findings(captured["gh200-cx7-roce"], captured["variables"], captured)]
    assert {findings_catalogue.prevented(item) for item in made} == {identity}
    assert identity in preflight_host.failure_text([{"host": "node1", **item} for item in made], ["node1"])[1]


# --- the catalogue itself ---------------------------------------------------------------------------------------------


def test_the_variables_that_it_names_exist():
    prefixes = "|".join(documented_roles())
    for failure in findings_catalogue.CATALOGUE:
        for name in re.findall(rf"\b(?:{prefixes})_\w+", f"{failure.fix} {failure.cause} {failure.evidence}"):
            assert name in options() or name == "per_node_block_size", f"{failure.id}: {name}"


def test_the_page_is_the_catalogue():
    assert render_failures.TARGET.read_text() == render_failures.render()


# --- why a pod does not start -----------------------------------------------------------------------------------------

SANDBOX = (
    "FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network "
    + 'for sandbox "5d1c": plugin type="multus-shim" name="multus-cni" failed (add): CmdAdd (shim): CNI request '
    + 'failed with status 400: \'ContainerID:"5d1c" Netns:"/var/run/netns/cni-7" IfName:"eth0" ERRORED: error '
    + 'configuring pod [a/p] networking: [a/p/uid:fabric]: error adding container to network "fabric": {}\n\''
)
ADD = 'plugin type="{}" failed (add): {}'
NODES = "Unschedulable: 0/4 nodes are available: {}. preemption: 0/4 nodes are available: 4 Preemption is not helpful."
CLAIM = "FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: {}"
# (component, the words of its message, the text around them, the rest of the text).
TEXTS = [
    ("scheduler", "taint {rdma.gpufabric.io/not-ready", NODES,
     "4 node(s) had untolerated taint {rdma.gpufabric.io/not-ready: }"),
    ("kubelet", "Failed to prepare dynamic resources", CLAIM, "something new"),
    ("kubelet", "Predicate * failed", "NodePorts: Pod was rejected: {}",
     "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"),
    ("containerd", "unresolvable CDI devices", "Failed: Error: failed to create containerd container: {}",
     "CDI device injection failed: unresolvable CDI devices gpufabric.io/rdma-claim=u"),
    ("containerd", "unresolvable CDI devices *nvidia.com/gpu", "Failed: Error: CDI device injection failed: {}",
     "unresolvable CDI devices management.nvidia.com/gpu=all"),
    ("runc", "exec *: exec format error", "Failed: Error: failed to create containerd task: {}",
     "exec /usr/bin/app: exec format error"),
    ("CNI plugin", 'exec: "iptables": executable file not found in $PATH', SANDBOX,
     ADD.format("portmap", 'failed to locate iptables: exec: "iptables": executable file not found in $PATH')),
    ("Multus", 'error getting pod: Get *: tls:', "{}",
     'Multus: [a/p/u]: error getting pod: Get "https://10.43.0.1:443/api/v1": tls: failed to verify certificate: x509'),
    ("Multus", 'failed to find plugin "multus-shim" in path', "{}", 'failed to find plugin "multus-shim" in path [/a]'),
    ("host-device", "failed to move * (host: *) to container NS", SANDBOX,
     'failed to move "eth2" (host: "temp_4a1b") to container NS: device or resource busy'),
    ("Flannel", "/run/flannel/subnet.env: no such file", SANDBOX,
     ADD.format("flannel", "failed to load flannel 'subnet.env' file: open /run/flannel/subnet.env: no such file or "
                "directory. Check the flannel pod log for this node.")),
]  # fmt: skip


@pytest.mark.parametrize(("component", "words", "around", "text"), TEXTS)
def test_a_text_leads_to_who_said_it(component, words, around, text):
    (found,) = messages.explain(around.format(text))
    assert (found.component, found.text) == (component, words)


@pytest.mark.parametrize("one", messages.MESSAGES, ids=lambda one: one.text)
def test_no_message_hides_another(one):
    assert one.text in [found.text for found in messages.explain(one.text.replace("*", "x"))]


def test_the_scheduler_gives_all_of_its_reasons():
    text = NODES.format("1 Insufficient memory, 3 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }")
    assert [one.text.rpartition("/")[2] for one in messages.explain(text)] == ["Insufficient memory", "disk-pressure"]


def test_the_latest_reason_that_is_known_counts():
    step = messages.next_step([NODES.format("4 Too many pods"), SANDBOX.format("failed to lookup master"), "Failed: x"])
    assert messages.explain("failed to lookup master")[0].fix in step
    assert "max-pods" not in step


@pytest.mark.parametrize("text", ["", "Failed: something else", "a plain: no such file or directory"])
def test_an_unknown_text_gets_the_generic_step(text):
    assert messages.next_step([text]) == messages.UNKNOWN


@pytest.mark.parametrize(
    ("component", "text"), [("whereabouts", ADD.format("whereabouts", "a new text")), ("Multus", "a new text")]
)
def test_an_unknown_text_of_a_known_component_names_its_log(component, text):
    look = next(one["look"] for one in messages.DOCUMENT["messages"] if one["component"] == component)
    step = messages.next_step([SANDBOX.format(text)])
    assert step.startswith(messages.UNKNOWN)
    assert step.endswith(look)


# --- the tables of discover ---------------------------------------------------------------------------------------


def node_of(facts, expected=None):
    return {"facts": facts, "expected_ports": expected}


@pytest.mark.parametrize(("name", "row"), [
    ("h100-8x-cx7-ib", "ubuntu 22.04 6.8.0-60-generic x86_64 8 8 8 doca 24.10-2.1.8 shared peermem"),
    ("a100-8x-cx6", "mlx5_1/1 ConnectX-6 MT_0000000223 20.39.2048 ACTIVE 200 InfiniBand ibs2 1 GPU0-1 PIX 1"),
    ("gh200-cx7-roce", "28.40.1000 ACTIVE 200 Ethernet enp1s0f0np0 0 GPU0 NODE management"),
    ("vfs", "mlx5_1/1 ConnectX-7 VF MT_0000000838 28.40.1000 ACTIVE 200 Ethernet enp59s0f0v0 0 - virtual"),
    ("card-without-mlx5-ib", "ubuntu 24.04 6.8.0-60-generic x86_64 0 0 0 inbox unknown none"),
    ("two-cards-cx6dx", "Nothing."),
    ("two-cards-cx6dx", "gpu-17: * It could not be read: No route to host"),
])  # fmt: skip
def test_a_report_has_a_row_for_each_node_and_port(facts_of, name, row):
    nodes = {name: node_of(facts_of(name))}
    text = report({**nodes, "gpu-17": {"failure": "No route to host"}} if "gpu-17" in row else nodes)
    assert row in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(("name", "expected", "objects"), [
    ("gh200-cx7-roce", ["mlx5_1/1", "mlx5_7/1"], ["mlx5_1/1", "mlx5_7/1"]),
    ("a100-8x-cx6", [], ["nvidia-peermem"]),
    ("card-without-mlx5-ib", [], ["0000:3b:00.1 (ConnectX-7", "blacklist-ofed-modules.conf"]),
    ("exclusive-netns-foreign-file", [], ["modules_config.conf:2"]),
    ("doca-loaded-differs-from-disk", [], ["doca 25.04-0.6.0"]),
    ("bond", [], []),
])  # fmt: skip
def test_what_is_wrong_with_a_node_is_said_with_its_objects(facts_of, name, expected, objects):
    assert all(one in text for one, text in zip(objects, problems(node_of(facts_of(name), expected)), strict=True))


def test_modules_without_a_srcversion_are_named_by_their_build_id(facts_of):
    facts = copy.deepcopy(facts_of("doca-loaded-differs-from-disk"))
    for module in (one for part in ("on_disk", "loaded") for one in facts["driver"][part]["modules"].values()):
        module.update(build_id=module["srcversion"], srcversion=None)
    assert "(mlx5_core, mlx5_ib, ib_core differ)" in problems(node_of(facts))[0]


def test_the_widest_columns_are_cut_first_and_names_keep_their_beginning():
    lines = table(("node", "n"), [("a" * 300, 1), ("b", 22)]).splitlines()
    assert [len(line) for line in lines] == [WIDTH] * 4
    assert [line.split() for line in lines[2:]] == [["a" * (WIDTH - 5) + "…", "1"], ["b", "22"]]
