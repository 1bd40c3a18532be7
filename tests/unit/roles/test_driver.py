"""The role driver: cordon and drain against a double of kubectl, its step in host.yml, its source and keys."""

import hashlib
import json
import pathlib
import re

import pytest
import yaml
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running, tree

ROOT = pathlib.Path(__file__).resolve().parents[3]
MARK = "rdma.gpufabric.io/cordoned-for-driver"
POD = kubectl_cluster.pod("jobs", "train-0", "node1", owner="ReplicaSet")
PROXY = kubectl_cluster.pod("kube-system", "kube-proxy-x", "node1", owner="DaemonSet")
# The gate's answer for a node with pods; the driver itself is left alone here.
GATE = {"verdict": "nothing", "steps": ["cordon and drain the Kubernetes node"]}


class Cluster(kubectl_cluster.Cluster):
    """The cluster, and the two halves of the role that use it."""

    def __init__(self, folder):
        super().__init__(folder / "cluster.json")
        self.folder = folder
        tree.lay_out(tree.load("h100-8x-cx7-ib"), folder / "node")  # memory and disk hold the same driver
        self.add(kubectl_cluster.node("node1", annotations={"a.example/b": "kept"}), POD, PROXY)

    def seen(self):
        """(cordoned, annotations, names of the pods)"""
        node = self.objects["Node//node1"]
        pods = [item["metadata"]["name"] for item in self.objects.values() if item["kind"] == "Pod"]
        return node["spec"].get("unschedulable", False), node["metadata"]["annotations"], pods

    def play(self, *halves, **variables):
        """Runs activate.yml, verify.yml or both; (exit code, number of changes, output)."""
        role = {"name": "gpufabric.rdma.driver"}
        tasks = [{"ansible.builtin.include_role": {**role, "tasks_from": half}} for half in halves]
        known = {"discovery_root": str(self.folder / "node"), "driver_drain_allowed": True}
        known |= {"driver_drain_command": self.argv, "__driver_plan": {"changes": []}, "__driver_gate": GATE}
        known["__discovery_planned"] = {"hosts": {"node1": {"drain": {"node": "node1", "host": "node1"}}}}
        inventory = {"all": {"hosts": {"node1": running.local(**{**known, **variables})}}}
        play = {"hosts": "all", "gather_facts": False, "tasks": tasks}
        code, report, output = running.told(self.folder, inventory=inventory, plays=[play])
        return code, report["stats"]["node1"]["changed"], output


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


KEPT, LEFT = {"a.example/b": "kept"}, ["kube-proxy-x"]


def test_the_node_is_cordoned_drained_and_uncordoned(cluster):
    assert cluster.play("activate")[:2] == (0, 1)
    assert cluster.seen() == (True, {**KEPT, MARK: "true"}, LEFT)
    assert cluster.play("verify")[:2] == (0, 1)
    assert cluster.seen() == (False, KEPT, LEFT)
    assert cluster.play("verify")[:2] == (0, 0)


def test_a_name_that_the_cluster_does_not_know_is_reported_and_without_consent_it_is_not_asked(cluster):
    code, changed, output = cluster.play("activate", driver_drain_node="gpu-17")
    assert (code, changed, cluster.seen()[0]) == (2, 0, False), output
    assert 'nodes \\"gpu-17\\" not found' in output
    assert "driver_drain_node" in output
    before = cluster.calls()
    assert cluster.play("verify", driver_drain_allowed=None)[0] == 0
    assert cluster.calls() == before


# --- its step in host.yml, by default: it reports the driver without a remote call ------------------------------------


@pytest.mark.parametrize("playbook", ["host", "upgrade_driver"])
def test_inside_host_it_makes_no_remote_call_and_alone_it_reads_the_node_once(tmp_path, playbook):
    hosts = {}
    for name in ("h100-8x-cx7-ib", "doca-loaded-differs-from-disk"):
        root = tree.lay_out(tree.load(name), tmp_path / name)
        hosts[name] = running.local(discovery_root=str(root), limits_services=["containerd"])
    own = {"inventory": {"gpu_nodes": {"hosts": hosts}}, **running.environment(tmp_path / "record")}
    code, output = running.play(tmp_path, f"gpufabric.rdma.{playbook}", **own)
    assert code == 0, output
    told = running.written(tmp_path / "record")
    # A local connection does not pipeline: a module is several calls, each named by task and effect.
    calls = [{call.partition(" [")[0] for call in told[host]["calls"]} for host in hosts]
    if playbook == "upgrade_driver":
        assert calls == [{"gpufabric.rdma.discovery : Gather facts of the node"}] * 2
        return
    plan = output.partition("PLAY [Report or upgrade the HCA driver]")[0]
    assert "the modules in memory" in plan or "mlx5_core in memory is" in plan
    assert "    driver: Loaded: doca" in plan
    for tasks in calls:
        assert tasks, "the run did call the node"
        assert not [task for task in tasks if task.startswith(("gpufabric.rdma.driver", "Gather RDMA facts"))]


# --- the source of its packages and the accepted keys, by the real templates of its variables -------------------------

