"""The first run, from bare nodes to pods with verbs."""

import json
import pathlib

import pytest
import yaml


def test_site_takes_bare_nodes_to_pods_with_verbs(cluster):
    if cluster.first is None:
        pytest.skip("not verified in this session: the cluster was there already, saved by the one that made it")
    for name in cluster.nodes:
        assert cluster.first.checks(name, "failed") == []

    cluster.note(f"{cluster.first_seconds:7.0f} s  site.yml on bare nodes")


def test_test_pods_run_as_uid_1000_without_a_registry_and_without_an_image_of_their_own(cluster):
    """On a node whose containerd reaches no registry; all images are those of the bundle folder."""
    if cluster.first is None:
        pytest.skip("not verified in this session: the cluster was there already, saved by the one that made it")
    if cluster.given("k3s_bundle_dir") is None:
        pytest.skip("not verified in this lab: its nodes pull their images, see the test of the mirror")
    bundle = yaml.safe_load((cluster.state / "bundle" / "bundle.yml").read_text())
    for name in cluster.nodes:
        passed = {check["id"]: check["seen"] for check in cluster.first.checks(name, "passed")}
        assert passed["pod:workload:user"] == "user 1000"
        assert {
            "pod:workload:running",
            "pod:workload:devices",
            "pod:workload:dns",
            "pod:workload:peer",
        } <= passed.keys()
        pull = "timeout 60 k3s ctr images pull docker.io/library/busybox:1.37 &>/dev/null && echo yes || echo no"
        assert cluster.node(name, pull) == "no", "this lab node reaches a registry: the test shows nothing"
        listed = cluster.node(name, "k3s ctr images list --quiet").split()
        tags = {image for image in listed if "@" not in image and not image.startswith("sha256:")}
        brought = {row["reference"] for row in bundle["images"]}
        cluster.note(f"{name}: {len(tags)} images, of the bundle folder: {len(tags & brought)}")
        if bundle["origin"] == "testbed" and not any("airgap" in reference for reference in brought):
            assert tags <= brought, "a test pod brought an image along"
        size = cluster.node(name, "du -cb /var/lib/rancher/k3s/agent/images/* | tail -n 1").split()[0]
        cluster.note(f"{int(size) / 2**20:7.1f} MiB  imported on {name}, none of it for the test pods")
    ran = [one for results in cluster.first.results.values() for one in results if {"answers", "traffic"} <= one.keys()]
    for seconds in {json.dumps(one["seconds"], sort_keys=True) for one in ran}:
        cluster.note(f"test pods, seconds by part: {seconds}")
    assert ran, "no run of the test pods was recorded"


def test_a_mirror_serves_the_nodes_the_run_and_a_bundle_folder(cluster, tmp_path):
    """The run fetches the files, and the nodes pull images by the lock's digest, without a folder."""
    if cluster.given("k3s_bundle_dir") is not None:
        pytest.skip("not verified in this lab: it has a bundle folder, LAB_CLUSTER=mirror has none")
    locked = yaml.safe_load(pathlib.Path(cluster.given("bundle_lock")).read_text())
    digests = {row["name"]: row["digests"]["amd64"] for row in locked["images"]}
    for name in cluster.nodes:
        listed = cluster.node(name, "k3s ctr images list --quiet")
        assert {row for row in ("flannel", "multus-thick") if f"@{digests[row]}" not in listed} == set()
        assert cluster.node(name, "ls /var/lib/rancher/k3s/agent/images 2>/dev/null || true") == ""
    cluster.succeed("bundle.yml", "-e", f"bundle_dir={tmp_path}")
    held = yaml.safe_load((tmp_path / "bundle.yml").read_text())
    assert {row["reference"] for row in held["images"]} >= {row["reference"] for row in locked["images"]}
