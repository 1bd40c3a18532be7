"""discover_query: one question to all nodes, or to a folder of captures, through the playbook."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
# As a shell hands it over. Ansible splits such a value at its spaces.
OLD = "discover_query=hcas[?firmware < '28.40'].[name, firmware]"


@pytest.fixture
def discover(tmp_path):
    def run(*arguments, hosts=None, program=None, **variables):
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts or {}}}))
        done = subprocess.run(
            [*(program or [ansible_playbook.path()]), "-i", "hosts.yml", "gpufabric.rdma.discover", *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **variables},
            cwd=tmp_path,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_captures_answer_as_a_table_and_as_json(discover, tmp_path):
    (tmp_path / "captured").mkdir()
    for name in ("bond", "gh200-cx7-roce"):
        tree.write(name, tmp_path / "captured")
    (tmp_path / "captured/notes.yml").write_text("- buy a cable")
    code, output = discover("-e", "discover_captures=captured", "-e", OLD, "-e", f"discover_json={tmp_path}/out.json")
    assert code == 0, output
    assert "bond  mlx5_bond_0  22.39.2048" in output
    assert "1 of 3 nodes have an answer, 1 in all." in output
    assert "notes: not read: notes.yml is not a capture" in output
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["answers"] == {"bond": [["mlx5_bond_0", "22.39.2048"]], "gh200-cx7-roce": []}


def test_nodes_answer_and_one_that_cannot_be_reached_is_named(discover, tmp_path):
    tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "root")
    local = {"ansible_connection": "local", "ansible_become": False, "discovery_root": str(tmp_path / "root")}
    local["ansible_python_interpreter"] = sys.executable
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": False}
    query = "discover_query=hcas[].ports[?state == 'DOWN'][].[number, state]"
    arguments = ("-e", query, "-e", f"discover_json={tmp_path}/out.json")
    _code, output = discover(*arguments, hosts={"here": local, "gone": gone})
    assert "here       1  DOWN" in output
    assert "1 of 2 nodes have an answer" in output
    assert "gone: not read: " in output
    assert "HCAS" not in output
    document = json.loads((tmp_path / "out.json").read_text())
    assert (document["answers"], list(document["unread"])) == ({"here": [[1, "DOWN"]]}, ["gone"])


@pytest.mark.parametrize(
    ("query", "said"),
    [("hcas[?", "wanted a JMESPath expression"), ("fewest(hcas)", "wanted functions of JMESPath, seen fewest()")],
)
def test_a_wrong_query_is_refused_before_a_node_is_called(discover, query, said):
    code, output = discover("-e", f"discover_query={query}", hosts={"gone": {"ansible_host": "192.0.2.1"}})
    assert code == 2, output
    assert said in output
    assert "UNREACHABLE" not in output


def test_a_controller_without_jmespath_is_refused_before_a_node_is_called(discover, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['jmespath'] = None\n")
    python = [sys.executable, "-m", "ansible", "playbook"]
    hosts = {"gone": {"ansible_host": "192.0.2.1"}}
    code, output = discover("-e", OLD, hosts=hosts, program=python, PYTHONPATH=str(tmp_path))
    assert code == 2, output
    assert "-m pip install jmespath" in output
    assert "UNREACHABLE" not in output
