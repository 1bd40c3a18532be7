"""The role k3s as a play over two laid-out nodes with a bundle folder: refused, announced, run, run again, removed."""

import hashlib
import json
import os
import pathlib

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import address as shared_address
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import state
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube import k3s as kube_k3s
from ansible_collections.gpufabric.rdma.plugins.module_utils._kube.node import MARK
from ansible_collections.gpufabric.rdma.tests.tools import kubectl_cluster, running, tree
from ansible_collections.gpufabric.rdma.tests.unit.playbooks import test_cluster

ROOT = pathlib.Path(__file__).resolve().parents[3]
ADDRESSES = {"node1": "198.18.1.2", "node2": "198.18.0.15"}
SECRET = "4f7c-planted-token"


@pytest.fixture
def bundle(tmp_path):
    return test_cluster.bundle(tmp_path / "bundle")


@pytest.fixture
def play(tmp_path, bundle):
    """play(role or playbook, *arguments, **variables): exit code and output, over node1 (server) and node2 (agent)."""
    hosts = {}
    for name, address in ADDRESSES.items():
        tree.lay_out(tree.load("lab-rxe-debian12"), tmp_path / name)
        hosts[name] = {"discovery_root": str(tmp_path / name), "k3s_node_ip": address, "k3s_node_name": name}
    role = [{"hosts": "gpu_nodes", "gather_facts": False, "any_errors_fatal": True, "roles": ["gpufabric.rdma.k3s"]}]
    (tmp_path / "role.yml").write_text(yaml.safe_dump(role))

    def run(playbook, *arguments, **variables):
        common = running.local(k3s_bundle_dir=str(bundle), **variables)
        return running.play(tmp_path, playbook, *arguments, inventory={"gpu_nodes": {"vars": common, "hosts": hosts}})

    return run


def files(root):
    return tree.contents(root, "etc", "usr/local", "var/lib/rancher", "opt")


def test_refused_then_announced_then_run_then_nothing_left_to_do_then_removed(play, tmp_path, bundle):
    node1, node2 = (tmp_path / name for name in ADDRESSES)
    (node1 / "opt/cni/bin").mkdir(parents=True)
    (node1 / "opt/cni/bin/mine").write_text("a plugin of someone else's")
    before = [files(node1), files(node2)]

    (bundle / "k3s").write_bytes(b"swapped")
    code, output = play("role.yml", k3s_cluster_cidr="198.18.0.0/16", k3s_config_extra={"x": 1})
    assert code != 0
    lines = ("node1, node2  k3s_cluster_cidr 198.18.0.0/16", "node2  k3s_config_extra: x")
    assert [line for line in (*lines, f"the controller  {bundle}/k3s") if f"\n{line}\n" not in output] == []
    (bundle / "k3s").write_bytes(b"program")
    assert [files(node1), files(node2)] == before, "a refused run has changed something"

    code, announced = play("role.yml", "--check", "--diff", k3s_token=SECRET)
    assert (code, [files(node1), files(node2)]) == (0, before), announced
    code, first = play("role.yml", "--diff", k3s_token=SECRET)
    assert code == 0, first
    now = files(node1)
    written = {path for path in now if path not in before[0]}
    assert written >= {"etc/rancher/k3s/config.yaml", "etc/rancher/k3s/token", "etc/systemd/system/k3s.service"}
    assert all(f"/{path}" in announced for path in written), "check mode names each file"
    assert {now[path][0] for path in written if path.startswith("etc/rancher")} == {0o600}
    assert now["usr/local/bin/k3s"] == (0o755, b"program")
    assert os.readlink(node1 / "usr/local/bin/kubectl") == "/usr/local/bin/k3s"
    agent = files(node2)
    assert b'server: "https://198.18.1.2:6443"' in agent["etc/rancher/k3s/config.yaml"][1]
    assert agent["etc/rancher/k3s/token"] == now["etc/rancher/k3s/token"]
    assert SECRET.encode() in now["etc/rancher/k3s/token"][1]
    assert SECRET not in announced + first

    code, second = play("role.yml", k3s_token=SECRET)
    assert code == 0, second
    assert second.count("changed=0") == 2
    assert [files(node1), files(node2)] == [now, agent]

    (node1 / "var/lib/kubelet/pods").mkdir(parents=True)
    code, output = play("gpufabric.rdma.reset")
    assert code != 0
    assert "/var/lib/rancher/k3s (datastore, certificates, tokens, images), /var/lib/kubelet/pods (emptyDir" in output
    assert [files(node1), files(node2)] == [now, agent]
    code, output = play("gpufabric.rdma.reset", k3s_reset_allowed="true")
    assert code == 0, output
    assert "/opt/cni/bin/mine stays: it is not ours" in output
    assert [files(node1), files(node2)] == before


