"""Our variables as a NicClusterPolicy: what its CRD takes, and back again; what it cannot carry is named."""

from __future__ import annotations

import copy
import json
import pathlib

import jsonschema
import netaddr
import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.action import policy_export
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._policy import exporter, importer
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
from ansible_collections.gpufabric.rdma.tests.tools import tree
from hypothesis import given, settings
from hypothesis import strategies as some

ROOT = pathlib.Path(__file__).resolve().parents[5]
CRDS = yaml.safe_load((ROOT / "tests/fixtures/crds/network-operator.yaml").read_text())
OPTIONS = {}
for _role in ("device_plugin", "driver", "networks"):
    _specs = yaml.safe_load((ROOT / f"roles/{_role}/meta/argument_specs.yml").read_text())
    OPTIONS.update(_specs["argument_specs"]["main"]["options"])


# --- the validator ----------------------------------------------------------------------------------------------------


def closed(schema):
    """A structural schema as an API server with strict field validation reads it: no field but those that are named."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    # The pattern of an int-or-string holds for a text only, as JSON Schema has it anyway.
    if made.get("type") == "object" and "properties" in made and "additionalProperties" not in made:
        made["additionalProperties"] = False
    return made


VALIDATORS = {kind: jsonschema.Draft202012Validator(closed(found["schema"])) for kind, found in CRDS["kinds"].items()}
WEBHOOK = jsonschema.Draft202012Validator(CRDS["configurations"]["rdmaSharedDevicePlugin"])


def refused(obj):
    """What the API server, and the operator's webhook, would refuse of an object."""
    found = [error.message for error in VALIDATORS[obj["kind"]].iter_errors(obj)]
    if obj["apiVersion"] != CRDS["kinds"][obj["kind"]]["apiVersion"]:
        found.append(obj["apiVersion"])
    if ("namespace" in obj["metadata"]) != (CRDS["kinds"][obj["kind"]]["scope"] == "Namespaced"):
        found.append("namespace")
    config = ((obj.get("spec") or {}).get("rdmaSharedDevicePlugin") or {}).get("config")
    if isinstance(config, str):
        found += [error.message for error in WEBHOOK.iter_errors(json.loads(config))]
    return found


def seed_001():
    return next(yaml.safe_load_all((ROOT / "tests/fixtures/guides/001-nicclusterpolicy.yaml.txt").read_text()))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("spec", "colour"), "red", "'colour' was unexpected"),
        (("spec", "rdmaSharedDevicePlugin", "config"), {"configList": []}, "is not of type 'string'"),
        (("spec", "rdmaSharedDevicePlugin", "image"), None, "is not of type 'string'"),
        (("spec", "secondaryNetwork", "multus"), {"image": "x"}, "'repository' is a required property"),
        (("spec", "ofedDriver", "upgradePolicy"), {"maxParallelUpgrades": -1}, "less than the minimum"),
    ],
)
def test_the_validator_refuses_what_an_api_server_refuses(path, value, words):
    obj = seed_001()
    del obj["spec"]["secondaryNetwork"]["nvIpam"]
    assert refused(obj) == []
    place = obj
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert any(words in message for message in refused(obj)), refused(obj)


def test_the_policy_of_seed_001_is_refused_for_its_nested_nv_ipam():
    assert [message for message in refused(seed_001()) if "'nvIpam' was unexpected" in message]


def test_every_validator_is_a_valid_schema():
    assert set(VALIDATORS) == {"NicClusterPolicy", "MacvlanNetwork", "IPoIBNetwork", "HostDeviceNetwork", "IPPool"}
    for validator in [*VALIDATORS.values(), WEBHOOK]:
        validator.check_schema(validator.schema)


# --- export -----------------------------------------------------------------------------------------------------------


def export(variables, nodes=(), **options):
    effective, findings = preflight_host.validate(OPTIONS, variables)
    assert findings == []
    return exporter.run(effective, variables, list(nodes), options)


def node(tmp_path, fixture, host="h1"):
    tree.lay_out(tree.load(fixture), tmp_path)
    read = Tree(str(tmp_path))
    return {"host": host, "facts": gather(read, Seams.of(read))}


def kinds(made):
    return [item["kind"] for item in made["objects"]]


def left(made):
    return {(item["variable"], item["value"]): item["why"] for item in made["left_out"]}


