"""What actions write as YAML is made of values that the controller has tagged, as it tags all that it templates."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import yaml
from ansible.template import trust_as_template
from ansible_collections.gpufabric.rdma.plugins.plugin_utils._gitops import folder
from ansible_collections.gpufabric.rdma.tests.tools import node_python, tree

ROOT = pathlib.Path(__file__).resolve().parents[4]


def test_the_nccl_tests_job_of_two_nodes_is_written(tmp_path):
    hosts = {}
    for name in ("node1", "node2"):
        tree.lay_out(tree.load("h100-8x-cx7-ib"), tmp_path / name)
        hosts[name] = {"discovery_root": str(tmp_path / name)}
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": node_python.path(),
        "ansible_become": False,
        "limits_services": ["containerd"],
        "nccl_tests_image": f"registry.example.com/nccl-tests@sha256:{'a' * 64}",
        "nccl_tests_file": str(tmp_path / "job.yml"),
        "nccl_tests_gpus_per_node": "{{ 4 + 4 }}",
        "nccl_tests_networks": ["rail0", "of-mine/rail1"],
        "nccl_tests_namespace": "{{ 'of-' ~ 'mine' }}",
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": variables}}))
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "playbook", "-i", "hosts.yml", "gpufabric.rdma.nccl_tests"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    namespace, scripts, _service, job = yaml.safe_load_all((tmp_path / "job.yml").read_text())
    assert (namespace["metadata"]["name"], job["metadata"]["namespace"]) == ("of-mine", "of-mine")
    assert scripts["data"]["all_reduce.py"] == (ROOT / "roles/nccl_tests/files/all_reduce.py").read_text()
    worker = job["spec"]["template"]
    assert worker["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert '"namespace": "of-mine"' in worker["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]


def test_a_tagged_value_is_written_as_the_plain_one():
    plain = {"kind": "Policy", "metadata": {"name": "one"}, "data": {"x": "a\nb\n"}}
    tagged = {"kind": trust_as_template("Policy"), "metadata": {"name": trust_as_template("one")}}
    tagged["data"] = {"x": trust_as_template("a\nb\n")}
    assert tagged["kind"].__class__ is not str
    assert folder.text(tagged) == folder.text(plain)
