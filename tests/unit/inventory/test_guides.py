"""Each guide's manifests beside what its inventory example renders, field by field: each difference has its reason."""

from __future__ import annotations

import json
import pathlib

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._cni import nad_lint
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config, objects
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import pods
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core.rails import network_rails
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import networks as preflight_networks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight.variables import documented_roles
from ansible_collections.gpufabric.rdma.tests.tools import tree
from ansible_collections.gpufabric.rdma.tests.unit.inventory.test_examples import hosts

ROOT = pathlib.Path(__file__).resolve().parents[3]
GUIDES = ROOT / "tests/fixtures/guides"
CONFIGS = ROOT / "tests/device_plugin/configs"
OPTIONS = {name: option for role in documented_roles().values() for name, option in role.items()}
MISSING = "(not there)"

# --- what ours renders ------------------------------------------------------------------------------------------------

# example: host of it, node whose facts stand for it, rails that the example names, interfaces under the guide's names
NODES = {
    "rails-8x-h100": ("h100-01", "h100-8x-cx7-ib", [], {}),
    "ipoib-nv-ipam": (
        "ib-01",
        "h100-8x-cx7-ib",
        [{"netdev": "ibp24s0"}, {"netdev": "ibp58s0"}],
        {"ibp24s0": "ibs1f0", "ibp58s0": "ibs1f1"},
    ),
    "sriov": ("sriov-01", "vfs", [{"pci": "0000:3b:00.0"}], {}),
    "aks-four-modes": ("pool-b-0", "a100-8x-cx6", [], {}),
    "gh200-single": ("gh200", "gh200-cx7-roce", [{"pci": "0000:01:00.0"}], {}),
}


class Rendered:
    """ConfigMap, NetworkAttachmentDefinitions, pools and pods of one host of an example."""

    def __init__(self, example, folder):
        name, fixture, rails, rename = NODES[example]
        host = next(found for found in hosts(example) if found[0] == name)
        variables, findings = preflight_host.validate(OPTIONS, host[1])
        assert findings == []
        tree.lay_out(tree.load(fixture), folder)
        read = Tree(str(folder))
        text = json.dumps(gather(read, Seams.of(read), rails=rails))
        for old, new in rename.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        facts = json.loads(text)
        netdevs = {netdev["name"]: netdev for hca in facts["hcas"] for netdev in hca["netdevs"]}
        self.node = {"host": name, "number": 0, "rails": network_rails(facts), "netdevs": netdevs}
        self.variables = variables
        self.config_map = self._config_map(variables["device_plugin_resources"])
        plan = preflight_networks.plan(variables, [self.node], resources=variables["device_plugin_resources"])
        assert plan["findings"] == []
        self.objects = plan["objects"]
        self.networks = nad_lint.from_objects(plan["objects"])

    def _config_map(self, resources):
        text = config.document(resources, self.node["rails"], self.variables["device_plugin_interval_seconds"])
        daemonset = yaml.safe_load((ROOT / "device_plugin/deploy/daemonset.yaml").read_text())
        settings = {"image": "x", "node_selector": {}, "use_cdi": False, "metrics_address": "", "api": "device-plugin"}
        settings["kubelet_root"] = "/var/lib/kubelet"
        return objects.objects(daemonset, text, False, settings)[0]

    def one(self, kind):
        (found,) = [item for item in self.objects if item["kind"] == kind]
        return found

    def pod(self, *resources, networks=None, kind="seed"):
        """The pod of ours that a guide's pod corresponds to: verification's, root with IPC_LOCK."""
        node = {"name": "node1", "addresses": [], "capacity": dict.fromkeys(resources, 1)}
        host = {**self.node, "host": "node1"}
        networks = self.networks if networks is None else networks
        served = pods.rails_of(host, node, networks)
        return pods.manifest(pods._pod(kind, host, node, served), "rdma-verification", {"image": "image", "mounts": {}})


# --- comparing --------------------------------------------------------------------------------------------------------


