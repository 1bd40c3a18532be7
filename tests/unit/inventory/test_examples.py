"""Each inventory example passes the preflight of variables, and those with a fixture of their kind fit its facts."""

from __future__ import annotations

import functools
import json
import pathlib

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager
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

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "inventory/examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/hosts.yml"))
ROLES = documented_roles()
OPTIONS = {name: option for role in ROLES.values() for name, option in role.items()}


def hosts(name):
    """(host, its variables) of an example, templated as a play would."""
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(EXAMPLES / name)])
    manager = VariableManager(loader=loader, inventory=inventory)
    for host in inventory.get_hosts("gpu_nodes"):
        found = manager.get_vars(host=host)
        templar = Templar(loader, variables=found)
        yield host.name, {key: templar.template(value) for key, value in found.items() if key in OPTIONS}, list(found)


def test_there_is_an_example_for_each_seed_and_site():
    expected = {"gh200-single", "rails-8x-h100", "ipoib-nv-ipam", "sriov", "aks-four-modes", "ha", "air-gap"}
    assert expected <= set(NAMES)
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in NAMES if f"]({name})" not in listed] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_example_uses_only_variables_that_exist_with_values_that_hold(name):
    examined = list(hosts(name))
    assert examined
    for host, values, every in examined:
        effective, findings = preflight_host.validate(OPTIONS, values)
        findings += preflight_host.values(effective, OPTIONS)
        findings += preflight_host.unknown(every, OPTIONS, ROLES)
        assert findings == [], host


@pytest.mark.parametrize(("name", "fixture"), [("gh200-single", "gh200-cx7-roce"), ("rails-8x-h100", "h100-8x-cx7-ib")])
def test_an_example_fits_the_node_it_is_made_for(name, fixture, tmp_path):
    tree.lay_out(tree.load(fixture), tmp_path)
    _host, values, _every = next(hosts(name))
    effective, findings = preflight_host.validate(OPTIONS, values)
    node = Tree(str(tmp_path))
    facts = gather(node, Seams.of(node), rails=effective["discovery_rails"])
    assert (
        findings + preflight_host.combinations(facts, effective)[0] + preflight_host.plan(facts, effective)["findings"]
        == []
    )
    assert len(facts["rails"]) == {"gh200-single": 1, "rails-8x-h100": 8}[name]


# --- beside the guides -----------------------------------------------------------------------------------------


ROOT = pathlib.Path(__file__).resolve().parents[3]
GUIDES = tree.texts("guides")
CONFIGS = json.loads((GUIDES / "configs.txt").read_text())
MISSING = "(not there)"
EIGHT = [f"rdma/hca_shared_devices_{number}" for number in range(8)]

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

    def limits(self, *resources, **more):
        return self.pod(*resources, **more)["spec"]["containers"][0]["resources"]["limits"]


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


# --- where they differ, and may -----------------------------------------------------------------------------------

NETWORKS = "/metadata/annotations/k8s.v1.cni.cncf.io/networks"  # names the interface too: checks know which one it is
LIMITS, REQUESTS = "/spec/containers/0/resources/limits", "/spec/containers/0/resources/requests"
SECURITY = "/spec/containers/0/securityContext"  # IPC_LOCK, or under the service's limit; never privileged
INTERVAL = "/data/config.json/periodicUpdateInterval"
# Of every pod of verification: on one named node, in a namespace of its own, it sleeps and ends by itself.
POD = {f"/metadata/{name}" for name in ("name", "namespace", "labels")}
POD |= {f"/spec/{name}" for name in ("activeDeadlineSeconds", "automountServiceAccountToken", "enableServiceLinks")}
POD |= {f"/spec/{name}" for name in ("nodeSelector", "restartPolicy", "securityContext", "tolerations")}
POD |= {"/spec/terminationGracePeriodSeconds", f"{REQUESTS}/cpu", f"{REQUESTS}/memory"}
POD |= {f"/spec/containers/0/{name}" for name in ("name", "image", "imagePullPolicy", "command")}
UNNAMED = POD - {"/spec/containers/0/name"}