NEW_KEY = "70454E6BF5D9C2D3B78709E8DC726C5E41B9CC50"
DEFAULTS = {
    name: value
    for role in ("common", "driver")
    for name, value in yaml.safe_load((ROOT / f"roles/{role}/defaults/main.yml").read_text()).items()
}
NODE = {"os": {"id": "ubuntu", "version_id": "24.04", "like": ["debian"]}, "architecture": "x86_64"}
SERVER = "https://linux.mellanox.com/public/repo/doca/3.4.0/ubuntu24.04/x86_64/"
OLD_SERVER = SERVER.replace("3.4.0", "3.2.1")
UNPACKED = "file:///var/lib/gpufabric-rdma/doca-host-3.2.3/"


def test_bundle_repository_file_and_keys(tmp_path):
    row = {"name": "doca-host", "version": "3.2.3", "distribution": "ubuntu24.04", "architecture": "amd64"}
    row |= {"path": "files/amd64/doca-host.deb", "sha256": "1" * 64}
    (tmp_path / "bundle.yml").write_text(json.dumps({"schema": 1, "origin": "release", "files": [row], "images": []}))
    (tmp_path / "key.asc").write_text("armored\n")
    mirror, bundle = {"driver_repository_url": "https://mirror.example.net/doca/"}, {"k3s_bundle_dir": str(tmp_path)}
    url, package, old = mirror["driver_repository_url"], f"{tmp_path}/{row['path']}", {"driver_version": "3.2.1"}
    new = {"driver_version": "3.2.3"}
    # By name: variables, then URL, whether it is trusted, and package.
    cases = {
        "server": ({}, (SERVER, False, "")),
        "mirror": (mirror, (url, False, "")),
        "bundle": (bundle, (UNPACKED, True, package)),
        "bundle, mirror": (bundle | mirror, (url, False, "")),
        "bundle by name, mirror": (bundle | mirror | {"driver_source": "bundle"}, (UNPACKED, True, package)),
        "bundle, server by name": (bundle | {"driver_source": "repository"}, (SERVER, False, "")),
        "bundle, own key": (bundle | {"driver_repository_key": "key.asc"}, (UNPACKED, False, package)),
        "bundle of another release": (bundle | old, (OLD_SERVER, False, "")),
        "file": ({"driver_host_package": "doca-host.deb"} | new, (UNPACKED, True, f"{tmp_path}/doca-host.deb")),
        "accepted": ({"driver_repository_fingerprint": "AB, CD"}, (SERVER, False, "")),
        "unverified": (old, (OLD_SERVER, False, "")),
    }
    show = "{{ {'url': __driver_repository['url'], 'trusted': __driver_repository['trusted'], "
    show += "'keys': __driver_repository['fingerprints'], 'package': __driver_package} | to_json }}"
    facts = {"ansible.builtin.set_fact": {"rdma": {"node": NODE}, "cacheable": True}}
    role = ROOT / "roles/driver"
    plays = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "vars_files": [str(role / "vars/main.yml")],
            "vars": {**DEFAULTS, "role_path": str(role), "driver_flavor": "doca", **given},
            "tasks": [facts, {"ansible.builtin.debug": {"msg": f"CASE {name}={show}"}}],
        }
        for name, (given, _expected) in cases.items()
    ]
    words = ("-i", "localhost,", "-c", "local")
    code, output = running.play(tmp_path, *words, plays=plays, ANSIBLE_CALLBACK_RESULT_FORMAT="json")
    assert code == 0, output
    told = [json.loads(text).removeprefix("CASE ") for text in re.findall(r'"msg": ("CASE .*")', output)]
    seen = {name: json.loads(value) for name, _equals, value in (text.partition("=") for text in told)}
    places = {name: (item["url"], item["trusted"], item["package"]) for name, item in seen.items()}
    assert places == {name: expected for name, (_given, expected) in cases.items()}
    assert (seen["server"]["keys"], seen["unverified"]["keys"]) == ([NEW_KEY], [])
    assert [key.strip() for key in seen["accepted"]["keys"]] == ["AB", "CD"]


def test_a_package_that_was_unpacked_half_way_is_no_repository(tmp_path):
    package, place = tmp_path / "doca-host.deb", tmp_path / "node"
    package.write_bytes(b"package")
    checksum = hashlib.sha256(b"package").hexdigest()
    role = ROOT / "roles/driver"
    tasks = [
        {"ansible.builtin.include_tasks": str(role / "tasks/host_package.yml")},
        {"ansible.builtin.debug": {"msg": "URL {{ __driver_host_url | default('none') }}"}},
    ]
    given = {"driver_flavor": "doca", "driver_host_package": str(package), "driver_host_package_sha256": checksum}
    given |= running.local(__driver_unpacked=str(place), role_path=str(role))
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [str(role / "vars/main.yml")], "tasks": tasks}
    play["vars"] = {**DEFAULTS, "role_path": str(role)}
    (tmp_path / "bin").mkdir()
    repository = f"usr/share/doca-host/repo/{'x' * 8}"

    def run(ends):
        script = f'#!/bin/sh\nmkdir -p "$3/{repository}" && {ends} "$3/{repository}/Packages"\n'
        (tmp_path / "bin/dpkg-deb").write_text(script)
        (tmp_path / "bin/dpkg-deb").chmod(0o755)
        return running.play(tmp_path, "-i", "localhost,", "-c", "local", "-e", json.dumps(given), plays=[play])

    code, output = run("cp /nonexistent")
    assert (code != 0, [path.suffix for path in place.glob("*/")]) == (True, [".part"]), output
    code, output = run("touch")
    assert code == 0, output
    assert f"URL file://{place}/{checksum[:12]}/{repository}/" in output
    assert "changed=0" in run("false")[1]
