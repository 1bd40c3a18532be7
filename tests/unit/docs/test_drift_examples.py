"""docs/examples/drift: the commands in the examples give drift's exit codes here; make lint checks their schemas.

That a platform runs them so is not verified: none of them is here.
"""

from __future__ import annotations

import configparser
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs/examples/drift"
SYSTEM = "/usr/share/ansible/collections"


def load(name):
    return yaml.safe_load((EXAMPLES / name).read_text())


def unit(name):
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read(EXAMPLES / name)
    return parser


def test_the_tekton_task_refers_only_to_what_it_declares():
    task = load("tekton.yaml")
    assert (task["apiVersion"], task["kind"]) == ("tekton.dev/v1", "Task")
    spec = task["spec"]
    text = json.dumps(spec["steps"])
    declared = {f"params.{item['name']}" for item in spec["params"]}
    declared |= {f"workspaces.{item['name']}.path" for item in spec["workspaces"]}
    declared |= {f"results.{item['name']}.path" for item in spec["results"]}
    used = {part.partition(")")[0] for part in text.split("$(")[1:]}
    assert used == declared - {"workspaces.ssh.path"}
    assert all(step["name"] and step["image"] for step in spec["steps"])


def test_the_units_are_ones_that_systemd_reads(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("not verified: no systemd-analyze here")
    for name in ("gpufabric-drift.service", "gpufabric-drift.timer"):
        shutil.copy(EXAMPLES / name, tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "gpufabric-drift.timer", tmp_path / "gpufabric-drift.service"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert [line for line in done.stderr.splitlines() if "gpufabric-drift" in line] == []


def test_every_example_says_that_its_platform_has_not_been_seen():
    names = {path.name for path in EXAMPLES.iterdir()}
    for name in names - {"gpufabric-drift.timer"}:
        assert "Not verified: " in (EXAMPLES / name).read_text(), name
    page = (ROOT / "docs/drift.md").read_text()
    assert [name for name in names if f"examples/drift/{name})" not in page] == []


def github():
    (step,) = [step for step in load("github-actions.yml")["jobs"]["drift"]["steps"] if step.get("name") == "Compare"]
    return step["run"], {}


def gitlab():
    return "\n".join(load("gitlab-ci.yml")["drift"]["script"]), {}


def tekton():
    (step,) = load("tekton.yaml")["spec"]["steps"]
    return step["script"], {"INVENTORY": "inventory", "RESULT": "result"}


def systemd():
    return unit("gpufabric-drift.service")["Service"]["ExecStart"], {}


COMMANDS = {"github-actions": github, "gitlab-ci": gitlab, "tekton": tekton, "ansible-pull": systemd}


@pytest.fixture
def checkout(tmp_path):
    """A repository with an inventory, and the collection where the examples expect it."""
    for folder in ("collections", "system"):
        place = tmp_path / folder / "ansible_collections/gpufabric"
        place.mkdir(parents=True)
        (place / "rdma").symlink_to(ROOT)
    (tmp_path / "drift.yml").write_text("- ansible.builtin.import_playbook: gpufabric.rdma.drift\n")

    def describe(host):
        variables = {"ansible_python_interpreter": node_python.path(), "ansible_become": False}
        inventory = {"gpu_nodes": {"hosts": {"localhost": {**variables, **host}}}}
        (tmp_path / "inventory").write_text(yaml.safe_dump(inventory))
        return tmp_path

    return describe


def run(folder, command, settings):
    """The command as the platform's shell would run it; paths of the machine and the Git server are the test's own."""
    repository = folder / "repository"
    if "ansible-pull" in command:
        repository.mkdir()
        for name in ("inventory", "drift.yml"):
            shutil.copy(folder / name, repository)
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "-m", "x"]):
            subprocess.run(["git", *words], cwd=repository, check=True)
    for theirs, ours in (
        (SYSTEM, str(folder / "system")),
        ("https://git.example.com/fabric/inventory.git", str(repository)),
        ("/var/lib/gpufabric-drift", str(folder / "state")),
        ("/var/lib/prometheus/node-exporter", str(folder / "textfiles")),
        ("/usr/bin/python3", shlex.quote(sys.executable)),
    ):
        command = command.replace(theirs, ours)
    return subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env={
            **os.environ,
            **settings,
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


@pytest.mark.parametrize("code", [2, 4])
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_command_of_an_example_gives_the_exit_code_of_the_worst_host(checkout, command, code, tmp_path):
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    host = away
    if code == 2:
        tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "node")
        host = {"ansible_connection": "local", "discovery_root": str(tmp_path / "node"), "limits_services": ["k3s"]}
    words, settings = command()
    done = run(checkout(host), words, settings)
    assert done.returncode == code, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "drift/verdict.json").read_text())
    assert verdict["exit_code"] == code
    if settings:
        assert (tmp_path / "result").read_text() == str(code)
    if command is systemd:
        assert f"exit_code {code}" in (tmp_path / "textfiles/gpufabric-drift.prom").read_text()
