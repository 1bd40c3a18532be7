"""docs/examples/drift: the commands in the examples give drift's exit codes here; make lint checks their schemas.

That a platform runs them so is not verified: none of them is here.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs/examples/drift"
SYSTEM = "/usr/share/ansible/collections"


def load(name):
    return yaml.safe_load((EXAMPLES / name).read_text())


def test_the_page_lists_every_example():
    page = (ROOT / "docs/drift.md").read_text()
    assert [path.name for path in EXAMPLES.iterdir() if f"examples/drift/{path.name})" not in page] == []


def github():
    (step,) = [step for step in load("github-actions.yml")["jobs"]["drift"]["steps"] if step.get("name") == "Compare"]
    return step["run"]


def gitlab():
    return "\n".join(load("gitlab-ci.yml")["drift"]["script"])


@pytest.fixture
def checkout(tmp_path):
    """A repository with an inventory, and the collection where the examples expect it."""
    place = tmp_path / "collections/ansible_collections/gpufabric"
    place.mkdir(parents=True)
    (place / "rdma").symlink_to(ROOT)

    def describe(host):
        variables = {"ansible_python_interpreter": node_python.path(), "ansible_become": False}
        inventory = {"gpu_nodes": {"hosts": {"localhost": {**variables, **host}}}}
        (tmp_path / "inventory").write_text(yaml.safe_dump(inventory))
        return tmp_path

    return describe


def run(folder, command):
    """The command as the platform's shell would run it."""
    return subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_SSH_TIMEOUT": "3",
            "ANSIBLE_NOCOLOR": "1",
            "PATH": ansible_playbook.search_path(),
            "PWD": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("command", "code"), [(github, 2), (gitlab, 4)], ids=["github-actions", "gitlab-ci"])
def test_the_command_of_an_example_gives_the_exit_code_of_the_worst_host(checkout, command, code, tmp_path):
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    host = away
    if code == 2:
        tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "node")
        host = {"ansible_connection": "local", "discovery_root": str(tmp_path / "node"), "limits_services": ["k3s"]}
    done = run(checkout({"cluster": False, **host}), command())
    assert done.returncode == code, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "drift/verdict.json").read_text())
    assert verdict["exit_code"] == code
