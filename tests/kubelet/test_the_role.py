"""The role device_plugin on a node with a real kubelet: its own hardened unit, from the locked wheels."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from kubelet_bed import CHECKOUT, NODE, RAIL0, STATE, timed

WHEELS = CHECKOUT / "build/wheels"
RESOURCE = "rdma/rail0"
PLAY = [{"hosts": "all", "gather_facts": False, "roles": [{"role": "gpufabric.rdma.device_plugin"}]}]


@pytest.fixture
def role(bed, plugin, tmp_path):
    """Runs the role on the node; (exit code, output). Nothing of the other tests' plugin is left there."""
    if not WHEELS.is_dir():
        pytest.skip(f"not verified: {WHEELS} is not there (make plugin-wheels)")
    plugin.stop()
    bed.node(f"rm -f /etc/systemd/system/{plugin.name}.service && systemctl daemon-reload")
    bed.wait(lambda: bed.resource(RESOURCE)[1] in (None, "0"), f"{RESOURCE}: none allocatable")
    (tmp_path / "play.yml").write_text(json.dumps(PLAY))

    def run():
        given = {
            "device_plugin_resources": [RAIL0],
            "device_plugin_wheel_dir": str(WHEELS),
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        done = subprocess.run(
            [
                *("ansible-playbook", "-i", f"{NODE},", str(tmp_path / "play.yml"), "-e", json.dumps(given)),
                *("--ssh-common-args", f"-F {STATE}/ssh/config"),
            ],
            cwd=CHECKOUT,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    yield run
    plugin.stop()


def test_the_unit_of_the_role(bed, plugin, role, times):
    with timed(times, "role run on a node without the plugin -> allocatable"):
        code, output = role()
        assert code == 0, output
        bed.wait_resource(RESOURCE, 20, 20)
    assert "CapabilityBoundingSet=\n" in bed.node(f"systemctl cat {plugin.name}") + "\n"
    times["role's unit: pod applied -> Running"] = bed.run_pod(bed.pod("verbs", {RESOURCE: 1}, hostNetwork=True))
    assert "PORT_ACTIVE" in bed.inside("verbs", "ibv_devinfo -d rxe0")
    bed.take_port_down_and_up("role's unit")
    pid, before = plugin.pid(), bed.identity("verbs")
    code, output = role()
    assert code == 0, output
    assert "changed=0" in output, output
    assert (plugin.pid(), bed.identity("verbs")) == (pid, before)
    times["role's unit: k3s restarted -> allocatable"] = bed.restart_kubelet(RESOURCE, 20)[1]
    bed.remove_pods("verbs")
