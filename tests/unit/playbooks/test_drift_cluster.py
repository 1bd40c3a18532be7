"""Drift of the cluster layer: two laid-out nodes, a bundle, and a double of kubectl and its API server."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import subprocess
import sys

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._device_plugin import plan, wheels
from ansible_collections.gpufabric.rdma.tests.tools import ansible_playbook
from ansible_collections.gpufabric.rdma.tests.unit.roles import test_pod_network_roles as pod_network

ROOT = pathlib.Path(__file__).resolve().parents[3]
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
TOKEN = "4f7c-planted-cluster-token"
PASSWORD = "c0ffee-planted-registry-password"
CONFLIST = "etc/cni/gpufabric-rdma.d/10-flannel.conflist"
MAP = "ConfigMap/kube-flannel/kube-flannel-cfg"


class Cluster(pod_network.Site):
    """Both nodes with host layer and cluster layer."""

    def __init__(self, folder):
        super().__init__(folder)
        self._fill_bundle()
        self._install_packages()
        self.inventory = json.loads((folder / "hosts.json").read_text())
        nodes = self.inventory["gpu_nodes"]
        nodes["hosts"]["node1"]["k3s_node_ip"] = "198.18.1.2"
        nodes["hosts"]["node2"]["k3s_node_ip"] = "198.18.0.15"
        registries = {"configs": {"registry.example.com": {"auth": {"username": "u", "password": PASSWORD}}}}
        nodes["vars"].update(
            ansible_become=False,
            discovery_rails=[{"hca": "rxe0"}, {"hca": "rxe1"}],
            k3s_token=TOKEN,
            k3s_registries=registries,
        )
        self.environment = {
            **os.environ,
            "ANSIBLE_CONFIG": ansible_playbook.no_settings(),
            "ANSIBLE_COLLECTIONS_PATH": ":".join(sys.path),
            "ANSIBLE_SSH_TIMEOUT": "3",
            "LC_ALL": "C.UTF-8",
            "PATH": f"{folder / 'bin'}:{ansible_playbook.search_path()}",
            "PWD": str(folder),
        }

    def _fill_bundle(self):
        place = self.folder / "bundle"
        described = json.loads((place / "bundle.yml").read_text())
        sums = {}
        for name, content in (("k3s", b"program"), ("images.tar", b"images")):
            (place / name).write_bytes(content)
            sums[name] = hashlib.sha256(content).hexdigest()
        program = {"name": "k3s", "version": "v1.35.8+k3s1", "architecture": "amd64", "path": "k3s"}
        described["origin"] = "release"
        described["files"].append({**program, "sha256": sums["k3s"]})
        described["images"] = [{"reference": "a:1", "path": "images.tar", "sha256": sums["images.tar"]}]
        (place / "bundle.yml").write_text(json.dumps(described))

    def _install_packages(self):
        """Take the device plugin's environment for installed; the fast nodes install it for real, and offline."""
        locked = yaml.safe_load((ROOT / "lock/artifacts.yml").read_text())["wheels"]
        for root in self.nodes.values():
            stamp = root / plan.STAMP.lstrip("/")
            stamp.parent.mkdir(parents=True)
            stamp.write_text(wheels.stamp(locked, f"{sys.version_info[0]}.{sys.version_info[1]}"))

    def command(self, *words, **hosts):
        nodes = self.inventory["gpu_nodes"]
        changed = {name: {**variables, **hosts.get(name, {})} for name, variables in nodes["hosts"].items()}
        (self.folder / "hosts.json").write_text(
            json.dumps({**self.inventory, "gpu_nodes": {**nodes, "hosts": changed}})
        )
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def drift(self, *arguments, **hosts):
        """Exit code, {host: entry}, output; nodes and objects are the same before and after."""
        before = self.everything()
        script = str(ROOT / "bin/drift.py")
        code, output = self.command(sys.executable, script, "-i", "hosts.json", "--diff", "-v", *arguments, **hosts)
        assert self.everything() == before
        written = {path.name: path.read_text() for path in (self.folder / "drift").iterdir()}
        for secret in (TOKEN, PASSWORD, pod_network.CLEAR, pod_network.SECRET):
            assert secret not in output
            assert [name for name, text in written.items() if secret in text] == []
        return code, {entry["host"]: entry for entry in json.loads(written["drift.json"])["hosts"]}, output

    def everything(self):
        files = {
            str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
            for root in self.nodes.values()
            for directory in ("etc", "opt", "usr", "var", "run", "boot")
            for path in (root / directory).rglob("*")
            if not path.is_symlink()
        }
        return files, self.cluster.objects


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    playbooks = ("gpufabric.rdma.host", "gpufabric.rdma.cluster")
    code, output = found.command("ansible-playbook", "-i", "hosts.json", *playbooks)
    assert code == 0, output
    return found


