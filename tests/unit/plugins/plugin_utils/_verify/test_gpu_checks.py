"""What the GPU layer lacks is named, with the next step, and never fails; a node without GPUs is not asked."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize(("node", "offered", "verdicts"), [
    (facts(loaded=True, version="570"), cluster(gpus=2), ["passed"] * 3),
    (facts(loaded=False, on_disk=False), cluster(classes=()), ["not_verified"] * 3),
    (facts(loaded=True), cluster(gpus=1), ["passed", "not_verified", "passed"]),
])  # fmt: skip
def test_what_the_layer_lacks_is_not_verified(node, offered, verdicts):
    made = told(node, offered, PLACE)
    assert [item["status"] for item in made.values()] == verdicts
    assert list(made) == ["gpu:driver", "gpu:resource", "gpu:runtime-class"]
    assert all(item["next_step"] for item in made.values() if item["status"] == "not_verified")


def test_without_a_cluster_or_its_types_only_the_driver_is_asked_about():
    assert list(told(facts(on_disk=True), None, None)) == ["gpu:driver"]
    assert list(told(facts(loaded=True), cluster(None, gpus=2), PLACE)) == ["gpu:driver", "gpu:resource"]


def test_a_node_without_nvidia_gpus_is_not_asked():
    assert told(facts(gpus=0, loaded=False), cluster(), PLACE) == {}
    assert told({"gpus": [{"address": "x", "vendor": "1002"}]}, cluster(), PLACE) == {}
