"""A run over no node has checked nothing: each playbook that is meant for nodes fails and names the group."""

from __future__ import annotations

import pathlib
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._core import libraries
from ansible_collections.gpufabric.rdma.tests.tools import running

ROOT = pathlib.Path(__file__).resolve().parents[3]
# What runs on the controller: no node is needed.
WITHOUT_NODES = ["bundle", "import_policy", "report"]
PLAYBOOKS = sorted({path.stem for path in ROOT.glob("playbooks/*.yml")} - {*WITHOUT_NODES})


def run(tmp_path, playbook, inventory, *arguments, **options):
    """Output of a run that is refused before any node is called, in one line."""
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    code, output = running.play(tmp_path, "-i", "hosts.yml", f"gpufabric.rdma.{playbook}", *arguments, **options)
    assert (code, "UNREACHABLE" in output) == (2, False), output
    return " ".join(output.split())


OTHERS = {"gpu_node": {"hosts": {"a": {"ansible_connection": "ssh", "ansible_host": "192.0.2.1"}}}}


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_an_inventory_without_the_group_is_refused(tmp_path, playbook):
    output = run(tmp_path, playbook, OTHERS)
    for text in ("group gpu_nodes", "at least one node", "hosts only in: gpu_node", "discovery_hosts"):
        assert text in output


@pytest.mark.parametrize(("inventory", "arguments", "words"), [
    ({"all": {"hosts": {}}}, (), ("group gpu_nodes", "no hosts")),
    ({"gpu_nodes": {"hosts": {}}}, (), ("group gpu_nodes", "no hosts")),
    ({**OTHERS, "gpu_nodes": {"hosts": {"b": {}}}}, ("--limit", "a"), ("group gpu_nodes", "none within --limit a")),
    (OTHERS, ("-e", "discovery_hosts=racks"), ("group racks", "hosts only in: gpu_node")),
])  # fmt: skip
def test_each_way_to_no_node_is_named(tmp_path, inventory, arguments, words):
    output = run(tmp_path, "discover", inventory, *arguments)
    assert [text for text in words if text not in output] == [], output


@pytest.mark.parametrize("playbook", WITHOUT_NODES)
def test_a_limit_without_the_controller_is_refused_where_nothing_else_works(tmp_path, playbook):
    output = run(tmp_path, playbook, OTHERS, "--limit", "a", "-e", "policy_files=none.yaml")
    assert "--limit a: wanted localhost" in output


def test_a_policy_is_compared_with_nodes_or_refused(tmp_path):
    (tmp_path / "policy.yml").write_text("{}")
    output = run(tmp_path, "import_policy", OTHERS, "-e", "policy_files=policy.yml", "-e", "policy_hosts=gpu_nodes")
    assert "group gpu_nodes: wanted at least one node" in output
    assert not (tmp_path / "group_vars").exists()


def test_a_controller_without_netaddr_is_refused_before_any_node_is_called(tmp_path):
    """The cluster layer met it after the host layer had changed the nodes; what refuses is first in each playbook."""
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['netaddr'] = None\n")
    python = [sys.executable, "-m", "ansible", "playbook"]
    inventory = {"gpu_nodes": {"hosts": {"a": {"ansible_host": "192.0.2.1"}}}}
    output = run(tmp_path, "site", inventory, program=python, PYTHONPATH=str(tmp_path))
    assert "-m pip install netaddr" in output


@pytest.mark.parametrize(("said", "answer"), [
    ({}, "site:cluster"),
    ({"cluster": None}, "site:cluster"),
    ({"cluster": "no"}, "Host layer only"),
    ({"cluster": True}, "Host and cluster layer, by cluster: true"),
    ({"k3s_bundle_dir": "/srv/bundle"}, "Host and cluster layer, by k3s_bundle_dir"),
    ({"cluster": False, "k3s_bundle_dir": "/srv/bundle"}, "Host layer only"),
])  # fmt: skip
def test_site_says_which_layers_it_runs_or_asks_before_any_node_is_called(tmp_path, said, answer):
    node = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9, **said}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": {"a": node}}}))
    _code, output = running.play(tmp_path, "-i", "hosts.yml", "gpufabric.rdma.site", ANSIBLE_SSH_TIMEOUT="2")
    assert answer in " ".join(output.split())
    assert ("Gather facts of the node" in output) is (answer != "site:cluster")


def test_a_controller_with_an_older_ansible_core_is_refused():
    assert [finding.id for finding in libraries.findings([], core="2.18.19")] == ["controller:ansible-core"]
    assert [libraries.findings([], core=core) for core in ("2.19.0", "2.20.1rc1", "2.21.4")] == [[], [], []]
