"""NicClusterPolicies, their networks and pools, read as variables: every field is reported, nothing is dropped."""

import copy
import functools
import json

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.action import policy_import
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._policy import importer, page
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host, networks
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import variables as known
from ansible_collections.gpufabric.rdma.tests.tools import tree
from hypothesis import given, settings
from hypothesis import strategies as some

FIXTURES = tree.texts("guides")
OPTIONS = known.options(("device_plugin", "driver", "networks"))
FILES = {
    "guide-000": "000-nicclusterpolicy.txt",
    "guide-000-config-map": "000-shared-device-plugin.txt",
    "guide-001": "001-nicclusterpolicy.txt",
    "macvlan": "macvlan.txt",
    "host-device": "host-device.txt",
}
# file: its variables
BECOME = yaml.safe_load("""
guide-000:
  device_plugin_resources:
  - {resourceName: hca_shared_devices_a, rdmaHcaMax: 63, selectors: {vendors: [15b3]}}
guide-000-config-map:
  device_plugin_interval_seconds: 300
  device_plugin_resources:
  - {resourceName: hca_shared_devices_a, rdmaHcaMax: 63, selectors: {ifNames: [ens8f0np0]}}
  - {resourceName: hca_shared_devices_b, rdmaHcaMax: 63, selectors: {ifNames: [ens8f1np1]}}
guide-001:
  driver_flavor: verify
  device_plugin_resources:
  - {resourceName: shared_ib, rdmaHcaMax: 63, selectors: {vendors: [15b3], ifNames: [ibs1f0, ibs1f1]}}
  networks_components: [ipoib-cni, nv-ipam]
  networks_attachments:
  - {name: ipoib-network-a, type: ipoib, namespaces: [default], master: ibs1f0, ipam: nv-ipam, pool: ipoib-pool-a,
     subnet: 192.168.5.0/24, per_node_block_size: 50, gateway: 192.168.5.1}
macvlan:
  networks_components: [nv-ipam]
  networks_attachments:
  - {name: rail0, type: macvlan, namespaces: [training], master: enp1s0f1np1, mode: bridge, mtu: 1500, ipam: nv-ipam,
     subnet: 10.56.0.0/24, per_node_block_size: 16, exclude: [10.56.0.1, 10.56.0.248/29]}
host-device:
  driver_flavor: verify
  device_plugin_use_cdi: true
  device_plugin_resources: [{resourceName: shared, rdmaHcaMax: 8, selectors: {ifNames: [enp1s0f0np0]}}]
  device_plugin_node_selector: {feature.node.kubernetes.io/pci-15b3.present: "true"}
  networks_images: {nv-ipam: "mirror.example.com/mellanox/nvidia-k8s-ipam:v0.3.7"}
  networks_components: [nv-ipam, whereabouts]
  networks_attachments:
  - {name: hostdev-net, type: host-device, namespaces: [default], resource_name: nvidia.com/hostdev, ipam: whereabouts,
     subnet: 192.168.3.225/28, exclude: [192.168.3.228/30]}
""")
# file: the fields that are wrong, with a word of why, and those that are unknown
PLUGIN = "spec.rdmaSharedDevicePlugin"
WRONG = {
    "guide-000": {f"{PLUGIN}.version": "no version is set"},
    "guide-000-config-map": {},
    "guide-001": {"spec.secondaryNetwork.nvIpam.image": "a field of spec itself"},
    "macvlan": {"nv-ipam": "cannot work without it"},
    "host-device": {
        f"{PLUGIN}.config": "a JSON string",
        f"{PLUGIN}.config.configList[0].devices": "deprecated",
        "whereabouts": "cannot work without it",
    },
}
UNKNOWN = {"host-device": {f"{PLUGIN}.config.configList[0].colour", "spec.secondaryNetworks.multus.image"}}


@functools.cache
def _loaded(name):
    found = yaml.safe_load_all((FIXTURES / FILES[name]).read_text())
    return [{"source": f"{name} {number}", "content": content} for number, content in enumerate(found, 1)]


def documents(name):
    return copy.deepcopy(_loaded(name))


@pytest.mark.parametrize("name", FILES)
def test_a_file_becomes_these_variables_and_what_is_wrong_is_named(name):
    made = importer.run(documents(name))
    assert made["findings"] == []
    assert made["variables"] == BECOME[name]
    wrong = {line["field"]: line["why"] for line in made["lines"] if line["verdict"] == "wrong"}
    assert set(wrong) == set(WRONG[name])
    assert all(words in wrong[field] for field, words in WRONG[name].items())
    assert {line["field"] for line in made["lines"] if line["verdict"] == "unknown"} == UNKNOWN.get(name, set())
    assert all(line["why"] or line["became"] != "nothing" for line in made["lines"])
    # The roles accept it, and it is written unchanged.
    effective, findings = host.validate(OPTIONS, BECOME[name])
    assert findings == networks.plan(effective, [])["findings"] == []
    assert yaml.safe_load(policy_import.text(BECOME[name], [name])) == BECOME[name]


