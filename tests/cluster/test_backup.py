"""backup.yml and restore.yml on the lab's cluster: what was written since is gone, and running pods notice nothing."""

from __future__ import annotations

import json
import pathlib
import subprocess
import tempfile

import pytest

CONTAINERS = "k3s ctr containers list --quiet | sort"


def config_map(cluster, name):
    cluster.kubectl("create", "configmap", name, "--namespace=default", f"--from-literal=made={name}")


def names(cluster):
    items = cluster.get("configmap", "--namespace=default")["items"]
    return {item["metadata"]["name"] for item in items} - {"kube-root-ca.crt"}


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as made:
        yield pathlib.Path(made)


def test_the_cluster_goes_back_to_a_backup_under_its_running_pods(breakable, folder):
    config_map(breakable, "kept")
    with breakable.timed("backup.yml"):
        saved = breakable.run("backup.yml", "-e", f"k3s_backup_dir={folder}")
    assert saved.code == 0, saved.text[-6000:]
    (made,) = folder.iterdir()
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=made, check=True, capture_output=True)
    said = json.loads((made / "backup.json").read_text())
    breakable.note(f"{said['files']['snapshot.db']['bytes'] / 1e6:7.1f} MB  snapshot of etcd")
    config_map(breakable, "lost")
    breakable.kubectl("delete", "configmap", "kept", "--namespace=default")
    running = {name: breakable.node(name, CONTAINERS) for name in breakable.nodes}

    asked = breakable.run("restore.yml", "-e", f"k3s_backup={made}")
    assert asked.code != 0
    assert "k3s_restore_allowed is not set" in asked.text
    assert names(breakable) == {"lost"}

    allowed = ("-e", f"k3s_backup={made}", "-e", "k3s_restore_allowed=true")
    with breakable.timed("restore.yml"):
        done = breakable.run("restore.yml", *allowed)
    assert done.code == 0, done.text[-6000:]
    assert names(breakable) == {"kept"}
    breakable.wait(breakable.settled, "all nodes Ready and all pods running")
    assert {name: breakable.node(name, CONTAINERS) for name in breakable.nodes} == running

    config_map(breakable, "later")
    second = breakable.run("restore.yml", *allowed)
    assert second.code == 0, second.text[-6000:]
    assert "has been restored already" in second.text
    assert names(breakable) == {"kept", "later"}

    last = breakable.run("site.yml")
    assert last.code == 0, last.text[-6000:]
    assert [last.checks(name, "failed") for name in breakable.nodes] == [[]] * len(breakable.nodes)


def test_a_damaged_backup_and_another_clusters_are_refused(breakable, folder):
    assert breakable.run("backup.yml", "-e", f"k3s_backup_dir={folder}").code == 0
    (made,) = folder.iterdir()
    for file, old, new in (("backup.json", b'"cluster": "', b'"cluster": "0'), ("token", b"K10", b"K11")):
        text = (made / file).read_bytes()
        (made / file).write_bytes(text.replace(old, new))
        refused = breakable.run("restore.yml", "-e", f"k3s_backup={made}", "-e", "k3s_restore_allowed=true")
        assert refused.code != 0, file
        assert "nothing has been changed" in refused.text
        (made / file).write_bytes(text)
