"""The device plugin in pods: the service gives way to the DaemonSet, and back.

The image is built as bundle.yml does, on a base out of the node's own Debian instead of a registry's.
"""

import hashlib
import json
import subprocess

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._bundle import plugin_image
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import wheels
from ansible_collections.gpufabric.rdma.tests.tools import lab_pitfalls as pitfalls
from ansible_collections.gpufabric.rdma.tests.tools.base_images import base_archive
from ansible_collections.gpufabric.rdma.tests.tools.lab_cluster import CHECKOUT

LOCK = yaml.safe_load((CHECKOUT / "lock/artifacts.yml").read_text())
REFERENCE = LOCK["plugin_image"]["reference"]
BASE = "cd / && tar -c bin lib lib64 sbin usr/bin/python3* usr/lib64 usr/lib/python3.11 usr/lib/x86_64-linux-gnu/*.so*"
DAEMONSET = ("daemonset", "rdma-shared-dp-ds", "-n", "kube-system")


@pytest.fixture
def image(breakable, tmp_path):
    """The plugin's image in the lab's bundle folder."""
    folder, path = breakable.state / "bundle", "images/amd64/rdma-device-plugin.tar"
    labctl = [CHECKOUT / "lab/labctl", "ssh", breakable.worker, BASE]
    files = subprocess.run(labctl, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout
    parts = {
        "code": plugin_image.code(str(CHECKOUT)),
        "wheel_dir": str(folder / "wheels"),
        "fitting": lambda python, machine: wheels.fitting(LOCK["wheels"], python, machine),
    }
    base = base_archive(tmp_path / "base.tar", files)
    plugin_image.build(base, str(folder / path), "Debian 12", REFERENCE, "amd64", parts)
    listed = (folder / "bundle.yml").read_text()
    sha256 = hashlib.sha256((folder / path).read_bytes()).hexdigest()
    row = {"reference": REFERENCE, "architecture": "amd64", "path": path, "sha256": sha256}
    whole = json.loads(listed)
    (folder / "bundle.yml").write_text(json.dumps({**whole, "images": [*whole["images"], row]}))
    yield
    (folder / "bundle.yml").write_text(listed)
    (folder / path).unlink()


def served_by(cluster):
    """(states of the services on all nodes, number of ready pods of the DaemonSet, what the worker offers)."""
    active = {cluster.node(name, "systemctl is-active rdma-device-plugin || true") for name in cluster.nodes}
    pods = cluster.get(*DAEMONSET).get("status", {}).get("numberReady", 0)
    return active, pods, cluster.allocatable(pitfalls.RESOURCE)


@pytest.mark.usefixtures("image")
def test_the_service_gives_way_to_the_daemonset_and_back(breakable):
    before = served_by(breakable)
    assert before[:2] == ({"active"}, 0)

    for mode, (state, pods) in {"daemonset": ("inactive", len(breakable.nodes)), "systemd": ("active", 0)}.items():
        given = ("-e", json.dumps({"device_plugin_mode": mode, "device_plugin_migrate_allowed": True}))
        with breakable.timed(f"site.yml with device_plugin_mode: {mode}"):
            done = breakable.succeed("site.yml", *given)
        assert [done.checks(name, "failed") for name in breakable.nodes] == [[]] * len(breakable.nodes)
        assert served_by(breakable) == ({state}, pods, before[2])
        again = breakable.succeed("site.yml", *given)
        assert [again.changes(name) for name in breakable.nodes] == [set()] * len(breakable.nodes)