def differences(entry):
    return {(item["role"], item["object"]) for item in entry["differences"]}


def test_a_converged_cluster_gives_0(cluster):
    code, hosts, output = cluster.drift()
    assert code == 0, output
    assert {name: entry["verdict"] for name, entry in hosts.items()} == dict.fromkeys(cluster.nodes, "converged")
    assert "Apply Multus' objects" in output, "the API server was asked"


def test_drift_on_a_node_in_an_object_and_in_a_secret_is_found_where_it_is(cluster):
    conflist, token = cluster.nodes["node2"] / CONFLIST, cluster.nodes["node2"] / "etc/rancher/k3s/token"
    kept = conflist.read_bytes(), cluster.cluster.path.read_bytes()
    conflist.write_text("{}\n")
    token.chmod(0o644)
    objects = cluster.cluster.objects
    del objects[MAP]
    cluster.cluster.state(objects=objects)
    try:
        code, hosts, output = cluster.drift()
    finally:
        conflist.write_bytes(kept[0])
        token.chmod(0o600)
        cluster.cluster.path.write_bytes(kept[1])
    assert code == 2, output
    assert differences(hosts["node1"]) == {("flannel", "ConfigMap kube-flannel/kube-flannel-cfg")}
    assert differences(hosts["node2"]) == {("flannel", f"/{CONFLIST}"), ("k3s", "/etc/rancher/k3s/token")}


def test_a_server_that_does_not_answer_leaves_the_other_node_its_verdict(cluster):
    code, hosts, output = cluster.drift(node1=AWAY)
    assert code == 4, output
    assert {name: entry["verdict"] for name, entry in hosts.items()} == {"node1": "unreachable", "node2": "converged"}
    assert any("not verified: the cluster's objects, because node1" in text for text in hosts["node2"]["reasons"])


def test_an_api_server_that_is_silent_is_asked_by_one_role_and_the_others_are_not_verified(cluster):
    kept, before = cluster.cluster.path.read_bytes(), len(cluster.cluster.calls())
    cluster.cluster.state(down=True)
    try:
        code, hosts, output = cluster.drift()
        asked = cluster.cluster.calls()[before:]
    finally:
        cluster.cluster.path.write_bytes(kept)
    assert code == 4, output
    assert len(asked) == 1, asked
    reasons = hosts["node1"]["reasons"]
    assert [text.partition(", no API")[0] for text in reasons if "no API server answers" in text] == [
        "not read: role flannel: the cluster's objects"
    ]
    assert any("objects of the roles after the first that got no answer" in text for text in reasons)


def test_a_role_that_refuses_one_node_is_that_nodes_reason_and_the_later_roles_are_compared(cluster):
    code, hosts, output = cluster.drift(node2={"k3s_node_ip": "198.18.1.2"})
    assert code == 4, output
    assert {entry["verdict"] for entry in hosts.values()} == {"unsafe"}, "both claim the address"
    for entry in hosts.values():
        wanted = "role k3s: node-ip 198.18.1.2: wanted a different address"
        assert any(text.startswith(wanted) for text in entry["reasons"])
    assert "Apply Multus' objects" in output
