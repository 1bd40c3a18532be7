"""discover_query: one JMESPath expression over the facts of all nodes, through the playbook."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import tree

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def discover(tmp_path):
    def run(*arguments, hosts, **variables):
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts}}))
        words = [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "gpufabric.rdma.discover"]
        environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **variables}
        done = subprocess.run(
            [*words, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_nodes_answer_and_one_that_cannot_be_reached_is_named(discover, tmp_path):
    tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "root")
    local = {"ansible_connection": "local", "ansible_become": False, "discovery_root": str(tmp_path / "root")}
    local["ansible_python_interpreter"] = sys.executable
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": False}
    words = (
        "-e",
        "discover_query=hcas[].ports[?state=='DOWN'][].[number,state]",
        "-e",
        f"discover_json={tmp_path}/a",
    )
    _code, output = discover(*words, hosts={"here": local, "gone": gone})
    assert 'here: [1, "DOWN"]' in output
    assert "gone: not read: " in output
    document = json.loads((tmp_path / "a").read_text())
    assert (document["answers"], list(document["unread"])) == ({"here": [[1, "DOWN"]]}, ["gone"])


@pytest.mark.parametrize(
    ("words", "without", "said"),
    [
        ("discover_query=hcas[?", False, "query hcas[?"),
        ("discover_query=fewest(hcas)", False, "query fewest(hcas)"),
        ("discover_query=hcas", True, "-m pip install jmespath"),
        ("discover_captures=x", False, "variable discover_captures"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_node_is_called(discover, tmp_path, words, without, said):
    if without:
        (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['jmespath'] = None\n")
    code, output = discover("-e", words, hosts={"gone": {"ansible_host": "192.0.2.1"}}, PYTHONPATH=str(tmp_path))
    assert code, output
    assert said in output
    assert "UNREACHABLE" not in output
