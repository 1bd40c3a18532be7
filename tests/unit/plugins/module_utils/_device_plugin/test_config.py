"""The device plugin's configuration: made of rails, or of a list as it is."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import config
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._bundle import device_plugin as code
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host

ROOT = pathlib.Path(__file__).resolve().parents[5]
RAILS = [
    {"index": 0, "hca": "mlx5_0", "port": 1, "netdev": "ens8f0np0", "pci": "0000:18:00.0"},
    {"index": 1, "hca": "mlx5_1", "port": 1, "netdev": None, "pci": "0000:2a:00.0"},
    {"index": 2, "hca": "rxe0", "port": 1, "netdev": "eth1", "pci": None},
]


def test_each_rail_becomes_a_resource_of_63_that_sets_no_link_up():
    made = json.loads(config.document("rails", RAILS, 300))
    assert made["periodicUpdateInterval"] == 300
    assert made["configList"] == [
        {
            "resourceName": "hca_shared_devices_0",
            "rdmaHcaMax": 63,
            "selectors": {"ifNames": ["ens8f0np0"]},
            "linkUp": False,
            "topology": "auto",
        },
        {
            "resourceName": "hca_shared_devices_1",
            "rdmaHcaMax": 63,
            "extraSelectors": {"pciAddresses": ["0000:2a:00.0"]},
            "linkUp": False,
            "topology": "auto",
        },
        {
            "resourceName": "hca_shared_devices_2",
            "rdmaHcaMax": 63,
            "selectors": {"ifNames": ["eth1"]},
            "softwareDevices": True,
            "linkUp": False,
            "topology": "auto",
        },
    ]


def test_the_plugin_takes_what_is_made_of_rails(tmp_path):
    (tmp_path / "plugin.pyz").write_bytes(code.archive(ROOT))
    (tmp_path / "config.json").write_text(config.document("rails", RAILS, 300))
    command = [sys.executable, "-I", "-B", tmp_path / "plugin.pyz", "check-config", "-strict", tmp_path / "config.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rdma/hca_shared_devices_0 (63), rdma/hca_shared_devices_1 (63)" in done.stdout


def test_a_list_passes_through_as_it_is():
    given = [{"ResourceName": "a", "whatever": [1], "linkup": False}, {"resourceName": "b"}]
    assert json.loads(config.document(given, None, 0)) == {"periodicUpdateInterval": 0, "configList": given}
    assert config.names(given) == ["a", "b"]
    assert config.sets_links_up(given)
    assert not config.sets_links_up(given[:1])


@pytest.mark.parametrize("given", ["rail", [], ["a"], {"resourceName": "a"}, None])
def test_other_input_is_refused_with_what_was_seen(given):
    with pytest.raises(ValueError, match="wanted rails, or a list of mappings"):
        config.document(given, RAILS, 300)


@pytest.mark.parametrize("rails", [None, []])
def test_rails_that_are_not_there_are_no_empty_config(rails):
    with pytest.raises(ValueError, match="wanted one rail or more"):
        config.document("rails", rails, 300)


def test_the_preflight_of_all_roles_tells_what_no_type_can(variables, options):
    assert host.values(variables, options) == []
    variables.update(device_plugin_resources="rail", device_plugin_interval_seconds=-1)
    told = {finding.object: finding.wanted for finding in host.values(variables, options)}
    assert told == {
        "variable device_plugin_resources": "rails, or a list of mappings as in configList",
        "variable device_plugin_interval_seconds": "0 or more",
    }