def test_nothing_set_is_an_empty_policy_and_names_the_rails():
    made = export({})
    assert [item["spec"] for item in made["objects"]] == [{}]
    assert list(left(made)) == [("device_plugin_resources", "rails")]


def test_rails_of_the_first_node_are_written_out(tmp_path):
    made = export({}, [node(tmp_path, "h100-8x-cx7-ib")])
    (policy,) = made["objects"]
    config = json.loads(policy["spec"]["rdmaSharedDevicePlugin"]["config"])
    names = [f"hca_shared_devices_{number}" for number in range(8)]
    assert [entry["resourceName"] for entry in config["configList"]] == names
    assert all(set(entry) == {"resourceName", "rdmaHcaMax", "selectors"} for entry in config["configList"])
    assert refused(policy) == []
    assert ("device_plugin_resources", "hca_shared_devices_0: linkUp: false") in left(made)


def test_an_entry_with_our_selectors_alone_is_left_out_for_it_would_take_every_hca():
    ours = {"resourceName": "a", "rdmaHcaMax": 1, "extraSelectors": {"pciAddresses": ["0000:01:00.0"]}}
    made = export({"device_plugin_resources": [ours]})
    assert made["objects"][0]["spec"] == {}
    assert "every HCA" in left(made)[("device_plugin_resources", "a")]


def test_the_driver_is_never_exported():
    made = export({"driver_flavor": "doca", "driver_version": "3.2.1"})
    assert "ofedDriver" not in made["objects"][0]["spec"]
    assert "loaded twice" in left(made)[("driver_flavor", "doca")]


def test_a_network_whose_configuration_differs_from_node_to_node_is_left_out():
    attachment = {"name": "a", "type": "macvlan", "master": "eth2", "subnet": "10.0.0.0/24", "ipam": "host-local"}
    made = export({"networks_attachments": [attachment]})
    assert kinds(made) == ["NicClusterPolicy"]
    assert "differs from node to node" in left(made)[("networks_attachments", "a")]


def test_two_nodes_with_other_names_of_a_rail_cannot_share_a_network(tmp_path):
    first = node(tmp_path / "a", "h100-8x-cx7-ib")
    second = copy.deepcopy(first)
    second["host"] = "h2"
    second["facts"]["rails"][0]["netdev"] = "other"
    wanted = {
        "networks_rails": True,
        "networks_components": ["ipoib-cni", "nv-ipam"],
        "device_plugin_resources": [{"resourceName": "a", "rdmaHcaMax": 1, "selectors": {"vendors": ["15b3"]}}],
    }
    made = export(wanted, [first, second])
    assert kinds(made).count("IPoIBNetwork") == 7
    assert "differs" in left(made)[("networks_attachments", "rail0")]
    assert ("networks_rails", "true") in left(made)


@pytest.mark.parametrize(
    ("attachment", "components", "words"),
    [
        ({"type": "sriov", "resource_name": "x/y"}, ["sriov-cni"], "SriovNetwork"),
        ({"type": "ib-sriov", "resource_name": "x/y"}, ["ib-sriov-cni"], "SriovIBNetwork"),
        ({"type": "host-device", "master": "eth2"}, [], "takes a resource"),
        ({"type": "host-device", "resource_name": "rdma.gpufabric.io/pf"}, [], "puts nvidia.com/ in front"),
        ({"type": "macvlan", "master": "eth2", "ipam": "static"}, [], "bring their own addresses"),
    ],
)
def test_a_network_without_a_counterpart_is_left_out(attachment, components, words):
    made = export({"networks_attachments": [{"name": "a", **attachment}], "networks_components": components})
    assert kinds(made) == ["NicClusterPolicy"]
    assert words in left(made)[("networks_attachments", "a")]


def test_what_cannot_work_is_a_problem_here_as_in_the_role():
    made = export({"networks_attachments": [{"name": "a", "type": "ipoib"}]})
    assert {finding.object for finding in made["findings"]} == {"attachment a"}


def test_every_variable_of_the_roles_is_carried_named_or_known_to_be_no_matter():
    """A variable that a role gets later has to be decided on."""
    source = pathlib.Path(exporter.__file__).read_text()
    undecided = [name for name in OPTIONS if name not in source and name not in NO_MATTER and not BY_PLAN(name)]
    assert undecided == []
    assert [name for name in NO_MATTER if name not in OPTIONS] == []


