"""import_policy, run for real: files in, variables out, check mode, bad input, nodes to compare with."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
GUIDE = tree.texts("guides") / "001-nicclusterpolicy.txt"


@pytest.fixture
def play(tmp_path):
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "PWD": str(tmp_path),
    }

    def run(playbook, *arguments, **variables):
        common = {
            "ansible_python_interpreter": node_python.path(),
            "ansible_become": False,
            "ansible_connection": "local",
        }
        inventory = tmp_path / "hosts.yml"
        hosts = {"h1": variables} if variables else {}
        inventory.write_text(yaml.safe_dump({"gpu_nodes": {"vars": common, "hosts": hosts}}))
        command = [
            ansible_playbook.path(),
            "-i",
            inventory,
            f"gpufabric.rdma.{playbook}",
            *arguments,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def node(tmp_path):
    root = tmp_path / "node"
    tree.lay_out(tree.load("h100-8x-cx7-ib"), root)
    return {"discovery_root": str(root)}


def test_a_policy_becomes_a_file_of_variables_and_is_explained(play, tmp_path):
    wanted = tmp_path / "group_vars/gpu_nodes/policy.yml"
    code, output = play("import_policy", "-e", f"policy_files={GUIDE}", "--check", "--diff")
    assert code == 0, output
    assert not wanted.exists()
    assert "+driver_flavor: verify" in output
    code, output = play("import_policy", "-e", f"policy_files={GUIDE}")
    assert code == 0, output
    assert "wrong     spec.secondaryNetwork.nvIpam.image" in output
    assert "not verified: no node was read" in output
    assert yaml.safe_load(wanted.read_text())["networks_components"] == ["ipoib-cni", "nv-ipam"]
    code, output = play("import_policy", "-e", f"policy_files={GUIDE}")
    assert "changed=0" in output


def test_with_nodes_names_and_drivers_are_compared(play, node):
    code, output = play("import_policy", "-e", f"policy_files={GUIDE}", "-e", "policy_hosts=gpu_nodes", **node)
    assert code == 0, output
    assert "matches nothing on h1" in output
    assert "not verified" not in output


def test_all_problems_of_all_files_come_at_once_and_nothing_is_written(play, tmp_path):
    (tmp_path / "a.yaml").write_text("kind: IPPool\nkind: IPPool\n")
    (tmp_path / "b.yaml").write_text("apiVersion: v1\n")
    network = {"apiVersion": "mellanox.com/v1alpha1", "kind": "MacvlanNetwork", "metadata": {"name": "n"}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**network, "spec": {"mode": "bridge"}}))
    code, output = play("import_policy", "-e", "policy_files=a.yaml,b.yaml,c.yaml,d.yaml")
    assert code != 0
    for words in ("kind is a duplicate key", "a Kubernetes object", "MacvlanNetwork n spec.master", "No such file"):
        assert words in output
    assert not (tmp_path / "group_vars").exists()


def test_what_the_role_would_refuse_is_refused_here(play, tmp_path):
    network = {"apiVersion": "mellanox.com/v1alpha1", "kind": "MacvlanNetwork", "metadata": {"name": "n"}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({**network, "spec": {"master": "eth2", "mode": "sideways"}}))
    code, output = play("import_policy", "-e", "policy_files=c.yaml")
    assert code != 0
    assert "sideways" in output


def test_a_policy_of_some_nodes_becomes_a_file_of_a_group_and_no_template(play, tmp_path):
    plugin = {
        "image": "p",
        "config": '{"configList": [{"resourceName": "a", "selectors": {"ifNames": ["{{ 7 * 6 }}"]}}]}',
    }
    spec = {"nodeSelector": {"pool": "trainers"}, "rdmaSharedDevicePlugin": plugin}
    policy = {
        "apiVersion": "mellanox.com/v1alpha1",
        "kind": "NicNodePolicy",
        "metadata": {"name": "trainers"},
        "spec": spec,
    }
    (tmp_path / "in.yml").write_text(yaml.safe_dump(policy))
    code, output = play("import_policy", "-e", f"policy_files={tmp_path}/in.yml")
    assert code == 0, output
    written = (tmp_path / "group_vars/trainers/policy.yml").read_text()
    assert "!unsafe '{{ 7 * 6 }}'" in written
    assert yaml.safe_load((tmp_path / "group_vars/gpu_nodes/policy.yml").read_text()) == {}
