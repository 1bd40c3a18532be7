"""Why a pod does not start: each text, wrapped as users see it, leads to the component that said it."""

from __future__ import annotations

import pytest
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings import messages
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._findings.tables import WIDTH, problems, report, table
from ansible_collections.gpufabric.rdma.tests.tools import tree

SANDBOX = (
    "FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network "
    + 'for sandbox "5d1c": plugin type="multus-shim" name="multus-cni" failed (add): CmdAdd (shim): CNI request '
    + 'failed with status 400: \'ContainerID:"5d1c" Netns:"/var/run/netns/cni-7" IfName:"eth0" ERRORED: error '
    + 'configuring pod [a/p] networking: [a/p/uid:fabric]: error adding container to network "fabric": {}\n\''
)
ADD = 'plugin type="{}" failed (add): {}'
NODES = "Unschedulable: 0/4 nodes are available: {}. preemption: 0/4 nodes are available: 4 Preemption is not helpful."
CLAIM = "FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: {}"
ADMITTED = "UnexpectedAdmissionError: Pod was rejected: Allocate failed due to {}, which is unexpected"
# (component, the words of its message, what stands around them, the rest of the text).
TEXTS = [
    ("scheduler", "Insufficient cpu", NODES, "4 Insufficient cpu"),
    ("scheduler", "Insufficient memory", NODES, "4 Insufficient memory"),
    ("scheduler", "Insufficient ephemeral-storage", NODES, "4 Insufficient ephemeral-storage"),
    ("scheduler", "Insufficient rdma/*", NODES, "4 Insufficient rdma/hca_shared_devices_0"),
    ("scheduler", "Insufficient nvidia.com/gpu", NODES, "4 Insufficient nvidia.com/gpu"),
    ("scheduler", "Insufficient */*", NODES, "4 Insufficient nvidia.com/hostdev"),
    ("scheduler", "Too many pods", NODES, "4 Too many pods"),
    ("scheduler", "untolerated taint", NODES, "4 node(s) had untolerated taint(s)"),
    ("scheduler", "untolerated taint", NODES, "4 node(s) had untolerated taint {team: a}"),
    ("scheduler", "untolerated taint {rdma.gpufabric.io/not-ready", NODES,
     "4 node(s) had untolerated taint {rdma.gpufabric.io/not-ready: }"),
    ("scheduler", "untolerated taint {node.kubernetes.io/memory-pressure", NODES,
     "4 node(s) had untolerated taint {node.kubernetes.io/memory-pressure: }"),
    ("scheduler", "untolerated taint {node.kubernetes.io/unreachable", NODES,
     "4 node(s) had untolerated taint {node.kubernetes.io/unreachable: }"),
    ("scheduler", "node(s) were unschedulable", NODES, "4 node(s) were unschedulable"),
    ("scheduler", "didn't match Pod's node affinity/selector", NODES,
     "4 node(s) didn't match Pod's node affinity/selector"),
    ("scheduler", "cannot allocate all claims", NODES, "4 cannot allocate all claims"),
    ("scheduler", "resourceclaim in use", NODES, "4 resourceclaim in use"),
    ("scheduler", "device class * does not exist", NODES, "4 request r: device class rail-9 does not exist"),
    ("scheduler", "persistentvolumeclaim * not found", NODES, '4 persistentvolumeclaim "data" not found'),
    ("kubelet", "DRA driver * is not registered", CLAIM, "DRA driver gpu.nvidia.com is not registered"),
    ("kubelet", "NodePrepareResources failed for ResourceClaim", CLAIM,
     "NodePrepareResources failed for ResourceClaim c: claim a/c: it is not allocated"),
    ("kubelet", "NodePrepareResources: rpc error", CLAIM,
     "NodePrepareResources: rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
    ("kubelet", "is not allowed to use ResourceClaim", CLAIM, "pod p (u) is not allowed to use ResourceClaim c (v)"),
    ("kubelet", "can't allocate unregistered device", ADMITTED, "can't allocate unregistered device rdma/a"),
    ("kubelet", "requested number of devices unavailable for", ADMITTED,
     "requested number of devices unavailable for rdma/a. Requested: 1, Available: 0"),
    ("kubelet", "Allocate failed due to", ADMITTED, "rpc error: code = Unavailable desc = EOF"),
    ("kubelet", "Node didn't have enough resource: rdma/", "{}",
     "OutOfrdma/a: Pod was rejected: Node didn't have enough resource: rdma/a, requested: 1, used: 0, capacity: 0"),
    ("kubelet", "Resources cannot be allocated with Topology locality", "TopologyAffinityError: {}",
     "Resources cannot be allocated with Topology locality"),
    ("kubelet", "network is not ready: container runtime network not ready", "NetworkNotReady: {}",
     "network is not ready: container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady"),
    ("kubelet", "MountVolume.SetUp failed for volume", "FailedMount: {}",
     'MountVolume.SetUp failed for volume "v" : stat /data: no such file or directory'),
    ("api server", "exceeded quota", "FailedCreate: {}", 'pods "p" is forbidden: exceeded quota: q, used: rdma/a=8'),
    ("containerd", "unresolvable CDI devices", "Failed: Error: failed to create containerd container: {}",
     "CDI device injection failed: unresolvable CDI devices gpufabric.io/rdma-claim=u"),
    ("containerd", "failed to get sandbox image", "FailedCreatePodSandBox: {}",
     'failed to get sandbox image "pause:3.6": failed to pull image: no route to host'),
    ("containerd", "failed to resolve reference", "Failed: Failed to pull image: {}",
     'failed to pull and unpack image "a:1": failed to resolve reference "a:1": dial tcp: lookup a: no such host'),
    ("runc", "executable file not found in $PATH", "RunContainerError: failed to create containerd task: {}",
     'OCI runtime create failed: exec: "train": executable file not found in $PATH'),
    ("CNI library", "failed to find plugin * in path", SANDBOX, 'failed to find plugin "ipoib" in path [/opt/cni/bin]'),
    ("CNI library", "incompatible CNI versions", SANDBOX, 'incompatible CNI versions; config is "1.2.0"'),
    ("Multus", "cannot find a network-attachment-definition", SANDBOX,
     'cannot find a network-attachment-definition (n) in namespace (a): network-attachment-definitions "n" not found'),
    ("Multus", "Daemon not reachable over socketfile", "plugin type=\"multus-shim\" failed (add): {}",
     'CNI shim not ready: CheckAPIReadyNow: Daemon not reachable over socketfile: Get "http://dummy/healthz": refused'),
    ("Multus", "error waiting for pod", 'plugin type="multus-shim" failed (add): {}',
     'Multus: [a/p/u]: error waiting for pod: pods "p" is forbidden'),
    ("Multus", "still waiting for readinessindicatorfile", "Multus: [a/p/u]: {}",
     "have you checked that your default network is ready? still waiting for readinessindicatorfile @ /a"),
    ("Flannel", "/run/flannel/subnet.env: no such file", SANDBOX,
     ADD.format("flannel", "failed to load flannel 'subnet.env' file: open /run/flannel/subnet.env: no such file or "
                "directory. Check the flannel pod log for this node.")),
    ("bridge", "already has an IP address different from", SANDBOX,
     ADD.format("bridge", 'failed to set bridge addr: "cni0" already has an IP address different from 10.42.1.1/24')),
    ("macvlan", "failed to create macvlan: invalid argument", SANDBOX, "failed to create macvlan: invalid argument"),
    ("macvlan", "failed to create macvlan", SANDBOX, "failed to create macvlan: operation not supported"),
    ("macvlan, ipvlan, ipoib or sriov", "failed to lookup master", SANDBOX,
     'failed to lookup master "e9": Link not found'),
    ("host-device", "failed to find host device", SANDBOX, "failed to find host device: Link not found"),
    ("host-device", "no net directory under pci device", SANDBOX,
     "failed to find host device: no net directory under pci device 3"),
    ("host-local", "no IP addresses available in range set", SANDBOX,
     "failed to allocate for range 0: no IP addresses available in range set: 192.0.2.1-192.0.2.9"),
    ("host-local", "duplicate allocation is not allowed", SANDBOX,
     "failed to allocate for range 0: 192.0.2.9 has been allocated to 5d1c, duplicate allocation is not allowed"),
    ("whereabouts", "do you have the 'range' parameter set for Whereabouts?", SANDBOX,
     "invalid CIDR (do you have the 'range' parameter set for Whereabouts?) '': invalid CIDR address: "),
    ("whereabouts", "error at storage engine", SANDBOX, "error at storage engine: context deadline exceeded"),
    ("whereabouts", "k8s get error", SANDBOX, "error at storage engine: k8s get error: ippools is forbidden"),
    ("nv-ipam", "no free addresses in the pool", SANDBOX,
     'grpc call failed: rpc error: code = ResourceExhausted desc = no free addresses in the pool "n", poolType "i"'),
    ("nv-ipam", "configuration for pool * poolType * not found", SANDBOX,
     'grpc call failed: rpc error: code = NotFound desc = configuration for pool "n", poolType "ippool" not found'),
    ("ipoib", "not of type ipoib", SANDBOX, "failed to create interface: master device is (veth) not of type ipoib"),
    ("sriov", "VF pci addr is required", SANDBOX,
     "SRIOV-CNI failed to load netconf: LoadConf(): VF pci addr is required"),
    ("sriov", "is already allocated", SANDBOX,
     "SRIOV-CNI failed to load netconf: pci address 0000:18:00.2 is already allocated"),
    ("sriov", "failed to set vf * vlan configuration", SANDBOX,
     'SRIOV-CNI failed to configure VF "failed to set vf 3 vlan configuration - id 7, qos 0 and proto 802.1q: EINVAL"'),
    ("ib-sriov", "GUID is not valid", SANDBOX,
     'infiniBand SRI-OV CNI failed to configure VF "VF 0000:18:00.2 GUID is not valid"'),
    ("ib-sriov", "load config: vf pci addr is required", SANDBOX,
     "infiniBand SRI-OV CNI failed to load netconf: load config: vf pci addr is required"),
    ("rdma", "RDMA subsystem namespace awareness mode is set to", SANDBOX,
     ADD.format("rdma", "RDMA subsystem namespace awareness mode is set to shared, expecting exclusive")),
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


@pytest.mark.parametrize(
    "text", ["", "Failed: something else", "a plain: no such file or directory", SANDBOX.format("x")]
)
def test_an_unknown_text_gets_the_generic_step(text):
    assert messages.next_step([text]) == messages.UNKNOWN


def test_an_unknown_text_of_a_known_component_names_its_log():
    look = next(one["look"] for one in messages.DOCUMENT["messages"] if one["component"] == "whereabouts")
    step = messages.next_step([SANDBOX.format(ADD.format("whereabouts", "a new text"))])
    assert step.startswith(messages.UNKNOWN)
    assert step.endswith(look)


# The tables of discover.

TABLES = tree.entries("tables")


@pytest.mark.parametrize("name", TABLES)
def test_report(name, facts_of):
    table = TABLES[name]
    expected = table.get("expected") or {}
    nodes = {node: {"facts": facts_of(node), "expected_ports": expected.get(node)} for node in table["nodes"]}
    nodes.update({host: {"failure": reason} for host, reason in table.get("failures", {}).items()})
    text = report(nodes)
    assert text == table["prints"]
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_widest_columns_are_cut_first_and_names_keep_their_beginning():
    text = table(("node", "n"), [("a" * 30, 1), ("b", 22)], width=20)
    assert text.splitlines() == [
        "node               n", "----------------  --", "aaaaaaaaaaaaaaa…   1", "b                 22",
    ]  # fmt: skip


def test_a_node_that_could_not_be_read_says_why():
    assert problems({"failure": "no route to host"}) == ["It could not be read: no route to host"]
