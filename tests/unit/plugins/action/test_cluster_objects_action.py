"""Images that nodes pull are named by the lock's digest; those of the bundle by the tag they are imported under."""

from __future__ import annotations

import copy

import pytest
import yaml
from ansible_collections.gpufabric.rdma.plugins.action.cluster_objects import LOCK, by_digest
from ansible_collections.gpufabric.rdma.tests.tools import rendered_objects

IMAGES = yaml.safe_load(LOCK.read_text())["images"]
DIGESTS = {image["reference"]: image["digests"].get("index") for image in IMAGES}


def images(objects):
    pods = [rendered_objects.pod_of(item) for item in objects if item["kind"] in rendered_objects.WORKLOADS]
    return {one["image"] for pod in pods for one in [*pod["containers"], *pod.get("initContainers", ())]}


@pytest.fixture(scope="module")
def objects():
    found = [item for items in rendered_objects.by_source().values() for item in items if item.get("metadata")]
    return [item for item in found if item["kind"] not in rendered_objects.WORKLOADS or "selector" in item["spec"]]


def test_every_image_that_the_lock_has_a_digest_for_is_pulled_by_it(objects):
    before = copy.deepcopy(objects)
    made = images(by_digest(objects, None))
    assert objects == before, "the input is the caller's"
    wanted = {name: DIGESTS.get(name) for name in images(objects)}
    assert made == {f"{name}@{digest}" if digest else name for name, digest in wanted.items()}
    # Not verified: what no public list had a digest for; and our plugin, which is built, not pulled.
    assert {name for name, digest in wanted.items() if not digest} == {
        "ghcr.io/k8snetworkplumbingwg/ib-sriov-cni:v1.3.0",
        "ghcr.io/k8snetworkplumbingwg/whereabouts:v0.9.3",
        "localhost/rdma-device-plugin:0.1.0",
    }


def test_an_image_that_the_bundle_brings_keeps_its_tag(objects, tmp_path):
    flannel = next(image["reference"] for image in IMAGES if image["name"] == "flannel")
    described = {"schema": 1, "origin": "release", "files": [], "images": [{"reference": flannel, "path": "x"}]}
    (tmp_path / "bundle.yml").write_text(yaml.safe_dump(described))
    made = images(by_digest(objects, str(tmp_path)))
    assert flannel in made
    assert f"{flannel}@{DIGESTS[flannel]}" not in made
    assert sum("@" in name for name in made) == sum(bool(DIGESTS.get(name)) for name in images(objects)) - 1


@pytest.mark.parametrize("text", [None, "images: ["])
def test_a_bundle_that_cannot_be_read_brings_nothing(objects, tmp_path, text):
    if text is not None:
        (tmp_path / "bundle.yml").write_text(text)
    assert by_digest(objects, str(tmp_path)) == by_digest(objects, None)


def test_an_image_of_the_user_s_own_stays_as_it_is():
    own = ["registry.example.com/flannel:v0.28.9", "ghcr.io/flannel-io/flannel:v0.28.9@sha256:" + "0" * 64]
    pod = {"containers": [{"name": str(place), "image": name} for place, name in enumerate(own)]}
    item = {"kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {"template": {"spec": pod}}}
    assert images(by_digest([item], None)) == set(own)
