"""Each inventory example passes the preflight of variables, and those with a fixture of their kind fit its facts."""

from __future__ import annotations

import pathlib

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.facts import gather
from ansible_collections.gpufabric.rdma.plugins.module_utils.hca.seams import Seams
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._preflight import host as preflight_host
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
