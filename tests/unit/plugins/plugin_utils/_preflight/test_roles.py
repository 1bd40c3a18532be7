"""Rules over a role's variables that need more than one of them."""

from __future__ import annotations

import pathlib

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import roles

ROLES = pathlib.Path(__file__).resolve().parents[5] / "roles"
IMAGE = "localhost/rdma-device-plugin:0.1.0"
GROUPS = {"all": ["node1"], "k3s_servers": ["node1"]}


def findings(bundle, **changes):
    values = {
        name: value
        for path in ROLES.glob("*/defaults/main.yml")
        for name, value in (yaml.safe_load(path.read_text()) or {}).items()
    }
    given = {"device_plugin_mode": "daemonset", "k3s_bundle_dir": "/srv/bundle", **changes}
    facts = {"rails": [{"index": 0, "netdev": "eth2", "hca": "mlx5_0", "pci": None}]}
    return roles.findings("device_plugin", {**values, **given}, facts, GROUPS, bundle)


def test_a_bundle_without_the_daemonsets_image_is_refused_with_the_command_that_adds_it():
    (finding,) = findings({"images": [{"reference": "ghcr.io/a/b:1"}]})
    assert finding.object == "bundle /srv/bundle"
    assert IMAGE in finding.wanted
    assert "-e bundle_dir=/srv/bundle -e bundle_plugin_image=true" in finding.next_step


@pytest.mark.parametrize(("bundle", "changes"), [
    ({"images": [{"reference": IMAGE}]}, {}),
    ({"images": []}, {"device_plugin_mode": "systemd"}),
    ({"images": []}, {"device_plugin_image": "registry.example.org/plugin:1"}),
    (None, {"k3s_bundle_dir": None}),
])  # fmt: skip
def test_what_the_bundle_brings_or_a_registry_has_is_no_finding(bundle, changes):
    assert findings(bundle, **changes) == []