def fields(value, path=""):
    """{path: value}; texts that hold JSON are taken apart, and amounts are texts."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "["):
        value = json.loads(value)
    items = {}
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            items.update(fields(inner, f"{path}/{key}"))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            items.update(fields(inner, f"{path}/{number}"))
    else:
        items[path] = value if isinstance(value, bool) or value is None else str(value)
    return items


def differences(theirs, ours):
    left, right = fields(theirs), fields(ours)
    return {
        path: (left.get(path, MISSING), right.get(path, MISSING))
        for path in sorted({*left, *right})
        if left.get(path, MISSING) != right.get(path, MISSING)
    }


def unexplained(found, reasons):
    return {path: pair for path, pair in found.items() if not _reasons_of(path, reasons)}


def unused(found, reasons):
    return [key for key in reasons if not any(key in _reasons_of(path, reasons) for path in found)]


def _reasons_of(path, reasons):
    return [key for key in reasons if path == key or path.startswith(f"{key}/")]


# --- why they differ --------------------------------------------------------------------------------------------------

ANNOTATION = "/metadata/annotations/k8s.v1.cni.cncf.io/networks"
LABELS = {"/metadata/labels": "objects of the collection say whose they are, so that a reset finds them"}
INTERVAL = {"/data/config.json/periodicUpdateInterval": "the default is written out: the Go plugin's own default is 60"}
LINKS_STAY = "links are not the plugin's business: the Go plugin sets them up (pitfall N12)"
NUMA = "hints by which the kubelet puts GPU and rail on one NUMA node, where it is told to; the Go plugin gives none"
# Of every pod of verification.
POD = {
    "/metadata/name": "one pod a node, named after it",
    "/metadata/namespace": "in a namespace of its own, which is removed afterwards",
    "/metadata/labels": "says which of the test pods it is",
    "/spec/activeDeadlineSeconds": "ends by itself should a run be cut off",
    "/spec/automountServiceAccountToken": "needs no access to the API server",
    "/spec/enableServiceLinks": "needs no environment of services",
    "/spec/nodeSelector": "proves one named node",
    "/spec/restartPolicy": "a test that failed stays to be looked at",
    "/spec/securityContext": "nothing is set for the pod as a whole",
    "/spec/terminationGracePeriodSeconds": "sleeps only",
    "/spec/tolerations": "reaches nodes of the control plane and with the GPU taint",
    "/spec/containers/0/name": "a name alone",
    "/spec/containers/0/image": "the image of verification, pinned in lock/artifacts.yml",
    "/spec/containers/0/imagePullPolicy": "nodes take it from the bundle",
    "/spec/containers/0/command": "sleeps until the deadline",
    "/spec/containers/0/resources/requests/cpu": "small, and said",
    "/spec/containers/0/resources/requests/memory": "small, and said",
}
NAMED_INTERFACE = {ANNOTATION: "names the interface too (net1), so that checks know which one they look at"}
WITHOUT_REQUEST = "requests of an extended resource equal its limits without being written"


def but(reasons, *paths, **more):
    """The reasons without some; those that a manifest has no such difference for would be stale."""
    return {**{key: why for key, why in reasons.items() if key not in paths}, **more}


CASES = {
    "000 ConfigMap of eight rails": (
        "rails-8x-h100",
        lambda guide: {"data": {"config.json": (CONFIGS / "eight-rails.json").read_text()}},
        lambda ours: {"data": ours.config_map["data"]},
        {
            **INTERVAL,
            **{
                f"/data/config.json/configList/{number}/selectors": "interfaces have the names that the node has"
                for number in range(8)
            },
            **{f"/data/config.json/configList/{number}/linkUp": LINKS_STAY for number in range(8)},
            **{f"/data/config.json/configList/{number}/topology": NUMA for number in range(8)},
        },
    ),
    "000 ConfigMap of two devices": (
        "rails-8x-h100",
        lambda guide: guide("000-shared-device-plugin")[0],
        lambda ours: ours._config_map(
            json.loads(guide("000-shared-device-plugin")[0]["data"]["config.json"])["configList"]
        ),
        LABELS,
    ),
    "000 pod of eight rails": (
        "rails-8x-h100",
        lambda guide: {"resources": guide("000-pod-resources")[0]["resources"]},
        lambda ours: {
            "resources": {
                "limits": ours.pod(*[f"rdma/hca_shared_devices_{n}" for n in range(8)], networks=[], kind="rails")[
                    "spec"
                ]["containers"][0]["resources"]["limits"]
            }
        },
        {"/resources/limits/nvidia.com/gpu": "proving RDMA takes no GPU away from jobs"},
    ),
    "000 pod": (
        "rails-8x-h100",
        lambda guide: guide("000-pod")[0],
        lambda ours: ours.pod("rdma/hca_shared_devices_0", networks=[]),
        but(
            POD,
            **{
                "/spec/hostNetwork": "not needed: InfiniBand verbs need no interface, RoCE one of the same HCA",
                "/spec/containers/0/env": "NCCL's own; no test of NCCL",
                "/spec/containers/0/resources/limits/nvidia.com/gpu": "proving RDMA takes no GPU away from jobs",
                "/spec/containers/0/resources/limits/rdma/hca_shared_devices_a": "one resource a rail, by its number",
                "/spec/containers/0/resources/limits/rdma/hca_shared_devices_0": "one resource a rail, by its number",
                "/spec/containers/0/securityContext": "memory is locked with IPC_LOCK, or under the service's limit",
            },
        ),
    ),
    "001 configuration of the plugin": (
        "ipoib-nv-ipam",
        lambda guide: {"config": guide("001-nicclusterpolicy")[0]["spec"]["rdmaSharedDevicePlugin"]["config"]},
        lambda ours: {"config": ours.config_map["data"]["config.json"]},
        {"/config/periodicUpdateInterval": "the default is written out: the Go plugin's own default is 60"},
    ),
    "001 IPPool": (
        "ipoib-nv-ipam",
        lambda guide: guide("001-nicclusterpolicy")[1],
        lambda ours: ours.one("IPPool"),
        {"/metadata/namespace": "nv-ipam reads pools of its own namespace, which is kube-system here"},
    ),
    "001 IPoIBNetwork": (
        "ipoib-nv-ipam",
        lambda guide: guide("001-nicclusterpolicy")[2],
        lambda ours: ours.one("NetworkAttachmentDefinition"),
        {
            "/apiVersion": "the operator makes a NetworkAttachmentDefinition of it; ours is that at once",
            "/kind": "the operator makes a NetworkAttachmentDefinition of it; ours is that at once",
            "/metadata/namespace": "where the IPoIBNetwork says networkNamespace",
            "/spec/networkNamespace": "where ours says metadata.namespace",
            "/spec/master": "inside spec.config, with the same name",
            "/spec/ipam": "inside spec.config, with the same pool",
            "/spec/config": "what the operator would make of the fields of spec",
        },
    ),
    "001 pod": (
        "ipoib-nv-ipam",
        lambda guide: guide("001-nicclusterpolicy")[3],
        lambda ours: ours.pod("rdma/shared_ib"),
        {
            **but(POD, "/spec/restartPolicy", "/spec/containers/0/name"),
            ANNOTATION: "the pool's attachment says no resource, so verification cannot tell that they belong together",
            "/spec/containers/0/resources/requests/rdma/shared_ib": WITHOUT_REQUEST,
        },
    ),
    "002 NetworkAttachmentDefinition": (
        "sriov",
        lambda guide: guide("002-sriov")[0],
        lambda ours: ours.one("NetworkAttachmentDefinition"),
        {
            "/spec/config/vlan": "0 is no VLAN, which is what not setting it means",
            "/spec/config/ipam/type": "Network Operator deprecated whereabouts in 25.4; nv-ipam takes its place",
            "/spec/config/ipam/range": "stands in the IPPool, with the same subnet",
            "/spec/config/ipam/exclude": "nv-ipam never hands out network and broadcast address",
            "/spec/config/ipam/poolName": "the pool, made from the subnet",
            "/spec/config/ipam/poolType": "the kind of pool",
        },
    ),
    "002 pod": (
        "sriov",
        lambda guide: {**guide("002-sriov")[1], **guide("002-sriov")[2]},
        lambda ours: {
            "metadata": {"annotations": ours.pod("openshift.io/mellanoxnics")["metadata"]["annotations"]},
            "resources": {
                "limits": ours.pod("openshift.io/mellanoxnics")["spec"]["containers"][0]["resources"]["limits"]
            },
        },
        {
            **NAMED_INTERFACE,
            "/resources/limits/nvidia.com/gpu": "proving RDMA takes no GPU away from jobs",
            "/resources/requests": WITHOUT_REQUEST,
        },
    ),
    "003 pod of whole HCAs": (
        "aks-four-modes",
        lambda guide: guide("003-pods")[0],
        lambda ours: ours.pod("rdma/ib", networks=[]),
        {
            **POD,
            "/spec/containers/0/resources/limits/rdma/ib": "one HCA is enough to see that one can be had",
            "/spec/containers/0/resources/requests/rdma/ib": WITHOUT_REQUEST,
        },
    ),
    "003 pod of shared HCAs": (
        "aks-four-modes",
        lambda guide: guide("003-pods")[1],
        lambda ours: ours.pod("rdma/shared_ib", networks=[]),
        {**POD, "/spec/containers/0/resources/requests/rdma/shared_ib": WITHOUT_REQUEST},
    ),
    "003 pod with IPoIB": (
        "aks-four-modes",
        lambda guide: guide("003-pods")[2],
        lambda ours: ours.pod("rdma/shared_ib", networks=[{**ours.networks[0], "resource": "rdma/shared_ib"}]),
        {
            **POD,
            **NAMED_INTERFACE,
            "/spec/containers/0/resources/limits": "IP alone needs no resource; verification looks for verbs besides",
            "/spec/containers/0/securityContext": "IP alone locks no memory; verification looks for verbs besides",
        },
    ),
    "003 pod with the driver only": (
        "aks-four-modes",
        lambda guide: guide("003-pods")[3],
        lambda ours: ours.pod("rdma/shared_ib", networks=[]),
        {
            **POD,
            "/spec/containers/0/resources/limits": "a resource hands out the files, so nothing needs to be privileged",
            "/spec/containers/0/securityContext": "never privileged: the files of one resource and IPC_LOCK",
        },
    ),
    "004 ConfigMap": (
        "gh200-single",
        lambda guide: guide("004-gh200")[0],
        lambda ours: ours.config_map,
        {**LABELS, **INTERVAL},
    ),
    "004 NetworkAttachmentDefinition": (
        "gh200-single",
        lambda guide: guide("004-gh200")[1],
        lambda ours: ours.one("NetworkAttachmentDefinition"),
        {
            "/metadata/namespace": "said, so that it does not depend on a context",
            "/spec/config/name": "the specification wants it; Multus would fill it in, other tools do not",
            "/spec/config/ipam/subnet": "stands in ranges, where a block has its start and end",
            "/spec/config/ipam/ranges": "a block for the node: host-local keeps its leases on the node (pitfall N5)",
        },
    ),
    "004 pod": (
        "gh200-single",
        lambda guide: guide("004-gh200")[2],
        lambda ours: ours.pod("rdma/rdma_shared_device"),
        {**but(POD, "/spec/containers/0/name"), **NAMED_INTERFACE},
    ),
}


def guide(name):
    return list(yaml.safe_load_all((GUIDES / f"{name}.yaml.txt").read_text()))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    known = {}

    def render(example):
        if example not in known:
            known[example] = Rendered(example, tmp_path_factory.mktemp("node"))
        return known[example]

    return render


@pytest.mark.parametrize("name", CASES)
def test_each_difference_to_a_guide_has_its_reason(rendered, name):
    example, theirs, ours, reasons = CASES[name]
    found = differences(theirs(guide), ours(rendered(example)))
    assert unexplained(found, reasons) == {}
    assert unused(found, reasons) == [], "reasons for differences that are not there (any more)"


def test_each_seed_is_compared():
    assert {name[:3] for name in CASES} == {"000", "001", "002", "003", "004"}
    assert set(NODES) == {example for example, _theirs, _ours, _reasons in CASES.values()}