def test_a_host_put_in_front_of_the_inventory_does_not_become_a_second_cluster(play, tmp_path):
    (tmp_path / "node2/var/lib/rancher/k3s/server/db").mkdir(parents=True)
    nodes, role = {"import_playbook": str(ROOT / "playbooks/layers/cluster_nodes.yml")}, tmp_path / "role.yml"
    (tmp_path / "grouped.yml").write_text(yaml.safe_dump([nodes, *yaml.safe_load(role.read_text())]))
    before = [files(tmp_path / name) for name in ADDRESSES]
    for limit, seen in ((("--limit", "node1"), "not in this run: node2"), ((), "already in a cluster: node2")):
        for playbook in ("role.yml", "grouped.yml"):
            code, output = play(playbook, *limit)
            assert (code != 0, seen in " ".join(output.split())) == (True, True), output
    assert [files(tmp_path / name) for name in ADDRESSES] == before


@pytest.fixture
def cluster(tmp_path):
    """The API server of node1 and node2, with a pod on each, for the play's `k3s kubectl`."""
    found = kubectl_cluster.Cluster(tmp_path / "cluster.json")
    found.install(tmp_path / "bin/k3s")
    for name in ADDRESSES:
        node = kubectl_cluster.node(name, annotations={})
        node["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        found.add(node, kubectl_cluster.pod("jobs", f"train-{name}", name, owner="ReplicaSet"))
    return found


@pytest.fixture
def upgrade(play, tmp_path, bundle):
    """Both nodes run v1.35.8 as it was started, the bundle has v1.35.9; upgrade() is upgrade_k3s.yml."""
    names = {"k3s_node_name": "{{ inventory_hostname }}", "k3s_drain_allowed": True}
    code, output = play("role.yml", **names)
    assert code == 0, output
    for name in ADDRESSES:
        (tmp_path / name / "usr/local/bin/k3s.version").write_text("v1.35.8+k3s1")
        state.remember(str(tmp_path / name), None)
    (bundle / "k3s").write_bytes(b"newer")
    text = (bundle / "bundle.yml").read_text().replace("v1.35.8", "v1.35.9")
    (bundle / "bundle.yml").write_text(
        text.replace(hashlib.sha256(b"program").hexdigest(), hashlib.sha256(b"newer").hexdigest())
    )
    return lambda *arguments: play("gpufabric.rdma.upgrade_k3s", *arguments, **names)


def steps(cluster):
    """(verb, node) of changes to nodes: cordon and uncordon are patches."""
    done = []
    for call in cluster.calls():
        if call[0] == "drain":
            done.append(("drain", call[1]))
        elif call[0] == "patch":
            done.append(("uncordon" if '"unschedulable": null' in call[-1] else "cordon", call[2]))
    return done


EACH = {name: [(verb, name) for verb in ("cordon", "drain", "uncordon")] for name in ADDRESSES}


def copied(tmp_path):
    """node1 has the new program."""
    (tmp_path / "node1/usr/local/bin/k3s").write_bytes(b"newer")
    (tmp_path / "node1/usr/local/bin/k3s.version").write_text("v1.35.9+k3s1")


def test_a_node_that_a_run_left_half_way_is_upgraded_before_the_next_and_a_cordon_survives(upgrade, cluster, tmp_path):
    """The program is copied, k3s was not restarted: done by its files, but not by its record."""
    copied(tmp_path)
    objects = cluster.objects
    objects["Node//node2"]["spec"]["unschedulable"] = True  # by someone else
    cluster.state(objects=objects)
    code, output = upgrade()
    assert code == 0, output
    assert steps(cluster) == [*EACH["node1"], ("drain", "node2")]
    assert (tmp_path / "node2/usr/local/bin/k3s").read_bytes() == b"newer"
    assert cluster.objects["Node//node2"]["spec"]["unschedulable"] is True


def test_a_node_that_is_not_ready_again_ends_the_upgrade(upgrade, cluster, tmp_path):
    """Cut off between restart and Ready: nothing is stale, and the next node is not started."""
    copied(tmp_path)
    state.remember(str(tmp_path / "node1"), None)
    ours = {"manager": "gpufabric.rdma", "operation": "Update", "fieldsV1": [".spec.unschedulable"]}
    objects = cluster.objects
    node = objects["Node//node1"]
    node["status"]["conditions"][0]["status"] = "False"
    node["spec"]["unschedulable"] = True
    node["metadata"].update(annotations={MARK: "true"}, managedFields=[ours])
    cluster.state(objects=objects)
    code, output = upgrade("-e", "k3s_start_timeout_seconds=0")
    assert code != 0
    assert "node node1: wanted Ready, seen not Ready" in " ".join(output.split())
    assert steps(cluster) == []


def test_a_limited_run_reads_the_servers_that_it_leaves_out_and_knows_them_as_peers(play, tmp_path):
    """node4 and node5 do not answer: three of five are a majority, two are not."""
    silent = running.local(ansible_python_interpreter="/nonexistent")
    tree.lay_out(tree.load("lab-rxe-debian12"), tmp_path / "node3")
    node3 = running.local(discovery_root=str(tmp_path / "node3"), k3s_node_ip="198.18.1.3", k3s_node_name="node3")
    others = {"node2": {}, "node3": node3, "node4": {**silent, "ansible_host": "198.18.1.4"}, "node5": silent}
    servers = {"k3s_servers": {"hosts": {"node1": {}, **others}}}
    (tmp_path / "servers.yml").write_text(yaml.safe_dump(servers))
    for name in ADDRESSES:
        (tmp_path / name / "var/lib/rancher/k3s/server/db").mkdir(parents=True)
    words = ("-i", "servers.yml", "--limit", "node1")
    code, output = play("role.yml", *words, k3s_api_address="198.18.1.5")
    assert code != 0
    assert ("in the cluster: node1, node2" in output, "none of node5" in output) == (True, True), output
    (tmp_path / "node3/var/lib/rancher/k3s/server/db").mkdir(parents=True)
    others["node5"]["k3s_node_ip"] = "198.18.1.6"
    (tmp_path / "servers.yml").write_text(yaml.safe_dump(servers))
    code, output = play("role.yml", *words, k3s_api_address="198.18.1.5")
    assert code == 0, output
    text = (tmp_path / "node1" / shared_address.CONFIG[1:]).read_text()
    assert shared_address.configured(text) == "198.18.1.5"
    peers = text.partition("unicast_peer {")[2].partition("}")[0].split()
    assert peers == [ADDRESSES["node2"], "198.18.1.3", "198.18.1.4", "198.18.1.6"]


def test_a_reset_of_a_server_that_etcd_needs_is_refused_and_of_all_it_is_not(play, tmp_path):
    for name in ADDRESSES:
        config = tmp_path / name / kube_k3s.ETCD_CONFIG[1:]
        config.parent.mkdir(parents=True)
        config.write_text("name: x\n")
    words, before = ("gpufabric.rdma.reset", "-i", "servers.yml"), files(tmp_path / "node1")
    for servers in (["node2"], ADDRESSES):  # node1 has left them, and has not
        (tmp_path / "servers.yml").write_text(yaml.safe_dump({"k3s_servers": {"hosts": dict.fromkeys(servers)}}))
        code, output = play(*words, "--limit", "node1", k3s_reset_allowed="true")
        assert (code != 0, "etcd without node1" in output) == (True, True), output
    assert files(tmp_path / "node1") == before
    code, output = play(*words, k3s_reset_allowed="true")
    assert code == 0, output
    assert not (tmp_path / "node1/var/lib/rancher").exists()


def test_a_kubeconfig_has_ca_and_credentials_of_the_server_and_nothing_else_of_it(tmp_path):
    given = {
        "clusters": [{"cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Q0E="}}],
        "users": [
            {"user": {"client-certificate-data": "Y2VydA==\nexec: {command: id}", "client-key-data": "{{ 7*7 }}a2V5"}}
        ],
    }
    given["users"][0]["user"]["exec"] = {"command": "touch", "args": [str(tmp_path / "broken-in")]}
    server, home = tmp_path / "server/etc/rancher/k3s", tmp_path / "home"
    server.mkdir(parents=True)
    (server / "k3s.yaml").write_text(json.dumps(given))
    role = {"name": "gpufabric.rdma.k3s", "tasks_from": "kubeconfig"}
    pod = {"kind": "Pod", "metadata": {"name": "rdma-first"}}
    planned = {"hosts": {"a": {"k3s": {"server_url": "https://192.0.2.1:6443"}}}, "pod": pod}
    known = running.local(discovery_root=str(tmp_path / "server"), __discovery_planned=planned)
    task = {"ansible.builtin.include_role": {**role, "rolespec_validate": False}}
    run = {
        "inventory": {"gpu_nodes": {"hosts": {"a": known}}},
        "plays": [{"hosts": "all", "gather_facts": False, "tasks": [task]}],
    }
    code, output = running.play(tmp_path, **run, HOME=str(home), ANSIBLE_HOME=str(tmp_path))
    assert code == 0, output
    file = home / ".kube/gpufabric-a.yml"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    made = yaml.safe_load(file.read_text())
    assert made["clusters"][0]["cluster"] == {"server": "https://192.0.2.1:6443", "certificate-authority-data": "Q0E="}
    assert made["users"][0]["user"] == {"client-certificate-data": "Y2VydA==execcommandid", "client-key-data": "77a2V5"}
    assert not (tmp_path / "broken-in").exists()
    assert "Q0E=" not in output
    assert yaml.safe_load((file.parent / "gpufabric-a-pod.yml").read_text()) == pod
    assert f"kubectl --kubeconfig {file} apply -f {file.parent}/gpufabric-a-pod.yml" in output