# How a run of ours goes about it; no state of a cluster.
NO_MATTER = {
    "device_plugin_wheel_dir",
    "device_plugin_migrate_allowed",
    "device_plugin_server",
    "device_plugin_kubectl",
    "device_plugin_api_server",
    "device_plugin_kubelet_kubeconfig",
    "networks_sriov_recreate_allowed",
    "networks_takeover_allowed",
    "networks_wait_seconds",
    *[name for name in OPTIONS if name.startswith("driver_") and name not in ("driver_flavor", "driver_version")],
}


def BY_PLAN(name):
    """Read by _preflight.networks, whose objects are what is exported."""
    return name in (ROOT / "plugins/plugin_utils/_preflight/networks.py").read_text()


def test_the_file_reads_back_and_keeps_json_readable():
    attachment = {"name": "a", "type": "macvlan", "master": "eth2", "subnet": "10.0.0.0/24", "ipam": "nv-ipam"}
    made = export({"networks_attachments": [attachment], "networks_components": ["nv-ipam"]})
    text = policy_export.text(made["objects"])
    assert list(yaml.safe_load_all(text)) == made["objects"]
    assert "ipam: |" in text


# --- there and back ---------------------------------------------------------------------------------------------------

NAMES = [f"net-{letter}" for letter in "abc"]
ENTRY = some.fixed_dictionaries(
    {
        "rdmaHcaMax": some.integers(1, 1000),
        "selectors": some.dictionaries(
            some.sampled_from(["vendors", "deviceIDs", "drivers", "ifNames", "linkTypes"]),
            some.lists(some.sampled_from(["15b3", "101d", "mlx5_core", "ibs1f0", "ether"]), min_size=1, max_size=2),
            min_size=1,
        ),
    },
    optional={"resourcePrefix": some.sampled_from(["example.com", "rdma.gpufabric.io"])},
)
EXCLUDE = some.lists(some.sampled_from(["10.9.0.5", "10.9.0.64/28", "10.9.0.250/32"]), unique=True, max_size=2)
IPAM = some.one_of(
    some.just({"ipam": "none"}),
    some.fixed_dictionaries(
        {"ipam": some.just("nv-ipam"), "subnet": some.just("10.9.0.0/24"), "per_node_block_size": some.integers(1, 60)},
        optional={
            "gateway": some.just("10.9.0.1"),
            "exclude": EXCLUDE,
            "pool": some.sampled_from(["pool-a", "pool-b"]),
        },
    ),
    some.just({"ipam": "nv-ipam", "pool": "made-elsewhere"}),
    some.fixed_dictionaries(
        {"ipam": some.just("whereabouts"), "subnet": some.just("10.9.0.0/24")},
        optional={
            "range_start": some.just("10.9.0.10"),
            "range_end": some.just("10.9.0.99"),
            "gateway": some.just("10.9.0.1"),
            "exclude": EXCLUDE,
        },
    ),
    some.fixed_dictionaries(
        {"ipam": some.just("static"), "addresses": some.just(["10.9.0.7/24"])},
        optional={"gateway": some.just("10.9.0.1")},
    ),
)
TYPE = some.one_of(
    some.fixed_dictionaries(
        {"type": some.just("macvlan"), "master": some.sampled_from(["eth2", "eth3"])},
        optional={"mode": some.sampled_from(["bridge", "private", "vepa"]), "mtu": some.integers(1280, 9000)},
    ),
    some.fixed_dictionaries({"type": some.just("ipoib"), "master": some.just("ibs1f0")}),
    some.fixed_dictionaries({"type": some.just("host-device"), "resource_name": some.just("nvidia.com/hostdev")}),
)
NAMESPACES = some.sampled_from([["default"], ["training"], ["default", "training"]])
IMAGES = {
    "nv-ipam": "mirror.example.com/a/nv-ipam:v0.3.7",
    "ipoib-cni": "mirror.example.com/a/ipoib@sha256:" + 64 * "0",
}
# What a policy has no word for: name and value, besides what goes with the attachments.
NOT_CARRIED = {
    "driver_flavor": "doca",
    "device_plugin_mode": "daemonset",
    "device_plugin_metrics_address": ":9100",
    "networks_known_resources": ["x/y"],
    "networks_node_number": 3,
}


