"""playbooks/verify.yml and playbooks/report.yml on laid-out trees: the results are written even if checks fail."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import jsonschema
import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, tree
from ansible_collections.gpufabric.rdma.tests.tools import report_documents as made

ROOT = pathlib.Path(__file__).resolve().parents[4]
VALIDATOR = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/schemas/results-1.json").read_text()))


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
    VALIDATOR.validate(results)
    assert [node["host"] for node in results["nodes"]] == ["node1"]
    assert results["nodes"][0]["facts"]["hcas"][0]["name"] == "mlx5_0"
    assert "failed" in {item["status"] for item in results["nodes"][0]["checks"]}

    given = ("-e", "report_results=results.json", "-e", "report_directory=out")
    code, output = play("report", *given, "--check")
    assert (code, (tmp_path / "out").exists()) == (0, False), output
    code, output = play("report", *given)
    assert code == 0, output
    assert f"{tmp_path}/out/report.html" in output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.json", "report.xml"}
    code, output = play("report", *given)
    assert "changed=0" in output


def test_files_that_are_no_such_documents_are_refused_together_and_nothing_is_written(play, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({**made.lab(), "schema": "gpufabric.rdma/results/2"}))
    (tmp_path / "drift.json").write_text("{")
    code, output = play("report", *[f"-ereport_{kind}={kind}.json" for kind in ("results", "drift", "matrix")])
    assert code != 0
    for name in ("results.json: schema", "drift.json: the file", "matrix.json: the file"):
        assert f"{name}: wanted" in output
    assert not (tmp_path / "report").exists()


def test_a_document_that_lacks_something_is_refused_and_nothing_is_written(play, tmp_path):
    wrong = made.lab()
    wrong["nodes"][0]["checks"][0]["status"] = "fine"
    (tmp_path / "results.json").write_text(json.dumps(wrong))
    code, output = play("report", "-ereport_results=results.json")
    assert code != 0
    assert "results.json: content: wanted" in output
    assert not (tmp_path / "report").exists()
