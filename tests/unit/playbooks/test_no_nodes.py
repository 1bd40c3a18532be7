"""A run over no node has checked nothing: each playbook that is meant for nodes fails and names the group."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook

ROOT = pathlib.Path(__file__).resolve().parents[3]
# What runs on the controller: no node is needed.
WITHOUT_NODES = ["bundle", "import_policy", "report"]
PLAYBOOKS = sorted({path.stem for path in ROOT.glob("playbooks/*.yml")} - {*WITHOUT_NODES, "controller"})


def run(tmp_path, playbook, inventory, *arguments, program=None, **variables):
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    environment = {"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(
        [*(program or [ansible_playbook.path()]), "-i", "hosts.yml", f"gpufabric.rdma.{playbook}", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment, "ANSIBLE_NOCOLOR": "1", **variables},
        cwd=tmp_path,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


OTHERS = {"gpu_node": {"hosts": {"a": {"ansible_connection": "ssh", "ansible_host": "192.0.2.1"}}}}


@pytest.mark.parametrize("playbook", PLAYBOOKS)
def test_an_inventory_without_the_group_is_refused(tmp_path, playbook):
    code, output = run(tmp_path, playbook, OTHERS)
    assert code == 2, output
    for text in ("group gpu_nodes", "at least one node", "hosts only in: gpu_node", "discovery_hosts"):
        assert text in output
    assert "UNREACHABLE" not in output


CASES = [
    ({"all": {"hosts": {}}}, (), "group gpu_nodes", "no hosts"),
    ({"gpu_nodes": {"hosts": {}}}, (), "group gpu_nodes", "no hosts"),
    ({**OTHERS, "gpu_nodes": {"hosts": {"b": {}}}}, ("--limit", "a"), "group gpu_nodes", "none within --limit a"),
    (OTHERS, ("-e", "discovery_hosts=racks"), "group racks", "hosts only in: gpu_node"),
]


@pytest.mark.parametrize(("inventory", "arguments", "thing", "seen"), CASES)
def test_each_way_to_no_node_is_named(tmp_path, inventory, arguments, thing, seen):
    code, output = run(tmp_path, "discover", inventory, *arguments)
    assert code == 2, output
    assert thing in output
    assert seen in output


@pytest.mark.parametrize("playbook", WITHOUT_NODES)
def test_a_limit_without_the_controller_is_refused_where_nothing_else_works(tmp_path, playbook):
    code, output = run(tmp_path, playbook, OTHERS, "--limit", "a", "-e", "policy_files=none.yaml")
    assert code == 2, output
    assert "--limit a: wanted localhost" in " ".join(output.split())


def test_a_policy_is_compared_with_nodes_or_refused(tmp_path):
    (tmp_path / "policy.yml").write_text("{}")
    arguments = ("-e", "policy_files=policy.yml", "-e", "policy_hosts=gpu_nodes")
    code, output = run(tmp_path, "import_policy", OTHERS, *arguments)
    assert code == 2, output
    for text in ("group gpu_nodes: wanted at least one node", "hosts only in: gpu_node", "-e policy_hosts=GROUP"):
        assert text in " ".join(output.split())
    assert not (tmp_path / "group_vars").exists()


def test_a_controller_without_netaddr_is_refused_before_any_node_is_called(tmp_path):
    """The cluster layer met it after the host layer had changed the nodes; what refuses is first in each playbook."""
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['netaddr'] = None\n")
    inventory = {"gpu_nodes": {"hosts": {"a": {"ansible_host": "192.0.2.1"}}}}
    python = [sys.executable, "-m", "ansible", "playbook"]
    code, output = run(tmp_path, "site", inventory, program=python, PYTHONPATH=str(tmp_path))
    assert code == 2, output
    for text in ("the Python library netaddr", "seen none in", "-m pip install netaddr"):
        assert text in " ".join(output.split())
    assert "UNREACHABLE" not in output
