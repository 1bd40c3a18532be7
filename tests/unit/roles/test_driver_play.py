"""The driver step of host.yml with its default, `verify`: it reports the driver without a remote call."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook, node_python, running, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def play(tmp_path):
    """play(playbook): (output, {host: names of the tasks that called the host}) on two captured nodes."""
    hosts = {}
    for name in ("h100-8x-cx7-ib", "doca-loaded-differs-from-disk"):
        tree.lay_out(tree.load(name), tmp_path / name)
        hosts[name] = {"discovery_root": str(tmp_path / name), "limits_services": ["containerd"]}
    common = {"ansible_connection": "local", "ansible_python_interpreter": node_python.path(), "ansible_become": False}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"vars": common, "hosts": hosts}}))

    def run(playbook):
        record = tmp_path / f"record-{playbook}"
        done = subprocess.run(
            [ansible_playbook.path(), "-i", "hosts.yml", f"gpufabric.rdma.{playbook}"],
            cwd=tmp_path,
            env={
                **os.environ,
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
                **running.environment(record),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told = running.written(record)
        # A local connection does not pipeline: a module is several calls, each named by task and effect.
        return done.stdout, {host: {call.partition(" [")[0] for call in told[host]["calls"]} for host in hosts}

    return run


def test_inside_host_it_says_what_is_there_without_a_remote_call(play):
    output, calls = play("host")
    plan = output.partition("PLAY [Report or upgrade the HCA driver]")[0]
    assert "the modules in memory" in plan or "mlx5_core in memory is" in plan
    assert "    driver: Loaded: doca" in plan
    for tasks in calls.values():
        assert tasks, "the run did call the node"
        assert not [task for task in tasks if task.startswith(("gpufabric.rdma.driver", "Gather RDMA facts"))]


def test_run_alone_it_reads_the_node_once(play):
    _output, calls = play("upgrade_driver")
    for tasks in calls.values():
        assert tasks == {"gpufabric.rdma.discovery : Gather facts of the node"}
