"""backup.yml and restore.yml on three servers with real members of etcd, and an agent, on this machine.

Playbooks, modules and etcd are real; nodes are roots in network namespaces, k3s and systemctl are doubles.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess

import pytest
from ansible_collections.gpufabric.rdma.plugins.module_utils._k3s import backup
from ansible_collections.gpufabric.rdma.tests.restore import machines

pytestmark = pytest.mark.skipif(bool(machines.unusable()), reason=machines.unusable() or "usable")


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    return machines.build(tmp_path_factory.mktemp("k3s"))


@pytest.fixture
def cluster(tmp_path, program):
    found = machines.Cluster(tmp_path, program)
    yield found
    found.end()


def saved(cluster):
    """The folder of a backup with the object `kept`; the cluster then writes `lost`."""
    cluster.first.kubectl("put", "kept=1")
    code, output = cluster.play("backup", "-e", f"k3s_backup_dir={cluster.folder}/backups")
    assert code == 0, output
    (folder,) = (cluster.folder / "backups").iterdir()
    cluster.machines["server2"].kubectl("put", "lost=1")
    assert cluster.machines["server3"].objects() == {"kept": "1", "lost": "1"}
    return folder


def restore(cluster, folder, *words, allowed=True, **options):
    consent = ["-e", json.dumps({"k3s_restore_allowed": allowed})]
    return cluster.play("restore", "-e", f"k3s_backup={folder}", *consent, *words, **options)


def assert_restored(cluster):
    for machine in cluster.servers:
        assert machine.objects() == {"kept": "1"}, machine.name
        assert sorted(machine.kubectl("members").split()) == [server.name for server in cluster.servers]
        assert backup.record(_tree(machine))["step"] == backup.DONE
    for machine in cluster.servers[1:]:
        kept = [name for name in os.listdir(machine.root / "var/lib/rancher/k3s/server") if ".before-restore-" in name]
        assert len(kept) == 1, "set aside once, and not deleted"
        assert (machine.root / "var/lib/rancher/k3s/server" / kept[0] / "etcd/member/snap/db").is_file()
    assert any(
        name.startswith("etcd-old-") for name in os.listdir(cluster.first.root / "var/lib/rancher/k3s/server/db")
    )
    assert not cluster.first.has("/var/lib/gpufabric-rdma/k3s-restore"), "the copy of the backup is gone"


def _tree(machine):
    from ansible_collections.gpufabric.rdma.plugins.module_utils.hca import Tree

    return Tree(str(machine.root))


def test_a_backup_holds_what_a_restore_needs_and_only_its_owner_reads_it(cluster):
    folder = saved(cluster)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {
        "SHA256SUMS", "backup.json", "node-password", "snapshot.db", "token",
    }  # fmt: skip
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    said = json.loads((folder / "backup.json").read_text())
    assert (said["datastore"], said["k3s"], said["server"]) == ("etcd", "v1.35.8+double1", "server1")
    assert (folder / "token").read_text().strip() == machines.TOKEN
    for machine in cluster.machines.values():
        assert not machine.has(backup.STAGED)
    code, output = cluster.play("backup", "-e", f"k3s_backup_dir={cluster.folder}/backups")
    assert code == 0, output
    assert len(list((cluster.folder / "backups").iterdir())) == 2, "a second backup stands beside the first"


def test_a_restore_asks_then_takes_all_nodes_back_and_a_second_one_changes_nothing(cluster):
    folder = saved(cluster)
    before = cluster.machines["agent1"].text("/run/double-k3s-agent.pid")
    for allowed in (None, False):
        code, output = restore(cluster, folder, allowed=allowed)
        assert (code == 0) is (allowed is False), output
        assert "What the cluster has written since" in output
        assert cluster.first.objects() == {"kept": "1", "lost": "1"}
    code, output = restore(cluster, folder)
    assert code == 0, output
    assert_restored(cluster)
    assert cluster.machines["agent1"].text("/run/double-k3s-agent.pid") != before
    cluster.first.kubectl("put", "later=1")
    code, output = restore(cluster, folder)
    assert code == 0, output
    assert "has been restored already" in output
    assert cluster.first.objects() == {"kept": "1", "later": "1"}
    code, output = restore(cluster, folder, "-e", "k3s_restore_again=true")
    assert code == 0, output
    assert cluster.machines["server3"].objects() == {"kept": "1"}


STEP = "Restore the node, this part of it"


@pytest.mark.parametrize(
    "place",
    [
        f"server1 {STEP}",
        "server1 Copy the backup to the first server",
        f"server2 {STEP}",
        f"server3 {STEP}",
        "server1 Remove the copy of the backup",
    ],
)
def test_a_restore_that_was_killed_goes_on(cluster, place):
    folder = saved(cluster)
    code, output = restore(cluster, folder, cut_off=place)
    assert code == -9, output
    code, output = restore(cluster, folder)
    assert code == 0, output
    assert_restored(cluster)


REFUSED = {
    "a damaged snapshot": ("snapshot.db", lambda text: text[:-7] + b"damaged", "sha256"),
    "a lost token": ("token", None, "No such file"),
    "another cluster's": (
        "backup.json",
        lambda text: text.replace(b'"cluster": "', b'"cluster": "0'),
        "node of the cluster with CA",
    ),
    "another version's": ("backup.json", lambda text: text.replace(b"v1.35.8", b"v1.34.9"), "which made backup"),
    "not a backup": ("backup.json", lambda text: b"{}", "not schema 1"),
}


def test_what_cannot_be_restored_is_refused_before_any_node_is_touched(cluster):
    folder = saved(cluster)
    for name, (file, change, said) in REFUSED.items():
        text = (folder / file).read_bytes()
        (folder / file).unlink()
        if change:
            (folder / file).write_bytes(change(text))
        code, output = restore(cluster, folder)
        assert code != 0, name
        assert said in output, (name, output)
        (folder / file).write_bytes(text)
    code, output = restore(cluster, folder, "--limit", "server1,server2,agent1")
    assert code != 0
    assert "server3" in output
    cluster.machines["agent1"].file("/etc/rancher/k3s/token", "other\n", 0o600)
    code, output = restore(cluster, folder)
    assert code != 0
    assert "token was changed after the backup" in output
    assert machines.TOKEN not in output
    for machine in cluster.machines.values():
        assert not machine.has(backup.RECORD)
    assert cluster.first.objects() == {"kept": "1", "lost": "1"}
