"""playbooks/verify.yml and playbooks/report.yml on laid-out trees: the results are written even if checks fail."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._report import document
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, tree
from ansible_collections.gpufabric.rdma.tests.tools import report_documents as made

ROOT = pathlib.Path(__file__).resolve().parents[4]


@pytest.fixture
def play(tmp_path):
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}

    def run(name, *arguments):
        done = subprocess.run(
            [ansible_playbook.path(), f"gpufabric.rdma.{name}", *arguments],
            capture_output=True,
            text=True,
            env={**environment, "ANSIBLE_NOCOLOR": "1"},
            cwd=tmp_path,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_results_of_a_failed_verification_become_a_page(play, tmp_path):
    tree.lay_out(tree.load("gh200-cx7-roce"), tmp_path / "node")
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": node_python.path(),
        "ansible_become": False,
        "discovery_root": str(tmp_path / "node"),
        "limits_services": ["containerd"],
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": {"node1": host}}}))
    code, output = play("verify", "-i", "hosts.yml", "-e", "verification_results=results.json")
    assert code != 0, output
    results = json.loads((tmp_path / "results.json").read_text())
    assert document.findings(results) == []
    assert [node["host"] for node in results["nodes"]] == ["node1"]
    assert results["nodes"][0]["facts"]["hcas"][0]["name"] == "mlx5_0"
    assert "failed" in {item["status"] for item in results["nodes"][0]["checks"]}

    given = ("-e", "report_results=results.json", "-e", "report_directory=out")
    code, output = play("report", *given, "--check")
    assert (code, (tmp_path / "out").exists()) == (0, False), output
    code, output = play("report", *given)
    assert code == 0, output
    assert f"1 of 1 node needs attention: {tmp_path}/out/report.html" in output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.json", "report.xml"}
    code, output = play("report", *given)
    assert "changed=0" in output


def test_files_that_are_no_such_documents_are_refused_together_and_nothing_is_written(play, tmp_path):
    wrong = made.lab()
    wrong["nodes"][0]["checks"][0]["status"] = "fine"
    (tmp_path / "results.json").write_text(json.dumps(wrong))
    (tmp_path / "drift.json").write_text("{")
    files = ("results.json", "drift.json", "matrix.json")
    given = [f"-ereport_{name.partition('.')[0]}={name}" for name in files]
    code, output = play("report", *given)
    assert code != 0
    assert "Nothing was written; problems: 3" in output
    assert "$.nodes[0].checks[0].status: wanted one of passed, failed, not_verified, unused, seen 'fine'" in output
    assert (
        "drift.json: the file: wanted the drift document that playbooks/drift.yml writes, seen not valid JSON" in output
    )
    assert "matrix.json: the file: wanted the matrix document" in output
    assert not (tmp_path / "report").exists()


def test_without_results_it_says_how_to_get_them(play):
    code, output = play("report")
    assert code != 0
    assert "ansible-playbook gpufabric.rdma.verify -e verification_results=results.json" in output
