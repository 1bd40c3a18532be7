"""What the GPU layer lacks is named, with the next step, and never fails; a node without GPUs is not asked."""

from __future__ import annotations

from ansible_collections.gpufabric.rdma.plugins.plugin_utils._verify.gpu_checks import gpu_checks

GPU = {"address": "0000:41:00.0", "vendor": "10de"}
PLACE = {"host": "gpu-01", "netdevs": {}}


def facts(gpus=2, **nvidia):
    return {"gpus": [GPU] * gpus, "gpudirect": {"evidence": {"nvidia": nvidia} if nvidia else None}}


def cluster(classes=("nvidia",), **allocatable):
    node = {"name": "gpu-01", "addresses": [], "allocatable": {"nvidia.com/gpu": allocatable.get("gpus", 0)}}
    return {"nodes": [node], "runtime_classes": None if classes is None else list(classes)}


def told(*arguments):
    return {item["id"]: item for item in gpu_checks("gpu-01", *arguments)}


def test_a_whole_gpu_layer_passes():
    made = told(facts(loaded=True, on_disk=True, version="570.86.15"), cluster(gpus=2), PLACE)
    assert [item["status"] for item in made.values()] == ["passed"] * 3
    assert made["gpu:driver"]["seen"] == "loaded, version 570.86.15"


def test_what_it_lacks_is_not_ours_and_comes_with_the_next_step():
    made = told(facts(loaded=False, on_disk=False), cluster(classes=()), PLACE)
    assert list(made) == ["gpu:driver", "gpu:resource", "gpu:runtime-class"]
    for item in made.values():
        assert item["status"] == "not_verified"
        assert "not ours" in item["seen"]
        assert item["next_step"]
    assert made["gpu:driver"]["seen"].startswith("no nvidia module on this node")
    assert made["gpu:resource"]["seen"].startswith("not allocatable")
    assert "GPU Operator" in made["gpu:resource"]["next_step"]


def test_fewer_gpus_than_on_pci():
    made = told(facts(loaded=True), cluster(gpus=1), PLACE)
    assert made["gpu:resource"]["status"] == "not_verified"
    assert made["gpu:resource"]["seen"].startswith("1 allocatable")


def test_without_a_cluster_or_its_types_only_the_driver_is_asked_about():
    assert list(told(facts(on_disk=True), None, None)) == ["gpu:driver"]
    assert told(facts(on_disk=True), None, None)["gpu:driver"]["seen"].startswith("on disk, not loaded")
    assert list(told(facts(loaded=True), cluster(None, gpus=2), PLACE)) == ["gpu:driver", "gpu:resource"]


def test_a_node_without_nvidia_gpus_is_not_asked():
    assert told(facts(gpus=0, loaded=False), cluster(), PLACE) == {}
    assert told({"gpus": [{"address": "x", "vendor": "1002"}]}, cluster(), PLACE) == {}