@pytest.mark.parametrize("name", FILES)
def test_every_field_of_every_object_is_reported(name):
    """The fields of an image are one line, that of its version, which shows them all."""
    found = documents(name)
    by_source = {}
    for line in importer.run(found)["lines"]:
        by_source.setdefault(line["source"], []).append((line["field"], line["was"]))
    for document in found:
        said = by_source[document["source"]]
        for leaf in map(page.dotted, page._leaves(document["content"])):
            if leaf in ("apiVersion", "kind", "metadata.name"):
                continue
            prefix = leaf.rpartition(".")[0]
            image = leaf.endswith(".repository") and f"{prefix}.version" in dict(said)
            below = [field for field, _was in said if field == "the whole object" or field.startswith(leaf)]
            above = [field for field, _was in said if leaf.startswith(field)]
            assert image or below or above, leaf


# --- compared with nodes ----------------------------------------------------------------------------------------------


def verdicts(made):
    return {line["field"]: (line["verdict"], line["became"], line["why"]) for line in made["lines"]}


def compared(facts, count=1, files=None):
    nodes = [{"host": f"h{number}", "facts": facts} for number in range(1, count + 1)]
    return importer.run(files or documents("guide-001"), nodes)


SELECTORS, MASTER = f"{PLUGIN}.config.configList[0].selectors", "spec.master"


@pytest.mark.parametrize(("names", "said"), [
    ({}, {SELECTORS: ("wrong", "matches nothing on h1"), MASTER: ("wrong", "not on")}),
    ({"ibp24s0": "ibs1f0", "ibp58s0": "ibs1f1"}, {SELECTORS: ("taken", "one pool of 2 HCAs"), MASTER: ("taken", "")}),
])  # fmt: skip
def test_names_are_looked_up_on_the_nodes(facts_of, names, said):
    text = json.dumps(facts_of("h100-8x-cx7-ib"))
    for name, there in names.items():
        text = text.replace(name, there)
    made = compared(json.loads(text))
    for field, (verdict, why) in said.items():
        assert (verdicts(made)[field][0], why in verdicts(made)[field][2]) == (verdict, True)
    assert made["findings"] == []


@pytest.mark.parametrize(
    ("flavor", "variables"),
    [
        ("inbox", {"driver_flavor": "doca", "driver_version": "3.1.0"}),
        ("doca", {"driver_flavor": "verify"}),
        ("mlnx_ofed", {"driver_flavor": "verify"}),
    ],
)
def test_a_driver_of_the_host_and_one_of_the_policy_are_one_too_many(facts_of, flavor, variables):
    facts = facts_of("h100-8x-cx7-ib")
    facts["driver"]["on_disk"]["flavor"] = flavor
    made = compared(facts)
    assert {key: value for key, value in made["variables"].items() if key.startswith("driver_")} == variables
    verdict, _became, why = verdicts(made)["spec.ofedDriver.image"]
    assert (verdict, "loaded twice" in why) == (("taken", False) if flavor == "inbox" else ("wrong", True))


def test_a_release_that_the_lock_lacks_is_told_with_those_that_it_has(facts_of):
    facts = facts_of("h100-8x-cx7-ib")
    facts["driver"]["on_disk"]["flavor"] = "inbox"
    for nodes in ([], [{"host": "h1", "facts": facts}]):
        for version, told in (("3.1.0", False), ("3.10.0", True)):
            lock = {"repositories": [{"name": "doca", "version": version}]}
            made = importer.run(documents("guide-001"), nodes, None, lock)
            assert ("3.10.0" in verdicts(made)["spec.ofedDriver.image"][2]) is told


def test_a_type_that_does_not_fit_the_link_and_a_pool_too_small_for_the_nodes_are_wrong(facts_of):
    found = documents("guide-001")
    found[2]["content"]["spec"]["master"] = "enp1s0f0np0"
    verdict, _became, why = verdicts(compared(facts_of("gh200-cx7-roce"), files=found))["spec.master"]
    assert (verdict, "Ethernet" in why) == ("wrong", True)
    for count, verdict in ((5, "taken"), (6, "wrong")):
        assert verdicts(compared(facts_of("h100-8x-cx7-ib"), count))["spec.perNodeBlockSize"][0] == verdict


