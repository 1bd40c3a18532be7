"""cni_plugins, flannel, node_ready and multus as a play: two nodes' trees, a double of kubectl and its API server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pathlib
import tarfile

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running, tree
from ansible_collections.gpufabric.rdma.tests.unit.plugins.module_utils._cni.test_cni_lint import program

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROLES = ["cni_plugins", "flannel", "node_ready", "multus"]
SECRET = "dGhlIHRva2VuIHRoYXQgbm9ib2R5IG1heSBzZWU="  # base64 of the next
CLEAR = "the token that nobody may see"
LOCAL = {"gpufabric.rdma.refuse", "ansible.builtin.set_fact", "set_fact"}
ON_NODE = (
    "etc/cni/gpufabric-rdma.d/10-flannel.conflist",
    "etc/gpufabric-rdma/node-ready.json",
    "etc/modules-load.d/gpufabric-rdma-pod-network.conf",
    "etc/sysctl.d/zz-gpufabric-rdma-pod-network.conf",
    "etc/systemd/system/gpufabric-rdma-multus.service",
    "etc/systemd/system/gpufabric-rdma-node-ready.service",
    "etc/tmpfiles.d/gpufabric-rdma-multus.conf",
    "opt/cni/bin/flannel",
    "opt/cni/bin/loopback",
    "usr/local/libexec/gpufabric-rdma-multus",
    "usr/local/libexec/gpufabric-rdma-node-ready",
)


def bundle(folder: pathlib.Path) -> pathlib.Path:
    """A bundle folder with the plugins that the role's defaults name."""
    names = yaml.safe_load((ROOT / "roles/common/defaults/main.yml").read_text())["cni_plugins_names"]
    folder.mkdir()
    with tarfile.open(folder / "cni.tgz", "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 512
            archive.addfile(member, io.BytesIO(program()))
    (folder / "flannel").write_bytes(program())
    rows = [
        {"name": name, "version": "v1", "architecture": "amd64", "path": path}
        for name, path in (("cni-plugins", "cni.tgz"), ("flannel-cni-plugin", "flannel"))
    ]
    for row in rows:
        row["sha256"] = hashlib.sha256((folder / row["path"]).read_bytes()).hexdigest()
    (folder / "bundle.yml").write_text(json.dumps({"schema": 1, "origin": "testbed", "files": rows, "images": []}))
    return folder


class Site:
    def __init__(self, folder: pathlib.Path):
        self.folder, self.cluster = folder, kubectl_cluster.Cluster(folder / "cluster.json")
        self.nodes = {name: folder / name for name in ("node1", "node2")}
        hosts = {}
        for name, root in self.nodes.items():
            tree.lay_out(tree.load("lab-rxe-debian12"), root)
            (root / "proc/sys/kernel/hostname").write_text(f"{name}\n")
            hosts[name] = {"discovery_root": str(root)}
        self.cluster.install(folder / "bin/k3s")
        self.cluster.state(tokens={"*": CLEAR})
        variables = running.local(discovery_software_hcas=True, k3s_bundle_dir=str(bundle(folder / "bundle")))
        inventory = {"gpu_nodes": {"hosts": hosts, "vars": variables}, "k3s_servers": {"hosts": {"node1": {}}}}
        play = {
            "name": "Pod network",
            "hosts": "gpu_nodes",
            "gather_facts": False,
            "tasks": [
                {"gpufabric.rdma.hca_facts": {"root": "{{ discovery_root }}", "software_hcas": True}},
                *({"ansible.builtin.import_role": {"name": f"gpufabric.rdma.{role}"}} for role in ROLES),
            ],
        }
        (folder / "play.yml").write_text(json.dumps([play]))
        (folder / "hosts.json").write_text(json.dumps(inventory))

    def play(self, *arguments: str) -> dict:
        code, report, output = running.told(self.folder, "-i", "hosts.json", "play.yml", "--diff", *arguments)
        assert code == 0, output[-6000:]
        assert CLEAR not in output
        assert SECRET not in output
        return report

    def objects(self) -> set:
        return set(self.cluster.objects)

    def files(self) -> dict:
        return {
            f"{name}/{path.relative_to(root)}": path.read_bytes()
            for name, root in self.nodes.items()
            for directory in ("etc", "opt", "usr/local", "var/lib/gpufabric-rdma")
            for path in (root / directory).rglob("*")
            if path.is_file()
        }


def calls(result: dict) -> dict:
    """{(host, role): remote calls}; a delegated task counts where it runs."""
    found: dict = {}
    for task in result["plays"][0]["tasks"]:
        role, _colon, _name = task["task"]["name"].partition(" : ")
        for host, outcome in task["hosts"].items():
            action = outcome.get("action", "")
            if outcome.get("skipped") or action in LOCAL or "arg spec" in task["task"]["name"] or not _colon:
                continue
            place = "node1" if action.endswith("cluster_objects") else host
            found[(place, role.rpartition(".")[2])] = found.get((place, role.rpartition(".")[2]), 0) + 1
    return found


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_a_bare_node_is_predicted_set_up_left_alone_and_healed(site):
    before = site.files()
    checked = site.play("--check")
    assert checked["stats"]["node1"]["changed"] > 3
    assert (site.files(), site.objects()) == (before, set()), "check mode has changed something"

    site.play()
    for name, root in site.nodes.items():
        assert [path for path in ON_NODE if not (root / path).is_file()] == []
        token = root / "etc/gpufabric-rdma/node-ready.token"
        assert (token.read_text().strip(), token.stat().st_mode & 0o777) == (CLEAR, 0o600)
        settings = json.loads((root / "etc/gpufabric-rdma/node-ready.json").read_text())
        assert (settings["node"], settings["resources"], settings["memlock"]) == ("", None, None)
        wants = root / "etc/systemd/system/k3s-agent.service.wants/gpufabric-rdma-node-ready.service"
        assert os.readlink(wants) == "../gpufabric-rdma-node-ready.service"
        role = site.cluster.objects[f"ClusterRole//gpufabric-node-ready-{name}"]
        assert role["rules"] == [
            {"apiGroups": [""], "resources": ["nodes"], "resourceNames": [name], "verbs": ["get", "patch"]}
        ]
    conflist = json.loads((site.nodes["node1"] / ON_NODE[0]).read_text())
    assert [plugin["type"] for plugin in conflist["plugins"]] == ["flannel", "portmap"]
    assert "r! /etc/cni/net.d/00-multus.conf\n" in (site.nodes["node1"] / ON_NODE[6]).read_text()
    assert {
        "DaemonSet/kube-flannel/kube-flannel-ds",
        "DaemonSet/kube-multus/kube-multus-ds",
        "CustomResourceDefinition//network-attachment-definitions.k8s.cni.cncf.io",
    } <= site.objects()

    settled, known = site.files(), site.objects()
    again = site.play()
    assert {host: stats["changed"] for host, stats in again["stats"].items()} == {"node1": 0, "node2": 0}
    assert (site.files(), site.objects()) == (settled, known)
    counted = {place: count for place, count in calls(again).items() if place[1] != "discovery"}
    assert {role for _host, role in counted} == set(ROLES)
    assert max(counted.values()) <= 2, counted

    # One node alone, with four drifts: the objects of the other node are nobody's left-overs.
    root = site.nodes["node2"]
    (root / ON_NODE[0]).unlink()
    (root / "opt/cni/bin/loopback").write_bytes(b"swapped")
    (root / ON_NODE[3]).write_text("net.ipv4.ip_forward = 0\n")
    (root / "etc/gpufabric-rdma/node-ready.token").chmod(0o644)
    site.play("--limit", "node2")
    assert (site.files(), site.objects()) == (settled, known)
    assert (root / "etc/gpufabric-rdma/node-ready.token").stat().st_mode & 0o777 == 0o600
