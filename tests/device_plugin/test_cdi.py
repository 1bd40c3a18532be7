"""CDI: specs of our own, written before they are needed, and no other touched (1.9, A22, A35, A37, A41, A42)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import time

import pytest
from harness import Node, Running, document, entry
from kubelet_double import Kubelet
from rdma_device_plugin import cdi

NAME = "rdma/test_server"
PF0, PF1 = "test_server:0000:01:00.0:mlx5_0", "test_server:0000:01:00.1:mlx5_1"


@pytest.fixture
def kubelet(base):
    with Kubelet(base, watches=False) as running:
        yield running


def spec(base, pool="test_server"):
    return json.loads((base / "cdi" / cdi.file(pool)).read_text())


def test_the_spec_stands_before_the_first_device(base, node, kubelet):
    """A35, A37, A41: upstream writes it after its first list"""
    with Running(base, document(entry()), node.root, use_cdi=True):
        kubelet.wait_allocatable(NAME, 100)
        found = spec(base)
        assert (found["cdiVersion"], found["kind"]) == ("0.5.0", "gpufabric.io/rdma-shared")
        assert [device["name"] for device in found["devices"]] == [PF0, PF1]
        assert found["devices"][0]["containerEdits"]["deviceNodes"] == [
            {"path": path, "hostPath": path, "permissions": "rw"}
            for path in ("/dev/infiniband/umad0", "/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")
        ]
        answer = kubelet.allocate(NAME, ["0"]).container_responses[0]
        assert [device.name for device in answer.cdi_devices] == [f"{cdi.KIND}={PF0}", f"{cdi.KIND}={PF1}"]
        assert not answer.devices
        assert not answer.annotations


def test_annotations_for_old_runtimes(base, node, kubelet):
    """A37, A42"""
    with Running(base, document(entry()), node.root, use_cdi=True, cdi_mode="annotations"):
        kubelet.wait_allocatable(NAME, 100)
        answer = kubelet.allocate(NAME, ["0"]).container_responses[0]
        assert dict(answer.annotations) == {"cdi.k8s.io/gpufabric.io_rdma-shared": f"{cdi.KIND}={PF0},{cdi.KIND}={PF1}"}
        assert not answer.cdi_devices


def test_an_empty_pool_starts(base, node, kubelet):
    """A22"""
    with Running(base, document(entry(selectors={"vendors": ["8086"]})), node.root, use_cdi=True):
        assert kubelet.wait(lambda: NAME in kubelet.clients)
        assert list((base / "cdi").glob("*")) == []


def test_foreign_specs_are_left_alone_and_ours_outlive_the_plugin(base, node, kubelet):
    """Pitfall 4: upstream deletes every nvidia.com*; a container that restarts needs ours during an upgrade"""
    (base / "cdi").mkdir()
    foreign = base / "cdi/nvidia.com-gpu.yaml"
    foreign.write_text("cdiVersion: 0.5.0\n")
    with Running(base, document(entry(), entry("b")), node.root, use_cdi=True) as plugin:
        kubelet.wait_allocatable("rdma/b", 100)
        plugin.configure(document(entry()))
        assert plugin.until(lambda: not (base / "cdi" / cdi.file("b")).exists())
    assert foreign.read_text() == "cdiVersion: 0.5.0\n"
    assert sorted(path.name for path in (base / "cdi").iterdir()) == [cdi.file("test_server"), foreign.name]


def test_an_instance_that_waits_for_another_writes_no_spec(base, node, kubelet):
    other = document(entry(charDevices={"umad": "never"}))

    def specs():
        return {path.name: path.read_text() for path in (base / "cdi").iterdir()}

    with Running(base, document(entry()), node.root, use_cdi=True) as plugin:
        kubelet.wait_allocatable(NAME, 100)
        before = specs()
        with Running(base, other, node.root, use_cdi=True, folder="other") as waiting:
            waiting.rescan()
            time.sleep(1)
            assert specs() == before
            plugin.stop()
            assert waiting.until(lambda: specs() != before, 15)


def test_hot_plug_reaches_the_spec(base, node, kubelet):
    """1.9: upstream never updates it, and a driver that loads late fails every Allocate"""
    for name in ("mlx5_0", "mlx5_1"):
        node.unplug(name)
    with Running(base, document(entry()), node.root, use_cdi=True) as plugin:
        assert kubelet.wait(lambda: NAME in kubelet.clients)
        node.plug("mlx5_0")
        plugin.rescan()
        kubelet.wait_allocatable(NAME, 100)
        assert [device["name"] for device in spec(base)["devices"]] == [PF0]
        node.plug("mlx5_1")
        plugin.rescan()
        assert plugin.until(lambda: len(spec(base)["devices"]) == 2)
        answer = kubelet.allocate(NAME, ["0"]).container_responses[0]
        assert len(answer.cdi_devices) == 2


def test_pools_that_share_an_hca_do_not_collide(base, kubelet):
    """1.9: two files with one qualified name make the runtime drop it"""
    node = Node(base / "node", "sfs")
    with Running(base, document(entry("a"), entry("b", charDevices={"umad": "never"})), node.root, use_cdi=True):
        kubelet.wait_allocatable("rdma/a", 100)
        kubelet.wait_allocatable("rdma/b", 100)
        names = [device["name"] for pool in ("a", "b") for device in spec(base, pool)["devices"]]
        assert len(names) == len(set(names)) == 6


def test_without_a_place_for_specs_character_devices_are_given(base, node, kubelet):
    (base / "cdi").write_text("a file")
    with Running(base, document(entry()), node.root, use_cdi=True):
        kubelet.wait_allocatable(NAME, 100)
        answer = kubelet.allocate(NAME, ["0"]).container_responses[0]
        assert len(answer.devices) == 5
        assert not answer.cdi_devices


def unmount(path):
    subprocess.run(["umount", "--lazy", path], check=False)


@contextlib.contextmanager
def full_folder(path):
    """A file system of one page at `path`, filled to its end; yields the file that fills it."""
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=8", "full", path], capture_output=True)
    if made.returncode:
        pytest.skip(f"not verified: cannot mount a tmpfs here ({made.stderr.decode().strip()})")
    try:
        (path / "filler").write_bytes(b"x" * 4096)
        yield path / "filler"
    finally:
        unmount(path)


def remove_folder(folder):
    """Empty the folder and remove it; the plugin may put a spec back in between, then from the start."""
    while True:
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        try:
            return folder.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


@pytest.mark.parametrize("damage", ["removed", "cut short", "folder removed"])
def test_a_spec_that_is_lost_is_written_again(base, node, kubelet, damage):
    """A spec is state to be kept true, like a socket: without it no new RDMA pod starts"""
    with Running(base, document(entry(), interval=0), node.root, use_cdi=True) as plugin:
        kubelet.wait_allocatable(NAME, 100)
        whole = spec(base)
        path = base / "cdi" / cdi.file("test_server")
        if damage == "cut short":
            path.write_text(path.read_text()[:40])
        elif damage == "removed":
            path.unlink()
        else:
            remove_folder(path.parent)
        assert plugin.until(lambda: path.exists() and path.read_text().endswith("}\n"))
        assert spec(base) == whole


def test_a_full_folder_gets_its_spec_once_there_is_room(base, node, kubelet):
    """Until then character devices do the same, and a write that failed leaves nothing behind"""
    with (
        full_folder(base / "cdi") as filler,
        Running(base, document(entry(), interval=0), node.root, use_cdi=True) as plugin,
    ):
        kubelet.wait_allocatable(NAME, 100)
        assert not kubelet.allocate(NAME, ["0"]).container_responses[0].cdi_devices
        assert os.listdir(base / "cdi") == ["filler"]
        filler.unlink()
        assert plugin.until((base / "cdi" / cdi.file("test_server")).exists)
        assert plugin.until(lambda: kubelet.allocate(NAME, ["0"]).container_responses[0].cdi_devices)


def test_one_pool_without_a_spec_is_reported_once(base, node, kubelet, caplog):
    """The specs are checked every few seconds; another pool's good spec is not logged each time"""
    caplog.set_level("INFO")
    (base / "cdi" / cdi.file("b")).mkdir(parents=True)
    with Running(base, document(entry("a"), entry("b"), interval=0), node.root, use_cdi=True):
        kubelet.wait_allocatable("rdma/a", 100)
        kubelet.wait_allocatable("rdma/b", 100)
        assert kubelet.allocate("rdma/a", ["0"]).container_responses[0].cdi_devices
        assert not kubelet.allocate("rdma/b", ["0"]).container_responses[0].cdi_devices
        time.sleep(1.5)  # five looks
    told = [record.getMessage() for record in caplog.records if "CDI" in record.getMessage()]
    assert len(told) == len(set(told)) == 2