# --- bad input --------------------------------------------------------------------------------------------------------


def changed(name, number, *path, value):
    found = documents(name)
    place = found[number]["content"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


def plugin(value, *path):
    return changed("guide-000", 0, "spec", "rdmaSharedDevicePlugin", *path, value=value)


def network(field, value, number=0):
    return changed("macvlan", number, "spec", field, value=value)


NO_SELECTORS = '{"configList": [{"resourceName": "a", "rdmaHcaMax": 1}]}'
TWO_POLICIES = [*documents("guide-000"), *changed("guide-001", 0, "metadata", "name", value="second")[:1]]


@pytest.mark.parametrize(("given_documents", "place"), [
    ([{"source": "f", "content": ["x"]}], "f"),
    ([{"source": "f", "content": {"kind": "IPPool"}}], "f"),
    ([], "the files"),
    (changed("macvlan", 0, "apiVersion", value="mellanox.com/v2"), "MacvlanNetwork rail0"),
    (plugin("{", "config"), f"{PLUGIN}.config"),
    (plugin('{"configList": []}', "config"), "config"),
    (plugin(NO_SELECTORS, "config"), "configList[0].selectors"),
    (network("ipam", "nv-ipam"), "spec.ipam"),
    (network("ipam", '{"type": "dhcp"}'), "spec.ipam.type"),
    (network("master", ""), "spec.master"),
    (network("perNodeBlockSize", "16", 1), "spec.perNodeBlockSize"),
    (network("exclusions", [{"startIP": "x"}], 1), "spec.exclusions[0]"),
    (network("exclusions", [{"startIP": "192.168.2.9", "endIP": "192.168.2.1"}], 1), "spec.exclusions[0]"),
    (plugin("false", "useCdi"), "useCdi"),
    (plugin(NO_SELECTORS.replace("}", ', "selectors": {"pfNames": ["eth2"]}}', 1), "config"), "selectors"),
    (changed("host-device", 0, "spec", "resourceName", value=None), "spec.resourceName"),
    (changed("host-device", 0, "spec", "resourceName", value="rdma/a"), "spec.resourceName"),
    (network("ipam", '{"type": "whereabouts", "range": "9.9.0.0/24", "ipRanges": [{"range": "9.9.1.0/24"}]}'), "ipam"),
    (TWO_POLICIES, "NicClusterPolicy second"),
    ([*documents("guide-000"), {**documents("guide-000")[0], "source": "g"}], "NicClusterPolicy"),
])  # fmt: skip
def test_bad_input_is_refused_with_its_place(given_documents, place):
    findings = importer.run(given_documents)["findings"]
    assert [finding for finding in findings if place in finding.object], findings
    assert all(all(finding[:4]) for finding in findings), "not one of the four facts is empty"


CONFIG = '{"configList": [{"resourceName": "a", "selectors": {"vendors": ["15b3"]}}]}'
HOST_LOCAL = '{"type": "host-local", "subnet": "192.168.50.0/24", "rangeStart": "192.168.50.10", "routes": []}'


@pytest.mark.parametrize(("given_documents", "field", "key", "became"), [
    (network("ipam", HOST_LOCAL)[:1], "spec.ipam.type", "networks_attachments",
     {"ipam": "host-local", "range_start": "192.168.50.10"}),
    (plugin(CONFIG, "config"), f"{PLUGIN}.config.configList[0].rdmaHcaMax", "device_plugin_resources",
     {"rdmaHcaMax": 63}),
    (changed("guide-000", 0, "metadata", "name", value="mine"), "metadata.name", "device_plugin_resources", {}),
])  # fmt: skip
def test_what_is_taken_with_a_change_is_named_wrong(given_documents, field, key, became):
    made = importer.run(given_documents)
    assert (made["findings"], verdicts(made)[field][0]) == ([], "wrong")
    assert made["variables"][key][0].items() >= became.items()


# --- kinds of the operator's later releases ---------------------------------------------------------------------------


def one(kind, name="a", api="mellanox.com/v1alpha1", **spec):
    content = {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}
    return {"source": f"{kind} {name}", "content": content}


SRIOV = "sriovnetwork.openshift.io/v1"
RAILS = [{"index": 0, "pci": "0000:18:00.0", "netdev": "eth2"}, {"index": 1, "pci": "0000:2a:00.0", "netdev": "eth3"}]
HCAS = [
    {"name": "a", "pci": {"address": "0000:18:00.0", "vendor": "15b3", "device": "1021", "virtfns": ["0000:18:00.2"]}},
    {"name": "b", "pci": {"address": "0000:2a:00.0", "vendor": "15b3", "device": "101b"}},
]
READ = [{"host": "n", "facts": {"rails": RAILS, "hcas": HCAS}}]


def policy(**spec):
    return one("NicClusterPolicy", "nic-cluster-policy", **spec)


def list_of(*several, **selectors):
    config = {"resourceList": [{"resourceName": "vf", "resourcePrefix": "x.y", "selectors": several or selectors}] * 2}
    return policy(sriovDevicePlugin={"image": "i", "config": json.dumps(config)})


def vf_resource(functions="vfs", prefix="x.y", sriov=None, **more):
    made = {"networks_sriov_resources": [{"name": "vf", "prefix": prefix, "functions": functions, **more}]}
    made["networks_components"] = ["sriov-device-plugin"]
    return {**made, "networks_sriov": [{"pci": sriov, "vfs": 4}]} if sriov else made


def node_policy(name="a", resource="vf", count=4, **selector):
    return one("SriovNetworkNodePolicy", name, SRIOV, nicSelector=selector, numVfs=count, resourceName=resource)


ATTACHMENT = {
    "name": "a", "type": "sriov", "namespaces": ["default"], "resource_name": "nvidia.com/vf", "vlan": 7,
    "link_state": "auto", "ipam": "static",
}  # fmt: skip
NAMED = {"name": "a", "type": "macvlan", "namespaces": ["default"], "master": "eth2", "ipam": "nv-ipam", "pool": "a"}


@pytest.mark.parametrize(("document", "variables"), [
    (policy(nvIpam={"image": "n"}, **{"global": {"repository": "r", "version": "1"}}),
     {"networks_components": ["nv-ipam"], "networks_images": {"nv-ipam": "r/n:1"}}),
    (policy(nvIpam={"image": "n", "version": "2"}, **{"global": {"repository": "r"}}),
     {"networks_components": ["nv-ipam"], "networks_images": {"nv-ipam": "r/n:2"}}),
    (one("SriovNetwork", api=SRIOV, resourceName="vf", vlan=7, linkState="auto", ipam='{"type": "static"}'),
     {"networks_components": ["sriov-cni"], "networks_attachments": [ATTACHMENT]}),
    (one("MacvlanNetwork", master="eth2", ipam='{"type": "nv-ipam", "poolType": "IPPool"}'),
     {"networks_components": ["nv-ipam"], "networks_attachments": [NAMED]}),
    (one("SriovNetworkNodePolicy", api=SRIOV, nicSelector={"pfNames": ["eth3"]}, numVfs=4, resourceName="vf",
         externallyManaged=True), vf_resource(prefix="nvidia.com", rails=[1])),
    (node_policy(rootDevices=["0000:18:00.0"]), vf_resource(prefix="nvidia.com", sriov="0000:18:00.0", rails=[0])),
    (node_policy(pfNames=["eth3#0-3"]), vf_resource(prefix="nvidia.com", sriov="0000:2a:00.0", rails=[1])),
    (node_policy(vendor="15b3", deviceID="101b"), vf_resource(prefix="nvidia.com", sriov="0000:2a:00.0", rails=[1])),
    ({"source": "f", "content": {"kind": "SriovNetworkNodePolicyList", "items": [
        node_policy(name, vendor="15b3", pfNames=["eth2"])["content"] for name in "ab"
    ]}}, vf_resource(prefix="nvidia.com", sriov="0000:18:00.0", rails=[0])),
    (list_of(pciAddresses=["0000:2a:00.0"]), vf_resource("pfs", rails=[1])),
    (list_of(pciAddresses=["0000:18:00.2"]), vf_resource(rails=[0])),
    (list_of(rootDevices=["0000:18:00.0"]), vf_resource(rails=[0])),
    (list_of({"pfNames": ["eth3"]}, {"pfNames": ["eth2"]}), vf_resource(rails=[0, 1])),
])  # fmt: skip
def test_later_kinds_and_fields_become_variables_that_the_roles_take(document, variables):
    made = importer.run([document], READ)
    assert (made["findings"], made["variables"]) == ([], variables)
    told = [(line["object"], line["field"]) for line in made["lines"]]
    assert len(told) == len(set(told))
    assert host.validate(OPTIONS, variables)[1] == []


def test_each_node_policy_becomes_the_variables_of_a_group():
    shared = {"image": "p", "config": CONFIG}
    policies = [one("NicNodePolicy", name, nodeSelector={"pool": name}, rdmaSharedDevicePlugin=shared) for name in "ab"]
    made = importer.run(policies)
    assert (made["findings"], made["variables"]) == ([], {})
    for name in "ab":
        assert made["groups"][name]["selector"] == {"pool": name}
        assert made["groups"][name]["variables"]["device_plugin_resources"][0]["resourceName"] == "a"


def test_a_group_that_exists_is_not_written():
    made = importer.run(
        [one("NicNodePolicy", name, nodeSelector={"pool": "a"}) for name in ("gpu-nodes", "a.b", "a-b")]
    )
    assert [finding.object for finding in made["findings"]] == ["NicNodePolicy a-b"]
    assert list(made["groups"]) == ["policy_gpu_nodes", "a_b"]


RESOURCES = {"image": "i", "config": CONFIG}
HOST_DEVICE = one("HostDeviceNetwork", resourceName="vf", ipam='{"type": "nv-ipam", "poolName": "p"}')


@pytest.mark.parametrize(("documents_of", "place"), [
    ([policy(secondaryNetwork={"rdmaSharedDevicePlugin": RESOURCES})], "rdmaSharedDevicePlugin.config"),
    ([policy(rdmaSharedDevPlugin=RESOURCES)], "rdmaSharedDevPlugin.config"),
    ([policy(sriovDevicePlugin={"image": "i"})], "sriovDevicePlugin.config"),
    ([list_of("15b3")], "resourceList[0].selectors"),
    ([list_of(pfNames="eth2")], "resourceList[0].selectors"),
    ([one("CIDRPool", "p"), HOST_DEVICE], "spec.ipam.poolName"),
    ([one("CIDRPool", "p")], "the files"),
    ([one("MacvlanNetwork", master="eth2"), HOST_DEVICE], "network a"),
    ([node_policy(vendor="15b3", netFilter="x")], "spec.nicSelector"),
    ([node_policy(vendor="15b3", deviceID="101b", pfNames=["eth2"])], "spec.nicSelector"),
    ([node_policy(rootDevices=["0000:18:00.0"]), node_policy("b", count=8, rootDevices=["0000:18:00.0"])], "numVfs"),
    ([node_policy(pfNames=["eth2#0-1"]), node_policy("b", "vg", pfNames=["eth2#2-3"])], "spec.resourceName"),
])  # fmt: skip
def test_no_import_ends_without_a_resource_or_a_pool_that_the_files_have(documents_of, place):
    assert [finding for finding in importer.run(documents_of, READ)["findings"] if finding.object.endswith(place)]


def test_interfaces_are_looked_up_on_nodes_and_a_field_one_level_off_is_told_where_it_belongs():
    made = importer.run([node_policy(pfNames=["eth3"])])
    assert [finding.object for finding in made["findings"]] == ["SriovNetworkNodePolicy a spec.nicSelector"]
    made = importer.run([policy(multus={"image": "m"})])
    assert "spec.secondaryNetwork" in verdicts(made)["spec.multus.image"][2]
    assert (
        page.explanation(made["lines"])
        .splitlines()[-1]
        .startswith("  NicClusterPolicy nic-cluster-policy, spec.multus")
    )


@pytest.mark.parametrize("text", ["{{ 1 }}", "a{% if x %}", "{# x #}"])
def test_what_ansible_would_evaluate_is_marked_or_refused(text):
    assert f"!unsafe '{text}'" in policy_import.text({"a": [text]}, ["f"])
    assert importer.run([one("NicClusterPolicy", text)])["findings"]
    assert importer.run([policy(**{text: "x"})])["findings"]


JUNK = some.sampled_from([None, 0, -1, True, "", "x", [], ["x"], [None], {}, {"x": None}, [{"x": []}], 1.5])


def places(value, path=()):
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


@settings(max_examples=300, deadline=None)
@given(name=some.sampled_from([*sorted(FILES), ""]), data=some.data())
def test_no_file_however_broken_breaks_the_import(name, data):
    found = documents(name) if name else [list_of(pfNames=["eth2"]), node_policy(pfNames=["eth2"])]
    for document in found:
        spec = document["content"].get("spec") or {}
        if isinstance(spec.get("ipam"), str):
            spec["ipam"] = json.loads(spec["ipam"])
    place = data.draw(some.sampled_from([(n, *path) for n, d in enumerate(found) for path in places(d["content"])]))
    inner = found[place[0]]
    for key in ("content", *place[1:])[:-1]:
        inner = inner[key]
    inner[("content", *place[1:])[-1]] = data.draw(JUNK)
    made = importer.run(found, READ)
    page.explanation(made["lines"])
    for finding in made["findings"]:
        assert all(getattr(finding, fact) for fact in ("object", "wanted", "next_step"))