@some.composite
def variables(draw):
    made: dict = {}
    entries = draw(some.lists(ENTRY, min_size=1, max_size=3))
    made["device_plugin_resources"] = [{"resourceName": f"r{n}", **entry} for n, entry in enumerate(entries)]
    attachments = [
        {"name": name, "namespaces": draw(NAMESPACES), **draw(TYPE), **draw(IPAM)}
        for name in NAMES[: draw(some.integers(0, 3))]
    ]
    pools = [
        item.get("pool") or item["name"] for item in attachments if item.get("subnet") and item["ipam"] == "nv-ipam"
    ]
    if len(set(pools)) < len(pools):
        # Two attachments that make one pool are a conflict of their own.
        attachments = attachments[:1]
    needs = {{"ipoib": "ipoib-cni"}.get(item["type"]) for item in attachments}
    needs |= {item["ipam"] for item in attachments if item["ipam"] in ("nv-ipam", "whereabouts")}
    needs |= set(draw(some.lists(some.sampled_from(["nv-ipam", "ipoib-cni"]), max_size=2)))
    if attachments:
        made["networks_attachments"] = attachments
    if needs - {None}:
        made["networks_components"] = sorted(needs - {None})
    images = {name: image for name, image in IMAGES.items() if name in needs and draw(some.booleans())}
    if images:
        made["networks_images"] = images
    if draw(some.booleans()):
        made["device_plugin_interval_seconds"] = draw(some.integers(0, 600))
    if draw(some.booleans()):
        made["device_plugin_use_cdi"] = True
    if draw(some.booleans()):
        made["device_plugin_node_selector"] = {"feature.node.kubernetes.io/pci-15b3.present": "true"}
    for name in draw(some.lists(some.sampled_from(sorted(NOT_CARRIED)), unique=True)):
        made[name] = NOT_CARRIED[name]
    return made


def carried(made):
    """What of the variables a policy can carry, with the defaults that an import writes out."""
    found = {key: value for key, value in made.items() if key not in NOT_CARRIED}
    found["networks_components"] = sorted(found.get("networks_components") or [])
    found["networks_attachments"] = sorted(map(_attachment, found.get("networks_attachments") or []), key=str)
    return {key: value for key, value in found.items() if value not in ([], {}, None)}


def _attachment(item):
    found = {**item, "namespaces": item["namespaces"][:1]}
    if found["type"] == "macvlan":
        found.setdefault("mode", "bridge")
    if found.get("exclude"):
        found["exclude"] = sorted(str(netaddr.IPNetwork(one).cidr) for one in found["exclude"])
    else:
        found.pop("exclude", None)
    return found


@settings(max_examples=200, deadline=None)
@given(variables())
def test_variables_come_back_from_the_policy_they_make(given_variables):
    made = export(given_variables)
    assert made["findings"] == []
    for obj in made["objects"]:
        assert refused(obj) == []
    written = yaml.safe_load_all(policy_export.text(made["objects"]))
    read = importer.run([{"source": f"object {n}", "content": obj} for n, obj in enumerate(written)])
    assert read["findings"] == []
    assert [line for line in read["lines"] if line["verdict"] == "unknown"] == []
    assert carried(read["variables"]) == carried(given_variables)
    named = {item["variable"] for item in made["left_out"]}
    assert named >= {name for name in NOT_CARRIED if name in given_variables}
    more = [item for item in given_variables.get("networks_attachments") or [] if len(item["namespaces"]) > 1]
    for item in more:
        assert ("networks_attachments", f"{item['name']}: namespace training") in left(made)
    carries_all = not set(NOT_CARRIED) & set(given_variables) and not more
    if carries_all and "whereabouts" not in (given_variables.get("networks_components") or []):
        assert made["left_out"] == []


@pytest.mark.parametrize("name", ["guides/001-nicclusterpolicy", "policies/macvlan", "guides/000-nicclusterpolicy"])
def test_an_imported_policy_exported_again_is_one_that_the_crd_takes(name):
    found = yaml.safe_load_all((ROOT / f"tests/fixtures/{name}.yaml.txt").read_text())
    first = importer.run([{"source": str(n), "content": content} for n, content in enumerate(found)])
    made = export(first["variables"])
    for obj in made["objects"]:
        assert refused(obj) == []
    again = importer.run([{"source": str(n), "content": content} for n, content in enumerate(made["objects"])])
    expected = {key: value for key, value in first["variables"].items() if not key.startswith("driver_")}
    assert carried(again["variables"]) == carried(expected)
