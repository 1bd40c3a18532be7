"""The plugin's configuration, of rails or a list as it is, and what a cluster gets before nodes serve over DRA."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config, dra
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin as code
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host

ROOT = pathlib.Path(__file__).resolve().parents[5]
RAILS = [
    {"index": 0, "hca": "mlx5_0", "port": 1, "netdev": "ens8f0np0", "pci": "0000:18:00.0"},
    {"index": 1, "hca": "mlx5_1", "port": 1, "netdev": None, "pci": "0000:2a:00.0"},
    {"index": 2, "hca": "rxe0", "port": 1, "netdev": "eth1", "pci": None},
]


def test_each_rail_becomes_a_resource_of_63_that_sets_no_link_up():
    made = json.loads(config.document(config.entries("rails", RAILS), 300))
    assert made["periodicUpdateInterval"] == 300
    same = {"rdmaHcaMax": 63, "linkUp": False, "topology": "auto"}
    assert made["configList"] == [
        {"resourceName": "hca_shared_devices_0", "selectors": {"ifNames": ["ens8f0np0"]}, **same},
        {"resourceName": "hca_shared_devices_1", "extraSelectors": {"pciAddresses": ["0000:2a:00.0"]}, **same},
        {"resourceName": "hca_shared_devices_2", "selectors": {"ifNames": ["eth1"]}, "softwareDevices": True, **same},
    ]


def test_the_plugin_takes_what_is_made_of_rails(tmp_path):
    (tmp_path / "plugin.pyz").write_bytes(code.archive(ROOT))
    (tmp_path / "config.json").write_text(config.document(config.entries("rails", RAILS), 300))
    command = [sys.executable, "-I", "-B", tmp_path / "plugin.pyz", "check-config", "-strict", tmp_path / "config.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rdma/hca_shared_devices_0 (63), rdma/hca_shared_devices_1 (63)" in done.stdout


def test_a_list_passes_through_as_it_is():
    given = [{"ResourceName": "a", "whatever": [1], "linkup": False}, {"resourceName": "b"}]
    assert json.loads(config.document(config.entries(given, None), 0))["configList"] == given
    assert config.names(given) == ["a", "b"]
    assert config.sets_links_up(given)
    assert not config.sets_links_up(given[:1])


@pytest.mark.parametrize(
    ("given", "rails"),
    [*((given, RAILS) for given in ("rail", [], ["a"], {"resourceName": "a"})), ("rails", None), ("rails", [])],
)
def test_other_input_and_no_rails_are_refused(given, rails):
    with pytest.raises(ValueError, match="one rail or more" if given == "rails" else "a list of mappings"):
        config.entries(given, rails)


def test_the_preflight_of_all_roles_tells_what_no_type_can(variables, options):
    assert host.values(variables, options) == []
    variables.update(device_plugin_resources="rail", device_plugin_interval_seconds=-1)
    told = {finding.object for finding in host.values(variables, options)}
    assert told == {"variable device_plugin_resources", "variable device_plugin_interval_seconds"}


# --- over DRA ---------------------------------------------------------------------------------------------------------


def hca(number, **more):
    return {
        "name": f"mlx5_{number}",
        "pci": {"address": f"0000:{number}8:00.0", "vendor": "15b3", "device": "1021", "driver": "mlx5_core"},
        "netdevs": [{"name": f"eth{number}", "type": "ether"}],
        **more,
    }


FACTS = {
    "hcas": [hca(0), hca(1), hca(2)],
    "rails": [
        {"index": number, "hca": f"mlx5_{number}", "netdev": f"eth{number}", "pci": f"0000:{number}8:00.0"}
        for number in range(3)
    ],
}
SETTINGS = {"in_pods": False, "namespace": "gpufabric-rdma", "extended_resources": True}


def entry(name, api=None, **selectors):
    return {"resourceName": name, "rdmaHcaMax": 8, **({"api": api} if api else {}), **selectors}


OTHER_CASE = {"resourcename": "b", "RESOURCEPREFIX": "x.io", "Api": "dra"}
OTHER_CASE["extraselectors"] = {"rdmadevices": ["mlx5_[2]"]}


def rails(resources, api, dra_rails=()):
    return dra.rails(dra.served(resources, api, dra_rails, FACTS)[1], FACTS)


@pytest.mark.parametrize(
    ("resources", "api", "dra_rails", "wanted"),
    [
        ("rails", "dra", (), {number: f"rdma/hca_shared_devices_{number}" for number in range(3)}),
        ("rails", "both", (1,), {1: "rdma/hca_shared_devices_1"}),
        ("rails", "both", (), {}),
        # A pool of all HCAs stands for no single rail.
        ([entry("pool", selectors={"vendors": ["15b3"]})], "dra", (), {0: None, 1: None, 2: None}),
        # Keys in any case, our own prefix, a shell pattern, the other entry left to the device plugin.
        ([entry("a", selectors={"ifNames": ["eth0"]}), OTHER_CASE], "both", (), {2: "x.io/b"}),
        # Two entries on one HCA: which of them a request for the rail means is not known.
        ([entry("a", devices=["eth0"]), entry("b", selectors={"ifNames": ["eth0"]})], "dra", (), {0: None}),
    ],
)
def test_rails_over_dra_with_the_resource_that_stands_for_each(resources, api, dra_rails, wanted):
    assert rails(resources, api, dra_rails) == wanted


def test_the_config_says_which_entries_are_of_dra_and_is_as_before_without():
    assert not [item for item in config.entries("rails", FACTS["rails"]) if {"api", "rail"} & set(item)]
    for api, chosen, wanted in (
        ("both", [2], [(None, None), (None, None), ("dra", 2)]),
        ("dra", [], [(None, 0), (None, 1), (None, 2)]),
    ):
        made = config.entries("rails", FACTS["rails"], api, chosen)
        assert [(item.get("api"), item.get("rail")) for item in made] == wanted


@pytest.mark.parametrize(
    ("selected", "names"),
    [
        ({"selectors": {"vendors": ["15b3"], "ifNames": ["eth1", "eth2"]}}, ["mlx5_1", "mlx5_2"]),
        ({"selectors": {"vendors": []}, "extraSelectors": {"pciAddresses": ["0000:1*"]}}, ["mlx5_1"]),
        ({"selectors": {"linkTypes": ["infiniband"]}}, []),
        ({"extraSelectors": {"pKeys": ["0x8001"], "ifNames": ["eth[02]"]}}, ["mlx5_0", "mlx5_2"]),
    ],
)
def test_selectors_over_facts(selected, names):
    assert config.matching(selected, FACTS) == names


def test_software_hcas_only_where_the_entry_takes_them():
    facts = {"hcas": [{"name": "rxe0", "pci": None, "netdevs": [{"name": "eth2", "type": "ether"}]}]}
    chosen = {"selectors": {"ifNames": ["eth2"]}}
    assert config.matching(chosen, facts) == []
    assert config.matching({**chosen, "softwareDevices": True}, facts) == ["rxe0"]


def by_kind(nodes, **settings):
    made = dra.objects(nodes, {**SETTINGS, **settings})
    found: dict = {}
    for item in made:
        found.setdefault(item["kind"], []).append(item)
    return found


NODES = [{"name": "b.example", "rails": {0: "rdma/x", 1: "rdma/one"}}, {"name": "a", "rails": {0: "rdma/y"}}]


def test_classes_one_for_any_rail_and_one_for_each():
    made = {item["metadata"]["name"]: item["spec"] for item in by_kind(NODES)["DeviceClass"]}
    assert list(made) == ["rail.rdma.gpufabric.io", "rail-0.rdma.gpufabric.io", "rail-1.rdma.gpufabric.io"]
    # The nodes do not agree on the name of rail 0.
    assert [spec.get("extendedResourceName") for spec in made.values()] == [None, None, "rdma/one"]
    (selector,) = made["rail-1.rdma.gpufabric.io"]["selectors"]
    assert selector["cel"]["expression"].endswith("device.attributes['rdma.gpufabric.io'].rail == 1")
    assert not [one for one in by_kind(NODES, extended_resources=False)["DeviceClass"] if len(one["spec"]) > 1]


def test_a_service_has_an_account_of_its_node_and_a_daemonset_one_for_all():
    made = by_kind(NODES)
    accounts = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in made["ServiceAccount"]]
    assert accounts == [("gpufabric-rdma", "rdma-device-plugin-a"), ("gpufabric-rdma", "rdma-device-plugin-b.example")]
    (binding,) = made["ClusterRoleBinding"]
    assert [(one["namespace"], one["name"]) for one in binding["subjects"]] == accounts
    in_pods = by_kind(NODES, in_pods=True, namespace="kube-system")
    assert [item["metadata"]["name"] for item in in_pods["ServiceAccount"]] == ["rdma-device-plugin"]
    assert "Namespace" not in in_pods


def test_rights_are_those_and_no_more():
    (role,) = by_kind(NODES)["ClusterRole"]
    assert {(rule["resources"][0], *rule["verbs"]) for rule in role["rules"]} == {
        ("resourceslices", "get", "list", "watch", "create", "update", "patch", "delete"),
        ("resourceclaims", "get"),
        ("nodes", "get"),
    }
    assert dra.objects([], SETTINGS) == []