# {guide: (example, theirs, ours, the paths that differ, with all below each)}
CASES = {
    "000 ConfigMap of eight rails": (
        "rails-8x-h100",
        lambda guide: {"data": {"config.json": CONFIGS["eight-rails"]}},
        lambda ours: {"data": ours.config_map["data"]},
        {INTERVAL}
        | {
            f"/data/config.json/configList/{number}/{key}"
            for number in range(8)
            for key in ("selectors", "linkUp", "topology")
        },
    ),
    "000 ConfigMap of two devices": (
        "rails-8x-h100",
        lambda guide: guide("000-shared-device-plugin")[0],
        lambda ours: ours._config_map(
            json.loads(guide("000-shared-device-plugin")[0]["data"]["config.json"])["configList"]
        ),
        {"/metadata/labels"},
    ),
    "000 pod of eight rails": (
        "rails-8x-h100",
        lambda guide: {"resources": guide("000-pod-resources")[0]["resources"]},
        lambda ours: {"resources": {"limits": ours.limits(*EIGHT, networks=[], kind="rails")}},
        {"/resources/limits/nvidia.com/gpu"},
    ),
    "000 pod": (
        "rails-8x-h100",
        lambda guide: guide("000-pod")[0],
        lambda ours: ours.pod("rdma/hca_shared_devices_0", networks=[]),
        POD
        | {"/spec/hostNetwork", "/spec/containers/0/env", SECURITY, f"{LIMITS}/nvidia.com/gpu"}
        | {f"{LIMITS}/rdma/hca_shared_devices_{name}" for name in "a0"},
    ),
    "001 configuration of the plugin": (
        "ipoib-nv-ipam",
        lambda guide: {"config": guide("001-nicclusterpolicy")[0]["spec"]["rdmaSharedDevicePlugin"]["config"]},
        lambda ours: {"config": ours.config_map["data"]["config.json"]},
        {"/config/periodicUpdateInterval"},
    ),
    "001 IPPool": (
        "ipoib-nv-ipam",
        lambda guide: guide("001-nicclusterpolicy")[1],
        lambda ours: ours.one("IPPool"),
        {"/metadata/namespace"},
    ),
    "001 IPoIBNetwork": (  # of which the operator makes what ours is at once
        "ipoib-nv-ipam",
        lambda guide: guide("001-nicclusterpolicy")[2],
        lambda ours: ours.one("NetworkAttachmentDefinition"),
        {"/apiVersion", "/kind", "/metadata/namespace"}
        | {f"/spec/{name}" for name in ("networkNamespace", "master", "ipam", "config")},
    ),
    "001 pod": (
        "ipoib-nv-ipam",
        lambda guide: guide("001-nicclusterpolicy")[3],
        lambda ours: ours.pod("rdma/shared_ib"),
        UNNAMED - {"/spec/restartPolicy"} | {NETWORKS, f"{REQUESTS}/rdma/shared_ib"},
    ),
    "002 NetworkAttachmentDefinition": (  # nv-ipam in place of whereabouts, which Network Operator 25.4 deprecated
        "sriov",
        lambda guide: guide("002-sriov")[0],
        lambda ours: ours.one("NetworkAttachmentDefinition"),
        {f"/spec/config/ipam/{name}" for name in ("type", "range", "exclude", "poolName", "poolType")}
        | {"/spec/config/vlan"},
    ),
    "002 pod": (
        "sriov",
        lambda guide: {**guide("002-sriov")[1], **guide("002-sriov")[2]},
        lambda ours: {
            "metadata": {"annotations": ours.pod("openshift.io/mellanoxnics")["metadata"]["annotations"]},
            "resources": {"limits": ours.limits("openshift.io/mellanoxnics")},
        },
        {NETWORKS, "/resources/limits/nvidia.com/gpu", "/resources/requests"},
    ),
    "003 pod of whole HCAs": (
        "aks-four-modes",
        lambda guide: guide("003-pods")[0],
        lambda ours: ours.pod("rdma/ib", networks=[]),
        POD | {f"{LIMITS}/rdma/ib", f"{REQUESTS}/rdma/ib"},
    ),
    "003 pod of shared HCAs": (
        "aks-four-modes",
        lambda guide: guide("003-pods")[1],
        lambda ours: ours.pod("rdma/shared_ib", networks=[]),
        POD | {f"{REQUESTS}/rdma/shared_ib"},
    ),
    "003 pod with IPoIB": (
        "aks-four-modes",
        lambda guide: guide("003-pods")[2],
        lambda ours: ours.pod("rdma/shared_ib", networks=[{**ours.networks[0], "resource": "rdma/shared_ib"}]),
        POD | {NETWORKS, LIMITS, SECURITY},
    ),
    "003 pod with the driver only": (
        "aks-four-modes",
        lambda guide: guide("003-pods")[3],
        lambda ours: ours.pod("rdma/shared_ib", networks=[]),
        POD | {LIMITS, SECURITY},
    ),
    "004 ConfigMap": (
        "gh200-single",
        lambda guide: guide("004-gh200")[0],
        lambda ours: ours.config_map,
        {"/metadata/labels", INTERVAL},
    ),
    "004 NetworkAttachmentDefinition": (  # a block for the node: host-local keeps its leases there
        "gh200-single",
        lambda guide: guide("004-gh200")[1],
        lambda ours: ours.one("NetworkAttachmentDefinition"),
        {"/metadata/namespace", "/spec/config/name", "/spec/config/ipam/subnet", "/spec/config/ipam/ranges"},
    ),
    "004 pod": (
        "gh200-single",
        lambda guide: guide("004-gh200")[2],
        lambda ours: ours.pod("rdma/rdma_shared_device"),
        UNNAMED | {NETWORKS},
    ),
}


def guide(name):
    return list(yaml.safe_load_all((GUIDES / f"{name}.txt").read_text()))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    return functools.cache(lambda example: Rendered(example, tmp_path_factory.mktemp("node")))


@pytest.mark.parametrize("name", CASES)
def test_ours_differs_from_a_guide_where_it_may(rendered, name):
    example, theirs, ours, paths = CASES[name]
    left, right = fields(theirs(guide)), fields(ours(rendered(example)))
    different = {path for path in {*left, *right} if left.get(path, MISSING) != right.get(path, MISSING)}
    covered = {path: {key for key in paths if path == key or path.startswith(f"{key}/")} for path in different}
    assert [(path, left.get(path), right.get(path)) for path, keys in covered.items() if not keys] == []
    assert paths == set().union(*covered.values()), "paths that do not differ any more"


def test_each_seed_is_compared():
    assert {name[:3] for name in CASES} == {"000", "001", "002", "003", "004"}
    assert set(NODES) == {example for example, *_case in CASES.values()}
